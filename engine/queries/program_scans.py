"""Scans with a condition, and aggregates: programs run over rows in place, or over copies of them.

Rows come in the order of a scan without a condition, unless an index is chosen for the condition
(`engine/queries/index_choice.py`); limits count rows that were accepted. A last row (VERDICT_LAST) ends the whole scan,
not only its partition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from tidemark.engine.access import snapshot_reads
from tidemark.engine.access.batch_operations import scan
from tidemark.engine.access.scan_batch import ALL_ROWS, SCAN_BATCH_ROWS, SCAN_WORDS, ScanBatch
from tidemark.engine.base.errors import InvariantBroken, NoSuchIndex, SnapshotTooOld
from tidemark.engine.memory import arena_layout as a
from tidemark.engine.memory.arena import NOTHING
from tidemark.engine.programs import program_layout as p
from tidemark.engine.programs.compiled import compile_aggregates
from tidemark.engine.programs.interpreter import Program
from tidemark.engine.programs.running import Running, failed
from tidemark.engine.queries import program_scan_layout as q
from tidemark.engine.queries.conditions import SLOTS_MAX, Condition, names_of, slots_per_call
from tidemark.engine.queries.filter_scan_kernels import scan_filter
from tidemark.engine.queries.filters import filter_of
from tidemark.engine.queries.index_choice import Choice, Lookup, few_keys, way_of
from tidemark.engine.queries.index_only import scan_index
from tidemark.engine.queries.lookups import look_up
from tidemark.engine.queries.program_scan_kernels import rows_of_fragments, scan_program

if TYPE_CHECKING:
    from tidemark.engine.memory.arena import Words
    from tidemark.engine.programs.aggregates import Aggregates
    from tidemark.engine.programs.expressions import Expression
    from tidemark.engine.table.table import Table
    from tidemark.engine.txn.transaction import Transaction
    from tidemark.engine.txn.views import View

GONE = (NoSuchIndex, SnapshotTooOld)  # what a chosen index raises that was dropped, or made anew for a wider column
FILTER_SLOTS = 32_768  # about 100 µs of a call with a filter and one aggregate
Rows = Callable[[Sequence[str], int | None], Iterator[ScanBatch]]


class _InPlace:
    """One fragment; the program runs over its rows in place, or the filter that the program is.

    Rows that the transaction has changed are judged by the program.
    """

    def __init__(
        self,
        view: View,
        table: Table,
        number: int,
        running: Running,
        cost: int,
        filter_words: Words | None,
    ) -> None:
        self._table = table
        self._view = view
        self._number = number
        self._running = running
        self._slots = slots_per_call(cost)
        self._filter = filter_words
        if filter_words is not None:
            self._filter_slots = FILTER_SLOTS // max(1, int(filter_words[q.FT_AGGREGATES])) + 1
        self._state = np.zeros(q.PS_STATE_WORDS, dtype=np.int64)

    def _call(self, is_copied: bool, out: Words, offsets: Words) -> int:
        """Call the kernel once; return its status, OK if the fragment is gone. Raises: NoSuchTable, and errors of the
        program.
        """
        table, view, state = self._table, self._view, self._state
        table.check()
        fragment = table.by_number.get(self._number)
        if fragment is None:
            return a.OK
        view.check()
        place = (table.mem, fragment, view.view, view.desc, view.buf)
        rest = (self._running.rows, self._running.work, out, offsets, state)
        if self._filter is None or (view.txn is not None and state[q.PS_OWN]):
            words = self._running.program.words
            status = int(scan_program(*place, self._slots, int(is_copied), words, *rest))
            state[q.PS_OWN] = 0
        else:
            slots = SLOTS_MAX if is_copied else self._filter_slots
            status = int(scan_filter(*place, slots, int(is_copied), self._filter, *rest))
        is_spooled = status == a.ST_SPOOLED
        status = view.settled(status)
        view.advance(self._number, int(state[q.PS_POSITION]))
        if is_spooled:
            return status
        if status == a.ST_DROPPED:  # dropped after the partition was looked up
            table.check()
            return a.OK
        if status == a.ST_INVARIANT:
            raise InvariantBroken(f"{table.name}: a program was run on rows it was not built for; report this")
        if status == a.ST_MORE and int(state[q.PS_STATUS]) == p.RUN_FULL:
            self._running.grow(table)
        if status == a.OK and int(state[q.PS_STATUS]) == p.RUN_ERROR:
            raise failed(table, out[int(state[q.PS_WORDS]) + a.ENTRY_WORDS :], int(state[q.PS_CODE]))
        return status

    def rest(self, names: Sequence[str]) -> Iterator[ScanBatch]:
        """Yield the rows from here on, as the view shows them: the table has changed since it was opened."""
        at = int(self._state[q.PS_POSITION])
        return snapshot_reads.scan(self._view, self._table, names, None, [self._number], at)

    def next(self, most: int) -> tuple[ScanBatch, int]:
        """Return (the next accepted rows, at most `most`; ST_MORE, OK at the end, or ST_CHANGED: see `rest`)."""
        table, state = self._table, self._state
        words = most * (a.ENTRY_WORDS + table.format.fixed_words) * (4 if table.format.has_var else 1)
        out = np.empty(max(min(SCAN_WORDS, words), 64), dtype=np.int64)
        offsets = np.empty(most, dtype=np.int64)
        state[q.PS_ROWS] = 0
        state[q.PS_WORDS] = 0
        while True:
            status = self._call(True, out, offsets)
            count = int(state[q.PS_ROWS])
            if status == a.ST_MORE:
                continue
            if status <= a.ST_SPACE and count == 0:
                out = np.empty(a.ST_SPACE - status + 64, dtype=np.int64)
                continue
            return ScanBatch(out, offsets[:count]), status if status in (a.OK, a.ST_CHANGED) else a.ST_MORE

    def add_up(self, names: Sequence[str]) -> None:
        """Run to the fragment's end without copying rows. names: the columns that the program reads."""
        out = np.empty(64, dtype=np.int64)
        while True:
            status = self._call(False, out, NOTHING)
            if status <= a.ST_SPACE:
                out = np.empty(a.ST_SPACE - status + 64, dtype=np.int64)
            elif status == a.OK:
                return
            elif status == a.ST_CHANGED:
                for batch in self.rest(names):
                    self._running.accepted(self._table, batch.entries, batch.offsets)
                return

    @property
    def is_last(self) -> bool:
        return int(self._state[q.PS_STATUS]) == p.RUN_LAST


