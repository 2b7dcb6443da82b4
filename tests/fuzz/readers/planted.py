"""Readers with one defect each, which the harness must see (tests/fuzz/test_harness.py)."""

from __future__ import annotations

import ctypes
import os
import time
import zlib

from tests.fuzz.harness import SLOW_SECONDS, Reader
from tests.fuzz.mutations import octets, then

TRIGGER = ord("!")
SUM_BYTES = 4


class Refused(Exception):
    """The error they declare."""


def _member() -> bytes:
    body = bytes(range(1, 33))
    return body + zlib.crc32(body).to_bytes(SUM_BYTES, "little")


def _mended(data: bytes) -> bytes:
    body = data[:-SUM_BYTES]
    return body + zlib.crc32(body).to_bytes(SUM_BYTES, "little")


def _body(data: bytes) -> bytes:
    if len(data) < SUM_BYTES or zlib.crc32(data[:-SUM_BYTES]) != int.from_bytes(data[-SUM_BYTES:], "little"):
        raise Refused("bad checksum")
    if len(data) < 20:
        raise Refused(f"only {len(data)} bytes")
    return data[:-SUM_BYTES]


def sound(data: bytes) -> int:
    """No defect."""
    return len(_body(data))


def crashes(data: bytes) -> None:
    """Reads at address 0."""
    if TRIGGER in _body(data):
        ctypes.string_at(0)


def hangs(data: bytes) -> None:
    """Computes without end."""
    while TRIGGER in _body(data):
        pass


def waits(data: bytes) -> None:
    """Waits for what does not come."""
    if TRIGGER in _body(data):
        reading, _ = os.pipe()
        os.read(reading, 1)


def is_slow(data: bytes) -> None:
    """Computes for more than a second."""
    if TRIGGER in _body(data):
        began = time.process_time()
        while time.process_time() < began + SLOW_SECONDS + 0.1:
            pass


def eats(data: bytes) -> None:
    """Allocates what a field says."""
    if TRIGGER in _body(data):
        bytearray(1 << 30)


def raises(data: bytes) -> None:
    """Raises an error it does not declare."""
    if TRIGGER in _body(data):
        [][len(data)]


def recurses(data: bytes) -> None:
    """Recurse as deep as the input says."""
    if TRIGGER in _body(data):
        recurses(data)


def never_accepts(data: bytes) -> None:
    """Refuses everything but the member it is made with."""
    if data != _member():
        raise Refused("bad checksum")


_MUTATIONS = (octets(), then(octets(), _mended))
READERS = tuple(
    Reader(f"planted: {read.__name__}", lambda: [_member()], read, (Refused,), _MUTATIONS, ("accepted", "only N bytes"))
    for read in (sound, crashes, hangs, waits, is_slow, eats, raises, recurses, never_accepts)
) + (
    # All of its inputs fail the checksum: the code after it is not tested.
    Reader("planted: unmended", lambda: [_member()], sound, (Refused,), (octets(),), ("accepted", "only N bytes")),
)
