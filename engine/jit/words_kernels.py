"""Read and copy words without numba's check for negative indexes.

The check takes as long as the access itself and prevents vectorised loops; an unsigned index needs none, and addresses
and offsets are never negative. The unsigned number is only an index and is never compared: numba compares uint64 with
int64 as floats (D2).
"""

# mypy: ignore-errors

from __future__ import annotations

import numpy as np

from tidemark.engine.jit.kernel import helper


@helper
def word_at(words, at):
    """Return words[at]; `at` is not negative."""
    return words[np.uint64(at)]


@helper
def move_words(source, start, target, at, count):
    """Copy `count` words of source[start:] to target[at:], which do not overlap. No argument is negative."""
    first = np.uint64(start)
    place = np.uint64(at)
    for i in range(count):
        step = np.uint64(i)
        target[place + step] = source[first + step]
