"""One pass over an epoch transaction: it decides about batches, changes rows of the store, and handles failures.

If another pass follows, the applier rolls the rows back; only the exceptions counts and the marks stay.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tidemark.engine.access.batch_operations import decode_entries, insert_many, scan
from tidemark.engine.applied import applied_rows
from tidemark.engine.base.errors import DuplicateKey, Error, Rejected
from tidemark.engine.rows.columnar import encode_keys
from tidemark.replication.applier import marks
from tidemark.replication.applier.batch import NO_TRANSACTION, ChangeBatch
from tidemark.replication.applier.epoch_state import EpochState
from tidemark.replication.applier.exceptions_rows import ConflictBatch, exceptions_columns
from tidemark.replication.applier.held_rows import HeldRows
from tidemark.replication.applier.intake import StatusRows
from tidemark.replication.applier.judges import judge_of, plain
from tidemark.replication.applier.key_set import KeySet
from tidemark.replication.applier.stops import Stop, cannot_refresh, corrupt_event, located, misconfigured
from tidemark.replication.conflict.epochs import Pass
from tidemark.replication.conflict.functions import (
    APPLIED,
    CODES,
    FAILURES,
    Decision,
    Failure,
    Kind,
    Operation,
    decide,
    rows_with,
    unhandled,
)
from tidemark.replication.settings.exceptions_table import Cause, OperationType
from tidemark.replication.settings.status import (
    DELETE_DELETE,
    REFLECTED_DISCARDED,
    REFLECTED_PREPARED,
    REFRESHED,
    ROW_CONFLICTS,
    ROW_REJECTS,
    Counters,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from tidemark.engine.applied.applied_rows import Judge
    from tidemark.engine.store.store import Store
    from tidemark.engine.table.table import Table
    from tidemark.engine.txn.transaction import Transaction
    from tidemark.replication.applier.batch import Columns
    from tidemark.replication.applier.key_set import Words
    from tidemark.replication.applier.setups import AppliedTable, AppliedTables

    Codes = NDArray[np.int8]
    Mask = NDArray[np.bool_]

_log = logging.getLogger("tidemark.applier")

# Codes of `replication/conflict`, indexed by the engine's outcomes.
_CODE_OF: Final = np.zeros(5, dtype=np.int8)
_CODE_OF[applied_rows.MISSING] = CODES[Failure.MISSING]
_CODE_OF[applied_rows.EXISTS] = CODES[Failure.EXISTS]
_CODE_OF[applied_rows.REFUSED] = CODES[Failure.REFUSED]
_CODE_OF[applied_rows.TAKEN] = CODES[Failure.EXISTS]
_OPERATION_TYPES: Final = {
    Kind.WRITE: OperationType.WRITE_ROW,
    Kind.UPDATE: OperationType.UPDATE_ROW,
    Kind.READ: OperationType.UPDATE_ROW,
    Kind.DELETE: OperationType.DELETE_ROW,
}


class _MarkedHere(Exception):
    """A row of a batch has marked its transaction: the rows after it must be decided again."""

    def __init__(self, row: int) -> None:
        super().__init__()
        self.row = row


class OnePass:
    """One pass, over one transaction of the store."""

    def __init__(
        self,
        store: Store,
        txn: Transaction,
        tables: AppliedTables,
        counters: Counters,
        epoch: EpochState,
        state: Pass,
    ) -> None:
        self.store = store
        self.txn = txn
        self.tables = tables
        self.counters = counters
        self.epoch = epoch
        self.state = state
        self.refreshed = KeySet(store.tables.seed, epoch.memory_bytes // 4)
        self.held = self._no_held_rows()
        self.late: list[ChangeBatch] = []  # keys of held rows that are refreshed
        self.statuses: list[tuple[int, int, int]] = []  # server id, epoch, id of the server named as logger
        self.has_conflict = False
        self.violations = 0
        self.rows = 0

    def run(self, items: Iterable[ChangeBatch | StatusRows]) -> None:
        """Apply everything. Raises: errors that stop the applier, and Retryable errors; the caller rolls back."""
        for item in items:
            if not isinstance(item, StatusRows) and self.held.may_settle_early and not self.held.has_room(item):
                self._settle()
            if isinstance(item, StatusRows):
                self.statuses += [(server_id, epoch, item.server_id) for server_id, epoch in item.rows]
            elif self.state is Pass.APPLY:
                self._batch_in_pieces(item)
            else:
                self._batch(item)
        self._settle()

    def _no_held_rows(self) -> HeldRows:
        return HeldRows(
            self.txn,
            lambda batch: self.epoch.source_id,
            self.epoch.memory_bytes // 4,
            self._judge,
            self._take_out,
        )

    def _settle(self) -> None:
        """Bring held rows to their final states. Those that other rows of this site keep from it are judged again, and
        now wait for nothing.
        """
        settled, self.held = self.held.settle(), self._no_held_rows()
        for batch, decision, outcomes in settled:
            codes = np.where(outcomes == applied_rows.TAKEN, APPLIED, _CODE_OF[outcomes]).astype(np.int8)
            none = np.zeros(batch.rows, dtype=np.bool_)
            self._conclude(self.tables.of(batch.table), decision, batch, codes, none, none)
        for batch, _, outcomes in settled:
            places = np.flatnonzero(outcomes == applied_rows.TAKEN)
            if places.size:
                self._batch(batch.take(places), is_last=True)
        late, self.late = self.late, []
        for batch in late:
            self.refresh(batch)

    def _batch_in_pieces(self, batch: ChangeBatch) -> None:
        """Apply a batch in the APPLY pass: a new mark takes effect from the next row on, whatever the batch sizes."""
        while True:
            try:
                with self.txn.savepoint():
                    self._batch(batch, stops_at_mark=True)
                return
            except _MarkedHere as marked:
                self._batch(batch.slice(0, marked.row + 1))
                batch = batch.slice(marked.row + 1, batch.rows)

    def _batch(self, batch: ChangeBatch, stops_at_mark: bool = False, is_last: bool = False) -> None:
        """Apply a batch. `is_last`: it was held before, and a key of a unique index that a row has is a conflict."""
        applied = self.tables.of(batch.table)
        if applied.setup.is_transactional and (batch.transactions == NO_TRANSACTION).any():
            raise corrupt_event(batch.origin, f"rows of {batch.table.name} come without transaction ids")
        rejected = np.zeros(batch.rows, dtype=np.bool_)
        if self.state is Pass.APPLY and self.epoch.tracker is not None:
            rejected = self.epoch.tracker.is_marked(batch.transactions)
        refreshed = self.refreshed.holds(batch.table.table_id, batch.keys)
        waiting = self.held.holds(batch) & ~rejected & ~refreshed
        codes = np.zeros(batch.rows, dtype=np.int8)
        codes[refreshed] = CODES[Failure.REFRESHED]
        decision = None
        if not rejected.all():
            decision = self._decide(applied, batch)
            free = np.flatnonzero(~rejected & ~refreshed & ~waiting)
            if free.size:
                outcomes = self._apply(decision, batch.take(free))
                codes[free] = _CODE_OF[outcomes]
                if decision.wins_keys or (not is_last and self.held.has_room(batch)):
                    waiting[free] = outcomes == applied_rows.TAKEN
        codes[waiting | rejected] = APPLIED
        self._conclude(applied, decision, batch, codes, rejected, refreshed, stops_at_mark)
        if decision is not None and waiting.any():
            self.held.hold(batch.take(np.flatnonzero(waiting)), decision)
        if not is_last:
            self.rows += batch.rows
            self._count({REFLECTED_PREPARED: batch.is_reflected * batch.rows, REFRESHED: batch.is_refresh * batch.rows})

    def _conclude(
        self,
        applied: AppliedTable,
        decision: Decision | None,
        batch: ChangeBatch,
        codes: Codes,
        rejected: Mask,
        refreshed: Mask,
        stops_at_mark: bool = False,
    ) -> None:
        """Mark, count and handle what failed."""
        if decision is not None and codes.any():
            wrong = unhandled(decision, codes)
            if wrong.any():
                raise self._unhandled(batch, int(np.argmax(wrong)), codes)
            marking = rows_with(decision, codes, "marks")
            if stops_at_mark and marking[:-1].any():
                raise _MarkedHere(int(np.argmax(marking)))
            self._mark(batch.transactions[marking])
            self._count_failures(applied, decision, codes)
        self._count({ROW_REJECTS: int(rejected.sum())})
        if rejected.any() or codes.any():
            self._handle(applied, decision, batch, codes, rejected, refreshed)

    def _decide(self, applied: AppliedTable, batch: ChangeBatch) -> Decision:
        function = applied.setup.function
        definition = None if function is None else function.definition
        try:
            decision = decide(definition, self.tables.site.role, batch.is_reflected, batch.kind)
        except Rejected as error:
            raise misconfigured(batch.origin, error.message) from error
        if applied.column is not None:
            for is_needed, image in ((decision.needs_before, batch.before), (decision.needs_after, batch.after)):
                if is_needed and applied.column not in (image or {}):
                    raise self._lacks(batch, applied.column)
            lacking = [name for name in batch.table.format.names if name not in (batch.after or {})]
            if decision.needs_all_after and lacking:
                raise self._lacks(batch, lacking[0])
        return decision

    def _lacks(self, batch: ChangeBatch, column: str) -> Error:
        text = f"a row event of {batch.table.name} lacks {column}, which its function compares"
        return corrupt_event(batch.origin, text)

    # --- rows --------------------------------------------------------------------------------------
    def _judge(self, batch: ChangeBatch, decision: Decision) -> Judge | None:
        return judge_of(self.tables.of(batch.table), decision, batch, self.epoch, self.tables.site.server_id)

    def _apply(self, decision: Decision, batch: ChangeBatch) -> Words:
        judge = self._judge(batch, decision)
        marks.tag_applied(self.txn, self.epoch.source_id, batch.server_id, decision.reflects)
        try:
            return self.change(decision.operation, batch, judge)
        except Rejected as error:
            raise located(error, batch.origin) from error

    def change(self, operation: Operation, batch: ChangeBatch, judge: Judge | None) -> Words:
        """Make the changes of a batch; return outcomes as in `applied_rows`. Shape: (rows,)."""
        rows = batch.changes(with_values=operation is not Operation.DELETE and batch.kind is not Kind.READ)
        if operation is Operation.INSERT:
            return applied_rows.apply_inserts(self.txn, batch.table, rows, batch.keys)
        if operation is Operation.UPSERT and batch.kind is Kind.READ:
            return self._touch_or_insert(batch)
        if operation is Operation.UPSERT:
            return applied_rows.apply_upserts(self.txn, batch.table, rows, judge, batch.keys)
        if operation is Operation.UPDATE:
            return applied_rows.apply_updates(self.txn, batch.table, rows, judge, batch.keys)
        return applied_rows.apply_deletes(self.txn, batch.table, rows, judge, batch.keys)

    def _touch_or_insert(self, batch: ChangeBatch) -> Words:
        """Apply a tracked read at a secondary: it sets no column, but inserts a row that is missing here."""
        outcomes = applied_rows.apply_updates(self.txn, batch.table, batch.changes(with_values=False))
        missing = np.flatnonzero(outcomes == applied_rows.MISSING)
        if missing.size:
            rows = batch.take(missing).changes(with_values=True)
            outcomes[missing] = applied_rows.apply_inserts(self.txn, batch.table, rows)
        return outcomes

    def refresh(self, batch: ChangeBatch) -> None:
        """Refresh the rows with the keys of a batch."""
        marks.refresh(self.txn, batch.table, batch.changes(with_values=False))

    def _unhandled(self, batch: ChangeBatch, row: int, codes: Codes) -> Error:
        failure = FAILURES[int(codes[row])]
        text = f"row {row} of a row event of {batch.table.name} cannot be applied: {failure.value}"
        return corrupt_event(batch.origin, text, Stop.OTHER)

    def _take_out(self, batch: ChangeBatch, rows: pa.RecordBatch) -> None:
        """Delete rows of this site that have unique keys of rows of the source, and report them.

        The delete is this site's own change: a source that has meanwhile applied the row receives the delete, or sends
        the row again.
        """
        table = batch.table
        applied = self.tables.of(table)
        columns = {name: rows.column(name) for name in table.definition.primary_key}
        keys = encode_keys(table.format, columns)
        marks.tag_local(self.txn)
        applied_rows.apply_deletes(self.txn, table, rows.select(list(columns)), keys=keys)
        _log.warning(
            "%s: rows removed because rows of the source have their keys of unique indexes: %d",
            table.name,
            rows.num_rows,
        )
        self.violations += rows.num_rows
        if applied.setup.function is not None:
            self.counters.add(applied.setup.function.definition.counter, rows.num_rows)
        if applied.setup.exceptions is None:
            return
        after = {name: rows.column(name) for name in rows.schema.names}
        none = np.full(rows.num_rows, NO_TRANSACTION, dtype=np.int64)
        gone = ChangeBatch(table, Kind.WRITE, 0, batch.server_id, None, after, none, keys, batch.origin)
        causes = np.full(rows.num_rows, int(Cause.ROW_ALREADY_EXISTS))
        self._write_exceptions(applied, gone, causes, OperationType.WRITE_ROW)

    # --- what failed -------------------------------------------------------------------------------
    def _mark(self, transactions: Words) -> None:
        if not transactions.size:
            return
        self.has_conflict = True
        ids = np.unique(transactions)
        if self.epoch.tracker is not None:
            self.epoch.tracker.mark(ids)
        elif not self.epoch.marked or not np.isin(ids, self.epoch.marked[-1]).all():
            self.epoch.marked.append(ids)

    def _count_failures(self, applied: AppliedTable, decision: Decision, codes: Codes) -> None:
        self._count(
            {
                name: int(rows_with(decision, codes, what).sum())
                for name, what in (
                    (REFLECTED_DISCARDED, "is_discard"),
                    (DELETE_DELETE, "is_delete_delete"),
                    (ROW_CONFLICTS, "marks"),
                )
            }
        )
        if applied.setup.function is not None:
            conflicts = int(rows_with(decision, codes, "is_counted").sum())
            self.violations += conflicts
            self._count({applied.setup.function.definition.counter: conflicts})

    def _count(self, counted: dict[str, int]) -> None:
        for name, count in counted.items():
            if count:
                self.counters.add(name, count)

    def _handle(
        self,
        applied: AppliedTable,
        decision: Decision | None,
        batch: ChangeBatch,
        codes: Codes,
        rejected: Mask,
        refreshed: Mask,
    ) -> None:
        """Write refreshes and exceptions rows, in the order of the batch."""
        to_refresh, to_log = rejected & ~refreshed, rejected.copy()
        causes = np.where(rejected, int(Cause.TRANS_IN_CONFLICT), 0)
        if decision is not None:
            to_refresh |= rows_with(decision, codes, "is_refreshed") & ~refreshed
            to_log |= rows_with(decision, codes, "is_logged")
            for failure, handling in decision.failures.items():
                if handling.cause is not None:
                    causes[(codes == CODES[failure]) & ~rejected] = int(handling.cause)
        if to_refresh.any():
            self._refresh(applied, batch.take(np.flatnonzero(to_refresh)))
        if to_log.any() and applied.setup.exceptions is not None:
            places = np.flatnonzero(to_log)
            self._log_exceptions(applied, batch.take(places), causes[places])

    def _refresh(self, applied: AppliedTable, batch: ChangeBatch) -> None:
        column = applied.lob_column
        if column is not None:
            raise cannot_refresh(batch.table.name, column)
        self.refreshed.add(batch.table.table_id, batch.keys)
        waiting = self.held.holds(batch)
        if waiting.any():
            self.late.append(batch.take(np.flatnonzero(waiting)))
            batch = batch.take(np.flatnonzero(~waiting))
        if batch.rows:
            self.refresh(batch)

    def _log_exceptions(self, applied: AppliedTable, batch: ChangeBatch, causes: Words) -> None:
        """Write the exceptions rows of a batch; a tracked read of a rejected transaction is recorded as a read."""
        is_read = (causes == int(Cause.TRANS_IN_CONFLICT)) & (batch.kind is Kind.READ)
        start = 0
        for stop in [*(np.flatnonzero(np.diff(is_read)) + 1).tolist(), batch.rows]:
            kind = OperationType.READ_ROW if is_read[start] else _OPERATION_TYPES[batch.kind]
            self._write_exceptions(applied, batch.slice(start, stop), causes[start:stop], kind)
            start = stop

    def _write_exceptions(
        self, applied: AppliedTable, batch: ChangeBatch, causes: Words, operation: OperationType
    ) -> None:
        plan = applied.setup.exceptions
        assert plan is not None
        table = self.store.tables.named(plan.exceptions.name)
        count = self.epoch.counts.get(batch.table.name, 0)
        try:
            try:
                self._insert_exceptions(applied, table, batch, causes, operation, count)
            except DuplicateKey:
                # The epoch comes again, after a reset, and its rows of an earlier life are there.
                count = max(count, self._last_number(table))
                self._insert_exceptions(applied, table, batch, causes, operation, count)
        except Rejected as error:
            text = f"exceptions rows of {batch.table.name} cannot be written: {error.message}"
            raise Rejected(text, **{**error.evidence, "stop": Stop.EXCEPTIONS_WRITE}) from error
        self.epoch.counts[batch.table.name] = count + batch.rows

    def _insert_exceptions(
        self,
        applied: AppliedTable,
        table: Table,
        batch: ChangeBatch,
        causes: Words,
        operation: OperationType,
        count: int,
    ) -> None:
        plan = applied.setup.exceptions
        assert plan is not None
        conflicts = ConflictBatch(
            self.tables.site.server_id,
            self.epoch.source_id,
            self.epoch.epoch,
            count + 1,
            operation,
            causes,
            batch.transactions.view(np.uint64),
            _by_position(batch.table, batch.before),
            _by_position(batch.table, batch.after),
        )
        marks.tag_own(self.txn)
        with self.txn.savepoint():
            insert_many(self.txn, table, exceptions_columns(plan, conflicts))

    def _last_number(self, table: Table) -> int:
        """Return the greatest running number that an exceptions table has of the epoch, 0 without one."""
        import pyarrow.compute as pc

        names = [column.name for column in table.definition.columns[:4]]
        place = (self.tables.site.server_id, self.epoch.source_id, self.epoch.epoch)
        last = 0
        for rows in scan(table, None):
            *found, numbers = decode_entries(table.format, rows.entries, rows.offsets, rows.count, names).columns
            is_of_epoch = np.ones(rows.count, dtype=np.bool_)
            for column, value in zip(found, place, strict=True):
                is_of_epoch &= column.to_numpy(zero_copy_only=False) == value
            last = max(last, pc.max(numbers.filter(is_of_epoch)).as_py() or 0)
        return last


def _by_position(table: Table, columns: Columns | None) -> dict[int, Any] | None:
    """Return columns as exceptions rows need them: those of an Enum as text."""
    if columns is None:
        return None
    return {table.definition.position(name): plain(array) for name, array in columns.items()}
