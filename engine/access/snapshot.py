"""Snapshots of a store: opened and closed, and the tables they show (docs/internals/access.md, section 11).

Old rows are kept by the version store in the arena (`engine/txn/versions_kernels.py`). A snapshot holds its tables as
they were defined at its epoch and pins those dropped meanwhile.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from tidemark.engine.base.errors import InvariantBroken, LimitExceeded, MemoryExhausted, SnapshotClosed, SnapshotTooOld
from tidemark.engine.base.limits import SNAPSHOTS_OPEN_MAX
from tidemark.engine.base.options import larger
from tidemark.engine.base.words_layout import WORD_BYTES
from tidemark.engine.memory import arena_layout as a
from tidemark.engine.schema.names import no_such_table, qualified_name
from tidemark.engine.txn.versions_kernels import find_view, open_snapshot, setup_versions
from tidemark.engine.txn.versions_layout import VIEW_LIST_WORDS
from tidemark.engine.txn.views import View, release

if TYPE_CHECKING:
    from collections.abc import Callable

    from tidemark.engine.base.options import Options
    from tidemark.engine.table.table import Table
    from tidemark.engine.txn.resources import Resources


def version_words(options: Options) -> int:
    """Return the words of the arena, past `data_memory`, for the version store; touched only as old rows are kept."""
    return VIEW_LIST_WORDS + options.snapshot_memory_bytes // WORD_BYTES // a.BLOCK_WORDS * a.BLOCK_WORDS


class Snapshots:
    """The snapshots of one open store."""

    def __init__(self, resources: Resources) -> None:
        """Set up the version store; none for a view of a local checkpoint. Raises: MemoryExhausted."""
        self._resources = resources
        self._mem = resources.mem
        self.open: dict[int, Snapshot] = {}  # by the number of its view, oldest first; iterated as a copy
        words = version_words(resources.options)
        if not resources.is_view and setup_versions(self._mem, resources.arena.take_region(words), words) != a.OK:
            raise MemoryExhausted("snapshot_memory is too small for a version store; open with a larger one")

    def begin(self, kind: type[T], look: Callable[[T], None] = lambda snapshot: None) -> T:
        """Close the open epoch and return a snapshot of its end. Durable on return: everything the snapshot shows.

        look: called with the latch held, while the rows in memory are those of the snapshot. Waits for commits that are
        being applied in slices, then for the log. Raises: LimitExceeded, StoreFailed.
        """
        resources = self._resources
        resources.failure.check()
        snapshot: T | None = None
        try:
            with resources.latch:
                # Close the epoch even if it counts no commits: a signal may have kept a commit from being counted.
                epoch, lsn, sequence = resources.epochs.close()
                snapshot = kind(resources, self, epoch)
                snapshot.log_start = (lsn, sequence)
                resources.users.pin(snapshot)  # before the list is read: tables dropped later wait for this snapshot
                # A shallow copy is enough: changes of a table replace its parts.
                snapshot.by_name = {name: copy.copy(table) for name, table in resources.tables.by_name.items()}
                if len(self.open) >= SNAPSHOTS_OPEN_MAX or open_snapshot(self._mem, epoch, snapshot.words) != a.OK:
                    raise LimitExceeded(f"{SNAPSHOTS_OPEN_MAX} snapshots are open; close some")
                self.open[snapshot.view] = snapshot
                look(snapshot)
            resources.log.make_durable(sequence - 1)
        except BaseException:
            if snapshot is not None:
                snapshot.close()
            raise
        return snapshot

    def forget(self, snapshot: Snapshot) -> None:
        """Drop all versions kept for a closed snapshot. Repeating the call changes nothing."""
        release(self._mem, snapshot.view)
        self.open.pop(snapshot.view, None)
        self._resources.users.unpin(snapshot)

    def close_all(self) -> None:
        """Close every open snapshot."""
        for snapshot in list(self.open.values()):
            snapshot.close()

    def counters(self) -> dict[str, Any]:
        """Return the counters for `status()`: open snapshots that were not dropped, and the version store."""
        mem = self._mem
        epochs = [each.epoch for view, each in list(self.open.items()) if find_view(mem, view) == a.OK]
        return {
            "open": len(epochs),
            "oldest_epoch": min(epochs, default=None),
            "used_bytes": int(mem[a.S_VERSION_HEAD] - mem[a.S_VERSION_TAIL]) * WORD_BYTES,
            "size_bytes": int(mem[a.S_VERSION_RING_WORDS]) * WORD_BYTES,
            "versions_kept": int(mem[a.S_VERSIONS_KEPT]),
            "dropped": int(mem[a.S_VIEWS_ABANDONED]),
        }


class Snapshot(View):
    """A view of all tables of a store as at the end of an epoch. May be used by any thread."""

    by_name: dict[str, Table]
    log_start = (0, 1)  # LSN and sequence where the log continues after its epoch

    def __init__(self, store: Resources, opened: Snapshots, epoch: int) -> None:
        """Create a snapshot. opened: the list it is removed from when it is closed."""
        super().__init__(store.views, words=np.zeros(2, dtype=np.int64))
        self.store = store
        self._opened = opened
        self.epoch = epoch
        self.by_name = {}
        self.is_closed = False

    def close(self) -> None:
        """Close the snapshot and release the versions kept for it. Closing again does nothing."""
        self.is_closed = True
        try:
            self._opened.forget(self)
        except MemoryError:  # otherwise its versions would be kept until the store is closed
            self._opened.forget(self)

    def check(self) -> None:
        """Check that its rows can be read. Raises: SnapshotClosed, SnapshotTooOld, StoreFailed."""
        if self.store.failure.first is not None:
            self.store.failure.check()
        self.settled(find_view(self.mem, self.view))

    def settled(self, status: int) -> int:
        """Return the status of a kernel that read for this snapshot. Raises: SnapshotClosed, SnapshotTooOld."""
        if status in (a.ST_TOO_OLD, a.ST_DROPPED) and self.is_closed:
            raise SnapshotClosed("the snapshot is closed; open another one with db.snapshot()", epoch=self.epoch)
        if status == a.ST_DROPPED:
            raise InvariantBroken(f"a table of the open snapshot of epoch {self.epoch} has been withdrawn; report this")
        return super().settled(status)

    def too_old(self) -> SnapshotTooOld:
        if find_view(self.mem, self.view) == a.OK:
            return SnapshotTooOld(
                f"the snapshot of epoch {self.epoch} has lost the disk part of a row that was changed since: it was too"
                " large to keep, or not in memory; read without that column, or open another snapshot",
                epoch=self.epoch,
            )
        return SnapshotTooOld(
            f"the snapshot of epoch {self.epoch} was dropped: the rows changed since do not fit into snapshot_memory;"
            " open another snapshot, or open the store with a larger snapshot_memory"
            f" ({larger('snapshot_memory', self.store.options.snapshot_memory_bytes)})",
            epoch=self.epoch,
        )

    @property
    def version_words(self) -> int:
        """The words of old versions that are kept for all snapshots."""
        return int(self.mem[a.S_VERSION_HEAD] - self.mem[a.S_VERSION_TAIL])

    def table_of(self, name: str) -> Table:
        """Return the table of this name, as it was defined. Raises: NoSuchTable, and as `check`."""
        self.check()
        found = self.by_name.get(qualified_name(name))
        if found is None:
            raise no_such_table(name, self.by_name, " in the snapshot")
        return found


T = TypeVar("T", bound=Snapshot)