def scan_where(
    table: Table,
    txn: Transaction | None,
    condition: Condition,
    limit: int | None,
    columns: Sequence[str],
    partitions: Sequence[str] | None = None,
) -> Iterator[ScanBatch]:
    """Scan the rows a condition accepts. Raises: errors of a program in a row, naming table and key."""
    choice, numbers = way_of(table, condition, columns, partitions)
    whole = partial(_scan_fragments, table, txn, condition, limit, columns, numbers)
    if choice is None:
        return whole()
    found = _chosen(table, txn, choice, columns, numbers)
    found = (
        limited(found, limit)
        if is_decided(table, choice, columns)
        else accepted_batches(table, found, condition, limit)
    )
    return found if choice.index is None else unless_dropped(found, whole)


def is_decided(table: Table, choice: Lookup | Choice, columns: Sequence[str]) -> bool:
    """Whether every row of a choice is accepted. Those with disk parts are read after they were found, when their
    transaction may have changed them.
    """
    return isinstance(choice, Lookup) and choice.is_whole and not table.format.needs_disk(columns)


def limited(batches: Iterator[ScanBatch], limit: int | None) -> Iterator[ScanBatch]:
    """Yield the first rows of batches, at most `limit`."""
    left = ALL_ROWS if limit is None else limit
    for batch in batches if left > 0 else ():
        yield batch.chosen(slice(left))
        left -= batch.count
        if left <= 0:
            return


def unless_dropped(by_index: Iterator[ScanBatch], without: Callable[[], Iterator[ScanBatch]]) -> Iterator[ScanBatch]:
    """Yield the batches of a chosen index, or those of a scan without it if it is dropped before the first one."""
    is_begun = False
    try:
        for batch in by_index:
            is_begun = True
            yield batch
        return
    except GONE:  # after it was chosen, and the caller did not name it
        if is_begun:
            raise
    yield from without()


def _scan_fragments(
    table: Table,
    txn: Transaction | None,
    condition: Condition,
    limit: int | None,
    columns: Sequence[str],
    numbers: Sequence[int],
) -> Iterator[ScanBatch]:
    if condition.cost is None or table.format.needs_disk(columns):
        yield from accepted_batches(
            table, scan(table, txn, None, [*columns, *condition.names], numbers), condition, limit
        )
        return
    running = Running(condition.program)
    found = filter_of(condition.program)
    left = ALL_ROWS if limit is None else limit
    table.check()
    with table.view_for(txn) as view:
        for number in numbers:
            part = _InPlace(view, table, number, running, condition.cost, found)
            status = a.ST_MORE
            while status == a.ST_MORE:
                if left <= 0:
                    return
                batch, status = part.next(min(left, SCAN_BATCH_ROWS))
                left -= batch.count
                if batch.count:
                    yield batch
            if status == a.ST_CHANGED:
                for batch in part.rest([*columns, *condition.names]):
                    if left <= 0:
                        return
                    places, is_last = running.accepted(table, batch.entries, batch.offsets, left)
                    left -= places.size
                    if places.size:
                        yield batch.chosen(places)
                    if is_last:
                        return
            elif part.is_last:
                return


def _chosen(
    table: Table, txn: Transaction | None, choice: Lookup | Choice, columns: Sequence[str], numbers: Sequence[int]
) -> Iterator[ScanBatch]:
    """Yield the rows of the keys or ranges of a choice, with the condition's columns, before it is tested."""
    names = [*columns, *choice.judged]
    if isinstance(choice, Lookup):
        return look_up(table, txn, choice, names, numbers)
    return scan_index(table, txn, choice.index, choice.ranges, names, choice.is_only, numbers=numbers)


