"""What one epoch transaction has that outlives its passes, and the tracking of its rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from engine.errors import PeerError
from replication.applier.intake import StatusRows
from replication.applier.key_set import offsets_of
from replication.applier.stops import Stop

if TYPE_CHECKING:
    from replication.applier.batch import ChangeBatch
    from replication.applier.key_set import Words
    from replication.conflict.tracker import DependencyTracker


@dataclass
class EpochState:
    """`epoch` is the source's, `frozen` the max replicated epoch as it began; `counts` the running numbers of
    exceptions tables, by table; `marked` ids of transactions that met a conflict, in pieces.
    """

    source_id: int
    epoch: int
    frozen: int
    counts: dict[str, int]
    marked: list[Words] = field(default_factory=list)
    tracker: DependencyTracker | None = None


def track(tracker: DependencyTracker, items: Iterable[ChangeBatch | StatusRows], source_id: int) -> None:
    """Let a tracker follow all rows of an epoch transaction. Raises: PeerError if a transaction changes a row twice,
    TransactionTooLarge beyond the tracker's memory.
    """
    for batch in items:
        if isinstance(batch, StatusRows):
            continue
        numbers = np.full(batch.rows, batch.table.table_id, dtype=np.int64)
        offsets = offsets_of(batch.keys)
        words = batch.keys.keys[int(offsets[0]) : int(offsets[-1])]
        try:
            ids = np.ascontiguousarray(batch.transactions)
            tracker.track(ids, numbers, words, offsets - offsets[0], batch.server_id != source_id)
        except PeerError as error:
            error.evidence["stop"] = Stop.CORRUPT_EVENT
            raise
