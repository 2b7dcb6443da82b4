"""Failover: the sources of a channel in order of preference, when it moves to the next one, and the move.

Whether a channel moves depends on the heartbeat row of the site whose changes it brings. The row is replicated like any
other, through every site in between, so a change of it proves that the whole path works. The time in the row is not
used: the replica measures the time without a change by its own monotonic clock.

The position at the new source is read from `mysql.ndb_apply_status` when the channel connects to it
(`ReplicaChannel.begin`), so a crash here loses nothing.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tidemark.engine.base.errors import Error, SchemaInvalid
from tidemark.replication.applier.filters import Filter
from tidemark.replication.applier.heartbeat import HEARTBEAT, newest
from tidemark.replication.settings.options import SERVER_ID_MAX

if TYPE_CHECKING:
    from tidemark.replication.channel.endpoint import Endpoint
    from tidemark.sites.channel_links import Link

FAILOVER_MS_MAX = 86_400_000
ROUNDS_MAX = 5  # failed rounds through all sources that double the time for each source


class HeartbeatWatch:
    """Watches the heartbeat row for a channel with several sources. Times are in seconds, by one monotonic clock. One
    thread at a time may call it.
    """

    def __init__(self, after_s: float, sources: int, now: float) -> None:
        self.moves = 0
        self._after_s = after_s
        self._sources = sources
        self._moves_in_vain = 0  # moves since the last change of the row
        self._value: int | None = None
        self._since = now

    def observe_row(self, value: int | None, now: float) -> None:
        """Record the value of the row as it is now, None without a row."""
        if value is not None and value != self._value:
            self._value = value
            self._moves_in_vain = 0
            self._since = now

    def begin(self, now: float) -> None:
        """Begin to watch: the time before `now` does not count."""
        self._since = now

    def silent_s(self, now: float) -> float:
        """Return the seconds since the row changed or the present source came into use, whichever was later."""
        return max(0.0, now - self._since)

    def is_due(self, now: float) -> bool:
        """Whether the present source has used up its time. All sources get the same time. If none brings a newer row,
        the site that writes the row is down, not the sources, so each round takes twice as long as the one before.
        """
        rounds = min(self._moves_in_vain // self._sources, ROUNDS_MAX)
        return now - self._since >= self._after_s * (1 << rounds)

    def note_moved(self, now: float) -> None:
        self.moves += 1
        self._moves_in_vain += 1
        self._since = now


_log = logging.getLogger("tidemark.replication")

CHECKS = 4  # per `failover_after_ms`
CHECK_SECONDS_MAX = 1.0


class Failover:
    """The sources of one channel. Its owner holds a lock around `check`."""

    def __init__(
        self,
        own: Endpoint,
        name: str,
        links: Sequence[Link],
        after_ms: int,
        heartbeat_from: int,
        move: Callable[[Link], None],
    ) -> None:
        """move: moves the channel to a source."""
        self._own = own
        self._name = name
        self._links = tuple(links)
        self._after_s = after_ms / 1_000
        self._heartbeat_from = heartbeat_from
        self._move = move
        self._at = 0
        self._watch = HeartbeatWatch(self._after_s, len(links), own.clock.monotonic())

    def begin(self) -> None:
        """Restart the time that the source has: the channel was not applying until now."""
        self._watch.begin(self._own.clock.monotonic())

    def check(self, has_queue: bool) -> bool:
        """Look at the heartbeat row once and move if it is due; return whether the channel moved.

        has_queue: received changes wait to be applied, so the applier lags and the source is not at fault.
        """
        now = self._own.clock.monotonic()
        self._watch.observe_row(newest(self._own.store, self._heartbeat_from), now)
        if has_queue or not self._watch.is_due(now):
            return False
        silent_s = self._watch.silent_s(now)
        self._at = (self._at + 1) % len(self._links)
        self._watch.note_moved(now)
        link = self._links[self._at]
        _log.warning(
            "channel %s: no newer heartbeat row of server %d for %.1f s; continuing with %s (source %d of %d)",
            *(self._name, self._heartbeat_from, silent_s, link.shown, self._at + 1, len(self._links)),
        )
        try:
            self._move(link)
        except Error as error:  # the next source is tried when this one's time is over
            _log.error("channel %s: %s: %s", self._name, type(error).__name__, error.message)
            return False
        return True

    def watch(self, check: Callable[[], bool], is_at_work: Callable[[], bool]) -> Callable[[threading.Event], None]:
        """Return the work of a thread: `check` again and again, while the channel's own threads work."""

        def work(stopped: threading.Event) -> None:
            while not stopped.wait(min(self._after_s / CHECKS, CHECK_SECONDS_MAX)):
                if is_at_work():
                    check()
                else:
                    self.begin()

        return work

    def status(self) -> dict[str, Any]:
        return {
            "moves": self._watch.moves,
            "source": self._at + 1,
            "sources": [each.shown for each in self._links],
            "heartbeat_from": self._heartbeat_from,
            "silent_seconds": self._watch.silent_s(self._own.clock.monotonic()),
        }


def check_failover_options(own_id: int, sources: int, after_ms: int, heartbeat_from: int, taken: Filter) -> bool:
    """Return whether a channel has several sources to move to. Raises: SchemaInvalid for options that exclude each
    other.
    """
    if not (sources or after_ms or heartbeat_from):
        return False
    if not (sources and after_ms and heartbeat_from):
        raise SchemaInvalid("other_sources, failover_after_ms and heartbeat_from go together; give all three")
    if not 1 <= after_ms <= FAILOVER_MS_MAX:
        raise SchemaInvalid(f"failover_after_ms is {after_ms}; give 1 to {FAILOVER_MS_MAX:,}")
    if not 1 <= heartbeat_from <= SERVER_ID_MAX or heartbeat_from == own_id:
        raise SchemaInvalid(f"heartbeat_from is {heartbeat_from}; give the server id of another site")
    if heartbeat_from in taken.skipped_servers or not taken.takes_table(HEARTBEAT):
        raise SchemaInvalid(f"the channel leaves out {HEARTBEAT}, or server {heartbeat_from}; let them pass")
    return True
