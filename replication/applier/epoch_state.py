"""The state of one epoch transaction across its passes, and the tracker of its rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from tidemark.replication.applier.intake import StatusRows
from tidemark.replication.applier.key_set import offsets_of
from tidemark.replication.conflict.tracker import DependencyTracker

if TYPE_CHECKING:
    from tidemark.replication.applier.batch import ChangeBatch
    from tidemark.replication.applier.key_set import Words


@dataclass
class EpochState:
    """`epoch` is the source's, `frozen` the max replicated epoch when the transaction began. `counts` has, by name of a
    replicated table, the last running number in its exceptions table. `memory_bytes` is allowed for rows outside the
    store: half for the tracker, a quarter each for refreshed rows and for held rows. `marked` has, in pieces, the ids
    of transactions that met a conflict before there was a tracker.
    """

    source_id: int
    epoch: int
    frozen: int
    counts: dict[str, int]
    memory_bytes: int
    marked: list[Words] = field(default_factory=list)
    tracker: DependencyTracker | None = None


def track(readings: Iterator[Iterable[ChangeBatch | StatusRows]], memory_bytes: int, seed: int) -> DependencyTracker:
    """Return a tracker that has followed all rows of an epoch transaction; each of `readings` yields all of them.
    seed: that of the store's hashes.

    Keys that need more memory than is allowed are followed in parts, with one reading for each part. Raises:
    TransactionTooLarge if transactions and dependencies need more memory, or if there are too many parts.
    """
    tracker = DependencyTracker(seed, memory_bytes)
    while True:
        _track_part(tracker, next(readings))
        if not tracker.begin_part():
            return tracker


def _track_part(tracker: DependencyTracker, items: Iterable[ChangeBatch | StatusRows]) -> None:
    for batch in items:
        if isinstance(batch, StatusRows):
            continue
        numbers = np.full(batch.rows, batch.table.table_id, dtype=np.int64)
        offsets = offsets_of(batch.keys)
        words = batch.keys.keys[int(offsets[0]) : int(offsets[-1])]
        tracker.track(np.ascontiguousarray(batch.transactions), numbers, words, offsets - offsets[0])
