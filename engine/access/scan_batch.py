"""Rows as scans hand them on: entries, as kernels copy them, and where each begins."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from tidemark.engine.memory.arena_layout import ENTRY_WORDS
from tidemark.engine.rows.lcp_layout import ENTRY_AUTHOR_MASK, ENTRY_FRAGMENT_MASK, ENTRY_FRAGMENT_SHIFT

if TYPE_CHECKING:
    from collections.abc import Collection

    from tidemark.engine.memory.arena import Words

# Columns of every row that a table's definition does not have.
ROWID = "$ROWID"
EPOCH = "$EPOCH"
AUTHOR = "$AUTHOR"
FRAGMENT = "$FRAGMENT"
HIDDEN = (ROWID, EPOCH, AUTHOR, FRAGMENT)
FEW_NUMBERS = 100
SCAN_BATCH_ROWS = 65_536
SCAN_WORDS = 1 << 20
ALL_ROWS = sys.maxsize  # in place of a limit


def among(numbers: Words, wanted: Collection[int]) -> Any:
    """Return for each number whether it is one of those wanted. Shapes: (rows,) both."""
    if numbers.size < FEW_NUMBERS:  # `isin` takes as long as this many numbers one by one
        return np.array([number in wanted for number in numbers.tolist()], dtype=bool)
    return np.isin(numbers, np.array(list(wanted), dtype=np.int64))


class ScanBatch:
    """Some rows of a scan: their entries, and the offset of each image."""

    __slots__ = ("count", "entries", "offsets")

    def __init__(self, entries: Words, offsets: Words) -> None:
        self.entries = entries
        self.offsets = offsets
        self.count: int = offsets.size

    def chosen(self, which: Any) -> ScanBatch:
        """Return some of the rows, by place, mask or slice."""
        return ScanBatch(self.entries, self.offsets[which])

    def rowids(self) -> Words:
        """Return the ROWID of each row."""
        return self.entries[self.offsets - ENTRY_WORDS]

    def epochs(self) -> Words:
        """Return the epoch of the last change of each row."""
        return self.entries[self.offsets - ENTRY_WORDS + 1]

    def authors(self) -> Words:
        """Return the author of the last change of each row."""
        return self.entries[self.offsets - ENTRY_WORDS + 2] & ENTRY_AUTHOR_MASK

    def fragments(self) -> Words:
        """Return the fragment number of each row."""
        return (self.entries[self.offsets - ENTRY_WORDS + 2] >> ENTRY_FRAGMENT_SHIFT) & ENTRY_FRAGMENT_MASK
