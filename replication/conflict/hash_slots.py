"""Slots of open-addressing hash tables in private memory, which kernels fill and search."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Words = NDArray[np.int64]

SLOTS_MIN = 1 << 10


def slots_for(entries: int) -> int:
    """Return the number of slots for a table that is at most two thirds full."""
    return max(SLOTS_MIN, 1 << (entries * 3 // 2).bit_length())


def longest_run(slots: Words) -> int:
    """Return the length of the longest run of used slots: no look-up reads more, except the free one at the end."""
    free = np.flatnonzero(slots == 0)
    if not free.size:
        return slots.size
    return int(np.diff(free, append=free[0] + slots.size).max()) - 1
