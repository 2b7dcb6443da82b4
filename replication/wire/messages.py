"""Payloads of a session's frames: packed, and unpacked with every length and number checked before use (F108).

Positions are byte offsets into binlog files of the source; epochs are the source's own.
"""

from __future__ import annotations

import json
import re
import struct
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from tidemark.engine.base.errors import FrameRejected
from tidemark.replication.wire.handshake import SERVER_ID_MAX

FILE_NAME_BYTES_MAX = 255
# A binlog file as the index names it: plain, because the name is shown and stored. It is never used as a path.
FILE_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*\.[0-9]{6,10}")
FIRST_POSITION = 4  # after the magic bytes
WINDOW_BYTES_MIN, WINDOW_BYTES_MAX = 64 << 10, 1 << 30
HEARTBEAT_MS_MIN, HEARTBEAT_MS_MAX = 10, 3_600_000
NUMBER_MAX = (1 << 63) - 1

_EVENTS = struct.Struct("<QH")
_HEARTBEAT = struct.Struct("<QqQH")
_ACKNOWLEDGE = struct.Struct("<QQQ")
_ONWARD = struct.Struct("<QQ")
ONWARD_MAX = 4_096


class Position(NamedTuple):
    """A place in the source's binlog."""

    file: str
    position: int

    def is_start_behind(self, file: str) -> bool:
        """Return whether this is the start of the file that follows `file`."""
        base, _, number = file.rpartition(".")
        next_base, _, next_number = self.file.rpartition(".")
        return self.position == FIRST_POSITION and base == next_base and int(next_number) == int(number) + 1


@dataclass(frozen=True)
class Start:
    """Where a replica continues: after `epoch`, or at a position if `file` is given. Also its window, and its interval
    of heartbeats.

    The epoch is one of server `origin`, from which the source has replicated; 0 is the source itself.
    """

    epoch: int = 0
    origin: int = 0
    file: str = ""
    position: int = 0
    window_bytes: int = 8 << 20
    heartbeat_ms: int = 1_000

    def pack(self) -> bytes:
        """Return the payload."""
        return json.dumps(asdict(self), sort_keys=True).encode()

    @classmethod
    def unpack(cls, payload: bytes) -> Start:
        """Return the content of a payload. Raises: FrameRejected."""
        try:
            content: Any = json.loads(payload)
        except (ValueError, RecursionError):
            content = None
        if not isinstance(content, dict) or content.keys() != asdict(cls()).keys():
            raise FrameRejected("a replica's start lacks required fields")
        numbers = [content[name] for name in ("epoch", "origin", "position", "window_bytes", "heartbeat_ms")]
        if not all(type(each) is int and 0 <= each <= NUMBER_MAX for each in numbers):
            raise FrameRejected("a number in a replica's start is invalid")
        if type(content["file"]) is not str:
            raise FrameRejected("a replica's start names no file")
        start = cls(**content)
        if start.file != "":
            _check_name(start.file)
        if not WINDOW_BYTES_MIN <= start.window_bytes <= WINDOW_BYTES_MAX:
            raise FrameRejected(f"a window of {start.window_bytes} bytes is invalid")
        if not HEARTBEAT_MS_MIN <= start.heartbeat_ms <= HEARTBEAT_MS_MAX:
            raise FrameRejected(f"heartbeats every {start.heartbeat_ms} ms are invalid")
        return start


@dataclass(frozen=True)
class Events:
    """Bytes of one file from a position on, cut anywhere: an event may be longer than a frame."""

    at: Position
    data: bytes

    def pack(self) -> bytes:
        """Return the payload."""
        name = self.at.file.encode()
        return _EVENTS.pack(self.at.position, len(name)) + name + self.data

    @classmethod
    def unpack(cls, payload: bytes) -> Events:
        """Return the content of a payload. Raises: FrameRejected."""
        position, size = _head(_EVENTS, payload)
        file = _name(payload, _EVENTS.size, size)
        data = payload[_EVENTS.size + size :]
        if not FIRST_POSITION <= position <= NUMBER_MAX - len(data) or not data:
            raise FrameRejected(f"events at position {position} of {file} are invalid")
        return cls(Position(file, position), data)

    @property
    def end(self) -> int:
        """The position after these bytes."""
        return self.at.position + len(self.data)


