"""Keys of a call in a form that can be sent to another process."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tidemark.engine.rows.column_input import to_key_columns
from tidemark.engine.rows.column_values import is_plain_type

if TYPE_CHECKING:
    from tidemark.engine.schema.definition import TableDefinition

_TAKE_KEYS = ("get_many", "delete_many")


def with_sent_keys(
    method: str, arguments: list[Any], named: dict[str, Any], place: int, definition: Callable[[], TableDefinition]
) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments of a call with its keys as an Arrow table, if they are in a form that cannot be sent: an
    array, a frame, an iterator. place: of the keys among the arguments. definition: returns that of the table. Raises:
    as the call.
    """
    import pyarrow as pa

    is_named = "keys" in named
    if method not in _TAKE_KEYS or not (is_named or len(arguments) > place):
        return arguments, named
    keys = named["keys"] if is_named else arguments[place]
    if isinstance(keys, (list, tuple, str, bytes)) or _is_sent(keys):
        return arguments, named
    found = definition()
    index = next((each for each in found.indexes if each.name == named.get("index")), None)
    columns = to_key_columns(keys, found, found.primary_key if index is None else index.columns)
    sent = pa.table(columns)
    if is_named:
        return arguments, {**named, "keys": sent}
    return [*arguments[:place], sent, *arguments[place + 1 :]], named


def _is_sent(keys: Any) -> bool:
    import pyarrow as pa

    if isinstance(keys, dict):
        return all(isinstance(each, (list, tuple)) for each in keys.values())
    return isinstance(keys, (pa.Table, pa.RecordBatch)) and all(map(is_plain_type, keys.schema.types))
