"""The files of a ring as its readers use them: read at any place and, at a restart, written again."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np

from tidemark.engine.base.errors import Damaged, ForeignFile, IoFailed
from tidemark.engine.log.geometry import open_files

if TYPE_CHECKING:
    from tidemark.engine.files.protocol import Files
    from tidemark.engine.log.geometry import Geometry
    from tidemark.engine.memory.arena import Words


class RingReader:
    """Reads the ring of one store."""

    error_class: ClassVar[type[Damaged]]

    def __init__(self, files: Files, geometry: Geometry, store: bytes, writable: bool) -> None:
        """Open all files. Raises: FileMissing, FileTruncated."""
        self._files = files
        self._geometry = geometry
        self._store = store
        self._handles = open_files(files, geometry, writable)

    def close(self) -> None:
        """Close the files."""
        for handle in self._handles:
            self._files.close(handle)
        self._handles = []

    def _place(self, position: int) -> tuple[str, int]:
        number, offset, _, _ = self._geometry.pieces(position, 8)[0]
        return self._geometry.name(number), offset

    def _foreign(self, position: int) -> ForeignFile:
        name, offset = self._place(position)
        return ForeignFile(f"{name} belongs to another store; put the right one back", file=name, offset=offset)

    def _fill(self, position: int, words: Words) -> None:
        view = words.data.cast("B")
        for number, offset, start, length in self._geometry.pieces(position, len(view)):
            try:
                self._files.pread_into(self._handles[number], offset, view[start : start + length])
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
