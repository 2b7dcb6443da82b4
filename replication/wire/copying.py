"""A first copy over a link: the replica requests one piece after another, and the source answers.

An item (`first_copy.Copied`) is sent in pieces of at most `PIECE_BYTES`. Two bytes precede each piece: the kind of the
item, and whether the item ends with this piece. Rows are an Arrow IPC stream of one batch, validated before use.
Because the replica requests every piece, neither side holds more than an item, and a slow replica delays only itself.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator
from contextlib import closing

from tidemark.engine.base.errors import FrameRejected, PeerError, PeerTimeout
from tidemark.replication.channel.first_copy import Copied, CopiedEnd, CopiedRows, CopiedTable
from tidemark.replication.wire.arrow_streams import arrow_batch, arrow_bytes, no_limit
from tidemark.replication.wire.codec import (
    REST,
    Octets,
    exactly,
    from_json,
    judged,
    list_of,
    number,
    row_of,
    sized_text,
    to_json,
)
from tidemark.replication.wire.frame_layout import FRAME_BYE, FRAME_COPIED, FRAME_COPY, FRAME_ERROR, FRAME_HEARTBEAT
from tidemark.replication.wire.frames import Frame, FrameWriter
from tidemark.replication.wire.handshake import refusal_of
from tidemark.replication.wire.sessions import COPY_SILENT_SECONDS, Step

PIECE_BYTES = 4 << 20
ITEM_BYTES_MAX = 1 << 30
PATTERNS_MAX = 1_000
_HEAD = struct.Struct("<BB")
_TABLE, _ROWS, _END = 1, 2, 3
_STRING, _INTEGER = exactly(str), exactly(int)
_PATTERNS = list_of(_STRING, PATTERNS_MAX)
_REQUEST = row_of(_PATTERNS, _PATTERNS)
_TABLE_KIND = row_of(_STRING, _STRING, _INTEGER)
_END_KIND = row_of(list_of(row_of(_STRING, _STRING)), number(1), list_of(row_of(_INTEGER, _INTEGER)))
_ROWS_FORM = Octets(sized_text(_STRING), REST)
_WHAT = "an item of a copy"


def pack_request(do: tuple[str, ...], ignore: tuple[str, ...]) -> bytes:
    """Return the payload of a replica's first frame: the patterns of tables that it wants, and of those it does not."""
    return to_json(_REQUEST, (do, ignore))


def unpack_request(payload: bytes) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the patterns of wanted tables, and of ignored ones. Raises: FrameRejected."""
    do, ignore = from_json(_REQUEST, payload, "a request for a copy")
    return do, ignore


def pieces_of(items: Generator[Copied]) -> Generator[bytes]:
    """Yield the payloads of a copy, piece by piece; close `items` at the end."""
    with closing(items):  # and with them the snapshot that they read
        for item in items:
            kind, data = _packed(item)
            for begin in range(0, max(1, len(data)), PIECE_BYTES):
                end = begin + PIECE_BYTES
                yield _HEAD.pack(kind, end >= len(data)) + data[begin:end]


def _packed(item: Copied) -> tuple[int, bytes]:
    if isinstance(item, CopiedTable):
        return _TABLE, to_json(_TABLE_KIND, (item.name, item.statement, item.rows))
    if isinstance(item, CopiedEnd):
        return _END, to_json(_END_KIND, (item.statements, item.epoch, item.positions))
    return _ROWS, _ROWS_FORM.pack([item.table, arrow_bytes(item.rows.schema, [item.rows])])


def _item(kind: int, data: bytes) -> Copied:
    """Raises: FrameRejected."""
    if kind == _TABLE:
        return CopiedTable(*from_json(_TABLE_KIND, data, _WHAT))
    if kind == _END:
        return CopiedEnd(*from_json(_END_KIND, data, _WHAT))
    if kind != _ROWS:
        raise FrameRejected(f"{_WHAT} is of the unknown kind {kind}", kind=kind)
    with judged(_WHAT):
        name, rows = _ROWS_FORM.unpack(data)
    return CopiedRows(name, arrow_batch(rows, no_limit))


class CopySession:
    """The replica's side of a copy; every item is passed to `take`."""

    def __init__(self, writer: FrameWriter, request: bytes, take: Callable[[Copied], None], now: float) -> None:
        self._writer = writer
        self._request = request
        self._take = take
        self._heard_at = now
        self._held = bytearray()
        self._kind = 0
        self.is_whole = False

    def begin(self) -> bytes:
        """Return the first frame."""
        return self._writer.frame(FRAME_COPY, self._request)

    @property
    def due_at(self) -> float:
        """When `pump` must be called at the latest."""
        return self._heard_at + COPY_SILENT_SECONDS

    def receive(self, frame: Frame, now: float) -> Step:
        """Take a piece and request the next one. Raises: PeerError; errors of `take`."""
        self._heard_at = now
        if frame.kind == FRAME_ERROR:
            raise refusal_of(frame.payload)
        if frame.kind == FRAME_BYE:
            raise PeerError("the source ended the link in the middle of a copy; begin it anew")
        if frame.kind == FRAME_HEARTBEAT:
            return Step([])  # the source sent it before the request arrived
        if frame.kind != FRAME_COPIED or len(frame.payload) < _HEAD.size:
            raise FrameRejected(f"a frame of kind {frame.kind} came in the middle of a copy", kind=frame.kind)
        kind, is_last = _HEAD.unpack_from(frame.payload)
        if self._held and kind != self._kind:
            raise FrameRejected("an item of a copy continues as another kind")
        if len(self._held) + len(frame.payload) > ITEM_BYTES_MAX:
            raise FrameRejected(f"an item of a copy has more than {ITEM_BYTES_MAX} bytes")
        self._kind = kind
        self._held += memoryview(frame.payload)[_HEAD.size :]
        if is_last:
            item = _item(kind, bytes(self._held))
            self._held.clear()
            self._take(item)
            self.is_whole = isinstance(item, CopiedEnd)
        return Step([] if self.is_whole else [self._writer.frame(FRAME_COPY, b"")], continues=not self.is_whole)

    def pump(self, now: float) -> None:
        """Check that the source has not been silent for too long. Raises: PeerTimeout."""
        if now - self._heard_at > COPY_SILENT_SECONDS:
            raise PeerTimeout(f"the source has sent nothing for {COPY_SILENT_SECONDS:.0f} s; begin the copy anew")