@dataclass(frozen=True)
class Heartbeat:
    """The progress of the source: newest epoch in its binlog, time (µs since 1970, UTC), and end of the binlog."""

    epoch: int
    wall_us: int
    end: Position

    def pack(self) -> bytes:
        """Return the payload."""
        name = self.end.file.encode()
        return _HEARTBEAT.pack(self.epoch, self.wall_us, self.end.position, len(name)) + name

    @classmethod
    def unpack(cls, payload: bytes) -> Heartbeat:
        """Return the content of a payload. Raises: FrameRejected."""
        epoch, wall_us, position, size = _head(_HEARTBEAT, payload)
        file = _name(payload, _HEARTBEAT.size, size)
        if len(payload) != _HEARTBEAT.size + size or epoch > NUMBER_MAX or position > NUMBER_MAX:
            raise FrameRejected("a heartbeat is invalid")
        return cls(epoch, wall_us, Position(file, position))


@dataclass(frozen=True)
class Acknowledge:
    """Bytes of events taken since the start, the newest epoch that is durable in the replica's relay log, and the
    newest epoch that the replica has applied. onward: for each site that the replica forwards to, its server id and the
    newest epoch applied there.
    """

    taken_bytes: int
    epoch: int
    applied_epoch: int = 0
    onward: tuple[tuple[int, int], ...] = ()

    def pack(self) -> bytes:
        """Return the payload."""
        head = _ACKNOWLEDGE.pack(self.taken_bytes, self.epoch, self.applied_epoch)
        return head + b"".join(_ONWARD.pack(*each) for each in self.onward)

    @classmethod
    def unpack(cls, payload: bytes) -> Acknowledge:
        """Return the content of a payload. Raises: FrameRejected."""
        numbers = _head(_ACKNOWLEDGE, payload)
        rest = payload[_ACKNOWLEDGE.size :]
        if len(rest) % _ONWARD.size or len(rest) > ONWARD_MAX * _ONWARD.size:
            raise FrameRejected("an acknowledgement is invalid")
        onward = tuple((server_id, epoch) for server_id, epoch in _ONWARD.iter_unpack(rest))
        if max((*numbers, *(epoch for _, epoch in onward))) > NUMBER_MAX:
            raise FrameRejected("an acknowledgement is invalid")
        if any(not 0 < server_id <= SERVER_ID_MAX for server_id, _ in onward):
            raise FrameRejected("an acknowledgement names an invalid server")
        return cls(numbers[0], numbers[1], numbers[2], onward)


SETTINGS_FIELDS: dict[str, type] = {"db": str, "table_name": str, "server_id": int, "conflict_fn": str}


@dataclass(frozen=True)
class Settings:
    """The rows of the source's `mysql.ndb_replication` that name a conflict function. A replica refuses a source whose
    functions are in conflict with its own.
    """

    rows: tuple[dict[str, Any], ...]

    def pack(self) -> bytes:
        """Return the payload."""
        return json.dumps([{name: row[name] for name in SETTINGS_FIELDS} for row in self.rows]).encode()

    @classmethod
    def unpack(cls, payload: bytes) -> Settings:
        """Return the content of a payload. Raises: FrameRejected."""
        try:
            content: Any = json.loads(payload)
        except (ValueError, RecursionError):
            content = None
        if not isinstance(content, list) or not all(map(_is_settings_row, content)):
            raise FrameRejected("settings of a source lack required fields")
        return cls(tuple(content))


def _is_settings_row(row: object) -> bool:
    return (
        isinstance(row, dict)
        and row.keys() == SETTINGS_FIELDS.keys()
        and all(type(row[name]) is kind for name, kind in SETTINGS_FIELDS.items())
    )


def _head(layout: struct.Struct, payload: bytes) -> tuple[int, ...]:
    if len(payload) < layout.size:
        raise FrameRejected(f"a payload of {len(payload)} bytes is shorter than its fields")
    return layout.unpack_from(payload)


def _name(payload: bytes, start: int, size: int) -> str:
    if not 0 < size <= FILE_NAME_BYTES_MAX or start + size > len(payload):
        raise FrameRejected(f"a file name of {size} bytes is invalid")
    try:
        name = payload[start : start + size].decode("ascii")
    except UnicodeDecodeError:
        raise FrameRejected("a file name has other characters than those of binlog files") from None
    _check_name(name)
    return name


def _check_name(name: str) -> None:
    if len(name) > FILE_NAME_BYTES_MAX or FILE_NAME.fullmatch(name) is None:
        raise FrameRejected(f"{name[:40]!r} is not a name of a binlog file")
