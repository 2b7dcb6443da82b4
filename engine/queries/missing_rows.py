"""`get_many(missing="null")`: a row of NULLs in the place of a key without a row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from tidemark.engine.base.errors import SchemaInvalid
from tidemark.engine.index.unique_keys import KeyEncoder
from tidemark.engine.rows.column_input import to_key_columns
from tidemark.engine.schema.names import as_names
from tidemark.engine.types.base import shown

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemark.engine.schema.definition import TableDefinition

Missing = Literal["drop", "null"]
DROP: Missing = "drop"
NULL: Missing = "null"


def in_place(
    get: Callable[[Any, Sequence[str] | None], pa.RecordBatch],
    definition: TableDefinition,
    keys: Any,
    columns: Sequence[str] | None,
    index: str | None,
    missing: Missing,
) -> pa.RecordBatch:
    """Return a row for each key, in the order of the keys: those that `get` returns for the keys and columns, and NULL
    in all columns for a key without a row.

    Raises: SchemaInvalid unless `missing` is "null"; as `get`.
    """
    import pyarrow as pa

    if missing != NULL:
        raise SchemaInvalid(f"missing must be {DROP!r} or {NULL!r}, got {shown(missing)}", table=definition.name)
    names: Sequence[str] = definition.primary_key
    if index is not None:
        known = {each.name: each.columns for each in definition.indexes}
        if index not in known:
            return get(keys, columns)  # Raises: NoSuchIndex
        names = known[index]
    given = to_key_columns(keys, definition, names)
    wanted = None if columns is None else as_names(columns, "columns")
    asked = None if wanted is None else [*wanted, *(name for name in names if name not in wanted)]
    rows = get(given, asked)
    if rows.num_rows < len(given[names[0]]):  # to see which keys have no row takes longer than to read the rows
        encoder = KeyEncoder(definition, names)
        places = encoder.encode(given).places_in(encoder.encode(rows))
        rows = rows.take(pa.array(places, mask=places < 0))
    kept = rows if wanted is None else rows.select(wanted)
    fields = [field.with_nullable(True) for field in kept.schema]
    return pa.RecordBatch.from_arrays(kept.columns, schema=pa.schema(fields))
