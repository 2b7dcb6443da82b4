"""Turn the changes of one epoch into one epoch transaction of the binlog.

The table's rule and any-values (`replication/settings/any_value.py`) decide which rows are logged, and under which
server id. Rows are handled in the batches that the log yields, by masks, without work for each row. Batches are held
until they exceed `cache_bytes`, so that a small epoch has one statement with all its tables; later batches go straight
to the file.

An epoch is written in three cases: it has a logged row, a statement or the mark of a load; or applied positions are
logged and it has a replicated row; or empty epochs are logged. Otherwise a transaction begun for it is rolled back. A
statement comes first: a schema change has an epoch to itself, and the epoch transaction after the statement names that
epoch (docs/internals/replication.md, *One epoch, step by step*).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tidemark.engine.base.errors import InvariantBroken
from tidemark.engine.base.options import parse_size
from tidemark.engine.log.redo_layout import KIND_DELETE, KIND_INSERT, KIND_REFRESH, KIND_UPDATE
from tidemark.engine.log.row_changes import LoadAdopted, RowChanges, SchemaChange
from tidemark.engine.rows.column_output import decode_rows
from tidemark.replication.binlog.events import DELETE, UPDATE, WRITE
from tidemark.replication.binlog.images import FULL_RULE, Present, RowBatch, read_rule
from tidemark.replication.binlog.row_plan import RowImages
from tidemark.replication.injector.epoch_counts import EpochCounts
from tidemark.replication.injector.mark import LoadMark
from tidemark.replication.injector.schema_events import SchemaStatement, statement_of, statements_of
from tidemark.replication.settings.any_value import FLAG_READ, FLAG_REFRESH, meaning_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tidemark.engine.log.follower import EpochChanges
    from tidemark.engine.rows.row_format import Words
    from tidemark.replication.binlog.position import Position
    from tidemark.replication.binlog.row_plan import TablePlans
    from tidemark.replication.binlog.writer import BinlogWriter
    from tidemark.replication.injector.table_rules import LoggedTable, TableRules

_log = logging.getLogger("tidemark.binlog")

_ANY_VALUE_MASK = 0xFFFF_FFFF
_EVENTS = {KIND_INSERT: WRITE, KIND_UPDATE: UPDATE, KIND_DELETE: DELETE, KIND_REFRESH: DELETE}


@dataclass
class InjectorOptions:
    """Which parts of an epoch are written; a new value takes effect with the next epoch."""

    server_id: int = 1
    rows: bool = True
    load_rows: bool = True
    apply_status: bool = False
    empty_epochs: bool = False
    replica_updates: bool = False
    cache_bytes: int = 1 << 20

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> InjectorOptions:
        """Return the options for the values of `options.settings`."""
        return cls(
            values["server_id"],
            values["log_rows"],
            values["log_load_rows"],
            values["log_apply_status"],
            values["log_empty_epochs"],
            values["log_replica_updates"],
            parse_size("binlog_cache_size", values["binlog_cache_size"]),
        )


class WrittenEpoch(NamedTuple):
    """An epoch in the binlog: from its first statement, or its epoch transaction, to its end."""

    epoch: int
    start: Position
    end: Position
    counts: EpochCounts
    schema: tuple[SchemaStatement, ...] = ()
    loads: int = 0  # number of loads replaced by a mark


class Marks(NamedTuple):
    """The effect of any-values on rows. `keep` None: all are logged; server ids None: this server; flags None: none."""

    keep: NDArray[np.bool_] | None
    server_ids: Words | None
    flags: Words | None
    replicated: NDArray[np.bool_] | None


def marks_of(any_values: Words, own_id: int, replica_updates: bool) -> Marks:
    """Return the marks of rows by their any-values, of which few are distinct."""
    if (any_values == any_values[0]).all():
        values, places = any_values[:1], np.zeros(len(any_values), np.int64)
    else:
        values, places = np.unique(any_values, return_inverse=True)
    meanings = [meaning_of(value & _ANY_VALUE_MASK, own_id, replica_updates) for value in values.tolist()]
    logged = np.array([each.is_logged for each in meanings])
    servers = np.array([0 if each.server_id == own_id else each.server_id for each in meanings], np.int64)
    flags = np.array([each.conflict_flag for each in meanings], np.int64)
    replicated = np.array([each.is_replicated for each in meanings])
    return Marks(
        None if logged.all() else logged[places],
        servers[places] if servers.any() else None,
        flags[places] if flags.any() else None,
        replicated[places] if replicated.any() else None,
    )


@dataclass
class _Epoch:
    """The epoch being written."""

    changes: EpochChanges
    counts: EpochCounts = field(default_factory=EpochCounts)
    held: list[RowBatch] = field(default_factory=list)
    held_arrays: dict[int, int] = field(default_factory=dict)
    schema: list[SchemaStatement] = field(default_factory=list)
    start: Position | None = None
    loads: int = 0
    has_begun: bool = False
    logged: int = 0
    replicated: int = 0

    def hold(self, batch: RowBatch) -> int:
        """Hold a batch; return the bytes held so far. Batches of one group share their words."""
        self.held.append(batch)
        for each in (batch.rows.words, batch.rows.before, batch.rows.after):
            if each is not None:
                base = each if each.base is None else each.base
                self.held_arrays[id(base)] = each.nbytes
        return sum(self.held_arrays.values())


class Injector:
    """Writes epochs through a writer. One thread at a time may call it."""

    def __init__(
        self,
        writer: BinlogWriter,
        options: InjectorOptions,
        rules: TableRules,
        status: Callable[[], TablePlans],
    ) -> None:
        """`status` returns the plans of `ndb_apply_status`."""
        self._writer = writer
        self.options = options
        self._rules = rules
        self._status = status
        # Statements that a crash separated from the epoch transaction after them: they are already in the binlog.
        self.already_written_statements: deque[str] = deque()
        # Marks of the epoch being written: after StorageFull the epoch is retried, and must not write them again.
        self._marked: dict[LoadMark, Position] = {}

    def write(self, changes: EpochChanges) -> WrittenEpoch | None:
        """Write an epoch; return None if nothing of it is logged. Durable on return: as `sync_binlog` says.

        Raises: StorageFull, LimitExceeded, PageDamaged, after which none of its rows is in the binlog; IoFailed,
        SyncFailed.
        """
        epoch = _Epoch(changes)
        try:
            for part in changes.parts():
                if isinstance(part, SchemaChange):
                    self._write_statements(epoch, part)
                elif isinstance(part, LoadAdopted):
                    self._take_load(epoch, part)
                elif self.options.rows:
                    for batch in self._batches(epoch, part):
                        self._take(epoch, batch)
            return self._end(epoch)
        except BaseException:
            self._writer.roll_back()
            raise

    def write_empty(self, number: int, commit_us: int = 0) -> WrittenEpoch:
        """Write an epoch transaction with nothing but its number. Durability and errors are those of `write`."""
        try:
            self._writer.begin((), self._status_row(number), commit_us)
            written = self._writer.commit()
        except BaseException:
            self._writer.roll_back()
            raise
        return WrittenEpoch(number, written.start, written.end, EpochCounts())

    def _status_row(self, number: int) -> RowBatch:
        """Return the site's own row of `ndb_apply_status`, which begins every epoch transaction."""
        plans = self._status()
        words = plans.row_format.encode_row((self.options.server_id, number, "", 0, 0))
        rows = RowImages(words, None, np.zeros(1, np.int64))
        return RowBatch(plans, FULL_RULE, WRITE, rows, as_called=True)

    # --- statements -------------------------------------------------------------------------------
    def _write_statements(self, epoch: _Epoch, part: SchemaChange) -> None:
        if epoch.has_begun or epoch.held:
            raise InvariantBroken(f"epoch {epoch.changes.epoch} has rows before a schema change; report this")
        self._rules.changed(part.before, part.after)
        statement = statement_of(part)
        if statement is None:
            return
        epoch.schema.append(statement)
        for database, text in statements_of(part, self.options.replica_updates):
            epoch.counts.statements += 1
            if self.already_written_statements and self.already_written_statements[0] == text:
                self.already_written_statements.popleft()
                continue
            written = self._writer.statement(text, database, epoch.changes.wall_us, statement.author)
            epoch.start = epoch.start or written.start

    def _take_load(self, epoch: _Epoch, part: LoadAdopted) -> None:
        """Take the rows of a load, or write the mark that replaces them."""
        if not self.options.rows or self._rules.logged(part.row_format) is None:
            return
        if self.options.load_rows or epoch.has_begun or epoch.held:
            # A mark must precede the rows of its epoch. In a log written without a binlog, rows may precede the load.
            for each in part.parts():
                if isinstance(each, RowChanges):
                    for batch in self._batches(epoch, each):
                        self._take(epoch, batch)
            return
        mark = LoadMark(part.job, part.rows, epoch.changes.epoch, part.row_format.definition.name)
        if mark not in self._marked:
            self._marked = {mark: self._writer.incident(mark.text).start}
        epoch.start = epoch.start or self._marked[mark]
        epoch.loads += 1

    # --- rows -------------------------------------------------------------------------------------
    def _take(self, epoch: _Epoch, batch: RowBatch) -> None:
        if epoch.has_begun:
            self._append(epoch, batch)
        elif epoch.hold(batch) > self.options.cache_bytes:
            self._begin(epoch)

    def _begin(self, epoch: _Epoch) -> None:
        tables = {id(batch.plans): batch.plans for batch in epoch.held}
        self._writer.begin(tables.values(), self._status_row(epoch.changes.epoch), epoch.changes.wall_us)
        epoch.has_begun = True
        for batch in epoch.held:
            self._append(epoch, batch)
        epoch.held = []
        epoch.held_arrays = {}

    def _append(self, epoch: _Epoch, batch: RowBatch) -> None:
        logged = self._writer.append(batch)
        if batch.as_called:
            return  # an applied position alone is no reason to write an epoch
        epoch.logged += logged
        # Counted by the original operation, even if an update is logged as a write.
        epoch.counts.add(batch.kind, batch.server_ids, logged, self.options.server_id)

    def _end(self, epoch: _Epoch) -> WrittenEpoch | None:
        options = self.options
        is_asked_for = (
            epoch.counts.statements > 0
            or epoch.loads > 0
            or options.empty_epochs
            or (options.apply_status and options.rows and epoch.replicated > 0)
        )
        if not epoch.has_begun and (epoch.held or is_asked_for):
            self._begin(epoch)
        if not epoch.has_begun:
            return None
        if not (epoch.logged or is_asked_for):
            self._writer.roll_back()
            return None
        written = self._writer.commit()
        start = epoch.start or written.start
        return WrittenEpoch(epoch.changes.epoch, start, written.end, epoch.counts, tuple(epoch.schema), epoch.loads)

    def _batches(self, epoch: _Epoch, part: RowChanges) -> Iterator[RowBatch]:
        """Yield the logged rows of some changes, as batches for the writer."""
        table = self._rules.logged(part.row_format)
        if table is None:
            return
        if table.is_status:
            yield from self._positions(epoch, table, part)
            return
        marks = marks_of(part.any_values, self.options.server_id, self.options.replica_updates)
        if table.slice_count > 1:
            starts = part.before if part.after is None else part.after
            assert starts is not None
            own = table.slices_of(part.words, starts) == table.slice_id
            marks = marks._replace(
                keep=own if marks.keep is None else own & marks.keep,
                replicated=None if marks.replicated is None else own & marks.replicated,
            )
        if marks.replicated is not None:
            epoch.replicated += int(marks.replicated.sum())
        if marks.keep is not None:
            kept = np.flatnonzero(marks.keep)
            part, marks = _taken(part, kept), _marks_taken(marks, kept)
        if len(part.txids):
            if (
                self._writer.options.images.v1_row_events
                and marks.flags is not None
                and (marks.flags == FLAG_REFRESH).any()
            ):
                self._rules.on_partial(part.row_format.definition.name)  # no flag tells that it is sent again
            yield from _divided(table, part, marks)

    def _positions(self, epoch: _Epoch, table: LoggedTable, part: RowChanges) -> Iterator[RowBatch]:
        """Yield rows of `ndb_apply_status`, always as WRITEs. Rows that a source wrote about itself are logged under
        this site's id, so that they can go back to the source. Rows about other sites that the source passed on keep
        the source's id.
        """
        if part.after is None:
            return
        own_id = self.options.server_id
        marks = marks_of(part.any_values, own_id, True)
        if marks.keep is not None:
            kept = np.flatnonzero(marks.keep)
            part, marks = _taken(part, kept), _marks_taken(marks, kept)
        assert part.after is not None
        rows = decode_rows(part.row_format, part.words, part.after, len(part.after), ["server_id", "epoch", "log_name"])
        servers, epochs = (column.to_numpy(zero_copy_only=False).astype(np.int64) for column in rows.columns[:2])
        part = _with_known_places(part, rows.column("log_name").to_pylist())
        for server, number in zip(servers.tolist(), epochs.tolist(), strict=True):
            epoch.counts.note_origin(server, number & ((1 << 64) - 1), own_id)
        logged_as = None if marks.server_ids is None else np.where(marks.server_ids == servers, 0, marks.server_ids)
        if len(servers) and self.options.apply_status:
            rows_after = RowImages(part.words, None, part.after)
            yield RowBatch(table.plans, table.rule, WRITE, rows_after, part.txids, None, logged_as, as_called=True)


