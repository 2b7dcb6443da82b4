"""Awkward values: bounds, values of other types, of NumPy and of pandas. A new value is a row here."""

from __future__ import annotations

import datetime as dt
import enum
import uuid
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd

UTC, ROME = dt.UTC, ZoneInfo("Europe/Rome")


class Word(str):
    """A str that is not exactly one."""


class Colour(enum.IntEnum):
    RED = 1


INTEGERS: list[Any] = [
    *(0, 1, -1, 127, 128, -129, 2**16, 2**24 + 1, 2**31, 2**53 + 1, 2**63 - 1, 2**63, -(2**63), 2**64 - 1, 2**64),
    *(10**38 - 1, 10**38, -(10**5000), True, Colour.RED),
]
FLOATS: list[Any] = [
    0.0,
    -0.0,
    1.0,
    0.1,
    1.5,
    1e39,
    3.5e38,
    1e308,
    5e-324,
    float("nan"),
    float("inf"),
    float("-inf"),
    1j,
]
DECIMALS: list[Any] = [
    *map(Decimal, ("0", "-0", "1.5", "1.50", "1.505", "99999999.99", "100000000", "1E+3", "1e-7", "1e37", "1e999")),
    *map(Decimal, ("NaN", "sNaN", "Infinity", "0e-99999")),
]
TEXTS: list[Any] = [
    "",
    "a",
    "é",
    "abc",
    "abcd",
    "abcde",
    "éééé",
    "a\0",
    "\ud800",
    "1",
    "a\r\nb",
    'q"q',
    "x,y",
    " ",
    Word("a"),
]
OCTETS: list[Any] = [
    *(
        b"",
        b"a",
        b"\xff\0",
        b"abcd",
        b"abcde",
        b"ab\0\0",
        bytearray(b"ab"),
        memoryview(b"abcd")[::2],
        memoryview(b"ab"),
    ),
    uuid.UUID(int=1),
]
TIMES: list[Any] = [
    *(dt.date(1, 1, 1), dt.date(9999, 12, 31), dt.date(2024, 2, 29), dt.timedelta(seconds=1)),
    *(dt.time(0), dt.time(23, 59, 59, 999_999), dt.time(1, tzinfo=UTC), dt.time(1, tzinfo=ROME), dt.time(2, fold=1)),
    *(dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31, 23, 59, 59, 999_999), dt.datetime(2024, 2, 29, 12, fold=1)),
    *(dt.datetime(2024, 2, 29, tzinfo=UTC), dt.datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=ROME)),
    dt.datetime(1, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=5))),
    dt.datetime(9999, 12, 31, 23, tzinfo=dt.timezone(-dt.timedelta(hours=5))),
    *(pd.NaT, pd.NA, pd.Timestamp("2024-02-29 12:00:00.123456"), pd.Timestamp("2024-02-29 12:00:00.123456789")),
    *(pd.Timestamp("2024-02-29", tz="Europe/Rome"), pd.Timedelta("1ns"), pd.Period("2024-02"), pd.Interval(0, 1)),
]
NUMPY: list[Any] = [
    *(np.int8(-1), np.uint64(2**64 - 1), np.float16(0.5), np.float32(0.1), np.float64("nan"), np.longdouble(1)),
    *(
        np.complex64(1),
        np.bool_(True),
        np.str_("a"),
        np.bytes_(b"ab"),
        np.datetime64("NaT"),
        np.datetime64("NaT", "ns"),
    ),
    *(np.datetime64(3, unit) for unit in ("Y", "M", "W", "D", "h", "m", "s", "ms", "us", "ns", "ps", "fs", "as")),
    *(np.datetime64(5 * 10**6 * scale, unit) for unit, scale in (("ns", 10**3), ("ps", 10**6), ("fs", 10**9))),
    *(np.datetime64(2**60, unit) for unit in ("Y", "D", "s", "us", "ns")),
    *(np.datetime64(2**32 + 3, "D"), np.datetime64(3, "25s")),
    *(np.timedelta64(5, unit) for unit in ("Y", "M", "W", "D", "h", "m", "s", "ms", "us", "ns", "ps", "fs", "as")),
    *(np.timedelta64(5), np.timedelta64("NaT", "s"), np.ma.masked, np.void(b"ab")),
]
VALUES: list[Any] = [None, *INTEGERS, *FLOATS, *DECIMALS, *TEXTS, *OCTETS, *TIMES, *NUMPY]
