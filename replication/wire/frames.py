"""Frames from a stream of bytes, and back. Each frame is sealed and numbered, so that an altered, repeated or missing
one is detected.

Invariants: the announced length is checked before more of the payload is read; between reads a reader holds at most one
frame of the greatest length that is valid now; an invalid or unexpected frame raises `FrameRejected`, after which the
link must be closed (F90, F105, F106).
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
    """One complete, unaltered frame."""

    kind: int
    payload: bytes


def _seal(key: bytes, head: bytes, payload: Iterable[Buffer]) -> bytes:
    mac = hmac.new(key, head, hashlib.sha256)
    for part in payload:
        mac.update(part)
    return mac.digest()[:FRAME_SEAL_BYTES]


class FrameWriter:
    """Builds the frames of one direction; before `use_key` only frames of the handshake."""

    def __init__(self) -> None:
        self._key: bytes | None = None
        self._sequence = 0

    def use_key(self, key: bytes) -> None:
        """Seal all frames from now on."""
        self._key = key

    def frame(self, kind: int, *payload: Buffer) -> bytes:
        """Return the bytes of the next frame; the payload may be given in parts."""
        head = _HEAD.pack(FRAME_MAGIC, kind, 0, sum(map(len, payload)), 0, self._sequence)
        self._sequence += 1
        return b"".join((head, _NO_SEAL if self._key is None else _seal(self._key, head, payload), *payload))


class FrameReader:
    """Extracts the frames of one direction from bytes as they arrive."""

    def __init__(self) -> None:
        self._key: bytes | None = None
        self._is_known = False  # a sealed frame has arrived: the other side has the key
        self._sequence = 0
        self._buffer = bytearray()
        self.payload_bytes_max = PAYLOAD_BYTES_MAX  # after the handshake; lower on links with short frames

    def use_key(self, key: bytes) -> None:
        """Expect frames after the last one taken to be sealed with this key. Until the first sealed one, an unsealed
        refusal is accepted, too.
        """
        self._key = key

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Yield the frames that these bytes complete. Process each one before taking the next: it may change the key.

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
        """Return kind and payload bytes of the first frame in the buffer, of which only the header may have arrived."""
        magic, kind, reserved, size, reserved_2, sequence = map(int, _HEAD.unpack_from(self._buffer))
        if magic != FRAME_MAGIC or reserved or reserved_2:
            raise FrameRejected(
                "the data received is not a frame of this protocol; see whether the other side is a Tidemark"
            )
        is_refusal = kind == FRAME_REFUSE and not self._is_known
        is_greeting = self._key is None or is_refusal
        kinds, most = (HANDSHAKE_KINDS, HANDSHAKE_BYTES_MAX) if is_greeting else (SESSION_KINDS, self.payload_bytes_max)
        if kind not in kinds:
            raise FrameRejected(f"a frame of kind {kind} is not allowed here", kind=kind)
        if size > most:
            raise FrameRejected(f"a frame of {size} bytes was announced, more than {most}", size=size, most=most)
        if sequence != self._sequence:
            raise FrameRejected(
                f"frame {sequence} came instead of {self._sequence}: one was lost, or sent twice",
                sequence=sequence,
                expected=self._sequence,
            )
        return kind, size
