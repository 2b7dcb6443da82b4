"""Syncs the log of a member in a thread of its own, where commits do not wait for disks.

In that mode a commit is acknowledged when every member has it in memory (`RedoLog.share`). Groups are applied while
earlier ones are on their way to the disk, and one sync takes all groups that were applied in the meantime (ADR 0016).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tidemark.engine.base.errors import Error, InvariantBroken

if TYPE_CHECKING:
    from tidemark.engine.store.store import Store
    from tidemark.replication.node_group.stream import GroupStream


class Syncer:
    """The syncing thread of one life of a node."""

    def __init__(self, stream: GroupStream, failed: Callable[[Error], None]) -> None:
        """failed: called when the log can no longer be written."""
        self._stream = stream
        self._failed = failed
        self._turn = threading.Condition()
        self._syncing = threading.Lock()  # held while the store is used
        self._wanted: tuple[Store, int] | None = None
        self._is_stopped = False
        self._thread = threading.Thread(target=self._run, name="tidemark-node-sync", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread after the sync under way."""
        with self._turn:
            self._is_stopped = True
            self._turn.notify_all()
        if self._thread.ident is not None:
            self._thread.join()

    def sync(self, store: Store, sequence: int) -> None:
        """Request a sync of applied groups up to this one; the thread reports it to the stream."""
        with self._turn:
            self._wanted = store, sequence
            self._turn.notify_all()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Use no store within the block; the pending sync is dropped."""
        with self._syncing:
            with self._turn:
                self._wanted = None
            yield

    def _run(self) -> None:
        try:
            while self._next():
                pass
        except Error as error:
            self._failed(error)
        except Exception as error:
            self._failed(InvariantBroken(f"the thread that syncs the log failed: {error!r}; report this"))
            raise

    def _next(self) -> bool:
        with self._turn:
            self._turn.wait_for(lambda: self._is_stopped or self._wanted is not None)
            if self._is_stopped:
                return False
        with self._syncing:
            with self._turn:
                wanted, self._wanted = self._wanted, None
            if wanted is not None:
                store, sequence = wanted
                store.log.make_durable(sequence)
                self._stream.synced_through(sequence)
        return True
