"""What a column of each type holds, in plain Python: the oracle of all doors. It shares no code with the store."""

from __future__ import annotations

import datetime as dt
import math
import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd

import tidemark as tm

REFUSED = "refused"
Rule = Callable[[Any], Any]


def python_of(value: Any) -> Any:
    """The Python value that a value of NumPy or pandas is equal to, if there is one."""
    if isinstance(value, np.datetime64):
        return _moment(value)
    if isinstance(value, np.timedelta64) or value is np.ma.masked:
        return REFUSED  # no column holds a span
    if isinstance(value, np.generic):
        found = value.item()
        return REFUSED if isinstance(found, np.generic) else found
    if isinstance(value, pd.Timestamp):
        return REFUSED if value.nanosecond else value.to_pydatetime()
    return value


def _moment(value: np.datetime64) -> Any:
    if np.isnat(value):
        return REFUSED
    unit, times = np.datetime_data(value.dtype)
    per_second = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9, "ps": 10**12, "fs": 10**15, "as": 10**18}
    count = int(value.astype(np.int64)) * times
    epoch = dt.datetime(1970, 1, 1)
    try:
        if unit in per_second:
            whole, rest = divmod(count * 10**6, per_second[unit])
            return REFUSED if rest else epoch + dt.timedelta(microseconds=whole)
        if unit in ("m", "h"):
            return epoch + dt.timedelta(seconds=count * (60 if unit == "m" else 3_600))
        if unit in ("D", "W"):
            return epoch.date() + dt.timedelta(days=count * (1 if unit == "D" else 7))
        months = count * (12 if unit == "Y" else 1)
        return dt.date(1970 + months // 12, months % 12 + 1, 1)
    except (OverflowError, ValueError):
        return REFUSED


def integer(bits: int, signed: bool) -> Rule:
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    return lambda v: int(v) if isinstance(v, int) and not isinstance(v, bool) and low <= v <= high else REFUSED


def floating(bits: int) -> Rule:
    def rule(v: Any) -> Any:
        if isinstance(v, bool) or not isinstance(v, (int, float)):
            return REFUSED
        if isinstance(v, int) and abs(v) > 2 ** (24 if bits == 32 else 53):
            return REFUSED
        if bits == 64:
            return float(v)
        try:
            return struct.unpack("<f", struct.pack("<f", v))[0]
        except OverflowError:
            return REFUSED

    return rule


def decimals(precision: int, scale: int) -> Rule:
    def rule(v: Any) -> Any:
        if isinstance(v, bool) or not isinstance(v, (int, Decimal)):
            return REFUSED
        if isinstance(v, Decimal) and not v.is_finite():
            return REFUSED
        sign, digits, exponent = Decimal(v).as_tuple()
        if len(digits) > 1_000:
            return REFUSED
        number = int("".join(map(str, digits)))
        if not isinstance(exponent, int) or abs(exponent) > 1_000:
            return REFUSED if number else Decimal((0, (0,), -scale))
        shift = exponent + scale
        if shift < 0 and number % 10**-shift:
            return REFUSED
        number = number * 10**shift if shift >= 0 else number // 10**-shift
        if number >= 10**precision:
            return REFUSED
        return Decimal((sign if number else 0, tuple(map(int, str(number))), -scale))

    return rule


def text(characters: int, no_nul_at_end: bool = False) -> Rule:
    def rule(v: Any) -> Any:
        if not isinstance(v, str) or len(v) > characters or any(0xD800 <= ord(c) < 0xE000 for c in v):
            return REFUSED
        return REFUSED if no_nul_at_end and v.endswith("\0") else str.__str__(v)

    return rule


def octets(length: int, padded: bool = False) -> Rule:
    def rule(v: Any) -> Any:
        if not isinstance(v, (bytes, bytearray, memoryview)):
            return REFUSED
        held = bytes(v)
        return REFUSED if len(held) > length else held.ljust(length, b"\0") if padded else held

    return rule


def date(v: Any) -> Any:
    return v if isinstance(v, dt.date) and not isinstance(v, dt.datetime) else REFUSED


def time(v: Any) -> Any:
    return v.replace(fold=0) if isinstance(v, dt.time) and v.tzinfo is None else REFUSED


def datetime(v: Any) -> Any:
    return v.replace(fold=0) if isinstance(v, dt.datetime) and v is not pd.NaT and v.tzinfo is None else REFUSED


def timestamp(v: Any) -> Any:
    if not isinstance(v, dt.datetime) or v is pd.NaT or v.utcoffset() is None:
        return REFUSED
    try:
        return v.astimezone(dt.UTC).replace(fold=0)
    except OverflowError:
        return REFUSED


MANY = 1 << 30
TYPES: dict[str, tuple[Any, Rule]] = {
    "Int8": (tm.Int8, integer(8, True)),
    "Int32": (tm.Int32, integer(32, True)),
    "Int64": (tm.Int64, integer(64, True)),
    "UInt16": (tm.UInt16, integer(16, False)),
    "UInt64": (tm.UInt64, integer(64, False)),
    "Float32": (tm.Float32, floating(32)),
    "Float64": (tm.Float64, floating(64)),
    "Decimal(10, 2)": (tm.Decimal(10, 2), decimals(10, 2)),
    "Decimal(38, 0)": (tm.Decimal(38, 0), decimals(38, 0)),
    "Bool": (tm.Bool, lambda v: v if isinstance(v, bool) else REFUSED),
    "Enum": (tm.Enum("a", "é"), lambda v: str.__str__(v) if isinstance(v, str) and v in ("a", "é") else REFUSED),
    "Char(3)": (tm.Char(3), text(3, no_nul_at_end=True)),
    "VarChar(4)": (tm.VarChar(4), text(4)),
    "Text": (tm.Text, text(MANY)),
    "Binary(4)": (tm.Binary(4), octets(4, padded=True)),
    "VarBinary(4)": (tm.VarBinary(4), octets(4)),
    "Blob": (tm.Blob, octets(MANY)),
    "Date": (tm.Date, date),
    "Time": (tm.Time, time),
    "DateTime": (tm.DateTime, datetime),
    "Timestamp": (tm.Timestamp, timestamp),
}


def expected(kind: str, value: Any) -> Any:
    """The value that a nullable column of this type gives back, or REFUSED."""
    if value is None:
        return None
    plain = python_of(value)
    return REFUSED if isinstance(plain, str) and plain is REFUSED else TYPES[kind][1](plain)


def same(one: Any, other: Any) -> bool:
    """Whether two values are the same in type and value; NaN is NaN, and -0.0 is not 0.0."""
    if isinstance(one, float) and isinstance(other, float):
        return (
            math.isnan(one) and math.isnan(other) or (one == other and math.copysign(1, one) == math.copysign(1, other))
        )
    return type(one) is type(other) and one == other and str(one) == str(other)
