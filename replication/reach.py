"""How far the epochs of this site have come: to each replica's relay log, into its store, and back around the circle.

Replicas tell it themselves (acknowledgements of a session, a channel in this process); what comes back in rows of
`mysql.ndb_apply_status` tells it of sites further on. A replica that was heard of once counts until the store is
closed: "everywhere" never shrinks because a link broke.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from engine.errors import PeerTimeout, Rejected
from replication.lag import EpochTrail

if TYPE_CHECKING:
    from engine.clock import Clock
    from replication.binlog.attached import AttachedBinlog
    from replication.status_report import ReplicationStatus

RECEIVED, APPLIED, CONFIRMED = "received", "applied", "confirmed"
_LOOK_SECONDS = 0.5


class Reach:
    """Of one open store. Any thread may call it."""

    def __init__(
        self, clock: Clock, binlog: AttachedBinlog | None, status: ReplicationStatus, is_circular: Callable[[], bool]
    ) -> None:
        """is_circular: whether anything can come back, by a channel here; otherwise what is applied is confirmed."""
        self._clock = clock
        self._binlog = binlog
        self._status = status
        self._is_circular = is_circular
        self._changed = threading.Condition()
        self._applied: dict[int, int] = {}  # by server id
        self._trails: dict[int, EpochTrail] = {}
        if binlog is not None:
            binlog.on_epoch.append(self._set_out)

    def _set_out(self, epoch: int) -> None:
        wall_us = self._clock.wall_us()
        with self._changed:
            for trail in self._trails.values():
                trail.set_out(epoch, wall_us)
            self._changed.notify_all()

    def _trail(self, server_id: int) -> EpochTrail:
        trail = self._trails.get(server_id)
        if trail is None:
            trail = self._trails[server_id] = EpochTrail((RECEIVED, APPLIED, CONFIRMED))
            self._status.trails[f"to server {server_id}"] = trail
            self._applied.setdefault(server_id, 0)
        return trail

    def told(self, server_id: int, received: int, applied: int) -> None:
        """A replica has these epochs in its relay log, and in its store."""
        with self._changed:
            trail = self._trail(server_id)
            trail.passed(RECEIVED, received)
            trail.passed(APPLIED, applied)
            if not self._is_circular():
                trail.passed(CONFIRMED, applied)
            self._applied[server_id] = max(self._applied[server_id], applied)
            self._changed.notify_all()

    def returned(self, server_id: int, epoch: int) -> None:
        """A row came back that says that a site has applied an epoch of this one."""
        with self._changed:
            for trail in self._trails.values():
                trail.passed(CONFIRMED, epoch)
            self._applied[server_id] = max(self._applied.get(server_id, 0), epoch)
            self._changed.notify_all()

    @property
    def applied(self) -> dict[int, int]:
        """The newest epoch of this site that each other one is known to have applied, by server id."""
        with self._changed:
            return dict(self._applied)

    def wait(self, epoch: int, timeout_ms: int, at: Sequence[int] | None) -> None:
        """See `Database.wait_applied`."""
        binlog = self._binlog
        if binlog is None:
            raise Rejected("without a binlog nothing is applied elsewhere; open the store with log_bin")
        deadline = self._clock.monotonic() + timeout_ms / 1_000
        with self._changed:
            while True:
                sites = list(self._applied) if at is None else list(at)
                if not sites:
                    raise Rejected("no replica was heard of since the store was opened; name server ids with at=")
                # What is not logged needs not arrive.
                wanted = min(epoch, binlog.newest_epoch)
                lacking = [each for each in sites if self._applied.get(each, 0) < wanted]
                if binlog.has_through(epoch) and not lacking:
                    return
                rest_s = deadline - self._clock.monotonic()
                if rest_s <= 0:
                    raise PeerTimeout(
                        f"epoch {epoch} is not applied at server {', '.join(map(str, lacking))} after {timeout_ms} ms"
                        if lacking
                        else f"epoch {epoch} is not closed, or not in the binlog, after {timeout_ms} ms; call sync()",
                        epoch=epoch,
                        servers=lacking,
                    )
                self._changed.wait(min(rest_s, _LOOK_SECONDS))
