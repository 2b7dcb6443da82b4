"""Small files of a fixed size in two sealed copies, held open so that a write never needs a descriptor (F48, RD1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemark.engine.base.errors import FileMissing, ForeignFile
from tidemark.engine.files.opened import Opened
from tidemark.engine.sealed.sealed_layout import Words
from tidemark.engine.sealed.units import read_unit

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tidemark.engine.files.protocol import File, Files

Names = tuple[str, str]


def read_sealed(files: Files, name: str, kind: int, size_bytes: int) -> Words | None:
    """Return the words of one copy, or None if it is missing, damaged or unreadable. Raises: VersionTooNew,
    VersionTooOld.
    """
    try:
        return read_unit(files, name, kind, size_bytes)
    except FileMissing:
        return None


def check_of_one_store(stores: Iterable[bytes], names: Names) -> None:
    """Check that the intact copies are of one store. Raises: ForeignFile."""
    if len(set(stores)) > 1:
        raise ForeignFile(
            f"{names[0]} and {names[1]} belong to different stores; put back the copy of this store", file=names[1]
        )


class TwoCopies:
    """Both copies, open and writable."""

    def __init__(self, files: Files, names: Names, size_bytes: int) -> None:
        """Open both. A missing copy is created; it does not count until it is written."""
        self._files = files
        for name in names:
            if not files.exists(name):
                with Opened(files, files.create(name, size_bytes)) as file:
                    files.fdatasync(file)
        # This also syncs the names in the directory that a killed process created or removed.
        files.sync_directory("")
        self._copies: list[File] = []
        try:
            for name in names:
                self._copies.append(files.open(name, True))
        except BaseException:
            self.close()
            raise

    def write(self, number: int, words: Words) -> None:
        """Write copy 0 or 1, sealed already. Durable on return."""
        self._files.pwrite(self._copies[number], 0, words)
        self._files.fdatasync(self._copies[number])

    def close(self) -> None:
        """Close both. A second call does nothing."""
        for copy in self._copies:
            self._files.close(copy)
