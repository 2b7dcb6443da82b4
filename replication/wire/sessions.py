"""The protocol of both sides after the handshake: methods that take frames and the time, and return frames to send.
Times are seconds of a monotonic clock.

The source sends its binlog from the position where the replica continues, at most a window ahead of the acknowledged
bytes. So a slow replica costs the source one chunk of memory, and delays no commit (F97). The replica takes the bytes
in order and without a gap, makes them durable, and then acknowledges them. A side that hears nothing for
`SILENT_HEARTBEATS` heartbeats ends the session.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

from tidemark.engine.base.errors import EpochGap, FrameRejected, PeerError, PeerTimeout
from tidemark.replication.binlog.position import Position
from tidemark.replication.wire.frame_layout import (
    FRAME_ACKNOWLEDGE,
    FRAME_BYE,
    FRAME_COPIED,
    FRAME_COPY,
    FRAME_ERROR,
    FRAME_EVENTS,
    FRAME_HEARTBEAT,
    FRAME_SETTINGS,
    FRAME_START,
)
from tidemark.replication.wire.frames import Frame, FrameWriter
from tidemark.replication.wire.handshake import error_payload, refusal_of
from tidemark.replication.wire.messages import Acknowledge, Events, Heartbeat, Settings, Start

CHUNK_BYTES = 256 << 10
SILENT_HEARTBEATS = 5
COPY_SILENT_SECONDS = 600.0  # during a copy, when rows are inserted and indexes are built
LOCATE_SILENT_SECONDS = 600.0  # while the source locates the start; it may have to read its whole binlog


class Binlog(Protocol):
    """The source's binlog as a session reads it."""

    def locate(self, start: Start) -> Position:
        """Return where to begin. Raises: PositionLost if that was purged, EpochGap if it is past the binlog's end."""
        ...

    def read(self, at: Position, bytes_max: int) -> tuple[Position, bytes] | None:
        """Return (start, bytes): at most `bytes_max` bytes from `at` on. If `at` is the end of a file, the start is in
        the next file. None at the end of the newest epoch that may leave the site. Raises: PositionLost.
        """
        ...

    def newest(self) -> tuple[int, Position]:
        """Return the newest epoch in the binlog, and the end of the binlog."""
        ...

    def settings(self) -> Settings:
        """Return the conflict functions of the source."""
        ...

    def copy(self, request: bytes) -> Iterator[bytes]:
        """Return the pieces of a first copy. Raises: PeerError."""
        ...

    def close(self) -> None:
        """Close the reader. A second call does nothing."""
        ...


class Relay(Protocol):
    """The replica's relay log as a session writes it."""

    def append(self, events: Events) -> None:
        """Append these bytes. Raises: StoreFailed, Damaged if they are not binlog events."""
        ...

    def sync(self) -> int:
        """Make all appended bytes durable; return the newest complete durable epoch."""
        ...

    def heard(self, heartbeat: Heartbeat) -> None:
        """Record the progress of the source."""
        ...

    def learn(self, settings: Settings) -> None:
        """Accept the conflict functions of the source. Raises: PeerRefused if those of this site conflict with them."""
        ...

    @property
    def applied_epoch(self) -> int:
        """The newest epoch of the source that is applied here."""
        ...

    @property
    def forwarded_epochs(self) -> tuple[tuple[int, int], ...]:
        """For each site that this one forwards to: its server id, and the newest epoch of the source applied there."""
        ...


OnAcknowledge = Callable[[int, int, tuple[tuple[int, int], ...]], None]


class Step(NamedTuple):
    """The result of a step: bytes to send, and whether the session continues."""

    frames: list[bytes]
    continues: bool = True


class _Session(ABC):
    """What both sides have in common."""

    def __init__(self, writer: FrameWriter, now: float) -> None:
        self._writer = writer
        self._heard_at = self._sent_at = now

    def heard(self, now: float) -> None:
        """Note that the other side is alive: bytes from it wait to be read."""
        self._heard_at = now

    def receive(self, frame: Frame, now: float) -> Step:
        """Take a frame of the other side. Raises: PeerError; then send `farewell` with it."""
        self._heard_at = now
        if frame.kind == FRAME_BYE:
            return Step([], continues=False)
        if frame.kind == FRAME_ERROR:
            raise refusal_of(frame.payload)
        answer = self._answer(frame)
        if answer is None:
            raise FrameRejected(f"a frame of kind {frame.kind} came in the middle of a session", kind=frame.kind)
        return Step(answer)

    @abstractmethod
    def _answer(self, frame: Frame) -> list[bytes] | None:
        """Take any other frame; return the frames that answer it, None if it is not allowed now."""


