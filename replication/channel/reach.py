"""How far the epochs of this site have come: into each replica's relay log and store, to the sites after it, and back
around the circle.

Sites report this themselves. A replica reports to its source (in acknowledgements of a session, or as a channel in this
process) what it has received and applied. It also passes on the reports of the sites that get the source's changes from
it. So reports travel back along the path of the changes, through chains and around circles. Rows of
`mysql.ndb_apply_status` that return are reports, too. A site that has reported once counts until the store is closed:
a broken link does not remove it from "everywhere".
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tidemark.engine.base.errors import PeerTimeout, Rejected
from tidemark.replication.channel.lag import EpochTrail

if TYPE_CHECKING:
    from tidemark.engine.base.clock import Clock
    from tidemark.replication.injector.attached import AttachedBinlog
    from tidemark.replication.settings.status import ReplicationStatus

RECEIVED, APPLIED, CONFIRMED = "received", "applied", "confirmed"
EPOCHS_MAX = 1 << 16
SITES_MAX = 1 << 10
_LOOK_SECONDS = 0.5


class _AppliedHere:
    """Epochs of one source, by the epochs of this site in which they were applied. If there are too many, every second
    one is dropped; reports about sites further on are then late, but never early.
    """

    def __init__(self, own_epoch: int, epoch: int) -> None:
        self._own_epochs = [own_epoch]
        self._epochs = [epoch]

    def add(self, own_epoch: int, epoch: int) -> None:
        if epoch > self._epochs[-1]:
            self._own_epochs.append(max(own_epoch, self._own_epochs[-1]))
            self._epochs.append(epoch)
        if len(self._epochs) > EPOCHS_MAX:
            del self._own_epochs[1:-1:2], self._epochs[1:-1:2]

    def through(self, own_epoch: int) -> int:
        """Return the newest epoch that was applied in this epoch of the site or before; 0 if it is unknown."""
        place = bisect_right(self._own_epochs, own_epoch)
        return self._epochs[place - 1] if place else 0


class Reach:
    """The reach of one open store. Any thread may call it."""

    def __init__(
        self,
        clock: Clock,
        status: ReplicationStatus,
        values: Mapping[str, Any],
        binlog: AttachedBinlog | None,
        is_circular: Callable[[], bool] = lambda: True,
        applied_in: Callable[[int], tuple[int, int]] = lambda source_id: (0, 0),
    ) -> None:
        """values: those of the options of replication. is_circular: whether changes can return through a channel here;
        otherwise an epoch is confirmed once it is applied. applied_in: returns (epoch of this site, epoch of the
        source) for the last epoch of a source that was applied before the store was opened.
        """
        self._clock = clock
        self._binlog = binlog
        self._status = status
        self._own_id: int = values["server_id"]
        self._passes_on = binlog is not None and bool(values["log_replica_updates"])
        self._is_circular = is_circular
        self._applied_in = applied_in
        self._changed = threading.Condition()
        self.heard: dict[int, int] = {}  # the newest own epoch that is applied at each other site, by server id
        self.received: dict[int, int] = {}  # the newest own epoch that each replica has durably, by server id
        self._applied_here: dict[int, _AppliedHere] = {}  # by server id of the source
        self._trails: dict[int, EpochTrail] = {}
        self.on_change: list[Callable[[], None]] = []  # called when there may be more to report to sources
        if binlog is not None:
            binlog.on_epoch.append(self._set_out)
            if self._passes_on:
                binlog.on_written.append(self._notify)

    def _notify(self) -> None:
        for call in list(self.on_change):
            call()

    def _set_out(self, epoch: int) -> None:
        wall_us = self._clock.wall_us()
        with self._changed:
            for trail in self._trails.values():
                trail.set_out(epoch, wall_us)
            self._changed.notify_all()

    def _trail(self, server_id: int, stations: Sequence[str] = (RECEIVED, APPLIED, CONFIRMED)) -> EpochTrail:
        trail = self._trails.get(server_id)
        if trail is None or len(trail.stations) < len(stations):
            trail = self._trails[server_id] = EpochTrail(stations)
            self._status.trails[f"to server {server_id}"] = trail
        return trail

    def _rise(self, server_id: int, epoch: int) -> bool:
        """Record an epoch that a site has applied; return whether it is newer than the last one."""
        known = self.heard.get(server_id, -1)
        if server_id == self._own_id or epoch <= known:
            return False
        self.heard[server_id] = epoch
        self._changed.notify_all()
        return True

    def _note_received(self, server_id: int, epoch: int) -> None:
        if epoch > self.received.get(server_id, -1):
            self.received[server_id] = epoch
            self._changed.notify_all()

    # --- reports received -------------------------------------------------------------------------
    def note_received(self, server_id: int, epoch: int) -> None:
        """Record that a replica has received an epoch, from one that never reports what it has applied. Of very many
        replicas only the first are recorded.
        """
        with self._changed:
            if server_id == self._own_id or (server_id not in self._trails and len(self._trails) >= SITES_MAX):
                return
            self._trail(server_id, (RECEIVED,)).passed(RECEIVED, epoch)
            self._note_received(server_id, epoch)

    def note_report(
        self, server_id: int, received: int, applied: int, forwarded_epochs: Iterable[tuple[int, int]] = ()
    ) -> None:
        """Record the report of a replica: the epochs in its relay log and in its store, and in `forwarded_epochs`
        (server id, epoch) for those applied at sites further on.
        """
        with self._changed:
            trail = self._trail(server_id)
            trail.passed(RECEIVED, received)
            self._note_received(server_id, max(received, applied))
            trail.passed(APPLIED, applied)
            if not self._is_circular():
                trail.passed(CONFIRMED, applied)
            is_news = [self._rise(*each) for each in ((server_id, applied), *forwarded_epochs)]
        if any(is_news):
            self._notify()

    def note_returned(self, server_id: int, epoch: int) -> None:
        """Record a returned row, which says that a site has applied an epoch of this site."""
        with self._changed:
            for trail in self._trails.values():
                if CONFIRMED in trail.stations:
                    trail.passed(CONFIRMED, epoch)
            is_news = self._rise(server_id, epoch)
        if is_news:
            self._notify()

    def note_applied_here(self, source_id: int, epoch: int, own_epoch: int) -> None:
        """Record that an epoch of a source was applied here, in epoch `own_epoch` of this site."""
        if not self._passes_on:
            return
        with self._changed:
            known = self._applied_here.get(source_id)
            if known is None:
                self._applied_here[source_id] = _AppliedHere(own_epoch, epoch)
            else:
                known.add(own_epoch, epoch)

    # --- reports sent -----------------------------------------------------------------------------
    def forwarded_epochs(self, source_id: int) -> tuple[tuple[int, int], ...]:
        """Return (server id, newest epoch of a source that is applied there) for the sites to which this one passes the
        source's changes on, in order; none without `log_replica_updates`.
        """
        binlog = self._binlog
        if binlog is None or not self._passes_on:
            return ()
        # `handled` is read first, so that `newest` covers every logged epoch up to it.
        handled, newest = binlog.handled_epoch, binlog.newest_epoch
        with self._changed:
            applied_here = self._applied_here.get(source_id)
            applied = sorted(self.heard.items())
        if applied_here is None and applied:
            before = _AppliedHere(*self._applied_in(source_id))
            with self._changed:
                applied_here = self._applied_here.setdefault(source_id, before)
        # If a site has the newest epoch of the binlog, all handled changes count as applied there: those after this
        # epoch were not logged.
        return tuple(
            (server_id, 0 if applied_here is None else applied_here.through(handled if epoch >= newest else epoch))
            for server_id, epoch in applied
            if server_id != source_id
        )

    # --- waiting ----------------------------------------------------------------------------------
    def _known(self, station: str) -> dict[int, int]:
        """Return the newest epoch known to be at a station of each site, by server id. What is applied was received."""
        known = dict(self.heard)
        for server_id, epoch in self.received.items() if station == RECEIVED else ():
            known[server_id] = max(epoch, known.get(server_id, epoch))
        return known

    def wait(self, epoch: int, timeout_ms: int, at: Sequence[int] | None, station: str = APPLIED) -> None:
        """See `Database.wait_applied`, and for RECEIVED `Database.wait_received`."""
        binlog = self._binlog
        if binlog is None:
            raise Rejected("a store without a binlog has no replicas to wait for; open it with log_bin")
        if at is not None and (not at or self._own_id in at):
            raise Rejected(f"at= takes server ids of other sites than this one ({self._own_id}), got {list(at)}")
        deadline = self._clock.monotonic() + timeout_ms / 1_000
        with self._changed:
            while True:
                reported = self.heard if station == APPLIED else self.received
                sites = list(reported) if at is None else list(at)
                if not sites:
                    raise Rejected("no replica has connected since the store was opened; name server ids with at=")
                # Read before `newest_epoch`: a handled epoch is either in the binlog or has nothing to log.
                is_logged = binlog.has_through(epoch)
                wanted, known = min(epoch, binlog.newest_epoch), self._known(station)
                lacking = [each for each in sites if known.get(each, -1) < wanted]
                if is_logged and not lacking:
                    return
                rest_s = deadline - self._clock.monotonic()
                if rest_s <= 0:
                    raise late(station, epoch, timeout_ms, lacking, known)
                self._changed.wait(min(rest_s, _LOOK_SECONDS))


def late(station: str, epoch: int, timeout_ms: int, lacking: list[int], known: dict[int, int]) -> PeerTimeout:
    """Return the error of a wait for a station that sites have not reached in time. known: where the sites are."""
    evidence: dict[str, Any] = {"epoch": epoch, "servers": lacking, station: known}
    if not lacking:
        text = f"epoch {epoch} is not closed, or not in the binlog, after {timeout_ms} ms; call sync()"
        return PeerTimeout(text, **evidence)
    found = "; ".join(
        f"server {each} is at epoch {known[each]}" if each in known else f"server {each} has not connected"
        for each in lacking
    )
    return PeerTimeout(f"epoch {epoch} was not {station} within {timeout_ms} ms: {found}", **evidence)
