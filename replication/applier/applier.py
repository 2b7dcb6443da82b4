"""The applier of one channel: it applies epoch transactions of a log to a store, each whole and exactly once.

An epoch transaction is one transaction of the store, with its rows, refreshes, exceptions rows, and, last, its row of
`ndb_apply_status`, which records that it was applied. A crash leaves all of it or nothing. State in memory (max
replicated epoch, counters, last conflict) changes after the commit. After an error nothing has changed, unless it came
during the commit and leaves its outcome unknown (OutcomeUnknown, KeyboardInterrupt). In either case the same epoch may
be applied again: it is skipped if it was committed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from tidemark.engine.base.errors import Error, PeerError, Retryable
from tidemark.engine.base.options import parse_size
from tidemark.engine.base.out_of_memory import memory_error
from tidemark.engine.txn.transaction import DecidedTransaction
from tidemark.replication.applier.apply_status import (
    applied_epoch,
    applied_epochs,
    committed_in,
    write_own_position,
    write_position,
)
from tidemark.replication.applier.batch import ChangeBatch
from tidemark.replication.applier.epoch_state import EpochState, track
from tidemark.replication.applier.intake import Intake, IntakeOptions, StatusRows
from tidemark.replication.applier.one_pass import OnePass
from tidemark.replication.applier.setups import AppliedTables
from tidemark.replication.applier.stops import Stop
from tidemark.replication.binlog.position import Position
from tidemark.replication.conflict.epochs import (
    Ending,
    EpochVerifier,
    LastConflict,
    MaxReplicatedEpoch,
    Pass,
    Passes,
    starting_epoch,
)
from tidemark.replication.settings.status import (
    CONFLICT_COMMITS,
    DETECT_ITERATIONS,
    REFLECTED_DISCARDED,
    REFLECTED_PREPARED,
    REFRESHED,
    REJECTS,
    Counters,
)

if TYPE_CHECKING:
    from tidemark.engine.base.clock import Clock
    from tidemark.engine.store.store import Store
    from tidemark.engine.txn.transaction import Transaction
    from tidemark.replication.applier.transactions import EpochTransaction
    from tidemark.replication.settings.setup import SiteSettings

    Items = Iterator[ChangeBatch | StatusRows]

_log = logging.getLogger("tidemark.applier")
RETRY_PAUSE_SECONDS = 0.05
MEMORY_BYTES_MIN = 1 << 20  # for an epoch's rows outside the store


@dataclass(frozen=True)
class ApplierOptions:
    """Options of a channel that its applier uses; the first two affect no result."""

    allow_batching: bool = True
    batch_bytes: int = 2 << 20
    retries: int = 10
    ignored: frozenset[int] = frozenset()
    allow_skip_epoch: bool = False

    @classmethod
    def from_options(cls, values: Mapping[str, Any]) -> ApplierOptions:
        """Return the options from the values of `options.settings`."""
        return cls(
            values["replica_allow_batching"],
            parse_size("replica_batch_size", values["replica_batch_size"]),
            values["replica_transaction_retries"],
            frozenset(values["ignore_server_ids"]),
            values["allow_skip_epoch"],
        )


class Applied(NamedTuple):
    """The outcome of an epoch transaction: it was committed in `own_epoch`, or skipped because it was applied before.
    `next` is the position in the log after it.
    """

    source_id: int
    epoch: int
    own_epoch: int
    rows: int
    next: Position
    is_passed_over: bool


def retried(clock: Clock, retries: int, work: Callable[[], object]) -> None:
    """Do work that a Retryable rolls back, again up to `retries` times."""
    for _ in range(retries):
        try:
            work()
            return
        except Retryable:
            clock.sleep(RETRY_PAUSE_SECONDS)
    work()


class _Again(Exception):
    """The pass is rolled back, and another one follows."""

    def __init__(self, ending: Ending) -> None:
        super().__init__()
        self.ending = ending


class Applier:
    """The applier of one channel. One thread at a time may call it: its transactions belong to that thread."""

    pass_kind = OnePass

    def __init__(
        self,
        store: Store,
        site: SiteSettings,
        options: ApplierOptions | None = None,
        counters: Counters | None = None,
    ) -> None:
        """Read settings and positions from the store. Raises: NoSuchTable without `mysql.ndb_apply_status`."""
        self.store = store
        self.options = options or ApplierOptions()
        self.tables = AppliedTables(store, site)
        self.counters = counters or Counters()
        self.mre = MaxReplicatedEpoch(site.server_id, self.options.ignored)
        self.last_conflict = LastConflict()
        self.passes = Passes()
        self.exceptions_counts: dict[str, int] = {}
        # Whether another channel of the store brings the changes of a server, or may.
        self.is_followed: Callable[[int], bool] = lambda server_id: False
        self._verifiers: dict[int, EpochVerifier] = {}
        rows = 1 if not self.options.allow_batching else 1 << 40
        wanted = IntakeOptions(site.server_id, store.tables.seed, self.options.ignored, self.options.batch_bytes, rows)
        self._intake = Intake(store.tables.named, self.tables.before_columns, wanted)
        self._recover_mre()

    # --- one epoch transaction ---------------------------------------------------------------------
    def apply(self, transaction: EpochTransaction) -> Applied:
        """Apply an epoch transaction, or skip it if it was applied before. It is as durable on return as a commit of
        the store.

        Raises: errors that stop the applier, most with their class as `stop` (`tidemark.replication.applier.stops`); a
        Retryable after the last retry; OutcomeUnknown. After OutcomeUnknown, and MemoryExhausted of the process, all of
        the transaction may be applied; after any other error nothing of it is.
        """
        for attempt in range(self.options.retries + 1):
            try:
                return self._try(transaction)
            except (Retryable, MemoryError) as error:
                if attempt == self.options.retries:
                    if isinstance(error, MemoryError):
                        raise memory_error(error, "the epoch was applied as a whole or not at all") from error
                    raise
                self.store.clock.sleep(RETRY_PAUSE_SECONDS)
            except Error as error:
                # An error without the position of an event gets that of the transaction.
                if "file" not in error.evidence:
                    error.evidence.update(transaction.start._asdict())
                raise
        raise AssertionError("the last attempt returns or raises")

    def _try(self, transaction: EpochTransaction) -> Applied:
        source_id = transaction.source_id
        epoch, first, items = self._intake.begun(transaction)
        applied = applied_epoch(self.store, source_id)
        verifier = self._verifiers.get(source_id)
        if verifier is None:
            verifier = self._verifiers[source_id] = EpochVerifier(applied, self.options.allow_skip_epoch)
        self._begin(verifier, epoch, source_id)
        if epoch <= applied:
            verifier.commit()
            return Applied(source_id, epoch, 0, 0, transaction.finish(), True)
        state_before = self.passes.state
        try:
            run, own_epoch = self._epoch_transaction(transaction, epoch, chain([first], items))
        except BaseException:
            self.counters.drop()
            self.passes.state = state_before
            verifier.roll_back()
            self._recover_mre()
            raise
        verifier.commit()
        self._committed(run, own_epoch)
        return Applied(source_id, epoch, own_epoch, run.rows, transaction.finish(), False)

    def _begin(self, verifier: EpochVerifier, epoch: int, source_id: int) -> None:
        try:
            if not verifier.begin(epoch):
                _log.warning("epoch %d of server %d does not follow what was applied", epoch, source_id)
        except PeerError as error:
            error.evidence["stop"] = Stop.OUT_OF_ORDER
            raise

    def _epoch_transaction(self, transaction: EpochTransaction, epoch: int, items: Items) -> tuple[OnePass, int]:
        source_id = transaction.source_id
        memory_bytes = max(self.store.options.transaction_memory_bytes, MEMORY_BYTES_MIN)
        state = EpochState(source_id, epoch, self.mre.begin(), self.exceptions_counts, memory_bytes)
        self.passes.begin()
        txn = self.store.transactions.begin(kind=DecidedTransaction)
        try:
            run = self._run_passes(txn, transaction, state, items)
            for server_id, at, logger_id in run.statuses:
                self.mre.see(server_id, at)
                # Another channel writes its own position. A later one would let it skip epochs, an earlier one apply
                # them twice.
                if server_id != source_id and not self.is_followed(server_id):
                    write_position(txn, server_id, at, logger_id)
            write_own_position(txn, epoch, transaction)
            txn.commit(self.store.resources.waits_for_disk)
        except BaseException:
            txn.rollback()
            raise
        return run, committed_in(self.store, source_id)

    def _run_passes(self, txn: Transaction, transaction: EpochTransaction, state: EpochState, items: Items) -> OnePass:
        while True:
            if self.passes.state is not Pass.NORMAL and state.tracker is None:
                anew = iter(lambda: self._intake.batches(transaction, only_keys=True), None)  # each item: a new reading
                state.tracker = track(chain([items], anew), state.memory_bytes // 2, self.store.tables.seed)
                for ids in state.marked:
                    state.tracker.mark(ids)
                items = self._intake.batches(transaction)
            is_apply = self.passes.state is Pass.APPLY
            run = self.pass_kind(self.store, txn, self.tables, self.counters, state, self.passes.state)
            try:
                with txn.savepoint():
                    run.run(items)
                    ending = self.passes.end(run.has_conflict)
                    if ending is not Ending.COMMIT:
                        raise _Again(ending)
            except _Again as again:
                if again.ending is Ending.AGAIN_DROP_COUNTERS:
                    self.counters.drop()
                items = self._intake.batches(transaction)
                continue
            if is_apply and state.tracker is not None:
                self.counters.add(REJECTS, state.tracker.marked)
            self.counters.add(DETECT_ITERATIONS, self.passes.detect_iterations)
            self.counters.add(CONFLICT_COMMITS, self.passes.conflict_commits)
            return run

    def _committed(self, run: OnePass, own_epoch: int) -> None:
        staged = self.counters.staged
        reflected = staged.get(REFLECTED_PREPARED, 0) - staged.get(REFLECTED_DISCARDED, 0)
        refreshed = staged.get(REFRESHED, 0)
        self.mre.commit()
        self.counters.commit()
        self.last_conflict.commit(own_epoch, self.mre.value, run.violations, reflected, refreshed)

    def _recover_mre(self) -> None:
        """Raise the max replicated epoch to that of the committed rows: they include a commit that was interrupted
        before the state in memory changed.
        """
        self.mre.roll_back()
        if self.store.failure.first is None:
            rows = applied_epochs(self.store).items()
            self.mre.value = max(self.mre.value, starting_epoch(rows, self.mre.own_id, self.mre.ignored))

    # --- the site ----------------------------------------------------------------------------------
    def start(self) -> None:
        """Read the settings of tables again at the start of a channel; the verification of epochs starts anew."""
        self.tables.reload()
        self._verifiers.clear()
        self.mre.reset()  # rows of ndb_apply_status may be gone, and only they prove what the peer has applied
        self._recover_mre()
