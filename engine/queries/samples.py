"""Rows chosen at random from a scan, each with the same chance, in one pass and in the memory of the sample.

Each row draws a number, and the rows with the least numbers stay. So the number of rows need not be known.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from tidemark.engine.base.clock import random_numbers

if TYPE_CHECKING:
    import pyarrow as pa

HELD = 4  # times the sample: rows held before those that cannot stay are dropped


def sample(batches: Iterable[pa.RecordBatch], schema: pa.Schema, count: int, seed: int | None) -> pa.Table:
    """Return `count` of the rows, or all if there are fewer, in their order. seed: the same one gives the same rows if
    the rows found are the same; None: another choice each time.
    """
    import pyarrow as pa

    generator = random_numbers(seed)
    held, numbers, bound = schema.empty_table(), np.zeros(0), 1.0
    for batch in batches:
        drawn = generator.random(batch.num_rows)
        may_stay = _least(drawn, count) & (drawn < bound)
        if may_stay.any():
            held = pa.concat_tables([held, pa.Table.from_batches([batch.filter(pa.array(may_stay))])])
            numbers = np.append(numbers, drawn[may_stay])
        if numbers.size >= HELD * count > 0:
            stay = _least(numbers, count)
            held, numbers = held.filter(stay).combine_chunks(), numbers[stay]
            bound = numbers.max()
    return held.filter(_least(numbers, count)).combine_chunks()


def _least(numbers: np.ndarray, count: int) -> np.ndarray:
    """Return a mask of the `count` least numbers, or of all if there are fewer."""
    mask = np.full(numbers.size, numbers.size <= count)
    if numbers.size > count:
        mask[np.argpartition(numbers, count)[:count]] = True
    return mask
