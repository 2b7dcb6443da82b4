"""Calendar column types, stored as integers: Date in days since 1970, DateTime and Timestamp in µs since 1970, Time in
µs of the day.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import TYPE_CHECKING, Any

import numpy as np

from tidemark.engine.base.errors import TypeMismatch, ValueOutOfRange
from tidemark.engine.schema.types_base import ColumnType, mismatch, plain, shown

if TYPE_CHECKING:
    import pyarrow as pa

_DATETIME_ZERO = datetime(1970, 1, 1)
_TIMESTAMP_ZERO = datetime(1970, 1, 1, tzinfo=UTC)
_DATE_ZERO = date(1970, 1, 1).toordinal()
_SECOND_US = 1_000_000
_DAY_US = 86_400 * _SECOND_US
DATE_MIN = date.min.toordinal() - _DATE_ZERO
DATE_MAX = date.max.toordinal() - _DATE_ZERO
DATETIME_MIN_US = DATE_MIN * _DAY_US
DATETIME_MAX_US = (DATE_MAX + 1) * _DAY_US - 1
TIME_MAX_US = _DAY_US - 1


def _store_date(value: Any) -> int:
    if not isinstance(value, date) or isinstance(value, datetime):
        raise mismatch("a date", value)
    return value.toordinal() - _DATE_ZERO


def _load_date(stored: int) -> date:
    return date.fromordinal(stored + _DATE_ZERO)


def _store_time(value: Any) -> int:
    if not isinstance(value, time):
        raise mismatch("a time", value)
    if value.tzinfo is not None:
        raise TypeMismatch(f"needs a time without zone, got {shown(value)}")
    seconds: int = (value.hour * 60 + value.minute) * 60 + value.second
    return seconds * _SECOND_US + value.microsecond


def _load_time(stored: int) -> time:
    seconds, microsecond = divmod(stored, _SECOND_US)
    minutes, second = divmod(seconds, 60)
    hour, minute = divmod(minutes, 60)
    return time(hour, minute, second, microsecond)


def _checked_datetime(value: Any) -> datetime:
    # pandas' NaT calls itself a datetime and is not equal to itself.
    if not isinstance(value, (datetime, np.datetime64)) or value != value:
        raise mismatch("a datetime", value)
    if not isinstance(value, datetime) or getattr(value, "nanosecond", False):
        raise ValueOutOfRange(f"holds microseconds of the years 1 to 9999, got {shown(value)}")
    return value


def _store_datetime(value: Any) -> int:
    value = _checked_datetime(value)
    if value.tzinfo is not None:
        raise TypeMismatch(f"needs a datetime without zone, got {shown(value)}; use Timestamp for points in time")
    gap = value - _DATETIME_ZERO
    stored: int = (gap.days * 86_400 + gap.seconds) * _SECOND_US + gap.microseconds
    return stored


def _load_datetime(stored: int) -> datetime:
    return _DATETIME_ZERO + timedelta(microseconds=stored)


def _store_timestamp(value: Any) -> int:
    value = _checked_datetime(value)
    if value.utcoffset() is None:
        raise TypeMismatch(f"needs a datetime with zone, got {shown(value)}; use DateTime for wall-clock times")
    gap = value - _TIMESTAMP_ZERO
    stored: int = (gap.days * 86_400 + gap.seconds) * _SECOND_US + gap.microseconds
    if not DATETIME_MIN_US <= stored <= DATETIME_MAX_US:
        raise ValueOutOfRange(f"holds years 1 to 9999 in UTC, got {shown(value)}")
    return stored


def _load_timestamp(stored: int) -> datetime:
    return _TIMESTAMP_ZERO + timedelta(microseconds=stored)


_STORE: dict[str, Callable[[Any], int]] = {
    "Date": _store_date,
    "Time": _store_time,
    "DateTime": _store_datetime,
    "Timestamp": _store_timestamp,
}
_LOAD: dict[str, Callable[[int], Any]] = {
    "Date": _load_date,
    "Time": _load_time,
    "DateTime": _load_datetime,
    "Timestamp": _load_timestamp,
}


@dataclass(frozen=True, repr=False)
class Calendar(ColumnType):
    """Date (days), Time (µs of the day, no zone), DateTime (µs, no zone), Timestamp (µs, UTC)."""

    name: str

    def __repr__(self) -> str:
        return self.name

    @property
    def width(self) -> int:  # type: ignore[override]
        return 4 if self.name == "Date" else 8

    @property
    def code(self) -> str:  # type: ignore[override]
        return "i" if self.name == "Date" else "q"

    key_code = "q"

    @property
    def minimum(self) -> int:
        """Smallest stored number."""
        return {"Date": DATE_MIN, "Time": 0}.get(self.name, DATETIME_MIN_US)

    @property
    def maximum(self) -> int:
        """Largest stored number."""
        return {"Date": DATE_MAX, "Time": TIME_MAX_US}.get(self.name, DATETIME_MAX_US)

    def stored(self, value: Any) -> int:
        return _STORE[self.name](plain(value))

    def loaded(self, stored: int) -> Any:
        return _LOAD[self.name](stored)

    def arrow_type(self) -> pa.DataType:
        import pyarrow as pa

        return {
            "Date": pa.date32,
            "Time": lambda: pa.time64("us"),
            "DateTime": lambda: pa.timestamp("us"),
            "Timestamp": lambda: pa.timestamp("us", "UTC"),
        }[self.name]()
