"""Deletion of rows that have expired, in small transactions (docs/adr/0039-checks-and-expiry.md).

Rows are found without locks, and judged again under them: a row whose moment was moved meanwhile stays. A row that
another transaction has locked is left to a later run. So a run never waits for a transaction, and none waits for more
than one small transaction of a run.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from tidemark.engine.access.batch_operations import decode_entries
from tidemark.engine.base.errors import Error, NoSuchTable, NotPrimary, OutcomeUnknown, StoreFailed
from tidemark.engine.base.out_of_memory import memory_error
from tidemark.engine.programs.expressions import col
from tidemark.engine.queries.conditional_changes import delete_unlocked
from tidemark.engine.queries.conditions import Condition
from tidemark.engine.queries.program_scans import scan_where

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemark.engine.store.store import Store
    from tidemark.engine.table.table import Table
    from tidemark.engine.txn.transaction import Transaction

PIECE_ROWS = 1_000  # of one transaction: some milliseconds
FOUND_ROWS = 65_536  # whose keys are in memory at a time
# The store does not take changes: no table can be expired.
ENDING = (NotPrimary, StoreFailed, OutcomeUnknown)

_log = logging.getLogger("tidemark")


class Expirer:
    """Deletes the rows of a store that have expired, and counts them. Several threads may use it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._turn = threading.Lock()
        self._rows = 0
        self._locked = 0
        self._runs = 0
        self._failures = 0
        self._error: str | None = None
        self._last_us: int | None = None

    def run(self, is_stopped: Callable[[], bool] | None = None) -> int:
        """Delete the rows that have expired; return how many. An error of one table does not keep rows of others, and
        is raised at the end. As durable on return as commits.

        is_stopped: asked after each transaction, in a run that leaves the work to another one that is under way. None:
        wait for that one.

        Raises: NotPrimary, StoreFailed; the errors of a transaction.
        """
        if not self._turn.acquire(blocking=is_stopped is None):
            return 0
        try:
            self._store.transactions.admit()
            return self._run(is_stopped or (lambda: False))
        finally:
            self._turn.release()

    def _run(self, is_stopped: Callable[[], bool]) -> int:
        now_us = self._store.clock.wall_us()
        before, first = self._rows, None
        for table in [each for each in list(self._store.tables.by_name.values()) if each.definition.expires]:
            try:
                for rows, locked in self._delete(table, now_us):
                    self._rows += rows
                    self._locked += locked
                    if is_stopped():
                        return self._rows - before
            except NoSuchTable:
                continue  # dropped meanwhile
            except ENDING:
                raise
            except (Error, MemoryError) as error:
                found = memory_error(error) if isinstance(error, MemoryError) else error
                first = first or found
                self._failures += 1
                self._error = f"{table.name}: {found}"
                _log.warning("rows of %s that have expired were not all deleted: %s", table.name, found)
        self._runs += 1
        self._last_us = now_us
        if first is not None:
            raise first
        self._error = None
        return self._rows - before

    def _delete(self, table: Table, now_us: int) -> Iterator[tuple[int, int]]:
        """Yield, for each transaction, (rows deleted, rows left because they are locked)."""
        definition = table.definition
        expiry = definition.expiry
        if expiry is None:
            return
        latest = expiry.latest(definition.columns[definition.position(expiry.column)], now_us)
        condition = Condition(definition, col(expiry.column) <= latest)
        while True:
            found = progress = 0
            for keys in self._found(table, condition):
                found += keys.num_rows
                for begin in range(0, keys.num_rows, PIECE_ROWS):
                    if table.newest.definition.expires != definition.expires:
                        return  # changed meanwhile: the next run follows it
                    done = self._delete_piece(table, condition, keys.slice(begin, PIECE_ROWS))
                    progress += done[0]
                    yield done
            if found < FOUND_ROWS or not progress:
                return

    def _found(self, table: Table, condition: Condition) -> list[pa.RecordBatch]:
        """Return the keys of rows that have expired, at most FOUND_ROWS. The scan has ended: no view stays open while
        rows are deleted.
        """
        names = list(table.definition.primary_key)
        return [
            decode_entries(table.format, batch.entries, batch.offsets, batch.count, names)
            for batch in scan_where(table, None, condition, FOUND_ROWS, names)
        ]

    def _delete_piece(self, table: Table, condition: Condition, keys: pa.RecordBatch) -> tuple[int, int]:
        txn: Transaction = self._store.transactions.begin()
        try:
            done = delete_unlocked(txn, table, condition, keys)
            txn.commit()
        except BaseException:
            txn.rollback()
            raise
        return done

    def counters(self) -> dict[str, Any]:
        """Return the counters for `status()`: rows deleted, rows left because they were locked, runs, failed tables
        since the opening, what failed in the last run, and when it began, in µs since 1970.
        """
        return {
            "rows": self._rows,
            "locked": self._locked,
            "runs": self._runs,
            "failures": self._failures,
            "error": self._error,
            "last_run_us": self._last_us,
        }
