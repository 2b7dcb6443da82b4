"""The whole comparison of two sides: the tables, their differences, and the report."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tidemark.recovery.verification.compare import Progress, TableComparison, differing_columns
from tidemark.recovery.verification.definitions import Comparable, SchemaDifference, chosen_tables, compare_definitions
from tidemark.recovery.verification.digest_reading import RangeReader
from tidemark.recovery.verification.sides import Side

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemark.recovery.verification.compare import Group

ReaderOf = Callable[[Side, Comparable, Callable[[int], None]], RangeReader]
HERE: tuple[ReaderOf, ReaderOf] = (RangeReader, RangeReader)


class Pair:
    """Two sides, and the tables to compare."""

    def __init__(
        self,
        a: Side,
        b: Side,
        names: Sequence[str] | None = None,
        by: str | None = None,
        progress: Progress | None = None,
        readers: tuple[ReaderOf, ReaderOf] = HERE,
    ) -> None:
        """names: of tables, None for all but system tables. Raises: NoSuchTable."""
        self._sides = (a, b)
        self._by = by
        self._progress = progress
        self._readers = readers
        of_a, of_b = a.definitions(), b.definitions()
        self.tables: list[Comparable] = []
        self.schema: list[SchemaDifference] = []
        self._compared: list[TableComparison] = []
        for name in chosen_tables(of_a, of_b, names):
            table, found = compare_definitions(name, of_a.get(name), of_b.get(name))
            self.schema += found
            if table is not None:
                self.tables.append(table)

    def comparison(self, table: Comparable) -> TableComparison:
        """Return the comparison of one of the tables; the report includes it from now on."""
        made = TableComparison(*self._sides, table, self._by, self._progress, self._readers)
        self._compared.append(made)
        return made

    def report(self) -> dict[str, Any]:
        tables = [each.report for each in self._compared]
        is_complete = all(each.is_complete for each in tables)
        return {
            "is_equal": is_complete and not self.schema and not any(each.differing for each in tables),
            "is_complete": is_complete,
            "a": self._sides[0].to_dict(),
            "b": self._sides[1].to_dict(),
            "schema": [asdict(each) for each in self.schema],
            "tables": [each.to_dict() for each in tables],
        }

    def diff(self, limit: int | None) -> dict[str, Any]:
        """Compare all tables and list at most `limit` rows that differ. Raises: the errors of reading the sides."""
        found: list[dict[str, Any]] = []
        left = limit
        for table in self.tables:
            left = _list(self.comparison(table), table, found, left)
        return {**self.report(), "differences": found}


def _list(comparison: TableComparison, table: Comparable, found: list[dict[str, Any]], left: int | None) -> int | None:
    """Append differing rows to `found`, at most `left` of them; return how many more may follow."""
    for group in comparison.groups():
        for row in differences(group, table):
            if left == 0:
                comparison.report.is_complete = False
                return left
            found += row
            left = None if left is None else left - 1
    return left


def _keys(batch: pa.RecordBatch, table: Comparable) -> list[Any]:
    """Return the keys of rows: values, or lists of them if the key has several columns."""
    columns = [batch.column(name).to_pylist() for name in table.key]
    return columns[0] if len(columns) == 1 else [list(each) for each in zip(*columns, strict=True)]


def differences(group: Group, table: Comparable) -> Iterator[list[dict[str, Any]]]:
    """Yield a list for each row that differs: its differing columns, or one entry with the whole row if only one side
    has it.
    """
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
