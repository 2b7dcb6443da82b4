"""Sequences: numbers that are given once (docs/adr/0038-numbers-and-computed-defaults.md).

A sequence is a row of `mysql.tidemark_sequence`: `next` is the first number that is not reserved yet. A block of
numbers is reserved by a small transaction that raises `next`, before any of them is given. For the column of a table
that transaction waits for no disk: the log is sequential, so a commit that has a number of the block survives a crash
only with the reservation. Numbers of a named sequence may leave the store, so its blocks are durable before they are
given, with `durability="commit"`. What is left of a block at a crash or at the end of a primary is never given.

The table is like any other to local checkpoints, backups, restarts and node groups; no binlog has it.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final

from tidemark.engine.access import row_operations
from tidemark.engine.access.batch_operations import decode_entries, scan
from tidemark.engine.base.errors import Retryable, ValueOutOfRange
from tidemark.engine.base.limits import NAME_CHARACTERS_MAX
from tidemark.engine.queries.column_scans import ColumnBatch, ColumnScan
from tidemark.engine.schema.column import Column
from tidemark.engine.schema.definition import TableDefinition
from tidemark.engine.schema.names import SYSTEM_DATABASE
from tidemark.engine.schema.partition import HashPartition
from tidemark.engine.txn.transaction import Transaction
from tidemark.engine.types import UInt32, UInt64, VarChar
from tidemark.engine.types.arrow import compute

if TYPE_CHECKING:
    from tidemark.engine.table.table import Table
    from tidemark.engine.txn.resources import Resources

SEQUENCES = SYSTEM_DATABASE + ".tidemark_sequence"
# The number of a table and no name for its autoincrement column; 0 and a name for a sequence of `Database.sequence`.
SEQUENCES_TABLE: Final = TableDefinition(
    0,
    1,
    SEQUENCES,
    (Column("table_id", UInt32), Column("name", VarChar(NAME_CHARACTERS_MAX)), Column("next", UInt64)),
    ("table_id", "name"),
    HashPartition(1),
)
NO_TABLE = 0
NUMBER_MAX = (1 << 63) - 1
BLOCK_NUMBERS = 100  # reserved at once: as many are lost at most by a crash


class _Reserved:
    """Numbers of one sequence that this process may give: those from `next` to before `end`."""

    __slots__ = ("end", "has_looked", "next")

    def __init__(self, has_looked: bool) -> None:
        """has_looked: whether there is no column whose greatest number counts, or it was looked at."""
        self.next = 1
        self.end = 0
        self.has_looked = has_looked


class Sequences:
    """The sequences of one store."""

    def __init__(self) -> None:
        self._latch = threading.Lock()  # held while a block is reserved: others wait for the same block
        self._reserved: dict[tuple[int, str], _Reserved] = {}

    def forget(self) -> None:
        """Read rows and columns again before the next number is given: another node has given numbers meanwhile."""
        with self._latch:
            self._reserved = {}

    def look_again(self, table_id: int) -> None:
        """Look at the column again before the next number of a table is given: rows came whose numbers no call saw."""
        with self._latch:
            found = self._reserved.get((table_id, ""))
            if found is not None:
                found.has_looked = False

    def take_named(self, store: Resources, name: str, count: int) -> range:
        """Return the next numbers of the sequence of this name. Durable on return, with `durability="commit"`: that
        they are given. Raises: as a transaction; ValueOutOfRange.
        """
        with self._latch:
            return self._take(store, (NO_TABLE, name), f"sequence {name!r}", count, NUMBER_MAX, None)

    def take(self, store: Resources, table: Table, column: Column, count: int) -> range:
        """Return the next numbers of a table's column. Raises: as a transaction; ValueOutOfRange."""
        most = min(NUMBER_MAX, (column.type.stored_range or (0, NUMBER_MAX))[1])
        where = f"{table.name}.{column.name}"
        with self._latch:
            return self._take(store, (table.table_id, ""), where, count, most, (table, column.name))

    def saw(self, store: Resources, table: Table, number: int, is_kept: bool = True) -> None:
        """Give only greater numbers than this one, which a row of the table brings. is_kept: even if the row is deleted
        before a crash; rows of another site only count while they are there. Raises: as a transaction.
        """
        if number < 1:
            return
        key = (table.table_id, "")
        after = min(number, NUMBER_MAX) + 1
        found = self._reserved.get(key)
        if found is not None and after <= found.next:
            return  # both only grow
        with self._latch:
            found = self._reserved.setdefault(key, _Reserved(False))
            if after > found.next:
                if is_kept and after > found.end:
                    self._reserve(store, key, found, after, after)
                else:
                    found.next = after

    def _take(
        self,
        store: Resources,
        key: tuple[int, str],
        where: str,
        count: int,
        most: int,
        column: tuple[Table, str] | None,
    ) -> range:
        found = self._reserved.setdefault(key, _Reserved(column is None))
        step = store.options.autoincrement_step
        if column is not None and not found.has_looked:
            found.has_looked = True  # before the scan: what comes during it asks for another look
            try:
                found.next = max(found.next, _greatest(*column) + 1)
            except BaseException:
                found.has_looked = False
                raise
        first = _aligned(store, found.next)
        stop = first + count * step
        if stop - step >= found.end:
            first = self._reserve(store, key, found, found.next, None, count, (where, most))
            stop = first + count * step
        self._check(where, first, stop - step, most)
        found.next = stop - step + 1
        return range(first, stop, step)

    def _check(self, where: str, first: int, last: int, most: int) -> None:
        if last > most:
            wanted = f"{first}" if first == last else f"{first} to {last}"
            raise ValueOutOfRange(
                f"{where} has no numbers left: {wanted} would be next, and the last one is {most}; give rows unused"
                " numbers, or copy them into a table whose key has a wider type"
            )

    def _reserve(
        self,
        store: Resources,
        key: tuple[int, str],
        found: _Reserved,
        first: int,
        end: int | None,
        count: int = 0,
        limits: tuple[str, int] | None = None,
    ) -> int:
        """Reserve numbers from `first`, or from what the row says, and return the first of them that may be given. end:
        they end here at least. The row is committed before memory counts them.
        """
        table = store.tables.named(SEQUENCES)
        step = store.options.autoincrement_step
        with Transaction(store) as txn:
            row = row_operations.get(txn, table, key, "exclusive")
            known = 1 if row is None else int(row[2])
            if known != found.end:  # others have reserved numbers since, or this is the first block
                first = max(first, known)
            first = _aligned(store, first)
            if limits is not None:
                self._check(limits[0], first, first + (count - 1) * step, limits[1])
            reserved = min(max(first, end or 0) + max(count, BLOCK_NUMBERS) * step, NUMBER_MAX + 1)
            reserved = max(reserved, known)
            row_operations.write(txn, table, (*key, reserved))
            txn.commit(None if key[0] == NO_TABLE else False)
        found.next, found.end = first, reserved
        return first

    def drop(self, store: Resources, table_id: int) -> None:
        """Delete the row of a dropped table. Numbers of tables are not used again, so a row that stays is no harm."""
        table = store.tables.by_name.get(SEQUENCES)
        with self._latch:
            self._reserved.pop((table_id, ""), None)
        if table is None:
            return
        try:
            with Transaction(store) as txn:
                if row_operations.get(txn, table, (table_id, ""), "exclusive") is not None:
                    row_operations.delete(txn, table, (table_id, ""))
                txn.commit(False)
        except Retryable:
            pass


def _aligned(store: Resources, number: int) -> int:
    """Return the first number from this one on that the store gives."""
    options = store.options
    return number + (options.autoincrement_offset - number) % options.autoincrement_step


def _greatest(table: Table, name: str) -> int:
    """Return the greatest number in a column, 0 if there is none above."""
    table = table.newest
    most = 0
    for batch in _columns(table, name):
        most = max(most, compute().max(batch.column(0)).as_py() or 0)
    return min(most, NUMBER_MAX)


def _columns(table: Table, name: str) -> Any:
    quick = ColumnScan(table, None, [name])
    found: Any = quick.batches(None, table.numbers_of(None)) if quick.is_possible else scan(table, None, columns=[name])
    for batch in found:
        if isinstance(batch, ColumnBatch):
            yield batch.columns
        else:
            yield decode_entries(table.format, batch.entries, batch.offsets, batch.count, [name])
