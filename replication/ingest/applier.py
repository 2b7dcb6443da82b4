"""Apply complete transactions of a source to the store, exactly once.

Received rows stay as bytes until a group of complete source transactions is applied; then consecutive changes of one
table in the same form are one batch. The row of the source is written in the same transaction of the store, so rows and
position commit together. A source transaction that is too large to be held gets its own transaction of the store, which
is spooled like any other, and is applied while it arrives.

Order of a schema change: rows before it are committed; then for each step n, the row of the source says durably that n
has begun, and the step is executed; after the last step, the position after the statement is written.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from tidemark.engine.base.errors import Rejected
from tidemark.replication.binlog.events import Buffer
from tidemark.replication.binlog.position import Position
from tidemark.replication.ingest import schema
from tidemark.replication.ingest.address import Filter
from tidemark.replication.ingest.rows import RowApplier, Target
from tidemark.replication.ingest.source_position import SourcePosition
from tidemark.replication.ingest.source_tables import SourceTables
from tidemark.replication.ingest.transactions import Change, Commit, Moved, Place, Rollback, StatementText, Step
from tidemark.replication.sql.statements import NoEffect, Provided, Statement

if TYPE_CHECKING:
    from tidemark.engine.store.store import Store
    from tidemark.engine.txn.transaction import Transaction

_log = logging.getLogger("tidemark.ingest")
# The columns of the one row of a sequence of MariaDB.
SEQUENCE_COLUMNS = (
    *("next_not_cached_value", "minimum_value", "maximum_value", "start_value", "increment", "cache_size"),
    *("cycle_option", "cycle_count"),
)
_SHOWN_CHARACTERS = 160
# Limits of held rows, in bytes, and of source transactions that are applied together.
WAITING_BYTES_MAX = 4 << 20
GROUP_TRANSACTIONS_MAX = 2_000


@dataclass
class _Run:
    """Consecutive row bodies of one table in the same form."""

    target: Target
    origin: Position
    bodies: list[Buffer] = field(default_factory=list)


class _Runs:
    """Held changes. Those of one table stay in order; tables are independent of each other."""

    def __init__(self) -> None:
        self.runs: list[_Run] = []
        self.bytes = 0
        self._newest: dict[str, _Run] = {}

    def add(self, target: Target, origin: Position, body: Buffer) -> None:
        name = target.table.name
        newest = self._newest.get(name)
        if newest is None or newest.target is not target:
            newest = self._newest[name] = _Run(target, origin)
            self.runs.append(newest)
        newest.bodies.append(body)
        self.bytes += len(body)

    def take(self, others: _Runs) -> None:
        """Append later changes."""
        if not self.runs:
            self.runs, self.bytes, self._newest = others.runs, others.bytes, others._newest
            return
        for run in others.runs:
            for body in run.bodies:
                self.add(run.target, run.origin, body)


class Applier:
    """Applies the steps of a stream. One thread at a time may call it. After an error the caller begins again from
    `source_position`.
    """

    def __init__(
        self,
        store: Store,
        db: schema.Schema,
        source_position: SourcePosition,
        wanted: Filter,
        tolerates: bool = False,
        skipped: frozenset[tuple[str, int]] = frozenset(),
    ) -> None:
        """source_position: the row of the source in the store. skipped: (file, position) of statements to skip."""
        self._store, self._db = store, db
        self.source_position = source_position
        self._wanted, self._skipped = wanted, skipped
        self._rows = RowApplier(store, tolerates)
        self._tables = SourceTables(store, db)
        self._whole, self._current = _Runs(), _Runs()
        self._whole_place: Place | None = None
        self._whole_transactions = 0
        self._large: Transaction | None = None
        self._large_rows = 0
        self._has_changes = False
        self._sequences: set[str] = set()  # of the source, whose rows were skipped

    @property
    def is_idle(self) -> bool:
        """Whether no complete transaction waits to be applied."""
        return self._whole_place is None

    def begin_in(self, file: str, created_s: int) -> None:
        """Store when the first file of the stream was begun, in seconds since 1970, unless the row of the source has
        this already. Durable on return.
        """
        if created_s and not self.source_position.file_created_s and file == self.source_position.file:
            self._save(replace(self.source_position, file_created_s=created_s))

    def _save(self, source_position: SourcePosition) -> None:
        source_position.save(self._store)
        self.source_position = source_position

    def step(self, step: Step) -> None:
        """Take the next step.

        Raises: Unsupported, BinlogDamaged, DuplicateKey, RowNotFound, ValueOutOfRange and other errors of rows;
        Retryable errors. Each of them rolls back all uncommitted changes.
        """
        try:
            if isinstance(step, Change):
                self._change(step)
            elif isinstance(step, (Commit, Moved)):
                self._commit(step.place, is_transaction=isinstance(step, Commit))
            elif isinstance(step, Rollback):
                self._undo(step.place)
            elif isinstance(step, StatementText):
                self._statement(step)
        except BaseException:
            self.roll_back()
            raise

    def roll_back(self) -> None:
        """Roll back everything uncommitted. A second call does nothing."""
        self._whole, self._whole_place, self._whole_transactions = _Runs(), None, 0
        self._roll_back_current()

    def _roll_back_current(self) -> None:
        """Roll back the source transaction that is arriving."""
        self._current = _Runs()
        large, self._large, self._large_rows = self._large, None, 0
        if large is not None:
            large.rollback()

    def flush(self) -> None:
        """Apply and commit the complete transactions that wait. Raises: as `step`."""
        place = self._whole_place
        if place is None:
            return
        whole, count = self._whole, self._whole_transactions
        self._whole, self._whole_place, self._whole_transactions = _Runs(), None, 0
        self._alone(lambda txn: self._apply(txn, whole), place, count)

    # --- rows ------------------------------------------------------------------------------------
    def _change(self, step: Change) -> None:
        self._has_changes = True
        if not self._wanted.wants(step.map.name) or self._is_sequence(step):
            return
        target = self._rows.target(step.map, step.rows, step.origin)
        self._current.add(target, step.origin, step.rows.body)
        if self._current.bytes >= WAITING_BYTES_MAX:
            self._spill()

    def _is_sequence(self, step: Change) -> bool:
        """Whether rows are the state of a sequence, which the store does not have."""
        name = step.map.name
        if name in self._store.tables.by_name or tuple(each.name for each in step.map.columns) != SEQUENCE_COLUMNS:
            return False
        if name not in self._sequences:
            self._sequences.add(name)
            _log.warning(
                "%s: the state of sequence %s is not ingested; its changes are skipped", step.origin.text, name
            )
        return True

    def _spill(self) -> None:
        """Apply the rows of a large transaction that have arrived, in a transaction of its own."""
        if self._large is None:
            self.flush()
            self._large = self._store.transactions.begin()
        current, self._current = self._current, _Runs()
        self._large_rows += self._apply(self._large, current)

    def _apply(self, txn: Transaction, changes: _Runs) -> int:
        rows = 0
        for run in changes.runs:
            body = run.bodies[0] if len(run.bodies) == 1 else b"".join(run.bodies)
            rows += self._rows.apply(txn, run.target, body, run.origin)
        return rows

    def _finish(self, txn: Transaction, source_position: SourcePosition) -> None:
        source_position.write(txn)
        txn.commit(self._store.resources.waits_for_disk)
        self.source_position = source_position

    def _commit(self, place: Place, is_transaction: bool) -> None:
        has_changes, self._has_changes = self._has_changes, False
        if not is_transaction and (place.file, place.position) == (
            self.source_position.file,
            self.source_position.position,
        ):
            return  # the start of the stream: keep the step of a schema change that was begun there
        if self._large is not None:
            self._spill()
            txn, rows = self._large, self._large_rows
            self._finish(txn, self.source_position.after(place, 1, rows))
            self._large, self._large_rows = None, 0
            return
        self._whole.take(self._current)
        self._current = _Runs()
        self._whole_place = place
        self._whole_transactions += int(is_transaction and has_changes)
        if self._whole.bytes >= WAITING_BYTES_MAX or self._whole_transactions >= GROUP_TRANSACTIONS_MAX:
            self.flush()

    def _undo(self, place: Place) -> None:
        """Roll back the source transaction that has just arrived, as the source did."""
        self._has_changes = False
        self._roll_back_current()
        self._commit(place, is_transaction=False)

    # --- statements ------------------------------------------------------------------------------
    def _statement(self, step: StatementText) -> None:
        origin = step.origin
        if (origin.file, origin.position) in self._skipped:
            self._tables.forget()
            steps = []
        else:
            steps = schema.steps_of(
                step.text, step.database, self._wanted, origin, self._store, step.session, step.is_readable
            )
        if not steps:
            if schema.is_of_sequence(step.text):
                shown = step.text[:_SHOWN_CHARACTERS]
                _log.warning("%s: sequences are not ingested; the statement %r is skipped", origin.text, shown)
            if step.place is not None:
                self._commit(step.place, is_transaction=False)
            return
        if self._current.runs or self._large is not None:
            raise origin.unsupported(
                "a schema change after rows of the same transaction is not ingested; commit before it at the source"
            )
        self.flush()
        begun = self.source_position.step
        try:
            steps, decisions = schema.decided(steps, self._store, begun)
        except Rejected as error:
            raise schema.refused(error, step.text, origin) from error
        steps, known = self._tables.read(steps)
        self._tables.make_room()
        self._make(steps, step, begun - decisions if begun else 0, decisions)
        if step.place is None:
            self._tables.save(known)
            return
        last = steps[-1]

        def finish(txn: Transaction) -> int:
            self._tables.write(txn, known)
            return schema.truncate(last, txn) if isinstance(last, schema.Truncate) else 0

        self._alone(finish, step.place, 1)

    def _make(self, steps: list[Statement], step: StatementText, begun: int, decisions: int) -> None:
        """Make the steps from number `begun` on; 0: from the first. decisions: of `schema.decided`."""
        if not begun:
            try:
                schema.check(steps, self._store, step.session)
            except Rejected as error:
                raise schema.refused(error, step.text, step.origin) from error
        left_out = 0
        for number, each in enumerate(steps, 1):
            if number < begun or number <= left_out or isinstance(each, (schema.Truncate, NoEffect)):
                continue
            if isinstance(each, Provided):
                # A condition is never a step that was begun: after a crash within its steps it was true.
                left_out = 0 if schema.holds(each, self._store) else number + each.steps
                continue
            if number > begun:
                self._save(replace(self.source_position, step=number | decisions))
            elif schema.has_happened(each, self._store):
                continue
            try:
                schema.make(each, self._db, self._store, step.session)
            except Rejected as error:
                # The step changed nothing: the next attempt must not mistake what it finds for the step's result.
                before = number - 1 | decisions if number > 1 else 0
                replace(self.source_position, step=before).save(self._store)
                raise schema.refused(error, step.text, step.origin) from error

    def _alone(self, work: Callable[[Transaction], int], place: Place, transactions: int) -> None:
        """Do work that returns a number of rows, with the position after it, in a transaction of the store."""
        txn: Transaction = self._store.transactions.begin()
        try:
            rows = work(txn)
            self._finish(txn, self.source_position.after(place, transactions, rows))
        except BaseException:
            txn.rollback()
            self.roll_back()
            raise
