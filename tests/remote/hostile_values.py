"""Messages of a malicious peer, for `unpack`: values changed as fuzzing changes them; and a twin of `measured`."""

from __future__ import annotations

import datetime
import random
import struct
from collections import namedtuple
from decimal import Decimal
from typing import Any

import pyarrow as pa

import tidemark as tm
from tests.fuzz.mutations import packed_tree
from tests.remote.test_arrow_streams import MIXED
from tidemark.replication.calls import packed_values_kernels as m
from tidemark.replication.calls.values import EXTENSIONS, KINDS, NESTING_MAX, VALUE_BYTES_MAX, measured, pack, unpack

Row = namedtuple("Row", ["id", "owner"])
COLUMN = tm.Column("x", tm.Decimal(10, 2), default=Decimal("1.5"))
WHERE = (tm.col("a") + 1 > 2) & tm.col("b").isin([1, "x"]) | ~tm.col("c").like("x%") & tm.col("d").is_null()
GOOD: list[Any] = [
    *(None, True, -1, 200, 1 << 40, 1 << 63, 1 << 99, 0.5, "", "text", "é" * 40, b"", b"x" * 300, [], {}, ()),
    *(Decimal("-1.20"), datetime.date(2020, 1, 1), datetime.time(1, 2), datetime.datetime(2020, 1, 1)),
    *(datetime.timedelta(1, 2, 3), WHERE, COLUMN, tm.Enum("a", "b"), tm.DuplicateKey("m", key=(1, "x"), row=2)),
    *(Row(1, "ann"), [Row(1, "a"), Row(2, "b")], MIXED, pa.concat_tables([MIXED] * 2), MIXED.to_batches()[0]),
]
# First bytes of values that take much memory, or claim to.
HEADS = [
    b"\xdd\xff\xff\xff\xff",
    b"\xdf\x00\x10\x00\x00",
    b"\xc6\x7f\xff\xff\xff",
    b"\xdb\xff\xff\xff\xff",
    b"\xc1",
    b"\x90",
]
HEADS += [b"\x80", b"\x91", b"\x81", b"\xd4\x00\x90", b"\xc9\x00\x00\xff\xff\x00", b"\xd6\xff\0\0\0\0", b"\xc7\x00\x10"]


MEMBERS = [pack(each) for each in GOOD]
CHANGED = packed_tree(2 * NESTING_MAX)


def cases(rng: random.Random) -> bytes:
    """Return the bytes of one message."""
    some = rng.choices(GOOD, k=rng.choice((0, 1, 2, 3, 17)))
    named = {f"k{number}": each for number, each in enumerate(some)}
    data = pack(rng.choice((rng.choice(GOOD), some, tuple(some), named)))
    for _ in range(rng.choice((0, 0, 1, 1, 2, 4))):
        data = CHANGED(data, rng, MEMBERS)
    at = rng.randrange(len(data) + 1)
    if rng.random() < 0.1:
        data = data[:at] + rng.choice(HEADS) + data[at:]
    if rng.random() < 0.2:
        length = struct.pack("<q", rng.choice((-1, 0, 4, 1 << 31, 1 << 62, -(1 << 63))))[: rng.choice((4, 8))]
        data = data[:at] + length + data[at + len(length) :]
    return data


class Refused(Exception):
    """The naive twin does not take the bytes for a value."""


def naive_bytes(data: bytes) -> int:
    """Return the result of `measured`. Raises: Refused."""
    total, end = _measure(data, 0, len(data), 0)
    if end != len(data) or total > VALUE_BYTES_MAX:
        raise Refused
    return total


def _measure(data: bytes, at: int, end: int, depth: int) -> tuple[int, int]:
    """Return (bytes in memory, end) of the value at a place."""

    def take(count: int) -> bytes:
        nonlocal at
        if count > end - at:
            raise Refused
        at += count
        return data[at - count : at]

    first = take(1)[0]
    if first < 0x80 or first >= 0xE0 or first in (0xC0, 0xC2, 0xC3):
        return m.NUMBER_BYTES, at
    if 0xCA <= first <= 0xD3:
        take({0xCA: 4, 0xCB: 8}.get(first, 1 << ((first - 0xCC) & 3)))
        return m.NUMBER_BYTES, at
    if first < 0x90 or first in (0xDE, 0xDF):
        count = first & 15 if first < 0x90 else int.from_bytes(take(2 if first == 0xDE else 4), "big")
        return _inside(data, at, end, depth, 2 * count, m.DICT_BYTES + count * m.ENTRY_BYTES, True)
    if first < 0xA0 or first in (0xDC, 0xDD):
        count = first & 15 if first < 0xA0 else int.from_bytes(take(2 if first == 0xDC else 4), "big")
        return _inside(data, at, end, depth, count, m.LIST_BYTES + count * m.PLACE_BYTES, False)
    if first < 0xC0 or 0xD9 <= first <= 0xDB:
        text = take(first & 31 if first < 0xC0 else int.from_bytes(take(1 << (first - 0xD9)), "big"))
        widest = max(text, default=0)
        return m.TEXT_BYTES + len(text) * (6 if widest >= 0xF0 else 3 if widest >= 0xC4 else 1 + (widest >= 0x80)), at
    if 0xC4 <= first <= 0xC6:
        return m.NUMBER_BYTES + len(take(int.from_bytes(take(1 << (first - 0xC4)), "big"))), at
    if first == 0xC1:
        raise Refused
    size = 1 << (first - 0xD4) if first >= 0xD4 else int.from_bytes(take(1 << (first - 0xC7)), "big")
    code = take(1)[0]
    if code >= len(EXTENSIONS):
        raise Refused
    is_nested, base, factor, most = KINDS[EXTENSIONS[code]]
    start = at
    take(size)
    if size > most:
        raise Refused
    if not is_nested:
        return base + factor * size, at
    total, inner_end = _inside(data, start, at, depth, 1, base + factor * size, False)
    if inner_end != at:
        raise Refused
    return total, at


def _inside(data: bytes, at: int, end: int, depth: int, count: int, total: int, is_map: bool) -> tuple[int, int]:
    if depth == NESTING_MAX or count > end - at or total > VALUE_BYTES_MAX:
        raise Refused
    for number in range(count):
        if is_map and number % 2 == 0 and (at >= end or not (0xA0 <= data[at] < 0xC0 or 0xD9 <= data[at] <= 0xDB)):
            raise Refused
        cost, at = _measure(data, at, end, depth + 1)
        total += cost
        if total > VALUE_BYTES_MAX:
            raise Refused
    return total, at


def judge(data: bytes) -> str:
    """Return how the bytes were taken; AssertionError if they were measured wrongly. An invalid value must raise
    FrameRejected, or Rejected of its class; a valid one can be sent again.
    """
    try:
        wanted = naive_bytes(data)
    except Refused:
        wanted = -1
    found = measured(data)
    assert max(found, -1) == wanted, (found, wanted, data[:100])
    try:
        value = unpack(data)
    except (tm.FrameRejected, tm.Rejected) as error:
        return type(error).__name__
    assert found >= 0
    try:
        pack(value)
    except tm.Rejected as error:
        return f"not sent: {type(error).__name__}"
    return "taken"
