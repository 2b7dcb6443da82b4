"""One channel of a replica: its relay log between the receiver and the applier.

The receiver (`receiver.py`) calls `begin`, `append`, `sync`, `heard`; the applier's thread calls `apply_next`. Both may
be stopped and started separately, in two threads; they communicate through the relay log alone.

Invariants: (C1) The position to continue at is never stored apart from the data. `mysql.ndb_apply_status`, whose row
commits with the rows, says what is applied; the end of the relay log says what is received. (C2) Changes after the
applied position that the relay log lacks are fetched again. A relay log that begins after this position is discarded;
the gap is never skipped. (C3) An epoch is passed to the applier once unless it failed; epochs that `ndb_apply_status`
has are skipped (F89). (C4) A relay file is removed only after everything applied from it is durable. (C5) The receiver
determines the position to continue at, and discards the relay log, only between two steps of the applier: both hold
`_turn`.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any, Protocol

from tidemark.engine.base.clock import Clock
from tidemark.engine.base.errors import BinlogDamaged, EpochGap, InvalidName, LimitExceeded, PeerRefused, Rejected
from tidemark.engine.base.histogram import LAG_BOUNDS, Histogram
from tidemark.engine.files.protocol import Files
from tidemark.replication.applier.apply_status import Positions, StatusRow
from tidemark.replication.applier.filters import Filter
from tidemark.replication.binlog.position import Position, base_of
from tidemark.replication.channel.relay_log import FILE_BYTES, RelayLog, is_at_or_after, remove_relay_log
from tidemark.replication.channel.relay_reader import RelayReader, RelayTransaction
from tidemark.replication.injector.mark import load_mark
from tidemark.replication.wire.handshake import Site, check_peer
from tidemark.replication.wire.messages import COPY_ADVICE, Events, Heartbeat, Settings, Start

DEFAULT_NAME = "main"


@dataclass(frozen=True)
class ChannelOptions:
    """Options of one channel. `failed_source` is the server that a new source replicated from: the epochs of that
    server say where to continue, or those of the source itself if it is 0. `heartbeat_from` is the same for a channel
    with several sources, whose next link may be to a different source.
    """

    name: str = DEFAULT_NAME
    ignore_server_ids: tuple[int, ...] = ()
    replicate_do: tuple[str, ...] = ()
    replicate_ignore: tuple[str, ...] = ()
    clear_apply_status: bool = True
    relay_file_bytes: int = FILE_BYTES
    window_bytes: int = Start.window_bytes
    heartbeat_ms: int = Start.heartbeat_ms
    failed_source: int = 0
    heartbeat_from: int = 0

    def filter(self, own_id: int) -> Filter:
        """Return the filter for the changes that the channel applies at a site. Raises: SchemaInvalid."""
        return Filter.of((own_id, *self.ignore_server_ids), self.replicate_do, self.replicate_ignore)


def check_name(name: str) -> str:
    """Return the name of a channel, which becomes the base name of its relay files. Raises: InvalidName."""
    if not isinstance(name, str) or re.fullmatch(r"[a-z0-9][a-z0-9_-]{0,63}", name) is None:
        raise InvalidName(
            f"a channel's name must have 1 to 64 of the characters a-z, 0-9, _ and -, got {str(name)[:80]!r}"
        )
    return name


@dataclass
class Progress:
    """The progress of a channel since it was created."""

    applied: int = 0
    passed_over: int = 0
    filtered: int = 0
    applied_epoch: int = 0
    applied_commit_us: int | None = None
    heard: Heartbeat | None = None
    # Transactions in the relay log when its reader was opened, plus those handled before, minus those received before.
    backlog: int = 0

    @property
    def done(self) -> int:
        """Transactions handled."""
        return self.applied + self.passed_over + self.filtered


class Applier(Protocol):
    """Applies transactions to the store."""

    def start(self) -> None:
        """Read the settings again. The channel calls this before it begins to apply."""
        ...

    def apply(self, transaction: RelayTransaction) -> object:
        """Apply one epoch transaction, whole and with its row of `ndb_apply_status`; on a typed error, nothing of it is
        applied.
        """
        ...

    def statement(self, text: str, database: str, server_id: int) -> None:
        """Execute one schema change, made at the server of this id. After a crash it may be executed again."""
        ...


class ReplicaChannel:
    """The replica's side of one channel. One thread may receive and one apply."""

    def __init__(
        self,
        files: Files,
        clock: Clock,
        own: Site,
        applier: Applier,
        positions: Positions,
        options: ChannelOptions | None = None,
    ) -> None:
        """Nothing is read yet. Raises: InvalidName, SchemaInvalid, Rejected for server id 0."""
        self.options = options or ChannelOptions()
        self.name = check_name(self.options.name)
        if own.server_id == 0:
            raise Rejected("server_id 0 does not replicate; open the store with another one", option="server_id")
        self.own = own
        self.progress = Progress()
        self.left_source = 0  # server that has confirmed epochs of this site, until a source is known
        # Called with the id of the source, raises PeerRefused if another channel has this source.
        self.claim: Callable[[int], None] = lambda server_id: None
        self.on_settings: Callable[[Settings], None] = lambda settings: None
        self.on_progress: Callable[[], None] = lambda: None  # called when more was received or applied
        self.forwarded_epochs_of: Callable[[int], tuple[tuple[int, int], ...]] = lambda source_id: ()
        self._files = files
        self._clock = clock
        self._applier = applier
        self._positions = positions
        self._filter = self.options.filter(own.server_id)
        self._mutex = threading.Lock()
        self._turn = threading.RLock()
        self._relay: RelayLog | None = None
        self._reader: RelayReader | None = None
        self._pending: RelayTransaction | None = None
        self._applied_at: Position | None = None
        self.applied_seconds = Histogram(LAG_BOUNDS)  # from the commit at the source, by both clocks

    @property
    def relay(self) -> RelayLog:
        """The relay log, opened on first use. Raises: BinlogDamaged, FileMissing; `reset` or `discard_relay` removes
        such a relay log.
        """
        with self._mutex:
            if self._relay is None:
                self._relay = RelayLog(
                    self._files, self._clock, self.name, self.own.server_id, self.options.relay_file_bytes
                )
            return self._relay

    def close(self) -> None:
        """Close the channel's files. No thread may receive or apply. A second call does nothing."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None
        if self._relay is not None:
            self._relay.close()
            self._relay = None
        self._pending = None

    # --- receiving --------------------------------------------------------------------------------
    def begin(self, source: Site) -> Start:
        """Return where to continue with `source`, the identity that the other side of the link proved. Discards the
        incomplete transaction that a broken link left.

        Raises: PeerRefused if the relay log is another server's, or if another channel has this source; BinlogDamaged,
        FileMissing.
        """
        check_peer(self.own, source)
        self.claim(source.server_id)
        with self._turn:
            return self._begin(source)

    def _begin(self, source: Site) -> Start:
        if self.left_source not in (0, source.server_id):
            self._positions.unconfirm()
        relay, self.left_source = self.relay, 0
        if self.options.heartbeat_from and relay.source_id not in (0, source.server_id):
            self._leave_for(source, relay)
        try:
            relay.expect(source.server_id)
        except Rejected as error:
            raise PeerRefused(error.message, server_id=source.server_id) from None
        relay.cut()
        begin = relay.begin
        if begin is not None and source.binlog not in ("", base_of(begin.file)):
            # Another node of the same site: the same epochs in other files. Unapplied changes are fetched again.
            relay.reset()
            relay.expect(source.server_id)
        self.progress.heard = None
        row = self._row_of(source.server_id)
        if self._reader is None and row is not None:
            self.progress.applied_epoch = row.epoch
        durable = relay.durable
        if durable is not None and (row is None or row.end is None or relay.covers(row.end)):
            epoch = max(relay.epoch, 0 if row is None else row.epoch)
            return self._start(epoch=epoch, file=durable.file, position=durable.position)
        if durable is not None:
            relay.reset()
            relay.expect(source.server_id)
        if row is not None:
            # The relay log will start after that row, so a crash must not lose the row.
            self._positions.make_durable()
            return self._start(epoch=row.epoch)
        return self._start_after_failed(source)

    def _start(self, **where: Any) -> Start:
        return Start(**where, window_bytes=self.options.window_bytes, heartbeat_ms=self.options.heartbeat_ms)

    def _leave_for(self, source: Site, relay: RelayLog) -> None:
        """Discard the relay log of the previous source. All sources bring the same epochs, so the row of the new one is
        stale if another has brought more. It is deleted before the relay log: after a crash in between, the next
        opening does the same again.
        """
        origin = self.options.heartbeat_from
        if self._row_of(origin) is None and self._row_of(source.server_id) is None:
            raise self._lost(origin, source)
        if self._row_of(origin) is not None and source.server_id != origin:
            self._positions.forget(source.server_id)
        self._positions.unconfirm()
        relay.reset()

    def _lost(self, failed: int, source: Site) -> PeerRefused:
        return PeerRefused(
            f"ndb_apply_status has no row of server {failed}, so the position at server {source.server_id} is not"
            f" known; {COPY_ADVICE}",
            server_id=source.server_id,
        )

    def _start_after_failed(self, source: Site) -> Start:
        """Return where to begin with a source of which nothing was applied, directly or through another one: at the
        start of its binlog, or after the applied epoch of the failed source whose changes it brings.
        """
        options = self.options
        failed = options.failed_source or options.heartbeat_from
        row = self._row_of(failed)
        if row is None and options.failed_source:
            raise self._lost(failed, source)
        if row is None:
            return self._start()
        self._positions.make_durable()
        return self._start(epoch=row.epoch, origin=failed)

    def _row_of(self, server_id: int) -> StatusRow | None:
        return next((row for row in self._positions.rows() if row.server_id == server_id), None)

    def append(self, events: Events) -> None:
        self.relay.append(events)

    def sync(self) -> int:
        epoch = self.relay.sync()
        self.on_progress()
        return epoch

    def heard(self, heartbeat: Heartbeat) -> None:
        """Record the end that the source has reported."""
        self.progress.heard = heartbeat

    def learn(self, settings: Settings) -> None:
        """Pass on the source's settings, whose conflict functions are checked. Raises: PeerRefused."""
        self.on_settings(settings)

    @property
    def applied_epoch(self) -> int:
        """The newest epoch of the source that is applied."""
        return self.progress.applied_epoch

    @property
    def forwarded_epochs(self) -> tuple[tuple[int, int], ...]:
        """(server id, newest epoch of the source that is applied there) for each site that gets the changes from
        here.
        """
        return self.forwarded_epochs_of(self.source_id)

    # --- applying ---------------------------------------------------------------------------------
    def apply_next(self) -> RelayTransaction | None:
        """Apply the next transaction of the relay log, or skip it if it was applied before or is filtered out; return
        it, None if there is none. Durable on return: what the applier makes durable.

        Raises: EpochGap where the source says that changes are missing, BinlogDamaged (file, position), and the errors
        of the applier; the next call retries the same transaction.
        """
        with self._turn:
            transaction = self._pending
            if transaction is None or self._reader is None or self._reader.generation != self.relay.generation:
                transaction = self._next()
            if transaction is None:
                return None
            self._pending = transaction
            has_row = False
            if self._is_applied(transaction):
                self.progress.passed_over += 1
            elif transaction.incident is None and not transaction.is_taken:
                self.progress.filtered += 1
            else:
                self._hand_over(transaction)
                self.progress.applied += 1
                has_row = bool(transaction.epoch) or transaction.statement is not None
            self._pending = None
            self._passed(transaction, has_row)
            return transaction

    def _next(self) -> RelayTransaction | None:
        relay = self.relay
        if self._reader is None or self._reader.generation != relay.generation:
            self.close_reader()
            if relay.durable is None:
                return None
            row = self._row_of(relay.source_id)
            self.progress.applied_epoch = 0 if row is None else row.epoch
            self._applied_at = None if row is None else self._place_in(relay, row)
            if not self._may_continue(relay):
                return None
            self.progress.backlog = self._count(relay, self._applied_at) + self.progress.done - relay.received
            self._applier.start()
            self._reader = RelayReader(self._files, relay, self._applied_at, self._filter)
        return self._reader.next()

    def _place_in(self, relay: RelayLog, row: StatusRow) -> Position | None:
        """Return the applied position of a row; None if it is in the binlog of another node."""
        begin, end = relay.begin, row.end
        return end if begin is None or end is None or base_of(end.file) == base_of(begin.file) else None

    def _may_continue(self, relay: RelayLog) -> bool:
        """Whether the relay log continues from the applied position. False if it ends before it; then the receiver
        begins anew.

        Raises: EpochGap if it begins after that position.
        """
        applied, begin, durable = self._applied_at, relay.begin, relay.durable
        if applied is None or relay.covers(applied):
            return True
        if durable is not None and is_at_or_after(applied, durable):
            return False
        raise EpochGap(
            f"channel {self.name} is applied up to {applied.file}:{applied.position}, and its relay log"
            f" {'is empty' if begin is None else f'begins at {begin.file}:{begin.position}'}; start the receiver or"
            " reset it",
            **applied._asdict(),
        )

    def _count(self, relay: RelayLog, start: Position | None) -> int:
        count = 0
        # The applier reports damage when it gets there.
        with closing(RelayReader(self._files, relay, start)) as reader, suppress(BinlogDamaged, LimitExceeded):
            while reader.next() is not None:
                count += 1
        return count

    @property
    def mark(self) -> tuple[int, Position | None]:
        """A value that changes whenever there is more to apply."""
        relay = self.relay
        return relay.generation, relay.durable

    def wait_for_more(self, mark: tuple[int, Position | None], seconds: float, stopped: threading.Event) -> None:
        """Wait until the channel's mark differs from `mark`, until `wake`, or for at most `seconds`."""
        with self.relay.changed:
            if self.mark == mark and not stopped.is_set():
                self.relay.changed.wait(seconds)

    def wake(self) -> None:
        """Make `wait_for_more` return."""
        relay = self._relay
        if relay is not None:
            with relay.changed:
                relay.changed.notify_all()

    @property
    def received_epoch(self) -> int:
        """The newest epoch that is complete and durable in the relay log, 0 if there is none."""
        relay = self._relay
        return 0 if relay is None else relay.epoch

    @property
    def source_id(self) -> int:
        """The server whose binlog the relay log has, 0 while it is unknown."""
        relay = self._relay
        return 0 if relay is None else relay.source_id

    def close_reader(self) -> None:
        """Close the reader of the relay log. The next step opens one at the position in `ndb_apply_status`."""
        if self._reader is not None:
            self._reader.close()
        self._reader = self._pending = None

    def _is_applied(self, transaction: RelayTransaction) -> bool:
        if transaction.epoch:
            return transaction.epoch <= self.progress.applied_epoch
        return self._applied_at is not None and is_at_or_after(self._applied_at, transaction.end)

    def _hand_over(self, transaction: RelayTransaction) -> None:
        if transaction.incident is not None:
            raise _missing(transaction, transaction.incident)
        if transaction.statement is not None:
            query = transaction.statement
            self._applier.statement(query.statement, query.database, transaction.source_id)
            # Prevents a second execution, which might meet the results of later statements, such as renamed tables.
            self._note_end(transaction)
        else:
            self._applier.apply(transaction)

    def _note_end(self, transaction: RelayTransaction) -> None:
        start, end = transaction.start, transaction.end
        at = (start.file, start.position, end.position)
        self._positions.note(StatusRow(self.relay.source_id, self.progress.applied_epoch, *at))

    def next_incident(self) -> str | None:
        """Return the incident at which the channel stops next, None if something else comes first. Nothing is applied;
        no thread may apply. Raises: EpochGap, BinlogDamaged as `apply_next`.
        """
        with self._turn:
            if self._pending is None:
                self._pending = self._next()
            pending = self._pending
            return None if pending is None or self._is_applied(pending) else pending.incident

    def skip_incident(self) -> str:
        """Skip the incident at which the channel stopped, after an operator has dealt with its cause; return its text.

        No thread may apply. Durable on return. Raises: Rejected if the next event is no incident; nothing is skipped
        then.
        """
        with self._turn:
            transaction = self._pending
            if transaction is None or self._reader is None or self._reader.generation != self.relay.generation:
                transaction = self._pending = self._next()
            if transaction is None or transaction.incident is None:
                raise Rejected(f"channel {self.name} is not stopped at an incident; start its applier")
            self._note_end(transaction)
            self._positions.make_durable()
            self._pending = None
            self.progress.passed_over += 1
            self._passed(transaction, has_row=True)
            return transaction.incident

    def _passed(self, transaction: RelayTransaction, has_row: bool) -> None:
        """Move past a transaction, and remove the relay files before it. has_row: the row of the source in
        `ndb_apply_status` names its end; a transaction that was filtered out or passed over leaves no row.
        """
        progress = self.progress
        progress.applied_epoch = max(progress.applied_epoch, transaction.epoch)
        if transaction.commit_us:
            progress.applied_commit_us = transaction.commit_us
            self.applied_seconds.observe(max(0, self._clock.wall_us() - transaction.commit_us) / 1e6)
        self._applied_at = applied = transaction.end
        relay = self.relay
        following = relay.second_begin
        if following is not None and is_at_or_after(applied, following):
            if not has_row:
                self._note_end(transaction)
            self._positions.make_durable()
            relay.purge(applied)
        self.on_progress()

    # --- both stopped -----------------------------------------------------------------------------
    def discard_relay(self) -> None:
        """Discard the relay log, whatever its state; unapplied changes are fetched again. Durable on return.

        No thread may receive or apply.
        """
        self.close()
        remove_relay_log(self._files, self.name)

    def leave_source(self, left: int, new_id: int) -> None:
        """Discard the relay log because another source replaces server `left`; `new_id` is the id of the new source, 0
        until it is known. No thread may receive or apply.
        """
        if new_id not in (0, left):
            self._positions.unconfirm()
        self.discard_relay()

    def reset(self) -> None:
        """Discard the relay log and, unless `clear_apply_status` is off, the applied position, provided that changes
        may be applied again. Before the first heartbeat of the source this is unknown, so the position stays. No thread
        may receive or apply. Durable on return.
        """
        self.discard_relay()
        if self.options.clear_apply_status and self.progress.heard is not None:
            self._positions.clear()
        self.progress = Progress()
        self._applier.start()  # reads the max replicated epoch from the remaining rows

    # --- status -----------------------------------------------------------------------------------
    def lag(self) -> dict[str, Any]:
        """Return `epochs`, the number of transactions received and not applied, and `seconds`, the age of the last
        applied transaction by the source's clock: 0.0 if it is the newest, None while it is unknown.
        """
        progress = self.progress
        relay = self._relay
        queued = 0 if relay is None else max(0, progress.backlog + relay.received - progress.done)
        seconds = None
        if progress.heard is not None:
            durable = None if relay is None else relay.durable
            # A source reports its end when it has nothing more to send, so an empty relay log lacks nothing.
            if not queued and (durable is None or is_at_or_after(durable, progress.heard.end)):
                seconds = 0.0
            elif progress.applied_commit_us is not None:
                seconds = max(0, progress.heard.wall_us - progress.applied_commit_us) / 1e6
        return {"epochs": queued, "seconds": seconds}

    @property
    def has_caught_up(self) -> bool:
        """Whether everything is applied that the source had at its last heartbeat."""
        relay = self._relay
        has_begun = self._reader is not None or (relay is not None and relay.durable is None)
        return has_begun and self._pending is None and self.lag()["seconds"] == 0.0

    def status(self) -> dict[str, Any]:
        progress, relay = self.progress, self._relay
        durable = None if relay is None else relay.durable
        applied = self._applied_at
        return {
            "name": self.name,
            "source_server_id": 0 if relay is None else relay.source_id,
            "source_epoch": 0 if progress.heard is None else progress.heard.epoch,
            "received_epoch": 0 if relay is None else relay.epoch,
            "received_to": None if durable is None else f"{durable.file}:{durable.position}",
            "applied_epoch": progress.applied_epoch,
            "applied_to": None if applied is None else f"{applied.file}:{applied.position}",
            "applied": progress.applied,
            "passed_over": progress.passed_over,
            "filtered": progress.filtered,
            "relay_bytes": 0 if relay is None else relay.size_bytes,
            "lag": self.lag(),
            "applied_seconds": self.applied_seconds.to_dict(),
        }


def _missing(transaction: RelayTransaction, reported: str) -> EpochGap:
    start, mark = transaction.start, load_mark(reported)
    evidence = start._asdict()
    advice = COPY_ADVICE
    if mark is not None:
        evidence |= {"load": f"{mark.job:016x}", "table": mark.table, "rows": mark.rows, "epoch": mark.epoch}
        advice = f"load the same rows here and skip the incident, or {COPY_ADVICE}"
    text = f"the source says at {start.file}:{start.position} that events are missing: {reported}; {advice}"
    return EpochGap(text, **evidence)
