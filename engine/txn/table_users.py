"""Users of tables: the memory of dropped tables and partitions is freed when nothing can read it any more."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING

from tidemark.engine.table.table import DroppedFragment, Table

if TYPE_CHECKING:
    from tidemark.engine.txn.locks import LockTable


class TableUsers:
    """The open transactions, and the holders of pins, that may use a table."""

    def __init__(self, locks: LockTable) -> None:
        self._locks = locks
        self.latch = threading.Lock()  # of schema changes
        # Dropped tables and partitions, each with the open transactions and scans that may still use its memory.
        self.dropped: list[tuple[Table | DroppedFragment, set[object]]] = []
        self.pins: set[object] = set()
        self._left: deque[object] = deque()  # users that ended while dropped memory waited for its last one

    def pin(self, holder: object) -> None:
        """Until `unpin`, keep the memory of tables dropped from now on, for a scan or a local checkpoint."""
        self.pins.add(holder)

    def unpin(self, holder: object) -> None:
        """End a pin: the holder no longer uses any table."""
        self.pins.discard(holder)
        if self.dropped:
            self.leave(holder)

    def _now(self) -> set[object]:
        """Return the transactions, by id, and the holders of pins that may use a table now."""
        return {*(place.txid for place in self._locks.open_now()), *self.pins}

    def release(self, dropped: Table | DroppedFragment) -> None:
        """Free the memory of a dropped table or partition when it has no more users. Call with `latch` held.

        It is listed before the users are read again: a user that leaves in between finds it in the list, or is missing
        from the second reading.
        """
        users = self._now()
        self.dropped.append((dropped, users))
        users.intersection_update(self._now())
        self._drop_unused()

    def leave(self, gone: object) -> None:
        """Note that a transaction, or the holder of a pin, no longer uses any table, while dropped ones wait for it.

        If the latch is held, memory is freed when the next user leaves: the holder may be this very thread, if a
        finalizer ends a pin in the middle of a schema change.
        """
        self._left.append(gone)
        if not self.latch.locked():
            with self.latch:
                self._drop_unused()

    def _drop_unused(self) -> None:
        """Free dropped memory whose last users have left. Call with `latch` held."""
        while self._left:
            gone = self._left.popleft()
            for _, users in self.dropped:
                users.discard(gone)
        for dropped, users in self.dropped:
            if not users:
                dropped.drop()  # repeated if Ctrl-C interrupted it; it skips structures already withdrawn
        self.dropped = [entry for entry in self.dropped if entry[1]]

    def has_dropped_fragments(self, table: Table) -> bool:
        """Whether a dropped partition of a table may still be in use."""
        dropped = [each for each, _ in list(self.dropped) if isinstance(each, DroppedFragment)]
        return any(each.table.handle == table.handle for each in dropped)
