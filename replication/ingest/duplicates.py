"""Keys that occur more than once in a batch: which rows may be changed together without reordering changes of a key."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from tidemark.engine.rows.row_format import Words

if TYPE_CHECKING:
    import pyarrow as pa


def key_numbers(columns: Sequence[pa.Array]) -> tuple[Words, int]:
    """Return (a number for each row, equal for equal keys; the number of keys, or more if `columns` is one dictionary
    with values that no row has).
    """
    import pyarrow as pa

    numbers: Words | None = None
    count = 0
    for column in columns:
        coded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
        places = coded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        if numbers is None:
            numbers, count = places, len(coded.dictionary)
            continue
        pairs, numbers = np.unique(numbers * (len(coded.dictionary) + 1) + places, return_inverse=True)
        numbers, count = numbers.reshape(-1).astype(np.int64), len(pairs)
    assert numbers is not None
    return numbers, count


def has_duplicates(numbers: Words, count: int) -> bool:
    """Whether a key occurs twice."""
    return count < len(numbers) or bool(np.bincount(numbers, minlength=1).max(initial=0) > 1)


def last_of_each(numbers: Words) -> Words:
    """Return the last row of each key, ascending."""
    _, from_end = np.unique(numbers[::-1], return_index=True)
    places: Words = np.sort(len(numbers) - 1 - from_end).astype(np.int64)
    return places


def slices_of_distinct_keys(numbers: Words) -> Iterator[slice]:
    """Yield slices of the rows, each ending before a row whose key occurred in it."""
    order = np.argsort(numbers, kind="stable")
    same = numbers[order][1:] == numbers[order][:-1]
    previous = np.full(len(numbers), -1, np.int64)
    previous[order[1:][same]] = order[:-1][same]
    yield from _cut(previous)


def slices_of_moves(before: Words, after: Words) -> Iterator[slice]:
    """Yield slices of updates that change keys, so that all rows of a slice can first be deleted and then be inserted:
    no old key is the new key of an earlier row in the slice, and no key is old twice or new twice. before, after: the
    numbers of the old and the new key of each row (`key_numbers` of both).
    """
    count = len(before)
    both = np.concatenate([before, after])
    earlier = np.full(count, -1, np.int64)
    # The old (side 0) and new (side 1) keys, sorted by key, row and side. In a slice, a key may occur in two rows only
    # if it is the old key of the first and the new key of the second.
    row = np.concatenate([np.arange(count), np.arange(count)])
    side = np.concatenate([np.zeros(count, np.int64), np.ones(count, np.int64)])
    order = np.lexsort((side, row, both))
    keys, rows, sides = both[order], row[order], side[order]
    for distance in (1, 2, 3):
        near = (keys[distance:] == keys[:-distance]) & (rows[distance:] != rows[:-distance])
        conflicts = near & ~((sides[:-distance] == 0) & (sides[distance:] == 1))
        np.maximum.at(earlier, rows[distance:][conflicts], rows[:-distance][conflicts])
    yield from _cut(earlier)


def _cut(previous: Words) -> Iterator[slice]:
    """Yield slices in which no row occurs together with the row that `previous` names for it (-1: none)."""
    start = 0
    for place in np.flatnonzero(previous >= 0):
        if previous[place] >= start:
            yield slice(start, int(place))
            start = int(place)
    if start < len(previous):
        yield slice(start, len(previous))