class SourceSession(_Session):
    """The source's side of one replica's session."""

    def __init__(
        self, binlog: Binlog, writer: FrameWriter, now: float, on_acknowledge: OnAcknowledge = lambda *_: None
    ) -> None:
        """on_acknowledge: called at each acknowledgement with the received epoch, the applied epoch and
        `Acknowledge.forwarded_epochs`.
        """
        super().__init__(writer, now)
        self.acknowledged_epoch = 0
        self.applied_epoch = 0
        self._on_acknowledge = on_acknowledge
        self._has_news = False  # a heartbeat still has to report that no more events follow
        self._binlog = binlog
        self._start: Start | None = None
        self._copy: Iterator[bytes] | None = None
        self._at: Position | None = None
        self._sent_bytes = 0
        self._taken_bytes = 0

    @property
    def due_at(self) -> float:
        """When `pump` must be called again even if nothing has happened."""
        if self._start is None:
            silent_s = SILENT_HEARTBEATS * self._heartbeat_s if self._copy is None else COPY_SILENT_SECONDS
            return self._heard_at + silent_s + 0.001
        return self._sent_at + self._heartbeat_s

    @property
    def _heartbeat_s(self) -> float:
        return (Start() if self._start is None else self._start).heartbeat_ms / 1_000

    @property
    def is_full(self) -> bool:
        """Whether the window is used up: `pump` sends events again after the next acknowledgement."""
        return self._start is not None and self._sent_bytes - self._taken_bytes >= self._start.window_bytes

    def status(self) -> dict[str, Any]:
        return {
            "acknowledged_epoch": self.acknowledged_epoch,
            "applied_epoch": self.applied_epoch,
            "bytes_ahead": self._sent_bytes - self._taken_bytes,
        }

    def _answer(self, frame: Frame) -> list[bytes] | None:
        if frame.kind == FRAME_COPY and self._start is None:
            return [self._copied(frame.payload)]
        if frame.kind == FRAME_START and self._start is None and self._copy is None:
            start = Start.unpack(frame.payload)
            self._at = self._binlog.locate(start)
            self._start = start
            self._has_news = True
            if not start.origin:
                self.acknowledged_epoch = start.epoch
            settings = self._binlog.settings()
            return [self._writer.frame(FRAME_SETTINGS, settings.pack())] if settings.rows else []
        if frame.kind == FRAME_ACKNOWLEDGE and self._start is not None:
            self._note_acknowledgement(Acknowledge.unpack(frame.payload))
            return []
        return None

    def _copied(self, request: bytes) -> bytes:
        if self._copy is None:
            self._copy = self._binlog.copy(request)
        piece = next(self._copy, None)
        if piece is None:
            raise FrameRejected("a piece past the end of a copy was requested")
        self._sent_at = self._heard_at
        return self._writer.frame(FRAME_COPIED, piece)

    def _note_acknowledgement(self, news: Acknowledge) -> None:
        if not self._taken_bytes <= news.taken_bytes <= self._sent_bytes:
            raise FrameRejected(f"{news.taken_bytes} bytes were acknowledged of {self._sent_bytes} that were sent")
        if news.epoch < self.acknowledged_epoch:
            raise FrameRejected(f"epoch {news.epoch} was acknowledged after {self.acknowledged_epoch}")
        if news.applied_epoch < self.applied_epoch:
            raise FrameRejected(f"epoch {news.applied_epoch} was applied after {self.applied_epoch}")
        self._taken_bytes, self.acknowledged_epoch = news.taken_bytes, news.epoch
        self.applied_epoch = news.applied_epoch
        self._on_acknowledge(news.epoch, news.applied_epoch, news.forwarded_epochs)

    def pump(self, now: float, wall_us: int) -> Step:
        """Return the next chunk of events, or a heartbeat if one is due. Call again until no frames are returned.

        Raises: PeerTimeout, PositionLost.
        """
        if self._copy is not None and now - self._heard_at <= COPY_SILENT_SECONDS:
            return Step([])
        if now - self._heard_at > SILENT_HEARTBEATS * self._heartbeat_s:
            raise PeerTimeout(f"the replica has been silent for {now - self._heard_at:.1f} s; it may connect again")
        frames = []
        if self._at is not None and not self.is_full:
            found = self._binlog.read(self._at, CHUNK_BYTES)
            if found is not None:
                events = Events(*found)
                frames.append(self._writer.frame(FRAME_EVENTS, events.pack()))
                self._sent_bytes += len(events.data)
                self._at = Position(events.at.file, events.end)
                self._has_news = True
        if not frames and self._start is not None and (now >= self.due_at or (self._has_news and not self.is_full)):
            epoch, end = self._binlog.newest()
            frames.append(self._writer.frame(FRAME_HEARTBEAT, Heartbeat(epoch, wall_us, end).pack()))
            self._has_news = False
        if frames:
            self._sent_at = now
        return Step(frames)


