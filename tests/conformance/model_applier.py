"""The applier of the reference model: one epoch transaction after the other, in as many passes as needed."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from tests.conformance.exceptions_row import Conflict, exceptions_row
from tests.conformance.judgements import IMPLICATED, image_order, is_in_conflict, order, outcomes, pack_keys
from tidemark.engine.base.errors import PeerError, Rejected
from tidemark.replication.applier.exceptions_rows import INVALID_TRANSACTION
from tidemark.replication.conflict.epochs import Ending, EpochVerifier, LastConflict, MaxReplicatedEpoch, Pass, Passes
from tidemark.replication.conflict.functions import (
    APPLIED,
    FAILURES,
    Check,
    Decision,
    Failure,
    Handling,
    Kind,
    Operation,
    decide,
)
from tidemark.replication.conflict.tracker import DependencyTracker
from tidemark.replication.settings.exceptions_table import Cause, OperationType
from tidemark.replication.settings.status import (
    CONFLICT_COMMITS,
    DELETE_DELETE,
    DETECT_ITERATIONS,
    REFLECTED_DISCARDED,
    REFLECTED_PREPARED,
    REFRESHED,
    REJECTS,
    ROW_CONFLICTS,
    ROW_REJECTS,
    Counters,
)

if TYPE_CHECKING:
    from tests.conformance.model import Epoch, Event, ModelRow, ModelSite

CORRUPT_EVENT = "REPLICA_CORRUPT_EVENT"
CONFIGURATION = "REPLICA_CONFIGURATION"
EXCEPTIONS_WRITE = "EXCEPTIONS_WRITE_ERROR"
OUT_OF_ORDER = "EPOCH_OUT_OF_ORDER"
OTHER = "OTHER"
_KINDS = {"WRITE_ROW": Kind.WRITE, "UPDATE_ROW": Kind.UPDATE, "DELETE_ROW": Kind.DELETE}


# Whether the existing row lets the event pass.
Judge = Callable[["OnePass", "Event", "ModelRow", Check], bool]


class Stopped(Exception):
    """The applier stops with a class of error."""


class Applier:
    """Of one site, for one source."""

    def __init__(self, site: ModelSite, max_replicated_epoch: int, judge: Judge) -> None:
        self.site = site
        self.judge = judge
        self.mre = MaxReplicatedEpoch(site.server_id, value=max_replicated_epoch)
        self.counters = Counters()
        self.last_conflict = LastConflict()
        self.passes = Passes()
        self.verifier = EpochVerifier()
        self.taken = 0
        self.error: str | None = None
        self.counts: dict[str, int] = {}  # of exceptions tables; never rolled back

    def take(self, source: ModelSite, keep_epoch_open: bool) -> None:
        while self.error is None and self.taken < len(source.epochs):
            epoch = source.epochs[self.taken]
            kept = copy.deepcopy((self.site.tables, self.site.open, self.site.exception_rows, self.site.status))
            try:
                self._epoch_transaction(epoch, source.server_id)
            except Stopped as stopped:
                self.site.tables, self.site.open, self.site.exception_rows, self.site.status = kept
                self.counters.drop()
                self.mre.roll_back()
                self.error = str(stopped)
                return
            self.taken += 1
            if not keep_epoch_open:
                self.site.epoch()

    def _epoch_transaction(self, epoch: Epoch, source_id: int) -> None:
        site = self.site
        try:
            self.verifier.begin(epoch.number)
        except PeerError:
            raise Stopped(OUT_OF_ORDER) from None
        self.mre.begin()
        self.passes.begin()
        statuses = [(source_id, epoch.number), *((own, at) for own, at, by in epoch.status if by != site.server_id)]
        events = [event for event in epoch.events if event.server_id != site.server_id]
        marks: set[int] = set()
        ending = None
        while ending is not Ending.COMMIT:
            kept = copy.deepcopy((site.tables, site.open, site.exception_rows))
            run = OnePass(self, epoch, source_id, marks)
            run.run(events)
            is_apply = self.passes.state is Pass.APPLY
            try:
                ending = self.passes.end(run.has_conflict)
            except PeerError:
                raise Stopped(OTHER) from None
            if ending is not Ending.COMMIT:
                site.tables, site.open, site.exception_rows = kept
                if ending is Ending.AGAIN_DROP_COUNTERS:
                    self.counters.drop()
            elif is_apply:
                self.counters.add(REJECTS, run.tracker.marked)
        self.counters.add(DETECT_ITERATIONS, self.passes.detect_iterations)
        self.counters.add(CONFLICT_COMMITS, self.passes.conflict_commits)
        for server_id, number in statuses:
            site.status[server_id] = number
            self.mre.see(server_id, number)
            if site.case.is_circular:
                # The immediate source's position is sent under the own server id, so that it reaches the source.
                site.open.status.append((server_id, number, site.server_id if server_id == source_id else source_id))
        self._commit(run)

    def _commit(self, run: OnePass) -> None:
        staged = self.counters.staged
        reflected = staged.get(REFLECTED_PREPARED, 0) - staged.get(REFLECTED_DISCARDED, 0)
        refreshed = staged.get(REFRESHED, 0)
        self.mre.commit()
        self.verifier.commit()
        self.counters.commit()
        self.last_conflict.commit(self.site.open.number, self.mre.value, run.violations, reflected, refreshed)


class OnePass:
    """One pass over the events of an epoch transaction."""

    def __init__(self, applier: Applier, epoch: Epoch, source_id: int, marks: set[int]) -> None:
        self.applier = applier
        self.site = applier.site
        self.epoch = epoch
        self.source_id = source_id
        self.marks = marks
        self.state = applier.passes.state
        self.tracker = DependencyTracker(1)
        self.tracker.mark(_ids(marks))
        self.refreshed: set[tuple[str, Any]] = set()
        # Rows whose change is sent back: as they were before, and the event that says so.
        self.reflected: dict[tuple[str, Any], tuple[ModelRow | None, Event | None]] = {}
        self.transaction = self.site.new_transaction()
        self.has_conflict = False
        self.violations = 0

    def run(self, events: list[Event]) -> None:
        if self.state is not Pass.NORMAL:
            for event in events:
                self._track(event)
        for event in events:
            if event.flag == "REFLECT":
                self.applier.counters.add(REFLECTED_PREPARED)
            elif event.flag == "REFRESH":
                self.applier.counters.add(REFRESHED)
            if self.site.setups[event.table].is_transactional and event.transaction is None:
                raise Stopped(CORRUPT_EVENT)
            if self.state is Pass.APPLY and self.tracker.is_marked(_ids([_id(event)]))[0]:
                self.applier.counters.add(ROW_REJECTS)
                self._handle(event, Failure.REFUSED, IMPLICATED)
            else:
                self._apply(event)

    def _track(self, event: Event) -> None:
        data = repr(event.key).encode()
        keys = pack_keys([(np.frombuffer(data, dtype=np.uint8), np.array([0, len(data)], dtype=np.int64))])
        table = list(self.site.definitions).index(event.table)
        try:
            self.tracker.track(_ids([_id(event)]), np.array([table], dtype=np.int64), *keys)
        except PeerError:
            raise Stopped(CORRUPT_EVENT) from None

    def _apply(self, event: Event) -> None:
        site = self.site
        function = site.setups[event.table].function
        kind = Kind.READ if event.flag == "READ" else _KINDS[event.kind]
        try:
            decision = decide(function.definition if function else None, site.case.role, event.flag == "REFLECT", kind)
        except Rejected:
            raise Stopped(CONFIGURATION) from None
        if function is not None:
            self._check_image(event, decision)
        old = copy.deepcopy(site.tables[event.table].get(event.key))
        failure = self._try(event, decision)
        if failure is not None:
            if failure not in decision.failures:
                raise Stopped(OTHER)
            self._handle(event, failure, decision.failures[failure])
        elif decision.reflects:
            self._reflect(event, old)
        else:
            self._unsay(event)
            site.open.replicated_rows += site.setups[event.table].binlog.is_logged

    def _reflect(self, event: Event, old: ModelRow | None) -> None:
        """An epoch transaction is one transaction: for each row it logs the image before it and the
        image at its end.
        """
        place = (event.table, event.key)
        first = self.reflected[place][0] if place in self.reflected else old
        self._unsay(event)
        new, events = self.site.tables[event.table].get(event.key), self.site.open.events
        count = len(events)
        if first is not None or new is not None:
            self.site.log_change(event.table, event.key, first, new, self.transaction, "REFLECT")
        self.reflected[place] = (first, events[-1] if len(events) > count else None)

    def _unsay(self, event: Event) -> None:
        """The events logged for the row in this pass are replaced by later ones."""
        said = self.reflected.pop((event.table, event.key), (None, None))[1]
        if said is not None:
            self.site.open.events = [each for each in self.site.open.events if each is not said]

    def _check_image(self, event: Event, decision: Decision) -> None:
        position = self.site.setups[event.table].resolve_position
        if position is None:
            return
        name = self.site.definitions[event.table].columns[position].name
        if (decision.needs_before and name not in (event.before or {})) or (
            decision.needs_after and name not in (event.after or {})
        ):
            raise Stopped(CORRUPT_EVENT)
        columns = self.site.definitions[event.table].columns
        if decision.needs_all_after and any(column.name not in (event.after or {}) for column in columns):
            raise Stopped(CORRUPT_EVENT)

    def _try(self, event: Event, decision: Decision) -> Failure | None:
        from tests.conformance.model import ModelRow, row_of

        rows = self.site.tables[event.table]
        row = rows.get(event.key)
        accepted = True
        if row is not None and decision.check is not Check.NONE:
            accepted = self.applier.judge(self, event, row, decision.check)
        facts = (row is not None, accepted, (event.table, event.key) in self.refreshed)
        (code,) = outcomes(decision, *(np.array([each]) for each in facts)).tolist()
        if code != APPLIED:
            return FAILURES[code]
        if row is None:
            given = dict(zip(self.site.definitions[event.table].primary_key, event.key, strict=True))
            values = row_of(self.site.definitions[event.table], given | (event.after or {}))
            if values is None:
                raise Stopped(OTHER)
            rows[event.key] = ModelRow(values, self.source_id, self.site.open.number)
            return None
        if decision.operation is Operation.DELETE:
            del rows[event.key]
            return None
        if event.flag != "READ":
            row.values.update(event.after or {})
        row.author, row.epoch = self.source_id, self.site.open.number
        return None

    def _handle(self, event: Event, failure: Failure, handling: Handling) -> None:
        applier, setup = self.applier, self.site.setups[event.table]
        if handling.is_discard:
            applier.counters.add(REFLECTED_DISCARDED)
        if handling.is_counted and setup.function is not None:
            self.violations += 1
            applier.counters.add(setup.function.definition.counter)
        if handling.is_delete_delete:
            applier.counters.add(DELETE_DELETE)
        if handling.marks:
            self.has_conflict = True
            applier.counters.add(ROW_CONFLICTS)
            self.marks.add(_id(event))
            if self.state is not Pass.NORMAL:
                self.tracker.mark(_ids([_id(event)]))
        if handling.is_refreshed and failure is not Failure.REFRESHED:
            self._refresh(event)
        if handling.is_logged and handling.cause is not None:
            self._log_exception(event, handling.cause)

    def _refresh(self, event: Event) -> None:
        place = (event.table, event.key)
        if place in self.refreshed:
            return
        if any(column.type.is_lob for column in self.site.definitions[event.table].columns):
            raise Stopped(EXCEPTIONS_WRITE)
        row = self.site.tables[event.table].get(event.key)
        if row is not None:
            row.author, row.epoch = 0, self.site.open.number
            self._unsay(event)
        self.refreshed.add(place)
        self.site.log_refresh(event.table, event.key, row, self.transaction)

    def _log_exception(self, event: Event, cause: Cause) -> None:
        plan = self.site.setups[event.table].exceptions
        if plan is None:
            return
        counts = self.applier.counts
        counts[event.table] = counts.get(event.table, 0) + 1
        is_read = event.flag == "READ" and cause is Cause.TRANS_IN_CONFLICT
        places = {column.name: place for place, column in enumerate(self.site.definitions[event.table].columns)}
        conflict = Conflict(
            self.site.server_id,
            self.source_id,
            self.epoch.number,
            counts[event.table],
            OperationType.READ_ROW if is_read else OperationType[event.kind],
            cause,
            None if event.before is None else {places[name]: value for name, value in event.before.items()},
            None if event.after is None else {places[name]: value for name, value in event.after.items()},
            INVALID_TRANSACTION if event.transaction is None else event.transaction,
        )
        values = exceptions_row(plan, conflict)
        for column, value in zip(plan.exceptions.columns, values, strict=True):
            if value is not None:
                column.type.stored(value)  # what a store would check
            assert value is not None or column.nullable, f"{column.name} is empty"
        names = [column.name for column in plan.exceptions.columns]
        row = dict(zip(names, values, strict=True))
        self.site.exception_rows.append((plan.exceptions.name.partition(".")[2], row))


def _id(event: Event) -> int:
    return -1 if event.transaction is None else event.transaction


def _ids(values: Any) -> np.ndarray:
    return np.array(list(values), dtype=np.int64)


def judge_in_words(run: OnePass, event: Event, row: ModelRow, check: Check) -> bool:
    """The programs, in plain words."""
    function = run.site.setups[event.table].function
    assert function is not None
    if check is Check.AUTHOR:
        return row.author != 0
    if check is Check.EPOCH:
        return not is_in_conflict(row.author, row.epoch, run.applier.mre.frozen, function.bits)
    current = row.values[function.column] or 0
    if check is Check.EQUAL:
        return bool(((event.before or {})[function.column] or 0) == current)
    given = (event.after or {})[function.column] or 0
    if check is Check.GREATER or given != current:
        return bool(given > current)
    images, sites = orders(run, event, row)
    return images > 0 or (images == 0 and sites >= 0)


def orders(run: OnePass, event: Event, row: ModelRow) -> tuple[int, int]:
    """Order of the event's after-image and the row, and of the sites that wrote them."""
    names = [column.name for column in run.site.definitions[event.table].columns]
    images = image_order([(event.after or {})[each] for each in names], [row.values[each] for each in names])
    return images, order(run.source_id, row.author or run.site.server_id)