def _with_known_places(part: RowChanges, names: list[str | None]) -> RowChanges:
    """Return rows of `ndb_apply_status` whose file is unknown, "" at 0, where its name is not ASCII: no binlog of a
    store has such a name, and the column is latin1 in the binlog.
    """
    unknown = [place for place, name in enumerate(names) if name is not None and not name.isascii()]
    if not unknown or part.after is None:
        return part
    table, first = part.row_format.definition.name, names[unknown[0]]
    _log.warning("%s has %r as the name of a binlog; it is logged as an unknown place", table, first)
    words, after = [part.words], part.after.copy()
    for place in unknown:
        (row,) = decode_rows(part.row_format, part.words, part.after[place : place + 1], 1).to_pylist()
        words.append(part.row_format.encode_row({**row, "log_name": "", "start_pos": 0, "end_pos": 0}))
        after[place] = sum(map(len, words[:-1]))
    return replace(part, words=np.concatenate(words), after=after)


def _divided(table: LoggedTable, part: RowChanges, marks: Marks) -> Iterator[RowBatch]:
    """Yield batches of logged changes, in their order. A refreshed row is logged as a WRITE of its current image, a row
    that was read as an UPDATE without changes, other rows by their operation.
    """
    if part.kind != KIND_UPDATE or marks.flags is None or not np.isin(marks.flags, (FLAG_REFRESH, FLAG_READ)).any():
        yield _batch(table, part, marks, part.kind)
        return
    ends = [*(np.flatnonzero(np.diff(marks.flags)) + 1).tolist(), len(marks.flags)]
    begin = 0
    for end in ends:
        places = np.arange(begin, end)
        flag = int(marks.flags[begin])
        kind = KIND_INSERT if flag == FLAG_REFRESH else KIND_UPDATE
        yield _batch(table, _taken(part, places), _marks_taken(marks, places), kind, flag == FLAG_READ)
        begin = end


