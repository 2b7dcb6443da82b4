"""Groups of this node's log by sequence, for nodes that lack them: the newest from memory, older ones from the files of
the log.
"""

from __future__ import annotations

import threading
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING

from tidemark.engine.log.reader import LogReader

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tidemark.engine.files.protocol import Files
    from tidemark.engine.log.redo import RedoLog
    from tidemark.engine.memory.arena import Words

WINDOW_BYTES = 16 << 20
AT_ONCE_BYTES = 1 << 20  # of one answer; one group may be larger


class SentGroups:
    """The groups of one open log. Any thread may call; callers never change words."""

    def __init__(self, log: RedoLog, files: Files, uuid: bytes) -> None:
        self._log = log
        self._reader = LogReader(files, log.geometry, uuid)
        self._mutex = threading.Lock()
        self._places: dict[int, int] = {}  # sequence -> LSN of the groups in the files, in order
        self._window: deque[tuple[int, Words]] = deque()
        self._window_bytes = 0
        self.last_epoch = 0  # of the newest group

    def look_through(self) -> None:
        """Index the groups that the opening found in the log. No other thread writes in the meantime."""
        tail = self._log.tail_sequence
        for group in islice(self._reader.intact(self._log.tail_lsn, tail), self._log.sequence - tail):
            self.add(group.sequence, group.lsn, group.epoch, group.words)

    def add(self, sequence: int, lsn: int, epoch: int, words: Words) -> None:
        """Add the next group; its words must not change any more."""
        with self._mutex:
            self._places[sequence] = lsn
            self._window.append((sequence, words))
            self._window_bytes += words.nbytes
            while self._window_bytes > WINDOW_BYTES and len(self._window) > 1:
                self._window_bytes -= self._window.popleft()[1].nbytes
            while (oldest := next(iter(self._places))) < self._log.tail_sequence and len(self._places) > 1:
                del self._places[oldest]
            self.last_epoch = epoch

    def lsn_of(self, sequence: int) -> int | None:
        """Return the LSN of a group, None if the log no longer has it."""
        with self._mutex:
            return self._places.get(sequence)

    def groups_from(self, first: int, last: int) -> tuple[Words, ...]:
        """Return groups from `first` on, about AT_ONCE_BYTES at most; none if the log no longer has `first`.

        Raises: IoFailed.
        """
        with self._mutex:
            found = [(sequence, words) for sequence, words in self._window if first <= sequence <= last]
            lsn = self._places.get(first)
        if found and found[0][0] == first:
            return _bounded(words for _, words in found)
        if lsn is None:
            return ()
        # Fewer, if the log was cut in the meantime.
        return _bounded(group.words for group in islice(self._reader.intact(lsn, first), max(0, last - first + 1)))

    def close(self) -> None:
        """Stop reading."""
        self._reader.close()


def _bounded(groups: Iterable[Words]) -> tuple[Words, ...]:
    taken: list[Words] = []
    size_bytes = 0
    for words in groups:
        taken.append(words)
        size_bytes += words.nbytes
        if size_bytes >= AT_ONCE_BYTES:
            break
    return tuple(taken)
