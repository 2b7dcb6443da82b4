"""A snapshot of a store and its place in the binlog, as one thing: what FLUSH TABLES WITH READ LOCK is for at a server.

Invariants: (V1) A snapshot shows the rows as at the end of an epoch, and its place is the end of this epoch in the
synced binlog. A reader that takes the rows, and follows from the place, gets every change once. (V2) While a connection
holds the lock, other connections of its user get snapshots of its moment, as at a server, where nothing changes then: a
reader with several connections takes one state with all of them.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from tidemark.engine.access.snapshot import Snapshot
from tidemark.engine.base.errors import PositionLost
from tidemark.replication.binlog.reader import find_epoch
from tidemark.replication.binlog.writer import SyncedEnd
from tidemark.replication.mysql_source.gtids import executed_of
from tidemark.replication.mysql_source.packets import Refused
from tidemark.replication.mysql_source.protocol_layout import ER_LIMIT

if TYPE_CHECKING:
    from tidemark.engine.store.store import Store
    from tidemark.replication.binlog.position import Position
    from tidemark.replication.injector.attached import AttachedBinlog
    from tidemark.replication.mysql_source.gtid_sets import GtidSet

SNAPSHOTS_MAX = 16
SECONDS_MAX = 3_600


class ServedSnapshot:
    """One snapshot for a client. `rows` is the store's snapshot, whose tables are `rows.by_name`.

    is_locked: whether the client holds the lock; other snapshots of its user then share the rows.
    """

    def __init__(self, owner: ServedSnapshots, user: str, rows: Snapshot, served: SyncedEnd, begun_s: float) -> None:
        self._owner = owner
        self.user = user
        self.rows = rows
        self._served = served
        self.begun_s = begun_s
        self.is_locked = False

    @property
    def place(self) -> Position:
        """The end of its epoch: what the position of SHOW MASTER STATUS is while the snapshot is open."""
        return self._served.end

    def shared(self) -> ServedSnapshot:
        """Return another snapshot of the same rows and the same time."""
        return ServedSnapshot(self._owner, self.user, self.rows, self._served, self.begun_s)

    @property
    def executed(self) -> GtidSet | None:
        """The numbers of all transactions up to the place; None without numbers."""
        history = self._served.history
        return None if history is None else executed_of(self._served.number, history)

    def check(self) -> None:
        """Check that its rows can be read. Raises: Refused after its time, SnapshotTooOld, StoreFailed."""
        self._owner.close_expired()
        if self.rows.is_closed:
            raise Refused(ER_LIMIT, f"The snapshot was open for more than {SECONDS_MAX} s and is closed; begin again")
        self.rows.check()

    def close(self) -> None:
        """Release the rows. A second call does nothing."""
        self._owner.forget(self)


class ServedSnapshots:
    """The snapshots of all clients of a store. Any thread may call it."""

    def __init__(self, store: Store, binlog: AttachedBinlog) -> None:
        self._store = store
        self._binlog = binlog
        self._mutex = threading.Lock()
        self._open: list[ServedSnapshot | None] = []  # None: one that begins

    def begin(self, user: str = "") -> ServedSnapshot:
        """Take a snapshot of the end of the open epoch, which ends with this call; while the user holds the lock, one
        of the lock's moment. Durable on return: the epoch, here and in the binlog.

        Raises: Refused if too many are open, LimitExceeded, StorageFull, PositionLost, StoreFailed.
        """
        self.close_expired()
        with self._mutex:
            if len(self._open) >= SNAPSHOTS_MAX:
                raise Refused(ER_LIMIT, f"{SNAPSHOTS_MAX} snapshots are open; end one of them with COMMIT")
            for each in self._open:
                if each is not None and each.is_locked and each.user == user:
                    again = each.shared()
                    self._open.append(again)
                    return again
            self._open.append(None)
        made = None
        try:
            rows, served = self._taken()
            made = ServedSnapshot(self, user, rows, served, self._store.clock.monotonic())
        finally:
            with self._mutex:
                self._open.remove(None)
                if made is not None:
                    self._open.append(made)
        return made

    def _taken(self) -> tuple[Snapshot, SyncedEnd]:
        binlog = self._binlog
        with binlog.turn:  # no later epoch gets into the files
            rows = self._store.snapshots.begin(Snapshot)
            try:
                served = binlog.write_through(rows.epoch)
            except BaseException:
                rows.close()
                raise
        if served is not None:
            return rows, served
        try:
            binlog.reach(rows.epoch)
            end = binlog.durable_end()
            place = find_epoch(binlog.writer.files, rows.epoch, end, binlog.writer.index.folder, binlog.base)
            if place is None:
                raise PositionLost(f"the end of epoch {rows.epoch} is no longer in the binlog; try again")
        except BaseException:
            rows.close()
            raise
        return rows, SyncedEnd(place, 0, None)

    def close_expired(self) -> None:
        """Close the snapshots whose time is over; call it now and then, since an open one takes memory."""
        since = self._store.clock.monotonic() - SECONDS_MAX
        with self._mutex:
            expired = [each for each in self._open if each is not None and each.begun_s < since]
        for each in expired:
            each.close()

    def forget(self, snapshot: ServedSnapshot) -> None:
        """Close a snapshot; the last one that shares the rows releases them. A second call does nothing."""
        with self._mutex:
            if snapshot in self._open:
                self._open.remove(snapshot)
            is_shared = any(each is not None and each.rows is snapshot.rows for each in self._open)
        if not is_shared:
            snapshot.rows.close()

    def close(self) -> None:
        """Close all snapshots."""
        with self._mutex:
            found = [each for each in self._open if each is not None]
        for each in found:
            each.close()
