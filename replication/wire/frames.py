"""Frames out of a stream of bytes, and back; each sealed and numbered, so that none is altered, repeated or left out.

Invariants: a length is judged before a byte of its payload is kept; a reader holds at most one frame of the longest
kind that may come now; what is out of place is `FrameRejected`, and the link must be shut behind it (F90, F105, F106).
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tidemark.engine.base.errors import FrameRejected
from tidemark.replication.wire.frame_layout import (
    FRAME_HEADER_BYTES,
    FRAME_MAGIC,
    FRAME_REFUSE,
    FRAME_SEAL_BYTES,
    HANDSHAKE_BYTES_MAX,
    HANDSHAKE_KINDS,
    PAYLOAD_BYTES_MAX,
    SESSION_KINDS,
)

# The header of replication/wire/frame_layout.py without its seal.
_HEAD = struct.Struct("<IHHIIQ")
_NO_SEAL = bytes(FRAME_SEAL_BYTES)
Buffer = bytes | memoryview  # of single bytes

assert _HEAD.size + FRAME_SEAL_BYTES == FRAME_HEADER_BYTES


class Frame(NamedTuple):
    """One frame that came whole and unaltered."""

    kind: int
    payload: bytes


def _seal(key: bytes, head: bytes, payload: Iterable[Buffer]) -> bytes:
    mac = hmac.new(key, head, hashlib.sha256)
    for part in payload:
        mac.update(part)
    return mac.digest()[:FRAME_SEAL_BYTES]


class FrameWriter:
    """Makes the frames of one direction. Without a key only frames of the handshake."""

    def __init__(self) -> None:
        self._key: bytes | None = None
        self._sequence = 0

    def use_key(self, key: bytes) -> None:
        """Seal everything from now on."""
        self._key = key

    def frame(self, kind: int, *payload: Buffer) -> bytes:
        """The bytes of the next frame, with its payload in one or more parts."""
        head = _HEAD.pack(FRAME_MAGIC, kind, 0, sum(map(len, payload)), 0, self._sequence)
        self._sequence += 1
        return b"".join((head, _NO_SEAL if self._key is None else _seal(self._key, head, payload), *payload))


class FrameReader:
    """Takes the frames of one direction out of bytes as they come."""

    def __init__(self) -> None:
        self._key: bytes | None = None
        self._is_known = False  # a sealed frame has come: the other side has the key
        self._sequence = 0
        self._buffer = bytearray()
        self.payload_bytes_max = PAYLOAD_BYTES_MAX  # once the handshake is over; less, where less is ever sent

    def use_key(self, key: bytes) -> None:
        """Everything behind the last frame taken must be sealed with this key, but for a refusal in its stead."""
        self._key = key

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Frames that are whole with these bytes. Take each before the next: its meaning may change the key.

        Raises: FrameRejected.
        """
        self._buffer += data
        while len(self._buffer) >= FRAME_HEADER_BYTES:
            kind, size = self._check_head()
            end = FRAME_HEADER_BYTES + size
            if len(self._buffer) < end:
                return
            head = bytes(self._buffer[: _HEAD.size])
            seal = bytes(self._buffer[_HEAD.size : FRAME_HEADER_BYTES])
            payload = bytes(self._buffer[FRAME_HEADER_BYTES:end])
            is_plain = self._key is None or kind == FRAME_REFUSE
            wanted = _NO_SEAL if is_plain else _seal(self._key or b"", head, (payload,))
            if not hmac.compare_digest(seal, wanted):
                raise FrameRejected(f"frame {self._sequence} was altered on its way, or its sender has another secret")
            del self._buffer[:end]
            self._is_known = not is_plain
            self._sequence += 1
            yield Frame(kind, payload)

    def _check_head(self) -> tuple[int, int]:
        """Kind and payload bytes of the frame the buffer begins with; nothing else of it may have come yet."""
        magic, kind, reserved, size, reserved_2, sequence = map(int, _HEAD.unpack_from(self._buffer))
        if magic != FRAME_MAGIC or reserved or reserved_2:
            raise FrameRejected("what came is no frame of this protocol; is the other side a Tidemark?")
        is_refusal = kind == FRAME_REFUSE and not self._is_known
        is_greeting = self._key is None or is_refusal
        kinds, most = (HANDSHAKE_KINDS, HANDSHAKE_BYTES_MAX) if is_greeting else (SESSION_KINDS, self.payload_bytes_max)
        if kind not in kinds:
            raise FrameRejected(f"a frame of kind {kind} has no place here", kind=kind)
        if size > most:
            raise FrameRejected(f"a frame of {size} bytes was announced, more than {most}", size=size, most=most)
        if sequence != self._sequence:
            raise FrameRejected(
                f"frame {sequence} came in the place of {self._sequence}: one was lost, or sent twice",
                sequence=sequence,
                expected=self._sequence,
            )
        return kind, size
