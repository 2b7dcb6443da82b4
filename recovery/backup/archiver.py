"""Keeps the archive of an open store running: attaches it to its place, and again after the place has failed.

A place that fails does not stop commits: the failure is counted, logged, and the next step tries again. The REDO log
keeps what the place lacks, because no local checkpoint is published before the archive has the log it would cut
(`Transactions.followers`). If the failure lasts, the log becomes full, and commits wait.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tidemark.engine.base.errors import Error, RedoDamaged, StorageFull, StoreClosed
from tidemark.engine.base.owner import call_owner
from tidemark.recovery.backup.archive import Archive

if TYPE_CHECKING:
    from tidemark.engine.files.protocol import Files
    from tidemark.engine.log.geometry import Geometry
    from tidemark.engine.store.store import Store

_log = logging.getLogger("tidemark.archive")


class Archiver:
    """Archives the log of one store into one place. Any thread may call any method."""

    def __init__(
        self,
        store: Store,
        files: Files,
        geometry: Geometry,
        identity: tuple[bytes, int],
        timeline: int,
        name: Any,
        open_place: Callable[[], Files],
    ) -> None:
        """files: of the store. name: the name of the place, for messages. From here on a local checkpoint is published
        only after the log through its epoch is archived. Call `attach` to open the place.
        """
        self._store = store
        self._files = files
        self._about = (geometry, identity, timeline)
        self.name = name
        self._open_place = open_place
        self._turn = threading.Lock()
        self._is_closed = False
        self.archive: Archive | None = None
        self._last: dict[str, Any] = {"last_epoch": 0, "lsn": 0, "segments": 0, "bytes_written": 0}
        self._earlier = {"segments": 0, "bytes_written": 0}  # by archives that were closed
        self.failures = 0
        self.last_error: str | None = None  # None while there is no error
        store.followers["archive"] = call_owner(self._reach)

    def _reach(self, epoch: int) -> None:
        """Archive the log through the epoch of a local checkpoint that is to be published. Raises: StorageFull."""
        with self._turn:
            try:
                archive = self._attached()
            except Error as error:
                self.failed(error)
                raise StorageFull(f"the archive cannot be opened, and the log waits for it: {error.message}") from error
            archive.reach(epoch)

    def attach(self) -> None:
        """Open the place and find where to continue. Raises: ForeignFile, FileMissing, Rejected, IoFailed, …"""
        with self._turn:
            self._attached()

    def _attached(self) -> Archive:
        if self._is_closed:
            raise StoreClosed("the store is closed, and its archive with it; open it again")
        if self.archive is None:
            place = self._open_place()
            try:
                self.archive = Archive(self._store, self._files, *self._about, place)
            except BaseException:
                place.close_all()
                raise
        return self.archive

    def copy(self) -> dict[str, Any]:
        """Archive all closed epochs. Durable on return: these epochs in the archive. Returns `status`. Raises: the
        errors of the place or the log. If the place has failed, the next call opens it again.
        """
        with self._turn:
            try:
                archive = self._attached()
                archive.copy()
            except Error as error:
                self.failed(error)
                raise
            if self.last_error is not None:
                _log.info("the log is archived to %s again, through epoch %d", self.name, archive.last_epoch)
                self.last_error = None
        return self.status()

    def step(self) -> bool:
        """Do `copy`, for timers; return whether it succeeded. Raises: StoreFailed if the store itself failed;
        RedoDamaged if the log cannot be read back.
        """
        try:
            self.copy()
        except Error as error:
            if self._files.failure.first is not None or isinstance(error, RedoDamaged):
                raise
            return False
        return True

    def failed(self, error: Error) -> None:
        """Count and log a failure of the place."""
        self.failures += 1
        if self.last_error != error.message:  # logged once, not at every step
            _log.warning("the log is not archived to %s: %s; it is kept until it can be", self.name, error.message)
        self.last_error = error.message
        archive = self.archive
        if archive is not None and archive.place_has_failed:
            self.let_go(archive)

    def let_go(self, archive: Archive) -> None:
        """Close the archive; the next step, or local checkpoint, opens the place again."""
        self._last = archive.status()
        for name in self._earlier:
            self._earlier[name] += self._last[name]
        self.archive = None
        archive.close()

    def status(self) -> dict[str, Any]:
        """Return the position of the archive, its writes since the store was opened, and the state of the place."""
        archive = self.archive
        found = self._last if archive is None else archive.status()
        written = {name: value + (0 if archive is None else found[name]) for name, value in self._earlier.items()}
        return {
            **found,
            **written,
            "place": str(self.name),
            "is_attached": archive is not None,
            "behind_bytes": max(0, self._store.log.durable_lsn - found["lsn"]),
            "failures": self.failures,
            "last_error": self.last_error,
        }

    def close(self) -> None:
        """Stop archiving: the log is then cut without the archive, and no later call opens the place again."""
        with self._turn:
            self._is_closed = True
            self._store.followers.pop("archive", None)
            if self.archive is not None:
                self.let_go(self.archive)