class ReplicaSession(_Session):
    """The replica's side of its session with a source."""

    def __init__(
        self,
        relay: Relay,
        writer: FrameWriter,
        start: Start,
        now: float,
        locate_silent_s: float = LOCATE_SILENT_SECONDS,
    ) -> None:
        """locate_silent_s: how long the source may be silent before its first frame."""
        super().__init__(writer, now)
        self._relay = relay
        self._locate_silent_s = locate_silent_s
        self._start = start
        self._next: Position | None = Position(start.file, start.position) if start.file else None
        self._taken_bytes = 0
        self._reported_bytes = 0
        self._epoch = 0 if start.origin else start.epoch
        self._reported_applied = 0
        self._reported_forwarded: tuple[tuple[int, int], ...] = ()
        self._is_answered = False

    def begin(self) -> bytes:
        """Return the first frame."""
        return self._writer.frame(FRAME_START, self._start.pack())

    @property
    def due_at(self) -> float:
        """When `pump` must be called again even if nothing has happened."""
        return self._sent_at + self._start.heartbeat_ms / 1_000

    @property
    def must_acknowledge(self) -> bool:
        """Whether half of the window was received: without an acknowledgement the source would soon wait."""
        return self._taken_bytes - self._reported_bytes >= self._start.window_bytes // 2

    def _answer(self, frame: Frame) -> list[bytes] | None:
        self._is_answered = True
        if frame.kind == FRAME_HEARTBEAT:
            self._relay.heard(Heartbeat.unpack(frame.payload))
        elif frame.kind == FRAME_SETTINGS:
            self._relay.learn(Settings.unpack(frame.payload))
        elif frame.kind == FRAME_EVENTS:
            self._take(Events.unpack(frame.payload))
        else:
            return None
        return []

    def _take(self, events: Events) -> None:
        at, wanted = events.at, self._next
        if wanted is not None and at != wanted and not at.is_start_after(wanted.file):
            raise EpochGap(
                f"the source continued at {at.file}:{at.position}, this side is at {wanted.file}:{wanted.position};"
                " connect again from what was applied",
                **at._asdict(),
            )
        self._relay.append(events)
        self._next = Position(at.file, events.end)
        self._taken_bytes += len(events.data)

    def pump(self, now: float) -> Step:
        """Sync the bytes taken since the last call and acknowledge them, or send a sign of life if one is due. Call
        when the socket has no more bytes: many events then share a sync. Raises: PeerTimeout, StoreFailed.
        """
        patience_s = self._locate_silent_s
        if self._is_answered:
            patience_s = SILENT_HEARTBEATS * self._start.heartbeat_ms / 1_000
        if now - self._heard_at > patience_s:
            raise PeerTimeout(f"the source has been silent for {now - self._heard_at:.1f} s; connect again")
        applied = max(self._relay.applied_epoch, self._reported_applied)
        forwarded_epochs = self._relay.forwarded_epochs
        has_news = (
            self._taken_bytes > self._reported_bytes
            or applied > self._reported_applied
            or forwarded_epochs != self._reported_forwarded
        )
        if not has_news and now < self.due_at:
            return Step([])
        if self._taken_bytes > self._reported_bytes:
            self._epoch = max(self._epoch, self._relay.sync())
            self._reported_bytes = self._taken_bytes
        self._sent_at = now
        self._reported_applied, self._reported_forwarded = applied, forwarded_epochs
        news = Acknowledge(self._taken_bytes, self._epoch, applied, forwarded_epochs)
        return Step([self._writer.frame(FRAME_ACKNOWLEDGE, news.pack())])


def farewell(writer: FrameWriter, error: PeerError | None = None) -> bytes:
    """Return the last frame of a session: a plain goodbye, or the error that ends it."""
    return writer.frame(FRAME_BYE, b"") if error is None else writer.frame(FRAME_ERROR, error_payload(error))
