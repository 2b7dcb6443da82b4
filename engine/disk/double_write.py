"""The double-write file: pages go there first, so that a page torn in its place can be written again (D7, F20).

Order of writes of a batch: the data files are durable as the batch before left them; header and copies in one write;
synced; then the pages in their places. So a header that is not intact, or a copy that does not have the checksum the
header gives, means that nothing was begun in place.

Stale copies of older batches may lie behind a shorter one; the checksums in the header keep them from being taken for
this batch's.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from engine.errors import FileMissing, ForeignFile, IoFailed, PageDamaged
from engine.layout.disk import DOUBLE_WRITE, DOUBLE_WRITE_PAGES_MAX, DP_PAGE
from engine.layout.sealed import (
    KIND_DISK_PAGE,
    KIND_DOUBLE_WRITE,
    check_version,
    header_of,
    is_sealed,
    seal,
    store_of,
    write_seal,
)

if TYPE_CHECKING:
    from collections.abc import Generator

    from engine.file_protocol import File, Files
    from engine.layout.sealed import Words

FILE_NAME = "double-write"
HEADER_WORDS = DOUBLE_WRITE.itemsize // 8
HEADER_BYTES = DOUBLE_WRITE.itemsize


class Places(Protocol):
    """Where pages lie."""

    def place(self, page: int) -> tuple[File, int]:
        """File and byte offset of a page. Raises: FileMissing or PageDamaged if it is of no file there is."""
        ...

    def sync_files(self) -> None:
        """Make every data file that was written durable. Raises: SyncFailed."""
        ...


def create_double_write(files: Files, page_bytes: int) -> None:
    """Make the file, with room for a full batch of such pages; in the store's directory. Durable on return."""
    file = files.create(FILE_NAME, HEADER_BYTES + DOUBLE_WRITE_PAGES_MAX * page_bytes)
    files.fdatasync(file)
    files.close(file)
    files.sync_directory("")


class DoubleWrite:
    """Writer of the double-write file of an open store; one thread at a time."""

    def __init__(self, files: Files, identity: tuple[bytes, int]) -> None:
        self._files = files
        self._identity = identity
        self._file = files.open(FILE_NAME, writable=True)
        self.batches = 0

    def write_batch(self, batch: Words, numbers: list[int], page_words: int) -> None:
        """Write sealed pages; they stand in `batch` behind HEADER_WORDS words for the header. Durable on return.

        The data files are durable already: what the file held until now is lost. Raises: StorageFull, SyncFailed.
        """
        self.batches += 1
        header = header_of(batch, DOUBLE_WRITE)
        batch[:HEADER_WORDS] = 0
        write_seal(header, KIND_DOUBLE_WRITE, HEADER_WORDS, *self._identity)
        header["batch"] = self.batches
        header["pages"] = len(numbers)
        header["page_bytes"] = page_words * 8
        header["numbers"][: len(numbers)] = numbers
        copies = batch[HEADER_WORDS:].reshape(-1, page_words)
        header["checksums"][: len(numbers)] = copies[: len(numbers), 0] & 0xFFFFFFFF
        seal(batch, HEADER_WORDS)
        self._files.pwrite(self._file, 0, batch[: HEADER_WORDS + len(numbers) * page_words])
        self._files.fdatasync(self._file)

    def close(self) -> None:
        """Close the file."""
        self._files.close(self._file)


def is_page(words: Words, page: int, page_words: int, store: bytes) -> bool:
    """Whether this is an intact page of this store with this number."""
    return (
        is_sealed(words, KIND_DISK_PAGE, page_words)
        and int(words[1]) >> 32 == page_words
        and store_of(words) == store
        and int(words[DP_PAGE]) == page
    )


def mend(files: Files, places: Places, store: bytes) -> int:
    """Write pages that are torn in their places again; how many. Durable on return; doing it twice does no harm.

    A page that is bad in its place and in the file is left alone: who asks for it gets PageDamaged. Raises:
    ForeignFile, VersionTooNew, SyncFailed, StorageFull.
    """
    repaired = 0
    with closing(_torn(files, places, store)) as torn:  # a write that fails must not leave the file to the collector
        for _, target, offset, copy in torn:
            files.pwrite(target, offset, copy)
            repaired += 1
    if repaired:
        places.sync_files()
    return repaired


def torn_pages(files: Files, places: Places, store: bytes) -> list[int]:
    """Pages `mend` would write again. Nothing is changed. Raises: ForeignFile, VersionTooNew."""
    return [page for page, _, _, _ in _torn(files, places, store)]


def _torn(files: Files, places: Places, store: bytes) -> Generator[tuple[int, File, int, Words], None, None]:
    """Pages that are torn in their places: number, file, offset, intact copy."""
    if not files.exists(FILE_NAME):
        return
    file = files.open(FILE_NAME)
    try:
        header = _read_header(files, file, store)
        if header is None:
            return
        page_words = int(header["page_bytes"]) // 8
        for number in range(min(int(header["pages"]), DOUBLE_WRITE_PAGES_MAX)):
            found = _torn_page(files, places, file, header, number, page_words, store)
            if found is not None:
                yield int(header["numbers"][number]), *found
    finally:
        files.close(file)


def _read_header(files: Files, file: File, store: bytes) -> Any:
    words = _read(files, file, 0, HEADER_WORDS)
    if words is None or not is_sealed(words, KIND_DOUBLE_WRITE, HEADER_WORDS):
        return None
    check_version(words, FILE_NAME)
    if store_of(words) != store:
        raise ForeignFile(f"{FILE_NAME} belongs to another store; put the right one back", file=FILE_NAME)
    return header_of(words, DOUBLE_WRITE)


def _torn_page(
    files: Files, places: Places, file: File, header: Any, number: int, page_words: int, store: bytes
) -> tuple[File, int, Words] | None:
    """Where a page of the batch is torn, and its intact copy; None if it is not torn, or the copy is no better."""
    page = int(header["numbers"][number])
    try:
        target, offset = places.place(page)
    except (FileMissing, PageDamaged):
        return None  # a data file that was dropped since
    held = _read(files, target, offset, page_words)
    # All zero is a page that was never written: the write in place was lost whole, as if it had not been begun.
    if held is not None and (is_page(held, page, page_words, store) or not held.any()):
        return None
    copy = _read(files, file, HEADER_BYTES + number * page_words * 8, page_words)
    if copy is None or not is_page(copy, page, page_words, store):
        return None
    return (target, offset, copy) if int(copy[0]) & 0xFFFFFFFF == int(header["checksums"][number]) else None


def _read(files: Files, file: File, offset: int, words: int) -> Words | None:
    """So many words, None if they are not there or cannot be read: nothing has been promised yet (F41)."""
    buffer = np.zeros(words, dtype=np.int64)
    try:
        got = files.pread_into(file, offset, buffer)
    except IoFailed:
        if files.failure.first is not None:
            raise
        return None
    return buffer if got == words * 8 else None
