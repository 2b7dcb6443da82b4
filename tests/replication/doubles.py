"""A binlog and a relay log in memory, with the methods that sessions use."""

from __future__ import annotations

from collections.abc import Iterator

from tidemark.engine.base.errors import PeerError, PositionLost
from tidemark.replication.binlog.binlog_layout import FIRST_POSITION
from tidemark.replication.binlog.position import Position
from tidemark.replication.wire.handshake import Site
from tidemark.replication.wire.messages import Events, Heartbeat, Settings, Start

SECRET = b"a secret of both sides"
SOURCE = Site(1, "ab" * 16, 3)
REPLICA = Site(2, "cd" * 16, 5)


class MemoryBinlog:
    """Files of bytes, in order; epoch n ends at byte n * 100 of all files joined."""

    def __init__(self, *files: bytes) -> None:
        self.files = {f"log.{number:06}": each for number, each in enumerate(files, 1)}

    def locate(self, start: Start) -> Position:
        """Return the position to begin at."""
        file = start.file or next(iter(self.files))
        if file not in self.files:
            raise PositionLost(f"{file} was purged")
        return Position(file, start.position or FIRST_POSITION)

    def read(self, at: Position, bytes_max: int) -> tuple[Position, bytes] | None:
        """Return the next bytes."""
        if at.file not in self.files:
            raise PositionLost(f"{at.file} was purged")
        rest = self.files[at.file][at.position - FIRST_POSITION :]
        if rest:
            return at, rest[:bytes_max]
        later = [name for name in self.files if name > at.file]
        return self.read(Position(later[0], FIRST_POSITION), bytes_max) if later else None

    def newest(self) -> tuple[int, Position]:
        """Return the newest epoch, and the end."""
        name, data = list(self.files.items())[-1]
        return sum(map(len, self.files.values())) // 100, Position(name, FIRST_POSITION + len(data))

    def settings(self) -> Settings:
        """Return settings without functions."""
        return Settings(())

    def copy(self, request: bytes) -> Iterator[bytes]:
        """Raise: there is no copy."""
        raise PeerError("no copy")

    def close(self) -> None:
        """Do nothing: no file is open."""


class MemoryRelay:
    """The received bytes, by file; safe after each sync."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.syncs = 0
        self.heartbeats: list[Heartbeat] = []

    def append(self, events: Events) -> None:
        """Keep the bytes."""
        held = self.files.setdefault(events.at.file, b"")
        assert events.at.position == FIRST_POSITION + len(held)
        self.files[events.at.file] = held + events.data

    def sync(self) -> int:
        """Count a sync, after which everything is safe."""
        self.syncs += 1
        return sum(map(len, self.files.values())) // 100

    applied_epoch = 0
    forwarded_epochs = ()

    def learn(self, settings: Settings) -> None:
        """Do nothing: nothing is applied here."""

    def heard(self, heartbeat: Heartbeat) -> None:
        """Record a heartbeat."""
        self.heartbeats.append(heartbeat)
