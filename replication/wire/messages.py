"""Payloads of a session's frames: declared by the kinds of their fields, checked before use (F108).

Positions are byte offsets into binlog files of the source; epochs are the source's own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, ClassVar

from tidemark.engine.base.errors import FrameRejected
from tidemark.replication.binlog.binlog_layout import FIRST_POSITION
from tidemark.replication.binlog.position import Position
from tidemark.replication.wire.codec import (
    NUMBER,
    NUMBER_MAX,
    REST,
    Field,
    Form,
    Json,
    Kind,
    Octets,
    Payload,
    exactly,
    list_of,
    many,
    number,
    object_of,
    scalar,
    sized_text,
)
from tidemark.replication.wire.handshake import SERVER_ID_MAX

FILE_NAME_BYTES_MAX = 255
# A binlog file as the index names it: plain, because the name is shown and stored. It is never used as a path.
FILE_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*\.[0-9]{6,10}")
WINDOW_BYTES_MIN, WINDOW_BYTES_MAX = 64 << 10, 1 << 30
HEARTBEAT_MS_MIN, HEARTBEAT_MS_MAX = 10, 3_600_000
FORWARDED_MAX = 4_096
# The advice for a replica that cannot continue.
COPY_ADVICE = "copy the replica anew: make the channel with copy=True, or start it with --copy"


# --- kinds of fields --------------------------------------------------------------------------------
def _check_name(name: Any) -> str:
    if type(name) is not str or len(name) > FILE_NAME_BYTES_MAX or FILE_NAME.fullmatch(name) is None:
        raise FrameRejected(f"{str(name)[:40]!r} is not a name of a binlog file")
    return name


def _position() -> Field:
    """The position, then the name of the file."""
    (put_number, take_number), (put_name, take_name) = scalar("Q"), sized_text(Kind(_check_name))

    def put(out: Any, value: Position) -> None:
        put_number(out, value.position)
        put_name(out, value.file)

    def take(data: Any) -> Position:
        position = take_number(data)
        return Position(take_name(data), position)

    return put, take


_NUMBER, _POSITION = scalar("Q"), _position()
_NAME_OR_NONE = Kind(lambda name: name if name == "" else _check_name(name))


# --- payloads ---------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Start(Payload):
    """Where a replica continues: after `epoch`, or at a position if `file` is given. Also its window, and its
    heartbeat interval.

    The epoch is one of server `origin`, from which the source has replicated; 0 is the source itself.
    """

    epoch: int = 0
    origin: int = 0
    file: str = ""
    position: int = 0
    window_bytes: int = 8 << 20
    heartbeat_ms: int = 1_000

    what: ClassVar[str] = "a replica's start"
    form: ClassVar[Form] = Json(
        object_of(
            {
                "epoch": NUMBER,
                "file": _NAME_OR_NONE,
                "heartbeat_ms": number(HEARTBEAT_MS_MIN, HEARTBEAT_MS_MAX),
                "origin": NUMBER,
                "position": NUMBER,
                "window_bytes": number(WINDOW_BYTES_MIN, WINDOW_BYTES_MAX),
            }
        ),
        *("epoch", "origin", "file", "position", "window_bytes", "heartbeat_ms"),
    )


@dataclass(frozen=True)
class Events(Payload):
    """Bytes of one file from a position on, cut anywhere: an event may be longer than a frame."""

    at: Position
    data: bytes

    what: ClassVar[str] = "a frame of events"
    form: ClassVar[Form] = Octets(_POSITION, REST)

    def check(self) -> None:
        if not FIRST_POSITION <= self.at.position <= NUMBER_MAX - len(self.data) or not self.data:
            raise FrameRejected(f"{len(self.data)} bytes at position {self.at.position} of {self.at.file}")

    @property
    def end(self) -> int:
        """The position after these bytes."""
        return self.at.position + len(self.data)


@dataclass(frozen=True)
class Heartbeat(Payload):
    """The progress of the source: newest epoch in its binlog, time (µs since 1970, UTC), and end of the binlog."""

    epoch: int
    wall_us: int
    end: Position

    what: ClassVar[str] = "a heartbeat"
    form: ClassVar[Form] = Octets(_NUMBER, scalar("q", number(-NUMBER_MAX - 1)), _POSITION)


@dataclass(frozen=True)
class Acknowledge(Payload):
    """Bytes of events taken since the start, the newest epoch that is durable in the replica's relay log, and the
    newest epoch that the replica has applied. forwarded_epochs: for each site that the replica forwards to, its server
    id and the newest epoch applied there.
    """

    taken_bytes: int
    epoch: int
    applied_epoch: int = 0
    forwarded_epochs: tuple[tuple[int, int], ...] = ()

    what: ClassVar[str] = "an acknowledgement"
    form: ClassVar[Form] = Octets(
        _NUMBER, _NUMBER, _NUMBER, many(FORWARDED_MAX, scalar("Q", number(1, SERVER_ID_MAX)), _NUMBER)
    )


SETTINGS_FIELDS: dict[str, type] = {"db": str, "table_name": str, "server_id": int, "conflict_fn": str}


@dataclass(frozen=True)
class Settings(Payload):
    """The rows of the source's `mysql.ndb_replication` that name a conflict function. A replica refuses a source whose
    functions are incompatible with its own.
    """

    rows: tuple[dict[str, Any], ...]

    what: ClassVar[str] = "a frame of settings"
    form: ClassVar[Form] = Json(list_of(object_of({name: exactly(kind) for name, kind in SETTINGS_FIELDS.items()})))
