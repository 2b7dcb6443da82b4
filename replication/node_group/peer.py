"""Another node as a carrier sees it: the process that holds its number, and the thread that sends to it.

The sender connects. So each direction has a link of its own, on which one side only sends and the other only receives.
Neither side has to choose between two links that were opened at the same time.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from tidemark.engine.base.clock import Clock
from tidemark.engine.base.errors import FrameRejected, PeerError, PeerRefused
from tidemark.replication.node_group.outbox import Message, Outbox
from tidemark.replication.node_group.party import NO_PROCESS, NodeParty
from tidemark.replication.wire.frame_layout import FRAME_ERROR
from tidemark.replication.wire.frames import Frame
from tidemark.replication.wire.handshake import refusal_of
from tidemark.replication.wire.wire import OpenLink, Wake, Wire, is_connection_refused, wait_readable

_log = logging.getLogger("tidemark.node")

PAUSE_SECONDS_MIN, PAUSE_SECONDS_MAX = 0.05, 0.5
STEADY_SECONDS = 1.0  # after a link that lasted no longer, the back-off continues
# Of two processes with one number, the earlier one counts as alive if it was heard within this time.
ALIVE_SECONDS = 1.0
IN, OUT = "in", "out"
CLOSE_SECONDS = 0.5  # to send the small messages that still wait


class Claim:
    """The process that holds the number of a node. All links of the node, in and out, lead to this one process."""

    def __init__(self, node: int, clock: Clock) -> None:
        self._node = node
        self._clock = clock
        self._mutex = threading.Lock()
        self._process = NO_PROCESS
        self._incarnation = 0
        self._heard_at = 0.0
        self._links: dict[str, Wire] = {}  # by direction
        self.delivering = threading.Lock()  # held for each message: those of a replaced link precede those of the next

    def take(self, party: NodeParty, direction: str, wire: Wire) -> None:
        """Register a new link, and cut the previous link of this direction. If this process takes the number over from
        another, cut all links of the other.

        Raises: PeerRefused if another process holds the number.
        """
        with self._mutex:
            self._check(party)
            old = list(self._links.values()) if party.process != self._process else [self._links.get(direction)]
            if party.process != self._process and self._links:
                _log.warning(
                    "node %d is another process now (incarnation %d, before %d); links of the previous one are cut",
                    self._node,
                    party.incarnation,
                    self._incarnation,
                )
                self._links.clear()
            self._process, self._incarnation = party.process, party.incarnation
            self._links[direction] = wire
            self._heard_at = self._clock.monotonic()
        for each in old:
            if each is not None:
                each.cut()

    def check(self, party: NodeParty) -> None:
        """Check that no other process holds the number. Raises: PeerRefused."""
        with self._mutex:
            self._check(party)

    def _check(self, party: NodeParty) -> None:
        is_other = party.process != self._process and bool(self._links)
        is_alive = self._clock.monotonic() - self._heard_at < ALIVE_SECONDS
        if is_other and is_alive and party.incarnation <= self._incarnation:
            _log.warning(
                "two processes claim to be node %d (incarnations %d and %d); the latter is refused",
                self._node,
                self._incarnation,
                party.incarnation,
            )
            raise PeerRefused(f"another process runs as node {self._node}; end one of them")

    def heard(self) -> None:
        self._heard_at = self._clock.monotonic()

    def is_current(self, direction: str, wire: Wire) -> bool:
        """Return whether messages of this link count: no other link has replaced it."""
        return self._links.get(direction) is wire

    def leave(self, direction: str, wire: Wire) -> None:
        """Remove a link that has ended, unless another has replaced it."""
        with self._mutex:
            if self._links.get(direction) is wire:
                del self._links[direction]


class Sender:
    """The thread that connects to a node, reconnects after a link has ended, and sends the node's queue."""

    def __init__(
        self, node: int, claim: Claim, clock: Clock, call: Callable[[int], OpenLink], gone: Callable[[int], None]
    ) -> None:
        """call: connects to the node. gone: called once when a link has broken and the host refuses a new one."""
        self.outbox = Outbox()
        self.is_connected = False
        self.refused: PeerRefused | None = None  # one side refused the other at the last attempt
        self._node = node
        self._claim = claim
        self._clock = clock
        self._call = call
        self._gone = gone
        self._wake = Wake()
        self._wire: Wire | None = None
        self._is_closed = False
        self._owes_gone = False
        self._renewals = 0
        self.reported_error = ""
        self.thread = threading.Thread(target=self._run, name=f"tidemark-to-node-{node}", daemon=True)

    def start(self) -> None:
        self.thread.start()

    def send(self, lane: int, message: Message) -> bool:
        """Queue a message; return False if it was dropped for lack of room."""
        is_kept = self.outbox.put(lane, message)
        if is_kept:
            self._wake()
        return is_kept

    def hurry(self) -> None:
        """Connect now if there is no link, because the node has just been heard."""
        if not self.is_connected:
            self._wake()

    def renew(self) -> None:
        """Connect again, because this node's identity has changed."""
        self._renewals += 1
        self._cut()

    def _cut(self) -> None:
        wire = self._wire
        if wire is not None:
            wire.cut()

    def stop(self) -> None:
        """Stop; waiting small messages are sent first."""
        self._is_closed = True
        self._wake()

    def join(self) -> None:
        """Wait for the end of the thread, after `stop`; cut the link if that takes longer than CLOSE_SECONDS."""
        if self.thread.ident is None:
            self._wake.close()
            return
        self.thread.join(CLOSE_SECONDS)
        self._cut()
        self.thread.join()
        self._wake.close()

    # --- in its thread ----------------------------------------------------------------------------
    def _run(self) -> None:
        pause_s = 0.0
        while not self._is_closed:
            if pause_s:
                self._wake.wait(pause_s)
            renewals = self._renewals
            opened = None if self._is_closed else self._connect()
            if opened is not None:
                began = self._clock.monotonic()
                self._serve(opened, renewals)
                self._owes_gone = True
                if self._clock.monotonic() - began > STEADY_SECONDS:
                    pause_s = 0.0
                    continue
            pause_s = min(PAUSE_SECONDS_MAX, max(PAUSE_SECONDS_MIN, 2 * pause_s))

    def _connect(self) -> OpenLink | None:
        try:
            opened = self._call(self._node)
        except PeerError as error:
            if self._owes_gone and is_connection_refused(error):
                self._owes_gone = False
                self._gone(self._node)
            self._report(error)
            return None
        try:
            self._claim.take(opened.peer, OUT, opened.wire)
        except PeerRefused as error:
            opened.wire.close()
            self._report(error)
            return None
        return opened

    def _report(self, error: PeerError) -> None:
        """Log why there is no link, once for each reason."""
        self.refused = error if isinstance(error, PeerRefused) else None
        if error.message != self.reported_error:
            self.reported_error = error.message
            _log.warning("no link to node %d: %s", self._node, error.message)

    def _serve(self, opened: OpenLink, renewals: int) -> None:
        wire = self._wire = opened.wire
        try:
            if renewals != self._renewals:
                raise PeerError("this node has changed its description since it connected")
            wire.send_at_once()
            wire.wait_long()
            self.outbox.open()
            self.is_connected = True
            self.refused = None
            self.reported_error = ""
            self._judge(opened.early)
            self._send_all(wire)
        except PeerError as error:
            self._report(error)
        finally:
            self.is_connected = False
            self.outbox.shut()
            self._wire = None
            self._claim.leave(OUT, wire)
            wire.close()

    def _send_all(self, wire: Wire) -> None:
        while True:
            data = self.outbox.next(wire.writer)
            if data:
                wire.send(data)
            elif self._is_closed:
                return
            elif wait_readable(wire, self._wake):
                self._judge(wire.reader.feed(wire.receive_ready()))

    @staticmethod
    def _judge(frames: Any) -> None:
        """Raise the error with which the other side ends the link; it sends nothing else here. Raises: PeerError."""
        frame: Frame
        for frame in frames:
            if frame.kind == FRAME_ERROR:
                raise refusal_of(frame.payload)
            raise FrameRejected(f"a frame of kind {frame.kind} is not allowed here", kind=frame.kind)