def accepted_batches(
    table: Table, batches: Iterator[ScanBatch], condition: Condition, limit: int | None
) -> Iterator[ScanBatch]:
    """Yield the rows of batches that a condition accepts, at most `limit`. The batches must have its columns.
    Raises: as `scan_where`.
    """
    running = Running(condition.program)
    left = ALL_ROWS if limit is None else limit
    for batch in batches:
        places, is_end = running.accepted(table, batch.entries, batch.offsets, left)
        if places.size:
            yield batch.chosen(places)
        left -= places.size
        if is_end:
            return


def aggregate(
    table: Table,
    txn: Transaction | None,
    functions: Sequence[tuple[str, Any]],
    condition: Condition | None,
    limit: int | None = None,
    partitions: Sequence[str] | None = None,
    rows: Rows | None = None,
) -> list[Any]:
    """Return one value for each (function, column or expression). Kernels aggregate rows in place if they can, else
    copies of the rows.

    rows: source of the rows in place of a scan of the table, with any condition applied; called with columns and limit.
    sum, min, max and mean of no value are None; NULLs are left out. Raises: ProgramInvalid, errors of a program in a
    row.
    """
    is_count = all(function == "count" and what is None for function, what in functions)
    if rows is None and is_count:
        if condition is None and limit is None and txn is None:
            table.check()
            return [count_rows(table, partitions)] * len(functions)
        keys = few_keys(table, condition) if condition is not None and limit is None else None
        if keys is not None and is_decided(table, keys, ()):
            with suppress(*GONE):  # after it was chosen
                found_by_key = _chosen(table, txn, keys, (), table.numbers_of(partitions))
                return [sum(batch.count for batch in found_by_key)] * len(functions)
    found, work = added_up(table, txn, functions, (), condition, limit, partitions, rows)
    return found.results(work)


def added_up(
    table: Table,
    txn: Transaction | None,
    functions: Sequence[tuple[str, Any]],
    keys: Sequence[Expression],
    condition: Condition | None,
    limit: int | None,
    partitions: Sequence[str] | None,
    rows: Rows | None,
) -> tuple[Aggregates, Words]:
    """Run the program of the aggregates over all rows; return it with its memory. keys: parts of the key of a group,
    none for one group of all rows. The rest and Raises: as `aggregate`; LimitExceeded for too many groups.
    """
    definition = table.definition
    if rows is not None:
        return _add_up_copies(
            table, compile_aggregates(definition, functions, None, keys), lambda names: rows(names, limit)
        )
    where = None if condition is None else condition.expression
    if condition is None or where is not None:
        found = compile_aggregates(definition, functions, where, keys)
        names = names_of(definition, found.program)
        if condition is not None and limit is None:
            choice, numbers = way_of(table, condition, names, partitions)
            if choice is not None:
                with suppress(*GONE):  # after it was chosen
                    return _add_up_copies(table, found, partial(_chosen, table, txn, choice, numbers=numbers))
        else:
            numbers = table.numbers_of(partitions)
        if limit is None and found.program.facts.cost is not None:
            where_program = None if condition is None else condition.program
            words = None if keys else filter_of(where_program, functions, found.program)
            return found, _add_up_in_place(table, txn, found.program, numbers, names, words)

    def found_rows(names: Sequence[str]) -> Iterator[ScanBatch]:
        if condition is None:
            return scan(table, txn, limit, names, table.numbers_of(partitions))
        return scan_where(table, txn, condition, limit, names, partitions)

    return _add_up_copies(table, compile_aggregates(definition, functions, None, keys), found_rows)


def _add_up_in_place(
    table: Table,
    txn: Transaction | None,
    program: Program,
    numbers: Sequence[int],
    names: Sequence[str],
    filter_words: Words | None,
) -> Words:
    """Run a program with accumulators over the rows of fragments, in place; return its memory. filter_words: the filter
    that the program is, if it is one.
    """
    running = Running(program)
    table.check()
    with table.view_for(txn) as view:
        for number in numbers:
            _InPlace(view, table, number, running, program.facts.cost or 0, filter_words).add_up(names)
    return running.work


def count_rows(table: Table, partitions: Sequence[str] | None = None) -> int:
    """Return the number of committed rows, of the whole table or of some partitions."""
    numbers = table.numbers_of(partitions)
    fragments = [table.by_number[number] for number in numbers if number in table.by_number]
    while (rows := int(rows_of_fragments(table.mem, np.array(fragments, dtype=np.int64)))) == a.ST_UNFINISHED:
        if table.mem[a.S_UNFINISHED_KINDS] & (a.X_UPDATES | a.X_DELETES):
            table.views.wait()
            continue
        with table.views.open(table.handle) as view:
            return snapshot_reads.count(view, table, numbers)
    return rows


def _add_up_copies(
    table: Table, found: Aggregates, rows: Callable[[Sequence[str]], Iterator[ScanBatch]]
) -> tuple[Aggregates, Words]:
    running = Running(found.program)
    for batch in rows(names_of(table.definition, found.program)):
        running.accepted(table, batch.entries, batch.offsets)
    return found, running.work
