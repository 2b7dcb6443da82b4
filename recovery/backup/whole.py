"""The store as restored so far, fully opened despite the mark `restoring`, so that its own transactions can apply the
changes of another log.

It is not visible to callers, and no thread serves it: epochs are closed, the log is synced and local checkpoints are
written between its transactions. A crash leaves the mark, as everywhere in a restore.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemark.engine.memory.arena_layout import F_ROWS
from tidemark.recovery.backup.later_changes import ApplyContext
from tidemark.recovery.local_checkpoint.writer import LocalCheckpoint

if TYPE_CHECKING:
    from collections.abc import Callable

    from tidemark.engine.files.protocol import Files
    from tidemark.engine.store.store import Store
    from tidemark.recovery.backup.later_changes import LaterChanges, LaterPlan, LaterReport
    from tidemark.recovery.system_restart.restart import Opened

FLUSH_BYTES = 1 << 20  # of log that may wait in memory: none of its commits was acknowledged
UNDO_SHARE = 6  # a local checkpoint is written when this part of the UNDO log has been used since the last one


def index_entries(store: Store) -> int:
    tables = store.tables.by_name.values()
    return sum(index.tree.counters()["entries"] for table in tables for index in table.listed_indexes())


def fragment_rows(store: Store) -> dict[tuple[str, int], int]:
    """Return the number of rows of each fragment in memory, by table and number."""
    return {
        (table.name, number): store.arena.word(fragment, F_ROWS)
        for table in store.tables.by_name.values()
        for number, fragment in table.by_number.items()
    }


def close_files(store: Store) -> None:
    """Close the files of a store that no thread serves. Nothing is written."""
    store.disk.close()
    store.space.close()
    store.log.close()


class WholeStore:
    """One store, from its opening to the end of a restore."""

    def __init__(self, opened: Opened, files: Files) -> None:
        """Set the store back into the epoch after its local checkpoint: there was no commit after that."""
        self.store = opened.store
        self._keeper = opened.keeper
        self._lcp = LocalCheckpoint(self.store, files, opened.identity, opened.sysfile.next_lcp_id)
        self._lcp.last_start_lsn = opened.controls[0].start_lsn
        self._flushed_lsn = self._lcp.last_start_lsn
        self._undo_bytes = 0
        with self.store.latch:
            # A restart continues one GCI later, as a crash may have left commits; the changes have epochs before that.
            self.store.epochs.resume(opened.controls[0].epoch + 1)

    def apply(self, later: LaterChanges, plan: LaterPlan, advance: Callable[[int], None]) -> LaterReport:
        """Apply the plan. Raises: see `LaterChanges.apply`."""
        return later.apply(plan, ApplyContext(self.store, self.make_room, advance))

    def make_room(self, is_full: bool) -> None:
        """Flush the log, and write a local checkpoint, if enough has accumulated; call it between transactions.
        is_full: a transaction found no room in one of the logs.
        """
        store, log = self.store, self.store.log
        if log.head_lsn - self._flushed_lsn >= FLUSH_BYTES:
            log.flush()
            self._flushed_lsn = log.head_lsn
        grown = log.head_lsn - self._lcp.last_start_lsn
        undo_used = self._undo_used()
        undo_bytes = store.disk.undo.geometry.capacity_bytes if store.disk.is_started else 0
        if (
            is_full
            or grown >= store.options.checkpoint_log_share * log.geometry.capacity_bytes
            or (undo_used - self._undo_bytes) * UNDO_SHARE > undo_bytes
        ):
            self._lcp.run()
            if is_full:
                self._lcp.run()  # the tails of the logs move to the older one
            self._undo_bytes = undo_used

    def _undo_used(self) -> int:
        # Count buffered bytes, too: with written bytes alone, the checkpoint came too late on a busy machine. The log
        # became full in the middle of an epoch, and a local checkpoint then closed that epoch.
        return self.store.disk.undo.bytes_used if self.store.disk.is_started else 0

    def continue_after(self, epoch: int) -> None:
        """Continue after `epoch`, because other stores may know its number."""
        with self.store.latch:
            if self.store.epochs.has_commits:
                self.store.epochs.close()
            self.store.epochs.continue_after(epoch)

    def close(self) -> dict[tuple[str, int], int]:
        """Make everything durable and close all files; return the rows of each fragment, by table and number.

        A last local checkpoint has everything, so the comparison that follows has nothing to replay and writes no
        pages.
        """
        store = self.store
        self._lcp.run()
        with store.latch:
            closed, lsn, sequence = store.epochs.close(next_gci=True)
            gci = store.epochs.current >> 32
        store.log.flush()
        store.log.make_durable(sequence - 1)
        self._keeper.write(
            gci=gci,
            closed_epoch=closed,
            durable_lsn=lsn,
            durable_sequence=sequence - 1,
            next_table_id=store.tables.next_id,
            next_lcp_id=self._lcp.next_id,
        )
        rows = fragment_rows(store)
        close_files(store)
        return rows
