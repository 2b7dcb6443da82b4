"""Columns inferred from an Arrow schema: the inverse of `column_output.arrow_schema`, as far as there is one.

Arrow strings and bytes have no maximum length, so they become Text and Blob. These are not keyable, so columns of the
primary key become VarChar and VarBinary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tidemark.engine.base.errors import NoSuchColumn, SchemaInvalid
from tidemark.engine.schema.column import DISK, MEMORY, Column
from tidemark.engine.types.base import families, shown

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemark.engine.types import ColumnType


def has_arrow_schema(given: object) -> bool:
    """Whether an object is an Arrow schema, or data with one: of Arrow, pandas, polars (a LazyFrame too) or DuckDB."""
    return any(hasattr(given, name) for name in ("__arrow_c_schema__", "__arrow_c_stream__", "collect_schema"))


def columns_like(given: Any, primary_key: Sequence[str]) -> list[Column]:
    """Return the columns of a table for rows such as those of `given`, which are not read, but for pandas' columns of
    Python objects. Raises: as `columns_from_arrow`; SchemaInvalid for data without columns.
    """
    index = [name for name in getattr(getattr(given, "index", None), "names", ()) if name is not None]
    for name in primary_key:
        if name in index and name not in given.columns:
            raise NoSuchColumn(
                f"the key {name!r} is in the index of the frame, which is no column; call reset_index()", column=name
            )
    return columns_from_arrow(_schema_of(given), primary_key)


def _schema_of(given: Any) -> pa.Schema:
    import pyarrow as pa

    if hasattr(given, "collect_schema"):  # of polars; a LazyFrame is not computed
        given = given.collect_schema().to_frame()
    try:
        if isinstance(given, pa.Schema):
            return given
        if type(given).__module__.partition(".")[0] == "pandas" and hasattr(given, "columns"):
            return pa.Schema.from_pandas(given, preserve_index=False)
        if hasattr(given, "__arrow_c_stream__"):
            return pa.RecordBatchReader.from_stream(given).schema
        return pa.schema(given)
    except (pa.ArrowException, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise SchemaInvalid(
            f"no columns of a table follow from {shown(given)}: {reason}; give Column objects"
        ) from error


def columns_from_arrow(schema: pa.Schema, primary_key: Sequence[str], disk: Sequence[str] = ()) -> list[Column]:
    """Return a column for every field, nullable like the field except key columns; columns named in `disk` are on disk.

    Raises: NoSuchColumn for a key or disk column the schema lacks, SchemaInvalid for a type no column holds.
    """
    for names, purpose in ((primary_key, "for the primary key"), (disk, "to put on disk")):
        for name in names:
            if name not in schema.names:
                raise NoSuchColumn(
                    f"there is no column {name!r} {purpose}; the columns are {', '.join(schema.names)}", column=name
                )
    return [
        Column(
            field.name,
            _type_of(field, field.name in primary_key),
            field.nullable and field.name not in primary_key,
            storage=DISK if field.name in disk else MEMORY,
        )
        for field in schema
    ]


def _type_of(field: pa.Field, is_key: bool) -> ColumnType:
    import pyarrow as pa

    kind = field.type
    while kind is not None:
        found = next(filter(None, (family.of_arrow(kind, is_key) for family in families())), None)
        if found is not None:
            return found
        is_encoded = pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind)
        kind = kind.value_type if is_encoded else getattr(kind, "storage_type", None)
    raise SchemaInvalid(
        f"column {field.name!r} has Arrow type {field.type}, which no column holds; convert it or leave it out",
        column=field.name,
    )
