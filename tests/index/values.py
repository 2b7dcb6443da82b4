"""Random values of every column type, extremes and near misses among them."""

from __future__ import annotations

import math
import uuid
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import numpy as np

import tidemark as tm
from tidemark.engine import types as t

KINDS = [
    *(t.Int8, t.Int16, t.Int32, t.Int64, t.UInt8, t.UInt16, t.UInt32, t.UInt64, t.Float32, t.Float64, t.Bool),
    *(t.Date, t.Time, t.DateTime, t.Timestamp, t.Decimal(7, 2), t.Decimal(18, 0), t.Decimal(19, 3), t.Decimal(38, 9)),
    *(t.Enum("red", "green", "blue"), t.Char(2), t.Char(30), t.Binary(5), t.Binary(40)),
    *(t.VarChar(3), t.VarChar(60), t.VarBinary(4), t.VarBinary(90), t.UUID),
]
KEY_KINDS = [kind for kind in KINDS if not isinstance(kind, t.Floating)]

FLOATS = [0.0, -0.0, 1.5, -1.5, math.inf, -math.inf, math.nan, 1e-40, -1e-40, 3.0e38, -3.0e38]


def value_of(kind: Any, random: np.random.Generator) -> Any:
    """One value; few different ones, so that keys meet."""
    if isinstance(kind, t.Integer):
        edge = [kind.minimum, kind.maximum, 0, 1, kind.maximum - 1, kind.minimum + 1]
        return int(edge[random.integers(6)]) if random.random() < 0.5 else int(random.integers(0, 100))
    if isinstance(kind, t.Floating):
        value = FLOATS[random.integers(len(FLOATS))] if random.random() < 0.6 else float(random.normal())
        return float(np.float32(value)) if kind.bits == 32 else value
    if isinstance(kind, t.Decimal):
        top = 10**kind.precision - 1
        number = [top, -top, 0, 1, -1, 1 << 63, -(1 << 63), (1 << 64) + 5, -(1 << 64)][random.integers(9)]
        if abs(number) > top:
            number = int(random.integers(-50, 50))
        return Decimal((int(number < 0), tuple(map(int, str(abs(number)))), -kind.scale))
    if kind == t.Bool:
        return bool(random.random() < 0.5)
    if isinstance(kind, t.Enum):
        return kind.members[random.integers(len(kind.members))]
    if kind == t.Date:
        return [date.min, date.max, date(1970, 1, 1), date(1969, 12, 31), date(2024, 2, 29)][random.integers(5)]
    if kind == t.Time:
        return [time.min, time.max, time(12), time(0, 0, 0, 1)][random.integers(4)]
    if kind in (t.DateTime, t.Timestamp):
        base = [datetime.min, datetime.max, datetime(1970, 1, 1), datetime(1969, 1, 1)][random.integers(4)]
        base = base if base in (datetime.min, datetime.max) else base + timedelta(microseconds=int(random.integers(99)))
        return base.replace(tzinfo=UTC) if kind == t.Timestamp else base
    if kind == t.UUID:
        return uuid.UUID(int=[0, 1, (1 << 128) - 1, 1 << 64, int(random.integers(0, 9)) << 100][random.integers(5)])
    return text_or_bytes(kind, random)


def text_or_bytes(kind: Any, random: np.random.Generator) -> Any:
    """Zero bytes, high ones, long equal beginnings, the empty value and the longest one."""
    is_text = isinstance(kind, (t.Char, t.VarChar))
    alphabet: list[Any] = ["a", "b", "é", "\0", "\U0010ffff"] if is_text else [b"a", b"\0", b"\xff", b"\x01"]
    length = int([0, 1, kind.length, random.integers(0, kind.length + 1)][random.integers(4)])
    empty: Any = "" if is_text else b""
    same = alphabet[0] * length
    if random.random() < 0.4:
        value = same[: max(0, length - 2)] + empty.join(
            alphabet[random.integers(len(alphabet))] for _ in range(min(2, length))
        )
    else:
        value = empty.join(alphabet[random.integers(len(alphabet))] for _ in range(length))
    return value.rstrip("\0") if isinstance(kind, t.Char) else value


def columns_of(random: np.random.Generator, most: int = 4) -> list[Any]:
    """Random key columns, named k0 …."""
    kinds = [KINDS[random.integers(len(KINDS))] for _ in range(int(random.integers(1, most + 1)))]
    return [tm.Column(f"k{i}", kind, nullable=bool(random.random() < 0.5)) for i, kind in enumerate(kinds)]


def row_of(number: int, columns: list[Any], random: np.random.Generator) -> dict[str, Any]:
    row: dict[str, Any] = {"id": number}
    for column in columns:
        is_null = column.nullable and random.random() < 0.2
        row[column.name] = None if is_null else value_of(column.type, random)
    return row
