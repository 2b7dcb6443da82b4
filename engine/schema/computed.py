"""Defaults that are computed for each new row: `tm.autoincrement`, `tm.now`, `tm.uuid7`.

A kind is one entry of KINDS: its name in definitions, the types that it fills, and its values. Values are computed
once, where a row is first written, and are plain values from then on: log, replicas and backups have them, and nothing
computes them again.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tidemark.engine import types as t

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemark.engine.base.clock import Clock
    from tidemark.engine.types import ColumnType

_UUID_BYTES = 16


class Computed:
    """A default that is computed for each new row; the same object wherever it is named."""

    def __init__(
        self, name: str, types: tuple[ColumnType, ...], values: Callable[[ColumnType, Clock, int], pa.Array] | None
    ) -> None:
        """types: of the columns that it fills. values: returns the values of this many rows; None: sequences give
        them.
        """
        self.name = name
        self.types = types
        self._values = values

    @property
    def is_numbered(self) -> bool:
        """Whether values are the next numbers of a sequence."""
        return self._values is None

    def array(self, kind: ColumnType, clock: Clock, count: int) -> pa.Array:
        """Return the values of `count` rows of one call, in a type that `conform` takes."""
        assert self._values is not None
        return self._values(kind, clock, count)

    def value(self, kind: ColumnType, clock: Clock) -> Any:
        """Return the Python value of one row."""
        return kind.values_of(self.array(kind, clock, 1).cast(kind.arrow_type()))[0]

    def __reduce__(self) -> tuple[Any, ...]:
        return computed_named, (self.name,)

    def __repr__(self) -> str:
        return self.name

    def __str__(self) -> str:
        return f"tm.{self.name}"


def _now(kind: ColumnType, clock: Clock, count: int) -> pa.Array:
    import pyarrow as pa

    moment: Any = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=clock.wall_us())
    if kind != t.Timestamp:
        moment = moment.replace(tzinfo=None)
    if kind in (t.Date, t.Time):
        moment = moment.date() if kind == t.Date else moment.time()
    return pa.repeat(pa.scalar(moment, kind.arrow_type()), count)


def _uuid7(kind: ColumnType, clock: Clock, count: int) -> pa.Array:
    """48 bits of milliseconds, 12 bits of the fraction of the millisecond, 62 random bits, which ascend in one call."""
    import pyarrow as pa

    millisecond, rest_us = divmod(clock.wall_us(), 1_000)
    high = millisecond << 16 | 7 << 12 | rest_us * 4_096 // 1_000
    words = np.empty((count, 2), dtype=">u8")
    words[:, 0] = high
    drawn = np.frombuffer(clock.random_bytes(8 * count), dtype="<u8") >> np.uint64(2)
    words[:, 1] = np.sort(drawn) | np.uint64(1 << 63)
    return pa.Array.from_buffers(pa.binary(_UUID_BYTES), count, [None, pa.py_buffer(words.tobytes())])


_INTEGERS = (t.Int8, t.Int16, t.Int32, t.Int64, t.UInt8, t.UInt16, t.UInt32, t.UInt64)
# Any: a class of rows may give them as defaults of its fields.
autoincrement: Any = Computed("autoincrement", _INTEGERS, None)
"""Default of one integer column of the primary key: the next number, also for None. `insert` and `write` return it."""
now: Any = Computed("now", (t.Timestamp, t.DateTime, t.Date, t.Time), _now)
"""Default of a Timestamp, DateTime, Date or Time: the moment in UTC, one for all rows of a call."""
uuid7: Any = Computed("uuid7", (t.UUID,), _uuid7)
"""Default of a UUID: one of version 7, whose order is that of time."""
KINDS: Final[dict[str, Computed]] = {each.name: each for each in (autoincrement, now, uuid7)}


def computed_named(name: str) -> Computed:
    """Return the computed default of this name. Raises: KeyError."""
    return KINDS[name]
