"""Small files of a fixed size in two sealed copies, held open so that a write never needs a descriptor (F48, RD1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tidemark.engine.base.errors import FileMissing, IoFailed
from tidemark.engine.sealed.sealed_layout import Words, is_sealed
from tidemark.engine.sealed.version import check_version

if TYPE_CHECKING:
    from tidemark.engine.files.protocol import File, Files

Names = tuple[str, str]


def read_sealed(files: Files, name: str, kind: int, size_bytes: int) -> Words | None:
    """Return the words of one copy, or None if it is missing, damaged or unreadable. Raises: VersionTooNew,
    VersionTooOld.
    """
    words = np.zeros(size_bytes // 8, dtype=np.int64)
    try:
        file = files.open(name, False)
    except FileMissing:
        return None
    try:
        if files.size(file) < size_bytes:
            return None
        files.pread_into(file, 0, words.data.cast("B"))
    except IoFailed:
        if files.failure.first is not None:
            raise
        return None
    finally:
        files.close(file)
    if not is_sealed(words, kind, words.size):
        return None
    check_version(words, name)
    return words


def open_both(files: Files, names: Names, size_bytes: int) -> tuple[File, File]:
    """Open both copies, writable. A missing copy is created; it does not count until it is written."""
    missing = [name for name in names if not files.exists(name)]
    for name in missing:
        file = files.create(name, size_bytes)
        files.fdatasync(file)
        files.close(file)
    # This also makes all names in the directory durable that a killed process created or removed.
    files.sync_directory("")
    return files.open(names[0], True), files.open(names[1], True)


def write_copy(files: Files, copy: File, words: Words) -> None:
    """Write one copy, sealed already. Durable on return."""
    files.pwrite(copy, 0, words)
    files.fdatasync(copy)
