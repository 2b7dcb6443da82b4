"""Room in the log: reservations of transactions and schema changes, and the followers that read the log before it is
cut.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tidemark.engine.base.errors import BinlogOverloaded, RedoOverloaded, StorageFull, TooManyFiles, TransactionTooLarge
from tidemark.engine.base.shortage import REDO_LOG
from tidemark.engine.memory.arena_layout import OK, S_REDO_FREE, S_REDO_RESERVED, X_REDO_WORDS
from tidemark.engine.txn.begin_kernels import reserve_redo

if TYPE_CHECKING:
    from tidemark.engine.base.clock import Clock
    from tidemark.engine.base.failure import Failure
    from tidemark.engine.base.shortage import DiskShortage
    from tidemark.engine.log.redo import RedoLog
    from tidemark.engine.memory.arena import Words
    from tidemark.engine.txn.locks import LockTable

REDO_POLL_SECONDS = 0.05
# In calling order. Each has a name, so that one can be added or removed without the others.
FOLLOWERS = ("binlog", "archive")
_TO_A_FILE = "with a transaction_limit above transaction_memory, past which changes go to a file"


class LogRoom:
    """The room in the log of one store."""

    def __init__(
        self,
        log: RedoLog,
        mem: Words,
        clock: Clock,
        failure: Failure,
        locks: LockTable,
        shortage: DiskShortage,
        may_spool: bool,
    ) -> None:
        """may_spool: whether changes of a transaction past its memory go to a file."""
        self._log = log
        self._mem = mem
        self._clock = clock
        self._failure = failure
        self._locks = locks
        self._shortage = shortage
        self.may_spool = may_spool
        self.on_full: Callable[[], None] = lambda: None
        # Whether the binlog prevents the truncation of the log; then the error for a full log says so.
        self.follower_holds_log: Callable[[], bool] = lambda: False
        # Followers that must have read the log through the epoch of a local checkpoint before it is published and the
        # log is cut, by a name of `FOLLOWERS`. Each call returns when the follower has read it, or raises.
        self.followers: dict[str, Callable[[int], None]] = {}
        # The name of the follower for which the newest local checkpoint waits, or waited in vain.
        self.awaited: str | None = None

    def await_followers(self, epoch: int) -> None:
        """Wait, before a local checkpoint is published, until followers have read the log through its epoch. Raises:
        StorageFull, with which the local checkpoint is abandoned; StoreFailed.
        """
        for name in FOLLOWERS:
            if name in self.followers:
                self.awaited = name
                self.followers[name](epoch)
        self.awaited = None

    def has_words(self, words: int) -> bool:
        """Whether the log has this room beside all reservations."""
        return int(self._mem[S_REDO_RESERVED]) + words <= int(self._mem[S_REDO_FREE])

    def is_reserved(self, desc: int, words: int) -> bool:
        """Reserve more room in the log for an open transaction, if there is room now; return whether there was."""
        return bool(reserve_redo(self._mem, desc, words) == OK)

    def reserve(self, desc: int, words: int) -> None:
        """Reserve more room in the log for an open transaction, waiting for a local checkpoint if needed.

        Raises: TransactionTooLarge if the whole log is too small; as `wait`.
        """
        if self.is_reserved(desc, words):
            return
        needed_bytes = (int(self._mem[desc + X_REDO_WORDS]) + words) * 8
        if needed_bytes > self._log.room_bytes:  # of an empty log: no wait and no other attempt helps
            raise TransactionTooLarge(
                f"the transaction needs {needed_bytes} bytes of the REDO log, which has room for"
                f" {self._log.room_bytes}; split it, or make the store with a larger redo_log, or open it"
                f" {_TO_A_FILE}"
            )
        self.wait(lambda: self.is_reserved(desc, words))

    def grow_ahead(self) -> None:
        """Make the next files of a log that lacks some, until one file's bytes are free beside all reservations.

        Raises: StorageFull, TooManyFiles, StoreFailed.
        """
        self.grow_until(lambda: self.has_words(self._log.geometry.file_bytes // 8))

    def grow_until(self, is_reserved: Callable[[], bool]) -> bool:
        """Make the next files of a log that lacks some, until `is_reserved` makes the reservation and returns True.
        Return False if the log has all its files, and no room in them.

        Raises: StorageFull, TooManyFiles, StoreFailed.
        """
        log = self._log
        while not (is_enough := is_reserved()) and log.geometry.unmade_count:
            try:
                log.grow(log.geometry)
            except StorageFull as full:
                self._shortage.lacks(REDO_LOG, full.message)
                raise
        self._shortage.has_space(REDO_LOG)
        return is_enough

    def has_grown_for(self, desc: int, words: int) -> bool:
        """Do `is_reserved`, after the next files of a log that lacks some were made; return whether that worked."""
        try:
            return self.grow_until(lambda: self.is_reserved(desc, words))
        except (StorageFull, TooManyFiles):
            return False

    def wait(self, is_reserved: Callable[[], bool]) -> None:
        """Wait until `is_reserved` makes the reservation and returns True: make the next files of a log that lacks
        some; then request a local checkpoint.

        Raises: StorageFull or TooManyFiles if the next file cannot be made; RedoOverloaded after `lock_timeout_ms`, or
        BinlogOverloaded if the binlog is holding the log.
        """
        try:
            if self.grow_until(is_reserved):
                return
        except StorageFull as full:
            self._shortage.refused()
            ring = self._log.geometry
            raise StorageFull(
                f"the REDO log has {ring.made_count * ring.file_bytes} of its {ring.capacity_bytes} bytes and cannot"
                f" grow ({full.message.partition(';')[0]}); free space on the disk of the store, then run the"
                " transaction again",
                **full.evidence,
            ) from full
        deadline = self._locks.deadline()
        while True:
            self.on_full()
            if is_reserved():
                return
            self._failure.check()
            self._shortage.refused()
            if self._clock.monotonic() >= deadline:
                raise self.overloaded()
            self._clock.sleep(REDO_POLL_SECONDS)

    def overloaded(self) -> RedoOverloaded | BinlogOverloaded:
        """Return the error for a log that is full."""
        full = f"the REDO log ({self._log.geometry.capacity_bytes} bytes)"
        if self.awaited == "archive":
            return RedoOverloaded(
                f"{full} is full of epochs that are not in the archive yet; status()['archive'] says why: free space"
                " for its place or make it reachable, then run the transaction again, or make the store with a larger"
                " redo_log"
            )
        if self.follower_holds_log():
            return BinlogOverloaded(
                f"{full} is full of epochs that are not in the binlog yet; free space in its folder, then run the"
                " transaction again, or make the store with a larger redo_log"
            )
        if self._shortage.reason:
            return RedoOverloaded(
                f"{full} is full, and no local checkpoint can free it: {self._shortage.reason}; free space on the disk"
                " of the store, then run the transaction again"
            )
        return RedoOverloaded(
            f"{full} is full and no local checkpoint freed it in time; call checkpoint() twice, then run the"
            " transaction again; if the log fills up again, split the transaction or make the store with a larger"
            " redo_log" + ("" if self.may_spool else f", or open it {_TO_A_FILE}")
        )
