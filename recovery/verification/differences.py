"""The differences of a comparison as plain values: table, key, column, and the value on each side."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tidemark.recovery.verification.compare import differing_columns

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemark.recovery.verification.compare import Group
    from tidemark.recovery.verification.definitions import Comparable


def _keys(batch: pa.RecordBatch, table: Comparable) -> list[Any]:
    """Return the keys of rows: values, or lists of them if the key has several columns."""
    columns = [batch.column(name).to_pylist() for name in table.key]
    return columns[0] if len(columns) == 1 else [list(each) for each in zip(*columns, strict=True)]


def differences(group: Group, table: Comparable) -> Iterator[list[dict[str, Any]]]:
    """Yield a list for each row that differs: its differing columns, or one entry with the row of the only side."""
    for side, rows in (("a", group.only_a), ("b", group.only_b)):
        for key, row in zip(_keys(rows, table), rows.to_pylist(), strict=True):
            nothing = {"table": table.name, "key": key, "column": None, "a": None, "b": None}
            yield [{**nothing, side: row, "only": side}]
    masks = differing_columns(group.changed_a, group.changed_b, table.columns)
    keys = _keys(group.changed_a, table)
    for row, key in enumerate(keys):
        yield [
            {
                "table": table.name,
                "key": key,
                "column": name,
                "a": group.changed_a.column(name)[row].as_py(),
                "b": group.changed_b.column(name)[row].as_py(),
                "only": None,
            }
            for name in table.columns
            if masks[name][row]
        ]
