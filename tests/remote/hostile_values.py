"""Messages of a malicious peer, for `unpack`: valid values with parts replaced, and their bytes altered."""

from __future__ import annotations

import datetime
import random
import struct
from collections import namedtuple
from decimal import Decimal
from typing import Any

import msgpack
import pyarrow as pa

import tidemark as tm
from tidemark.replication.calls import packed_values_kernels as m
from tidemark.replication.calls.values import EXTENSIONS, KINDS, NESTING_MAX, VALUE_BYTES_MAX, measured, pack, unpack

Row = namedtuple("Row", ["id", "owner"])
COLUMN = tm.Column("x", tm.Decimal(10, 2), default=Decimal("1.5"))
DEFINITION = b'{"format":1,"columns":[],"table_id":0,"version":1,"name":"a.b","primary_key":[]}'
WHERE = (tm.col("a") + 1 > 2) & tm.col("b").isin([1, "x"]) | ~tm.col("c").like("x%") & tm.col("d").is_null()
TABLE = pa.table({"a": [1, None], "s": ["x", None], "e": pa.array(["u", "v"]).dictionary_encode(), "z": pa.nulls(2)})
GOOD: list[Any] = [
    *(None, True, -1, 200, 1 << 40, 1 << 63, 1 << 99, 0.5, "", "text", "é" * 40, b"", b"x" * 300, [], {}, ()),
    *(Decimal("-1.20"), datetime.date(2020, 1, 1), datetime.time(1, 2), datetime.datetime(2020, 1, 1)),
    *(datetime.timedelta(1, 2, 3), WHERE, COLUMN, tm.Enum("a", "b"), tm.DuplicateKey("m", key=(1, "x"), row=2)),
    *(Row(1, "ann"), [Row(1, "a"), Row(2, "b")], TABLE, TABLE.to_batches()[0]),
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


def cases(rng: random.Random) -> bytes:
    """Return the bytes of one message."""
    data = msgpack.packb(_value(rng, 4), default=_extended, strict_types=True)
    for _ in range(rng.choice((0, 0, 1, 1, 2, 4))):
        data = _altered(rng, data)
    return data


def _extended(value: Any) -> Any:
    return msgpack.unpackb(pack(value))  # an ExtType, because no hook is given


def _value(rng: random.Random, depth: int) -> Any:
    """Return a value; parts may have wrong types, and payloads those of other values."""
    dice = rng.random()
    if not depth or dice < 0.3:
        return rng.choice(GOOD)
    if dice < 0.5:
        return [_value(rng, depth - 1) for _ in range(rng.choice((0, 1, 2, 3, 17)))]
    if dice < 0.6:
        return {rng.choice("abcdef") * rng.choice((1, 40)): _value(rng, depth - 1) for _ in range(rng.randrange(4))}
    name = rng.choice(EXTENSIONS)
    if not KINDS[name][0]:
        texts = [b"", b"1", b"1e9", b"9" * 5_000, b"2020-01-01", b"\xff", DEFINITION, b"[" * 2_000, b"{}"]
        return msgpack.ExtType(EXTENSIONS.index(name), rng.choice(texts))
    return msgpack.ExtType(EXTENSIONS.index(name), msgpack.packb(_parts(rng, name, depth), default=_extended))


def _parts(rng: random.Random, name: str, depth: int) -> Any:
    """Return a payload for a type that is nearly valid."""
    made: Any = {
        "row": [["id", "owner"], [1, 2]],
        "timedelta": [1, 2, 3],
        "expression": msgpack.unpackb(msgpack.unpackb(pack(WHERE)).data, ext_hook=msgpack.ExtType),
        "program": ["test.account", 1, [0, 1], b"\0" * 160],
        "error": ["DuplicateKey", "message", {"key": 1}],
        "column": {"name": "x", "type": {"type": "Int64"}, "nullable": True, "storage": "memory"},
        "type": {"type": "VarChar", "length": 5},
    }.get(name, [1, "x"])
    for _ in range(rng.choice((0, 1, 1, 2))):
        if isinstance(made, list) and made:
            place = rng.randrange(len(made))
            inner = made[place]
            if isinstance(inner, list) and inner and rng.random() < 0.7:
                # A copy: the list may be one of `GOOD`, which would contain itself in the end.
                inner = made[place] = list(inner)
                inner[rng.randrange(len(inner))] = rng.choice([_value(rng, depth - 1), 1 << 40, -1, "Junction"])
            else:
                made[place] = _value(rng, depth - 1)
        elif isinstance(made, dict):
            made[rng.choice([*made, "length", "default"])] = _value(rng, depth - 1)
    return made


def _altered(rng: random.Random, data: bytes) -> bytes:
    at = rng.randrange(len(data) + 1)
    dice = rng.randrange(7)
    if dice == 0:
        return data[:at]
    if dice == 1:
        return data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :]
    if dice == 2:
        return data[:at] + rng.choice(HEADS) + data[at:]
    if dice == 3:
        return data[:at] + struct.pack(">I", rng.choice((0, 1, 0xFFFF, 1 << 31, (1 << 32) - 1))) + data[at + 4 :]
    if dice == 4:
        part = data[at : at + rng.choice((1, 5, 100))]
        return data[:at] + part * rng.choice((2, 3, 60)) + data[at:]
    if dice == 5:
        for _ in range(rng.choice((1, 5, NESTING_MAX - 1, NESTING_MAX, 300))):
            data = msgpack.packb(msgpack.ExtType(rng.randrange(3), data)) if rng.random() < 0.7 else b"\x91" + data
        return data
    end = min(len(data), at + rng.choice((1, 9, 50)))
    return data[:at] + data[end:]


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
