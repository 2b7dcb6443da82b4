"""Keys of a call in a form that can be sent to another process."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tidemark.engine.index.unique_keys import KeyEncoder
from tidemark.engine.rows.column_input import to_columns

if TYPE_CHECKING:
    from tidemark.engine.schema.definition import TableDefinition

_TAKE_KEYS = ("get_many", "delete_many")


def with_sent_keys(
    method: str, arguments: list[Any], named: dict[str, Any], place: int, definition: Callable[[], TableDefinition]
) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments of a call with its keys as an Arrow table, if they are an array or an iterator, which cannot
    be sent. place: of the keys among the arguments. definition: returns that of the table. Raises: as the call.
    """
    import pyarrow as pa

    is_named = "keys" in named
    if method not in _TAKE_KEYS or not (is_named or len(arguments) > place):
        return arguments, named
    keys = named["keys"] if is_named else arguments[place]
    if isinstance(keys, (list, tuple, dict, str, bytes, pa.Table, pa.RecordBatch)) or not hasattr(keys, "__iter__"):
        return arguments, named
    found = definition()
    index = next((each for each in found.indexes if each.name == named.get("index")), None)
    encoder = KeyEncoder(found, found.primary_key if index is None else index.columns)
    batches = [batch.columns for batch in to_columns(encoder.columns(keys), encoder.definition, fill_in=False)]
    sent: Any = pa.Table.from_batches(batches) if batches else []
    if is_named:
        return arguments, {**named, "keys": sent}
    return [*arguments[:place], sent, *arguments[place + 1 :]], named
