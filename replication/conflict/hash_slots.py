"""Slots of hash tables of open addressing in private memory, which kernels fill and search."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Words = NDArray[np.int64]

SLOTS_MIN = 1 << 10


def slots_for(entries: int) -> int:
    """Slots of a table that is at most two thirds full."""
    return max(SLOTS_MIN, 1 << (entries * 3 // 2).bit_length())


def longest_run(slots: Words) -> int:
    """Slots in use one after the other, the most there are: no look-up reads more, but for the free one at the end."""
    free = np.flatnonzero(slots == 0)
    if not free.size:
        return slots.size
    return int(np.diff(free, append=free[0] + slots.size).max()) - 1
