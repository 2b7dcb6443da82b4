"""What a live node has kept for a joiner: its log from the first group that the joiner lacks, or its delete log up to
the start of the stream (docs/internals/node-group.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tidemark.engine.log.reader import LogReader
from tidemark.engine.log.redo_layout import FRAGMENT_SHIFT
from tidemark.engine.txn.delete_log_layout import DE_PLACE, DE_ROWS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tidemark.engine.files.protocol import Files
    from tidemark.engine.log.reader import GroupRead
    from tidemark.engine.log.redo import RedoLog
    from tidemark.engine.memory.arena import Words
    from tidemark.engine.store.store import Store
    from tidemark.engine.txn.delete_log import DeleteLog
    from tidemark.recovery.node_restart.messages import FragmentPlace

HOLDER = "a node that is being copied"
ENTRIES = 8_192  # of the delete log, per message: 192 KiB are copied under the latch
HELD_SHARE = 4  # the log is held for a joiner until less than 1 / HELD_SHARE of it is free


def is_full(log: RedoLog) -> bool:
    """Whether too little of a log is free to hold it for a reader any longer: transactions need the space."""
    free = log.geometry.capacity_bytes - log.used_bytes()
    return free * HELD_SHARE < log.geometry.capacity_bytes


class LogTail:
    """Reads the log of an open store and keeps it from being cut meanwhile."""

    def __init__(self, store: Store, files: Files, uuid: bytes) -> None:
        self._log = store.log
        self._latch = store.latch
        self._reader = LogReader(files, self._log.geometry, uuid)
        with self._latch:
            self._lsn, self._sequence = self._log.tail_lsn, self._log.tail_sequence
            self._log.hold_tail(self, HOLDER, self._lsn)

    def find(self, sequence: int, through: int) -> str:
        """Move to the group of this sequence, the first of an epoch after `through`; return why that is impossible, or
        "".
        """
        if sequence < self._sequence:
            return f"the log begins with group {self._sequence}, the joiner needs {sequence}"
        while self._sequence < sequence:
            group = self.next()
            if group is None:
                return f"the log ends before group {sequence}"
            if group.epoch > through:
                return f"group {group.sequence} is of an epoch after {through}: the logs differ"
        group = self._peek()
        if group is not None and group.epoch <= through:
            return f"group {sequence} is of an epoch the joiner has: the logs differ"
        return ""

    def _peek(self) -> GroupRead | None:
        return self._reader.group_at(self._lsn, self._sequence) if self._lsn < self._log.durable_lsn else None

    def next(self) -> GroupRead | None:
        """Return the next durable group and move past it; None if there is none yet."""
        group = self._peek()
        if group is not None:
            self._lsn, self._sequence = group.end_lsn, group.sequence + 1
            with self._latch:
                self._log.hold_tail(self, HOLDER, self._lsn)
        return group

    @property
    def left_bytes(self) -> int:
        """Bytes of the log that are still to be read."""
        return self._log.head_lsn - self._lsn

    def close(self) -> None:
        """Release the log, which may then be cut."""
        with self._latch:
            self._log.hold_tail(self, HOLDER, None)
        self._reader.close()


# --- the delete log -------------------------------------------------------------------------------
def why_incomplete(log: DeleteLog | None, through: int) -> str:
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
        self._at = log.position_after(through)
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
        """Return the next entries, each once, as items of a `Deletes`; the result may be empty."""
        stop = min(self._stop, self._at + ENTRIES)
        entries = self._log.entries(self._at, stop)
        self._at = stop
        pairs = entries[np.isin(entries[:, DE_PLACE], self._places)][:, [DE_PLACE, DE_ROWS]]
        order = np.lexsort((pairs[:, 1], pairs[:, 0]))
        pairs = pairs[order]
        is_new = np.ones(len(pairs), dtype=bool)
        is_new[1:] = (pairs[1:] != pairs[:-1]).any(axis=1)
        return np.ascontiguousarray(pairs[is_new]).reshape(-1)
