"""Ranges of rows by place, and the sums of their digests (docs/verify.md, sections 2 to 4).

A place is a number of up to 63 bits: a row's fragment and ROWID, or bits of its key's digest. A range is all places
that are equal above the low `shift` bits. `Ranges` divides each wanted range of the previous level into 2^fan_bits
pieces, and sums the rows of each piece.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from tidemark.engine.base.errors import InvariantBroken
from tidemark.recovery.backup.entries_layout import SUM_WORDS
from tidemark.recovery.verification.digest_rows import PLACE_BITS
from tidemark.recovery.verification.digests_kernels import sum_digests

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tidemark.engine.memory.arena import Words

ROWID_BITS = 48
ROWS_PER_RANGE = 16
RANGES_MAX = 1 << 16  # of the first level
SUMS_MAX = 1 << 18  # of a later level
FAN_BITS = 8
ONE_RANGE = np.zeros(1, dtype=np.int64)


def bits_for(value: int) -> int:
    """Return the number of bits that distinguish `value` things."""
    return max(0, value - 1).bit_length()


@dataclass
class Ranges:
    """Ranges and their pieces. `wanted`: place >> shift_before of each range. Rows of one piece have the same place >>
    shift.
    """

    wanted: Words  # ascending
    shift_before: int
    shift: int
    fan_bits: int
    sums: Words = field(init=False)

    def __post_init__(self) -> None:
        self.sums = np.zeros(self.count * SUM_WORDS, dtype=np.int64)
        self.has_overflown = False  # a place was past the last piece: there are more pages than expected

    @property
    def is_everything(self) -> bool:
        """Whether every place is in one of the ranges."""
        return self.wanted.size == 1 and self.shift_before >= PLACE_BITS

    @property
    def count(self) -> int:
        """The number of pieces."""
        return int(self.wanted.size) << self.fan_bits

    def places_in(self, places: Words) -> Words:
        """Return the index in `wanted` of each place's range, -1 for none. Shapes: (places,) in and out."""
        if self.is_everything:
            return np.zeros(places.size, dtype=np.int64)
        front = places >> self.shift_before
        found = np.searchsorted(self.wanted, front)
        found[found == self.wanted.size] = 0
        return np.where(self.wanted[found] == front, found, -1).astype(np.int64)

    def add(self, places: Words, lanes: Words) -> None:
        """Add rows to the sums of their pieces."""
        parents = self.places_in(places)
        below = (1 << (self.shift_before - self.shift)) - 1
        pieces = (places >> self.shift) & below
        last = (1 << self.fan_bits) - 1
        if below != last and (pieces > last).any():
            self.has_overflown = True
            pieces = np.minimum(pieces, last)
        ranges = np.where(parents < 0, -1, (parents << self.fan_bits) | pieces)
        if sum_digests(self.sums, lanes, ranges, places.size) < 0:
            raise InvariantBroken("a row is in a range that does not exist; report this")

    def same_shape(self) -> Ranges:
        """Return the same ranges, without sums."""
        return Ranges(self.wanted, self.shift_before, self.shift, self.fan_bits)

    def numbers(self) -> Words:
        """Return the number of each piece: (place >> shift) of its places."""
        pieces = np.arange(1 << self.fan_bits, dtype=np.int64)
        return ((self.wanted[:, None] << (self.shift_before - self.shift)) | pieces[None, :]).reshape(-1)

    def rows(self) -> Words:
        """Return the number of rows in each piece."""
        return self.sums[0::SUM_WORDS]

    def total(self) -> tuple[int, int, int]:
        """Return (rows, sum of first lanes, sum of second lanes) over all pieces."""
        each = self.sums.reshape(-1, SUM_WORDS).sum(axis=0)
        return int(each[0]), int(each[1]), int(each[2])


def differing(a: Ranges, b: Ranges) -> tuple[Words, Words]:
    """Return (numbers, rows on the side that has more) of the pieces whose sums differ."""
    pairs = (a.sums.reshape(-1, SUM_WORDS), b.sums.reshape(-1, SUM_WORDS))
    found = np.flatnonzero((pairs[0] != pairs[1]).any(axis=1))
    return a.numbers()[found], np.maximum(a.rows(), b.rows())[found]


def first_by_key(rows: int) -> Ranges:
    """Return the first level by key, for this many rows."""
    fan_bits = min(bits_for(-(-rows // ROWS_PER_RANGE)), bits_for(RANGES_MAX))
    return Ranges(ONE_RANGE.copy(), PLACE_BITS, PLACE_BITS - fan_bits, fan_bits)


def first_by_rowid(numbers: Sequence[int], pages: int, rows: int) -> Ranges:
    """Return the first level by ROWID. numbers: of the fragments. pages: logical pages of the largest one. rows: of
    all.

    A range is at least a page.
    """
    most = max(1, min(RANGES_MAX, -(-rows // ROWS_PER_RANGE)) // max(1, len(numbers)))
    page_bits = bits_for(pages)
    fan_bits = min(page_bits, bits_for(most))
    wanted = np.array(sorted(numbers), dtype=np.int64)
    return Ranges(wanted, ROWID_BITS, 16 + page_bits - fan_bits, fan_bits)


def narrowed(wanted: Words, shift: int) -> Ranges | None:
    """Divide ranges into pieces; return None if they are single places, or too many."""
    fan_bits = min(FAN_BITS, shift, bits_for(SUMS_MAX // max(1, wanted.size) + 1) - 1)
    if fan_bits < 1:
        return None
    return Ranges(wanted, shift, shift - fan_bits, fan_bits)
