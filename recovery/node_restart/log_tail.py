"""The kept log of a live node, read from the first group that a joiner lacks (docs/internals/node-group.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemark.engine.log.geometry import open_files
from tidemark.engine.log.reader import LogReader

if TYPE_CHECKING:
    from tidemark.engine.files.protocol import Files
    from tidemark.engine.log.reader import GroupRead
    from tidemark.engine.log.redo import RedoLog
    from tidemark.engine.store.store import Store

HOLDER = "a node that is being copied"
HELD_SHARE = 4  # the log is held for a joiner until less than 1 / HELD_SHARE of it is free


def is_full(log: RedoLog) -> bool:
    """Whether so little of a log is free that transactions need it more than the reader for which it is held."""
    free = log.geometry.capacity_bytes - log.used_bytes()
    return free * HELD_SHARE < log.geometry.capacity_bytes


class LogTail:
    """Reads the log of an open store and keeps it from being cut meanwhile."""

    def __init__(self, store: Store, files: Files, uuid: bytes) -> None:
        self._log = store.log
        self._latch = store.latch
        self._reader = LogReader(files, self._log.geometry, uuid, open_files(files, self._log.geometry, False))
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

    @property
    def is_full(self) -> bool:
        """Whether transactions need the room more than the joiner does."""
        return is_full(self._log)

    def close(self) -> None:
        """Release the log, which may then be cut."""
        with self._latch:
            self._log.hold_tail(self, HOLDER, None)
        self._reader.close()
