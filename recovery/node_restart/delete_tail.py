"""The delete log of a live node, read for a joiner up to the begin of its stream (docs/internals/node-group.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tidemark.engine.log.redo_layout import FRAGMENT_SHIFT
from tidemark.engine.txn.delete_log_layout import DE_PLACE, DE_ROWS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tidemark.engine.memory.arena import Words
    from tidemark.engine.txn.delete_log import DeleteLog
    from tidemark.recovery.node_restart.messages import FragmentPlace

ENTRIES = 8_192  # per message: 192 KiB are copied under the latch


def why_not(log: DeleteLog | None, through: int) -> str:
    """Return why the log does not have every delete after an epoch, or "". The latch must be held."""
    if log is None:
        return "the live node keeps no delete log (option delete_log)"
    if through < log.cut_epoch:
        return f"the delete log reaches back to epoch {log.cut_epoch}, the joiner is at {through}"
    return ""


class DeleteTail:
    """Reads the delete log for one joiner, without holding the log for it. The latch must be held for every method."""

    def __init__(self, log: DeleteLog, through: int, epoch: int) -> None:
        """The log must reach back to the end of epoch `through`. epoch: the open one."""
        self._log = log
        self._at = log.behind(through)
        self._stop = log.head
        self._places: Words = np.zeros(0, dtype=np.int64)
        self.epoch = epoch

    def keep(self, places: Iterable[FragmentPlace]) -> None:
        """Set the fragments of which the joiner has rows; entries of others are left out."""
        packed = [table | fragment << FRAGMENT_SHIFT for table, fragment in places]
        self._places = np.array(packed, dtype=np.int64)

    @property
    def left(self) -> int:
        """Entries still to be read."""
        return self._stop - self._at

    @property
    def is_cut(self) -> bool:
        """Whether transactions have cut entries that are still to be read."""
        return self.left > 0 and self._at < self._log.tail

    def next(self) -> Words:
        """Return the next entries, each once, as items of a `Deletes`; perhaps none."""
        stop = min(self._stop, self._at + ENTRIES)
        entries = self._log.entries(self._at, stop)
        self._at = stop
        pairs = entries[np.isin(entries[:, DE_PLACE], self._places)][:, [DE_PLACE, DE_ROWS]]
        order = np.lexsort((pairs[:, 1], pairs[:, 0]))
        pairs = pairs[order]
        is_new = np.ones(len(pairs), dtype=bool)
        is_new[1:] = (pairs[1:] != pairs[:-1]).any(axis=1)
        return np.ascontiguousarray(pairs[is_new]).reshape(-1)
