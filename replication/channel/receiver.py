"""Receivers, which bring a source's binlog into a channel's relay log, from a store of the same process or over the
network.

Both call `ReplicaChannel.begin` at each start, and start again after any interruption. An error that a new attempt
cannot cure (another secret, a lost position, a gap) ends them. This module also has the threads of receivers and
appliers: each thread has one owner, is stopped and joined, and keeps the error that ended it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from tidemark.engine.base.clock import Clock
from tidemark.engine.base.errors import (
    Error,
    FrameRejected,
    InvariantBroken,
    PeerError,
    PeerTimeout,
    PeerUnproved,
    Retryable,
)
from tidemark.replication.binlog.position import Position
from tidemark.replication.channel.channel import ReplicaChannel
from tidemark.replication.wire.handshake import Site
from tidemark.replication.wire.link import Caller, LinkOptions
from tidemark.replication.wire.messages import Events, Heartbeat, Settings, Start
from tidemark.replication.wire.sessions import CHUNK_BYTES, Binlog

_log = logging.getLogger("tidemark.replication")

IDLE_SECONDS = 1.0  # waiters are woken at once; this bounds the delay after a missed wake-up
RECONNECT_SECONDS = 0.5
RECONNECT_SECONDS_MAX = 30.0


def is_transient(error: Error) -> bool:
    """Whether a new attempt may help: the link broke, the other side was silent or did not prove itself, or the disk is
    full.
    """
    return isinstance(error, (Retryable, PeerTimeout, PeerUnproved, FrameRejected)) or type(error) is PeerError


def _trouble(channel: ReplicaChannel, error: Error) -> str:
    """Log an error after which a receiver tries again; return it as text. Raises: the error, if that cannot help."""
    if not is_transient(error):
        raise error
    _log.warning("channel %s: %s", channel.name, error.message)
    return f"{type(error).__name__}: {error.message}"


class LocalReceiver:
    """Receives from a binlog of the same process, one chunk for each call. One thread at a time may call it."""

    def __init__(self, channel: ReplicaChannel, source: Site, binlog: Binlog, clock: Clock) -> None:
        """clock: the source's."""
        self._channel = channel
        self._source = source
        self._binlog = binlog
        self._clock = clock
        self._at: Position | None = None
        self._news = threading.Event()
        self.trouble: str | None = None  # the error of the last attempt, None while it receives

    def receive_next(self) -> bool:
        """Take the next chunk into the relay log; return False if there is none. Durable on return: the complete
        transactions received. Raises: PeerError and its subclasses, BinlogDamaged, StorageFull; the next call begins
        anew.
        """
        try:
            if self._at is None:
                self._at = self._binlog.locate(self._channel.begin(self._source))
            found = self._binlog.read(self._at, CHUNK_BYTES)
            if found is not None:
                events = Events(*found)
                self._channel.append(events)
                self._channel.sync()
                self._at = Position(events.at.file, events.end)
            epoch, end = self._binlog.newest()
            self._channel.heard(Heartbeat(epoch, self._clock.wall_us(), end))
            return found is not None
        except Error:
            self._at = None
            raise

    def probe(self, begin: Callable[[Site], Start]) -> None:
        """Ask the source once whether it can continue where `begin` says. Raises: PositionLost, EpochGap if it cannot;
        PeerError.
        """
        self._binlog.locate(begin(self._source))

    def run(self, stopped: threading.Event) -> None:
        """Receive until stopped. Raises: as `receive_next`, except for transient errors."""
        while not stopped.is_set():
            try:
                self._news.clear()
                has_more = self.receive_next()
                self.trouble = None
                if not has_more and not stopped.is_set():
                    self._news.wait(IDLE_SECONDS)
            except (PeerError, Retryable) as error:
                self.trouble = _trouble(self._channel, error)
                stopped.wait(RECONNECT_SECONDS)

    def notify(self) -> None:
        """Wake the receiver: the source has written more, or `run` must see that it was stopped."""
        self._news.set()

    wake = notify

    def restart(self) -> None:
        """Begin anew at the next call, because the relay log was discarded."""
        self._at = None

    def close(self) -> None:
        """Close the binlog's file. A second call does nothing."""
        self._at = None
        self._binlog.close()


