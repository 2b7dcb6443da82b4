"""MySQL's row bodies the long way, from Python values, written from MySQL's documents and not from the kernels."""

from __future__ import annotations

import datetime
import decimal
import json
import struct

from tidemark.engine import types as t

_PACKED = {0: 0, 1: 1, 2: 1, 3: 2, 4: 2, 5: 3, 6: 3, 7: 4, 8: 4, 9: 4}


def _decimal(value, precision, scale):
    digits = str(abs(int(value.scaleb(scale, decimal.Context(prec=100))))).rjust(precision, "0")
    before, after = digits[: precision - scale], digits[precision - scale :]
    groups = []
    head = len(before) % 9
    if head:
        groups.append(before[:head])
    groups += [before[at : at + 9] for at in range(head, len(before), 9)]
    groups += [after[at : at + 9] for at in range(0, len(after), 9)]
    packed = bytearray(b"".join(int(group).to_bytes(_PACKED[len(group)], "big") for group in groups))
    if value.is_signed() and value != 0:
        packed = bytearray(byte ^ 0xFF for byte in packed)
    packed[0] ^= 0x80
    return bytes(packed)


def _datetime(value):
    months = value.year * 13 + value.month
    clock = value.hour << 12 | value.minute << 6 | value.second
    packed = (months << 5 | value.day) << 17 | clock
    return (packed + 0x8000000000).to_bytes(5, "big") + value.microsecond.to_bytes(3, "big")


def _string(octets, bytes_max):
    size = 1 if bytes_max < 256 else 2
    return len(octets).to_bytes(size, "little") + octets


def value(kind, python):
    """The bytes of one value that is not NULL."""
    if isinstance(kind, t.Integer):
        return python.to_bytes(kind.bits // 8, "little", signed=kind.signed)
    if isinstance(kind, t.Boolean):
        return bytes((python,))
    if isinstance(kind, t.Floating):
        return struct.pack("<f" if kind.bits == 32 else "<d", python)
    if isinstance(kind, t.Decimal):
        return _decimal(python, kind.precision, kind.scale)
    if isinstance(kind, t.Enum):
        place = kind.members.index(python) + 1
        return place.to_bytes(1 if len(kind.members) < 256 else 2, "little")
    if isinstance(kind, t.Char):
        return _string(python.encode(), 4 * kind.length)
    if isinstance(kind, t.VarChar):
        return _string(python.encode(), 4 * kind.length)
    if isinstance(kind, t.Binary):
        return _string(python.rstrip(b"\0"), kind.length)
    if isinstance(kind, t.VarBinary):
        return _string(python, kind.length)
    if kind == t.Text:
        return struct.pack("<I", len(python.encode())) + python.encode()
    if kind == t.UUID:
        return _string(python.bytes.rstrip(b"\0"), 16)
    if kind == t.JSON:
        python = json.dumps(python, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode()
    if kind in (t.Blob, t.JSON):
        return struct.pack("<I", len(python)) + python
    if kind == t.Date:
        return (python.day | python.month << 5 | python.year << 9).to_bytes(3, "little")
    if kind == t.Time:
        clock = python.hour << 12 | python.minute << 6 | python.second
        return (clock + 0x800000).to_bytes(3, "big") + python.microsecond.to_bytes(3, "big")
    if kind == t.Timestamp:
        python = python.astimezone(datetime.UTC)
    return _datetime(python)


def image(kinds, row):
    """NULL bitmap and values of the columns present; `row` has their Python values."""
    nulls = bytearray(b"\xff" * ((len(kinds) + 7) // 8))
    values = b""
    for place, (kind, python) in enumerate(zip(kinds, row, strict=True)):
        if python is not None:
            nulls[place // 8] &= 0xFF ^ 1 << place % 8
            values += value(kind, python)
    return bytes(nulls) + values


def find_runs(masks, marks):
    """Ends of runs of rows alike."""
    both = list(zip(masks, marks, strict=True))
    return [row for row in range(1, len(both) + 1) if row == len(both) or both[row] != both[row - 1]]
