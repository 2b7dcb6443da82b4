"""Days and times: Date, Time, DateTime, Timestamp. They are stored as whole numbers in a range.

Date counts days since 1970; Time µs of the day; DateTime and Timestamp µs since 1970.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tidemark.engine.base.column_buffers import primitive
from tidemark.engine.base.errors import TypeMismatch, ValueOutOfRange
from tidemark.engine.types.arrow import compute, kinds
from tidemark.engine.types.base import ColumnType, mismatch, plain, register, shown

if TYPE_CHECKING:
    import pyarrow as pa

_DATE_ZERO = date(1970, 1, 1).toordinal()
_DATE_MIN = date.min.toordinal() - _DATE_ZERO
_DATE_MAX = date.max.toordinal() - _DATE_ZERO
_SECOND_US = 1_000_000
DAY_US = 86_400 * _SECOND_US


class Moment(ColumnType):
    """A type of days or times."""

    stored_range: tuple[int, int]
    width = 8
    code = "q"
    key_code = "q"
    value_class = "SIGNED"
    step_us = 1

    @staticmethod
    @abstractmethod
    def takes(arrow: pa.DataType) -> bool:
        """Whether the values of an Arrow type are of this kind."""

    @classmethod
    def of_arrow(cls, arrow: pa.DataType, is_key: bool) -> ColumnType | None:
        return cls() if cls.takes(arrow) else None

    def conform(self, array: pa.Array) -> pa.Array | None:
        import pyarrow as pa

        if not self.takes(array.type):
            raise self.wrong_arrow(array)
        result = array.cast(self.arrow_type())
        low, high = self.stored_range
        span = compute().min_max(result.cast(pa.int32() if self.width == 4 else pa.int64()))
        least, most = span["min"].as_py(), span["max"].as_py()
        return result if least is None or (low <= least and most <= high) else None

    def numbers(self, array: pa.Array) -> NDArray[Any]:
        return primitive(array, f"i{self.width}")


def _have_zone(values: Sequence[Any]) -> set[bool]:
    """Return whether values have a zone, of those that are not None."""
    return {value.tzinfo is not None for value in values if value is not None}


@dataclass(frozen=True, repr=False)
class CalendarDate(Moment):
    """Date: days since 1970."""

    stored_range = _DATE_MIN, _DATE_MAX
    width = 4
    code = "i"
    python = date
    digest_class = "Date"
    arrow = ("date32",)
    numpy = "datetime64[D]"
    step_us = DAY_US
    object_kind = "DATE"

    def __repr__(self) -> str:
        return "Date"

    def stored(self, value: Any) -> int:
        value = plain(value)
        if not isinstance(value, date) or isinstance(value, datetime):
            raise mismatch("a date", value)
        return value.toordinal() - _DATE_ZERO

    def loaded(self, stored: int) -> date:
        return date.fromordinal(stored + _DATE_ZERO)

    def values_of(self, array: pa.Array) -> list[Any]:
        return array.to_numpy(zero_copy_only=False).tolist()  # type: ignore[no-any-return]

    @staticmethod
    def takes(arrow: pa.DataType) -> bool:
        return bool(kinds().is_date(arrow))


@dataclass(frozen=True, repr=False)
class TimeOfDay(Moment):
    """Time: µs of the day, no zone."""

    stored_range = 0, DAY_US - 1
    python = time
    digest_class = "Time"
    arrow = ("time64", "us")
    object_kind = "TIME"

    def __repr__(self) -> str:
        return "Time"

    def stored(self, value: Any) -> int:
        value = plain(value)
        if not isinstance(value, time):
            raise mismatch("a time", value)
        if value.tzinfo is not None:
            raise TypeMismatch(f"needs a time without zone, got {shown(value)}")
        seconds: int = (value.hour * 60 + value.minute) * 60 + value.second
        return seconds * _SECOND_US + value.microsecond

    def loaded(self, stored: int) -> time:
        seconds, microsecond = divmod(stored, _SECOND_US)
        minutes, second = divmod(seconds, 60)
        hour, minute = divmod(minutes, 60)
        return time(hour, minute, second, microsecond)

    @staticmethod
    def takes(arrow: pa.DataType) -> bool:
        return bool(kinds().is_time(arrow))

    def array_from(self, values: Sequence[Any]) -> pa.Array | None:
        return None if True in _have_zone(values) else super().array_from(values)


class _Stamp(Moment):
    """µs since 1970."""

    stored_range = _DATE_MIN * DAY_US, (_DATE_MAX + 1) * DAY_US - 1
    python = datetime
    numpy = "datetime64[us]"
    zero: ClassVar[datetime]

    def _counted(self, value: Any) -> int:
        gap = value - self.zero
        return (gap.days * 86_400 + gap.seconds) * _SECOND_US + gap.microseconds  # type: ignore[no-any-return]

    def loaded(self, stored: int) -> datetime:
        return self.zero + timedelta(microseconds=stored)

    def array_from(self, values: Sequence[Any]) -> pa.Array | None:
        return super().array_from(values) if _have_zone(values) <= {self.zero.tzinfo is not None} else None

    def values_of(self, array: pa.Array) -> list[Any]:
        found = array.to_numpy(zero_copy_only=False).tolist()
        if self.zero.tzinfo is None:
            return found  # type: ignore[no-any-return]
        return [None if each is None else each.replace(tzinfo=UTC) for each in found]


def _checked(value: Any) -> datetime:
    # pandas' NaT calls itself a datetime and is not equal to itself.
    if not isinstance(value, (datetime, np.datetime64)) or value != value:
        raise mismatch("a datetime", value)
    if not isinstance(value, datetime) or getattr(value, "nanosecond", False):
        raise ValueOutOfRange(f"holds microseconds of the years 1 to 9999, got {shown(value)}")
    return value


@dataclass(frozen=True, repr=False)
class LocalDateTime(_Stamp):
    """DateTime: µs since 1970, no zone."""

    digest_class = "DateTime"
    arrow = ("timestamp", "us")
    object_kind = "DATETIME"
    zero = datetime(1970, 1, 1)

    def __repr__(self) -> str:
        return "DateTime"

    def stored(self, value: Any) -> int:
        value = _checked(plain(value))
        if value.tzinfo is not None:
            raise TypeMismatch(f"needs a datetime without zone, got {shown(value)}; use Timestamp for points in time")
        return self._counted(value)

    @staticmethod
    def takes(arrow: pa.DataType) -> bool:
        return bool(kinds().is_timestamp(arrow) and arrow.tz is None)


@dataclass(frozen=True, repr=False)
class Instant(_Stamp):
    """Timestamp: µs since 1970, UTC."""

    digest_class = "Timestamp"
    arrow = ("timestamp", "us", "UTC")
    object_kind = "TIMESTAMP"
    zero = datetime(1970, 1, 1, tzinfo=UTC)

    def __repr__(self) -> str:
        return "Timestamp"

    def stored(self, value: Any) -> int:
        value = _checked(plain(value))
        if value.utcoffset() is None:
            raise TypeMismatch(f"needs a datetime with zone, got {shown(value)}; use DateTime for wall-clock times")
        stored = self._counted(value)
        low, high = self.stored_range
        if not low <= stored <= high:
            raise ValueOutOfRange(f"holds years 1 to 9999 in UTC, got {shown(value)}")
        return stored

    @staticmethod
    def takes(arrow: pa.DataType) -> bool:
        return bool(kinds().is_timestamp(arrow) and arrow.tz is not None)


Date = CalendarDate()
Time = TimeOfDay()
DateTime = LocalDateTime()
Timestamp = Instant()
register(Date, Time, DateTime, Timestamp)