class NetworkReceiver:
    """Receives over the network; connects again, with growing pauses, while that may help."""

    def __init__(self, channel: ReplicaChannel, address: tuple[str, int], link: LinkOptions, clock: Clock) -> None:
        self._channel = channel
        self._address = address
        self._link = link
        self._clock = clock
        self._mutex = threading.Lock()
        self._caller: Caller | None = None
        self.trouble: str | None = None

    def run(self, stopped: threading.Event) -> None:
        """Receive until stopped. Raises: an error that connecting again cannot cure."""
        pause = RECONNECT_SECONDS
        while not stopped.is_set():
            before = self._channel.relay.durable
            try:
                self._call(stopped)
            except (PeerError, Retryable) as error:
                self.trouble = _trouble(self._channel, error)
            if self._channel.relay.durable != before:
                pause = RECONNECT_SECONDS
            stopped.wait(pause)
            pause = min(2 * pause, RECONNECT_SECONDS_MAX)

    def probe(self, begin: Callable[[Site], Start]) -> None:
        """Ask the source once whether it can continue where `begin` says. Raises: PositionLost, EpochGap if it cannot;
        PeerError, also if it is out of reach.
        """
        with Caller(self._address, self._link, self._clock) as caller:
            caller.run(_Probe(self._channel, caller.stop), begin)

    def _call(self, stopped: threading.Event) -> None:
        caller = Caller(self._address, self._link, self._clock)
        with self._mutex:
            self._caller = caller
        try:
            if not stopped.is_set():
                caller.run(self._channel, self._begin)
        finally:
            with self._mutex:
                self._caller = None
            caller.close()

    def _begin(self, source: Site) -> Start:
        self.trouble = None
        return self._channel.begin(source)

    def notify(self) -> None:
        """Report to the source that more was applied."""
        with self._mutex:
            if self._caller is not None:
                self._caller.notify()

    def wake(self) -> None:
        """End a call in progress, after `stopped.set()`."""
        with self._mutex:
            if self._caller is not None:
                self._caller.stop()

    def restart(self) -> None:
        """Do nothing: each call begins anew."""

    def close(self) -> None:
        """Do nothing: each call closes its connection."""


class _Probe:
    """A relay log for one answer of a source, which is dropped: any answer but an error says that it can continue."""

    def __init__(self, channel: ReplicaChannel, stop: Callable[[], None]) -> None:
        self._stop = stop
        self.applied_epoch = channel.applied_epoch
        self.forwarded_epochs = channel.forwarded_epochs

    def append(self, events: Events) -> None:
        self._stop()

    def sync(self) -> int:
        return 0

    def heard(self, heartbeat: Heartbeat) -> None:
        self._stop()

    def learn(self, settings: Settings) -> None:
        self._stop()


Receiver = LocalReceiver | NetworkReceiver


class Worker:
    """A thread that its owner starts, stops and joins; `error` is the error that ended it, None if it was stopped."""

    def __init__(
        self, name: str, work: Callable[[threading.Event], None], wake: Callable[[], None] = lambda: None
    ) -> None:
        self._name = name
        self._work = work
        self._wake = wake
        self._stopped = threading.Event()
        self.thread: threading.Thread | None = None
        self.error: Error | None = None

    @property
    def is_running(self) -> bool:
        return self.thread is not None and self.thread.is_alive()

    def start(self) -> None:
        """Start the thread, unless it is running."""
        if self.is_running:
            return
        self.error = None
        self._stopped.clear()
        self.thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self.thread.start()

    def stop(self) -> None:
        """Stop the thread, and wait until it has ended."""
        self._stopped.set()
        self._wake()
        if self.thread is not None and self.thread is not threading.current_thread():
            self.thread.join()
            self.thread = None

    def _run(self) -> None:
        try:
            self._work(self._stopped)
        except Error as error:
            self.error = error
            _log.error("%s ended: %s: %s", self._name, type(error).__name__, error.message)
        except Exception as error:
            self.error = InvariantBroken(f"{self._name} ended by {error!r}; report this")
            _log.exception("%s ended", self._name)
            raise

    def status(self) -> dict[str, Any]:
        """Return the thread's state, and the error that ended it."""
        error = self.error
        state = "running" if self.is_running else "stopped" if error is None else "failed"
        return {"state": state, "error": None if error is None else f"{type(error).__name__}: {error.message}"}


def applying(channel: ReplicaChannel) -> Callable[[threading.Event], None]:
    """Return the work of an applier's thread: apply what the relay log has and receives, until stopped."""

    def work(stopped: threading.Event) -> None:
        channel.close_reader()
        while not stopped.is_set():
            mark = channel.mark
            if channel.apply_next() is None:
                channel.wait_for_more(mark, IDLE_SECONDS, stopped)

    return work
