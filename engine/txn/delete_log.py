"""The delete log of an open store: the rows deleted after an epoch, for a node that rejoins with the rows of that epoch
(docs/internals/node-group.md, *The delete log*).

It is in memory, after `data_memory`; a restart rebuilds it from the kept REDO log. Commits append to it in their own
kernel calls (`engine/txn/delete_log_kernels.py`).
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Any

import numpy as np

from tidemark.engine.base.errors import InvariantBroken, MemoryExhausted
from tidemark.engine.base.words_layout import WORD_BYTES
from tidemark.engine.memory.arena_layout import BLOCK_WORDS, OK
from tidemark.engine.txn import delete_log_layout as y
from tidemark.engine.txn.delete_log_kernels import note_deletes_of, setup_delete_log

if TYPE_CHECKING:
    from tidemark.engine.base.options import Options
    from tidemark.engine.memory.arena import Arena, Words


def delete_log_words(options: Options) -> int:
    """Return the words of arena for the log, after `data_memory`; 0: no log. Memory is used as deletes are noted."""
    return options.delete_log_bytes // WORD_BYTES // BLOCK_WORDS * BLOCK_WORDS


class DeleteLog:
    """The delete log for readers. A position counts entries since the store was opened. Call with the commit latch
    held.
    """

    def __init__(self, arena: Arena, options: Options) -> None:
        """Lay out the log. Raises: MemoryExhausted."""
        self.mem = arena.mem
        words = delete_log_words(options)
        self.region = log = arena.take_region(words)
        if setup_delete_log(self.mem, log, words) != OK:
            raise MemoryExhausted("delete_log is too small for a single entry; open with a larger one")
        self.capacity = int(self.mem[log + y.DL_CAPACITY])

    @property
    def head(self) -> int:
        """Position of the next entry."""
        return int(self.mem[self.region + y.DL_HEAD])

    @property
    def tail(self) -> int:
        """Position of the oldest entry."""
        return max(0, self.head - self.capacity)

    @property
    def cut_epoch(self) -> int:
        """The epoch after which every delete is in the log."""
        return int(self.mem[self.region + y.DL_CUT])

    # --- content ---------------------------------------------------------------------------------
    def begin_after(self, epoch: int) -> None:
        """Start after an epoch, before the first later commit: deletes up to the end of the epoch are unknown."""
        self.mem[self.region + y.DL_CUT] = max(epoch, self.cut_epoch)

    def note_records(self, words: Words, start: int, stop: int, epoch: int) -> None:
        """Note the deletes in replayed records of the REDO log. Raises: InvariantBroken."""
        if note_deletes_of(self.mem, words, start, stop, epoch) != OK:
            raise InvariantBroken("replayed records of the log do not belong in the delete log; report this")

    # --- reading it ------------------------------------------------------------------------------
    def position_after(self, epoch: int) -> int:
        """Return the position of the first entry after an epoch, which must not be before `cut_epoch`."""
        return bisect_right(range(self.head), epoch, self.tail, key=self._epoch)

    def entries(self, position: int, stop: int) -> Words:
        """Return a copy of the entries [position, stop), in DELETE_ENTRY_WORDS columns; none may be before `tail`.

        The newest entry may grow after the copy, by rows that are deleted later.
        """
        first, last = self._address(position), self._address(position) + (stop - position) * y.DELETE_ENTRY_WORDS
        end = self.region + y.DL_WORDS + self.capacity * y.DELETE_ENTRY_WORDS
        found = self.mem[first : min(last, end)].copy()
        if last > end:
            begin = self.region + y.DL_WORDS
            found = np.concatenate([found, self.mem[begin : begin + last - end]])
        return found.reshape(-1, y.DELETE_ENTRY_WORDS)

    def _address(self, position: int) -> int:
        return self.region + y.DL_WORDS + position % self.capacity * y.DELETE_ENTRY_WORDS

    def _epoch(self, position: int) -> int:
        return int(self.mem[self._address(position) + y.DE_EPOCH])

    def counters(self) -> dict[str, Any]:
        """Return the counters for `status()`."""
        return {
            "entries": self.head - self.tail,
            "entries_ever": self.head,
            "size_bytes": self.capacity * y.DELETE_ENTRY_WORDS * WORD_BYTES,
            "cut_epoch": self.cut_epoch,
        }
