"""The only door to time and randomness.

Engine code takes a `Clock`. Nothing that decides what is durable depends on time: GCI, LSN, epochs and laps are
counters.
"""

from __future__ import annotations

import os
import time
from typing import Protocol

import numpy as np


class Clock(Protocol):
    """Time and randomness as the store sees them."""

    def monotonic(self) -> float:
        """Return seconds that never go back."""
        ...

    def wall_us(self) -> int:
        """Return microseconds since 1970 in UTC; may jump."""
        ...

    def sleep(self, seconds: float) -> None:
        """Sleep for `seconds`."""
        ...

    def random_bytes(self, count: int) -> bytes:
        """Return unpredictable bytes, for store identities and hash seeds."""
        ...


class SystemClock:
    """The real clock."""

    monotonic = staticmethod(time.monotonic)
    sleep = staticmethod(time.sleep)
    random_bytes = staticmethod(os.urandom)
    # Seconds of processor time of the calling thread.
    thread_seconds = staticmethod(time.thread_time)

    def wall_us(self) -> int:
        """Return microseconds since 1970 in UTC."""
        return time.time_ns() // 1_000


class ManualClock:
    """A clock for tests that moves only on request; its random bytes follow from the seed."""

    def __init__(self, seed: int = 0, start_us: int = 1_700_000_000_000_000) -> None:
        self._now_us = start_us
        self._wall_shift_us = 0
        self._state = seed

    def monotonic(self) -> float:
        """Return seconds since the clock was created."""
        return self._now_us / 1e6

    thread_seconds = monotonic

    def wall_us(self) -> int:
        """Return the monotonic time plus every jump made with `jump`."""
        return self._now_us + self._wall_shift_us

    def sleep(self, seconds: float) -> None:
        """Advance time by `seconds` at once."""
        self._now_us += int(seconds * 1e6)

    advance = sleep

    def jump(self, seconds: float) -> None:
        """Shift the wall clock only (F81)."""
        self._wall_shift_us += int(seconds * 1e6)

    def random_bytes(self, count: int) -> bytes:
        """Return bytes of a counter-based generator: the same seed gives the same bytes."""
        out = bytearray()
        while len(out) < count:
            self._state = (self._state * 6364136223846793005 + 1442695040888963407) % (1 << 64)
            out += (self._state >> 24).to_bytes(5, "little")
        return bytes(out[:count])


def random_numbers(seed: int | None) -> np.random.Generator:
    """Return a generator of random numbers. None: no two generators give the same ones."""
    return np.random.default_rng(seed)
