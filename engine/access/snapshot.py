"""Open snapshots of a store: when they begin and end, and which tables they show (docs/access.md, section 11).

What rows were is the business of the version store in the arena (`engine/txn/versions_kernels.py`); here is who may
ask. A snapshot holds its tables as they were defined at its epoch and pins what is dropped meanwhile.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, TypeVar

from tidemark.engine.base.errors import (
    InvariantBroken,
    LimitExceeded,
    MemoryExhausted,
    NoSuchTable,
    SnapshotClosed,
    SnapshotTooOld,
)
from tidemark.engine.base.limits import SNAPSHOTS_OPEN_MAX
from tidemark.engine.memory.arena_layout import (
    BLOCK_WORDS,
    OK,
    S_SNAPSHOTS_GIVEN_UP,
    S_VERSION_HEAD,
    S_VERSION_RING_WORDS,
    S_VERSION_TAIL,
    S_VERSIONS_KEPT,
    ST_DROPPED,
    ST_MORE,
    ST_SPACE,
    ST_TOO_OLD,
)
from tidemark.engine.schema.names import qualified_name
from tidemark.engine.schema.row_layout import WORD_BYTES
from tidemark.engine.txn.versions_kernels import (
    close_snapshot,
    cut_versions,
    find_snapshot,
    open_snapshot,
    setup_versions,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from tidemark.engine.base.options import Options
    from tidemark.engine.table.table import Table
    from tidemark.engine.txn.transactions import Transactions

CUT_ENTRIES = 2_000  # of one kernel call: each is a cache line


def version_words(options: Options) -> int:
    """Words of arena behind `data_memory` that the version store takes; touched as old rows are kept."""
    return options.snapshot_memory_bytes // WORD_BYTES // BLOCK_WORDS * BLOCK_WORDS


class Snapshots:
    """The snapshots of one open store, which holds this and is not held by it: else they were a cycle."""

    def __init__(self, store: Transactions) -> None:
        """Lays the version store out. Raises: MemoryExhausted."""
        self._mem = store.mem
        self.open: dict[int, Snapshot] = {}  # by epoch, oldest first; looked at as a copy
        words = version_words(store.options)
        if setup_versions(store.mem, store.arena.take_region(words), words) != OK:
            raise MemoryExhausted("snapshot_memory is too small for a version store; open with a larger one")

    def begin(self, store: Transactions, kind: type[T], look: Callable[[T], None] = lambda snapshot: None) -> T:
        """Close the open epoch and show the tables as at its end. Durable on return: what is shown.

        look: called with the latch held, while rows are in memory as the snapshot shows them.
        Waits for commits that are being applied in slices, then for the log. Raises: LimitExceeded, StoreFailed.
        """
        store.failure.check()
        snapshot: T | None = None
        try:
            with store.latch:
                # Always, though it may have no commits: what a signal kept from being counted is in it too.
                epoch, lsn, sequence = store.epochs.close()
                snapshot = kind(store, self, epoch)
                snapshot.log_start = (lsn, sequence)
                store.pin(snapshot)  # before the list of tables is read: what is dropped later waits for this one
                snapshot.by_name = {name: _frozen(table) for name, table in store.tables.items()}
                self.open[epoch] = snapshot
                status = open_snapshot(store.mem, epoch)
                if status == ST_SPACE:
                    raise LimitExceeded(f"{SNAPSHOTS_OPEN_MAX} snapshots are open; close some")
                if status != OK:
                    raise store.fail(InvariantBroken(f"epoch {epoch} is not the latest of all snapshots; reopen"))
                look(snapshot)
            store.log.make_durable(sequence - 1)
        except BaseException:
            if snapshot is not None:
                snapshot.close()
            raise
        return snapshot

    def forget(self, snapshot: Snapshot) -> None:
        """A snapshot is closed: nothing is kept for it any more. Doing it again changes nothing."""
        mem = self._mem
        close_snapshot(mem, snapshot.epoch)
        while cut_versions(mem, CUT_ENTRIES) == ST_MORE:
            pass
        self.open.pop(snapshot.epoch, None)
        snapshot.store.unpin(snapshot)

    def close_all(self) -> None:
        """Close every open snapshot."""
        for snapshot in list(self.open.values()):
            snapshot.close()

    def counters(self) -> dict[str, Any]:
        """For `status()`: those that are open and were not given up, and the version store."""
        mem = self._mem
        epochs = [epoch for epoch in list(self.open) if find_snapshot(mem, epoch) == OK]
        return {
            "open": len(epochs),
            "oldest_epoch": min(epochs, default=None),
            "used_bytes": int(mem[S_VERSION_HEAD] - mem[S_VERSION_TAIL]) * WORD_BYTES,
            "size_bytes": int(mem[S_VERSION_RING_WORDS]) * WORD_BYTES,
            "versions_kept": int(mem[S_VERSIONS_KEPT]),
            "given_up": int(mem[S_SNAPSHOTS_GIVEN_UP]),
        }


def _frozen(table: Table) -> Table:
    """A table as it is defined now: what changes of it is replaced, never changed in place."""
    return copy.copy(table)


class Snapshot:
    """The tables of a store as at the end of an epoch. May be used by any thread."""

    by_name: dict[str, Table]
    log_start = (0, 1)  # LSN and sequence where the log goes on behind its epoch

    def __init__(self, store: Transactions, opened: Snapshots, epoch: int) -> None:
        """opened: the list it is taken off when it is closed."""
        self.store = store
        self._opened = opened
        self.mem = store.mem
        self.epoch = epoch
        self.by_name = {}
        self.is_closed = False

    def close(self) -> None:
        """Show nothing any more, and let go of what was kept for it. Closing again does nothing."""
        self.is_closed = True
        try:
            self._opened.forget(self)
        except MemoryError:  # else its versions would be kept until the store is closed
            self._opened.forget(self)

    def check(self) -> None:
        """Raises: SnapshotClosed, SnapshotTooOld, StoreFailed unless its rows can be read."""
        if self.store.failure.first is not None:
            self.store.failure.check()
        self.settled(find_snapshot(self.mem, self.epoch))

    def settled(self, status: int) -> int:
        """The status of a kernel that read for this snapshot. Raises: SnapshotClosed, SnapshotTooOld."""
        if status not in (ST_TOO_OLD, ST_DROPPED):
            return int(status)
        if self.is_closed:
            raise SnapshotClosed("the snapshot is closed; open another one with db.snapshot()", epoch=self.epoch)
        if status == ST_DROPPED:
            raise InvariantBroken(f"a table of the open snapshot of epoch {self.epoch} has been withdrawn; report this")
        if find_snapshot(self.mem, self.epoch) == OK:
            raise SnapshotTooOld(
                f"the snapshot of epoch {self.epoch} has lost the disk part of a row that was changed since: it was too"
                " large to keep, or not in memory; read without that column, or open another snapshot",
                epoch=self.epoch,
            )
        raise SnapshotTooOld(
            f"the snapshot of epoch {self.epoch} was given up: rows changed since are more than snapshot_memory holds;"
            " open another one, or the store with a larger snapshot_memory",
            epoch=self.epoch,
        )

    def table_of(self, name: str) -> Table:
        """The table of this name, as it was defined. Raises: NoSuchTable, and as `check`."""
        self.check()
        found = self.by_name.get(name)
        if found is None:
            found = self.by_name.get(qualified_name(name))
        if found is None:
            raise NoSuchTable(f"table {name!r} does not exist in the snapshot; see tables()", table=name)
        return found


T = TypeVar("T", bound=Snapshot)
