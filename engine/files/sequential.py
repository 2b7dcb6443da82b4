"""A file that is written once, from its beginning to its end, and synced now and then."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidemark.engine.files.protocol import Buffer, File, Files

SYNC_BYTES = 16 << 20


class SequentialFile:
    """One such file. The first write creates it; without a write there is no file."""

    def __init__(self, files: Files, name: str, sync_bytes: int = SYNC_BYTES) -> None:
        """sync_bytes: bytes between syncs; one long sync at the end would hold up all other syncs."""
        self._files = files
        self._name = name
        self._sync_bytes = sync_bytes
        self._file: File | None = None
        self._unsynced_bytes = 0
        self.size_bytes = 0

    def write(self, piece: Buffer) -> None:
        """Append bytes. Raises: StorageFull, Rejected if the name is not free, IoFailed, SyncFailed."""
        if self._file is None:
            self._file = self._files.create(self._name)
        size_bytes = memoryview(piece).nbytes
        self._files.pwrite(self._file, self.size_bytes, piece)
        self.size_bytes += size_bytes
        self._unsynced_bytes += size_bytes
        if self._unsynced_bytes >= self._sync_bytes:
            self._files.fdatasync(self._file)
            self._unsynced_bytes = 0

    def close(self) -> None:
        """Sync and close. Durable on return: the content; the name needs a sync of the directory."""
        if self._file is not None and self._unsynced_bytes:
            self._files.fdatasync(self._file)
        self.leave()

    def leave(self) -> None:
        """Close the file as it is, without a sync. A second call does nothing."""
        file, self._file = self._file, None
        if file is not None:
            self._files.close(file)
