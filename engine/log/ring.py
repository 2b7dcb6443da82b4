"""The files of a ring as its readers use them: read at any place and, at a restart, written again."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from tidemark.engine.base.errors import Damaged, ForeignFile, IoFailed
from tidemark.engine.log.geometry import open_files

if TYPE_CHECKING:
    from tidemark.engine.files.protocol import File, Files
    from tidemark.engine.log.geometry import Geometry
    from tidemark.engine.memory.arena import Words


class RingReader:
    """Reads the ring of one store."""

    error_class: ClassVar[type[Damaged]]

    def __init__(self, files: Files, geometry: Geometry, store: bytes, writable: bool) -> None:
        """Open the files that there are. Raises: FileMissing, FileTruncated."""
        self._files = files
        self._geometry = geometry
        self._store = store
        self._is_writable = writable
        self._opening = threading.Lock()
        self._handles = open_files(files, geometry, writable)

    def close(self) -> None:
        """Close the files."""
        for handle in self._handles:
            self._files.close(handle)
        self._handles = []

    def _handle(self, number: int) -> File | None:
        """Return a file of the ring; None if it is not made yet. The store may have made it after this reader was
        opened.
        """
        if number < len(self._handles):
            return self._handles[number]
        with self._opening:
            while len(self._handles) <= number:
                name = self._geometry.name(len(self._handles))
                if not self._files.exists(name):
                    return None
                self._handles.append(self._files.open(name, self._is_writable))
        return self._handles[number]

    def _place(self, position: int) -> tuple[str, int]:
        number, offset, _, _ = self._geometry.pieces(position, 8)[0]
        return self._geometry.name(number), offset

    def _foreign(self, position: int) -> ForeignFile:
        name, offset = self._place(position)
        return ForeignFile(f"{name} belongs to another store; put the right one back", file=name, offset=offset)

    def _fill(self, position: int, words: Words) -> None:
        """Read words; those of files that are not made, or not whole yet, are zeros."""
        view = words.data.cast("B")
        for number, offset, start, length in self._geometry.pieces(position, len(view)):
            try:
                file = self._handle(number)
                piece = view[start : start + length]
                read = 0 if file is None else self._files.pread_into(file, offset, piece)
                if read < length:
                    piece[read:] = bytes(length - read)
            except IoFailed as error:
                if self._files.failure.first is not None:
                    raise
                # The store is being opened: an unreadable part of the log may have been acknowledged (F41).
                name = self._geometry.name(number)
                raise self.error_class(f"{name} cannot be read: {error.message}", file=name, offset=offset) from error

    def _write(self, position: int, words: Words) -> None:
        """Durable on return."""
        view = np.ascontiguousarray(words).data.cast("B")
        pieces = self._geometry.pieces(position, len(view))
        for number, offset, start, length in pieces:
            self._files.pwrite(self._handles[number], offset, view[start : start + length])
        for number, *_ in pieces:
            self._files.fdatasync(self._handles[number])