def _batch(table: LoggedTable, part: RowChanges, marks: Marks, kind: int, is_read: bool = False) -> RowBatch:
    """Return changes as a batch for the writer; every row is logged."""
    rule, before, after = table.rule, part.before, part.after
    event = _EVENTS[kind]
    if kind == KIND_REFRESH:
        rule = replace(rule, delete=Present.KEY)  # only the key of an absent row is known
    elif is_read:
        rule, after = read_rule(rule), before
    rows = RowImages(part.words, None if event == WRITE else before, None if event == DELETE else after)
    marked = (part.txids, marks.flags, marks.server_ids)
    return RowBatch(
        table.plans,
        rule,
        event,
        rows,
        *marked,
        is_read=is_read,
        before_has_disk=part.before_has_disk,
        after_has_disk=part.before_has_disk if is_read else part.after_has_disk,
    )


def _of(values: Words | None, places: Words) -> Words | None:
    return None if values is None else np.ascontiguousarray(values[places])


def _taken(part: RowChanges, places: Words) -> RowChanges:
    return replace(
        part,
        before=_of(part.before, places),
        after=_of(part.after, places),
        txids=part.txids[places],
        any_values=part.any_values[places],
        authors=part.authors[places],
    )


def _marks_taken(marks: Marks, places: Words) -> Marks:
    return Marks(None, _of(marks.server_ids, places), _of(marks.flags, places), None)
