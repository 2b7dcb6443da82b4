"""The double-write file: pages go there first, so that a page torn in its place can be written again (D7, F20).

Order of writes of a batch: the data files are durable with the previous batch; header and copies in one write; sync;
then the pages in place. So a damaged header, or a copy without the checksum in the header, means that no write in place
had begun.

Stale copies of older batches may follow a shorter batch; the checksums in the header tell them apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from tidemark.engine.base.errors import FileMissing, ForeignFile, IoFailed, PageDamaged
from tidemark.engine.disk.disk_layout import DOUBLE_WRITE, DOUBLE_WRITE_PAGES_MAX, DP_PAGE
from tidemark.engine.disk.tablespaces import PAGE_SIZES_BYTES
from tidemark.engine.sealed.sealed_layout import (
    KIND_DISK_PAGE,
    KIND_DOUBLE_WRITE,
    header_of,
    is_sealed,
    seal,
    store_of,
    write_seal,
)
from tidemark.engine.sealed.version import check_version

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tidemark.engine.files.protocol import File, Files
    from tidemark.engine.sealed.sealed_layout import Words

FILE_NAME = "double-write"
HEADER_WORDS = DOUBLE_WRITE.itemsize // 8
HEADER_BYTES = DOUBLE_WRITE.itemsize


class Places(Protocol):
    """The places of pages on disk."""

    def place(self, page: int) -> tuple[File, int]:
        """Return file and byte offset of a page. Raises: FileMissing or PageDamaged if no file has it."""

    def sync_files(self) -> None:
        """Make every data file that was written durable. Raises: SyncFailed."""


def create_double_write(files: Files, page_bytes: int) -> None:
    """Create the file in the store's directory, with room for a full batch of pages of this size. Durable on return."""
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
        """Write sealed pages; they are in `batch` after HEADER_WORDS words for the header. Durable on return.

        This overwrites the previous batch, so the data files must be durable. Raises: StorageFull, SyncFailed.
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


def rewrite_last_batch(files: Files, places: Places, store: bytes) -> int:
    """Write the pages of the last batch again, their copies first; returns how many were torn in their places.

    After a failed sync the page cache may have data that the disk lacks (F39), and the next batch overwrites the
    copies. Durable on return: those pages. May be repeated. A page that is bad in its place and in the file is left
    alone: a reader of it gets PageDamaged. Raises: ForeignFile, VersionTooNew, SyncFailed, StorageFull.
    """
    if not files.exists(FILE_NAME):
        return 0
    repaired = 0
    file = files.open(FILE_NAME, writable=True)
    try:
        found = list(_begun(files, places, file, store))
        for each in found:
            files.pwrite(file, each.copy_offset, each.copy)
        if found:
            header = _read(files, file, 0, HEADER_WORDS)
            if header is not None:
                files.pwrite(file, 0, header)
            files.fdatasync(file)
        for each in found:
            files.pwrite(each.target, each.offset, each.copy)
            repaired += each.is_torn
    finally:
        files.close(file)
    if found:
        places.sync_files()
    return repaired


def torn_pages(files: Files, places: Places, store: bytes) -> list[int]:
    """Return the pages that `rewrite_last_batch` would repair, without changing anything. Raises: ForeignFile,
    VersionTooNew.
    """
    if not files.exists(FILE_NAME):
        return []
    file = files.open(FILE_NAME)
    try:
        return [each.page for each in _begun(files, places, file, store) if each.is_torn]
    finally:
        files.close(file)


@dataclass(frozen=True)
class _Begun:
    """A page of the batch whose write in place had begun, and its intact copy."""

    page: int
    target: File
    offset: int
    copy: Words
    copy_offset: int
    is_torn: bool


def _begun(files: Files, places: Places, file: File, store: bytes) -> Iterator[_Begun]:
    """Yield the pages that are the same in their places as in the file, or torn there. If a place has an intact page
    other than the copy, its write in place had not begun: that page is durable from an earlier batch. A copy that is
    damaged or stale is left out.
    """
    header = _read_header(files, file, store)
    if header is None:
        return
    page_words = int(header["page_bytes"]) // 8
    for number in range(min(int(header["pages"]), DOUBLE_WRITE_PAGES_MAX)):
        page = int(header["numbers"][number])
        try:
            target, offset = places.place(page)
        except (FileMissing, PageDamaged):
            continue  # the data file was dropped since
        held = _read(files, target, offset, page_words)
        # A page of zeros was never written: its write in place was lost completely, as if it had not begun.
        if held is not None and not held.any():
            continue
        copy_offset = HEADER_BYTES + number * page_words * 8
        copy = _read(files, file, copy_offset, page_words)
        if copy is None or not is_page(copy, page, page_words, store):
            continue
        if int(copy[0]) & 0xFFFFFFFF != int(header["checksums"][number]):
            continue
        is_torn = held is None or not is_page(held, page, page_words, store)
        if held is None or is_torn or np.array_equal(held, copy):
            yield _Begun(page, target, offset, copy, copy_offset, is_torn)


def _read_header(files: Files, file: File, store: bytes) -> Any:
    words = _read(files, file, 0, HEADER_WORDS)
    if words is None or not is_sealed(words, KIND_DOUBLE_WRITE, HEADER_WORDS):
        return None
    check_version(words, FILE_NAME)
    if store_of(words) != store:
        raise ForeignFile(f"{FILE_NAME} belongs to another store; put the right one back", file=FILE_NAME)
    header = header_of(words, DOUBLE_WRITE)
    # No version of Tidemark writes such a header (F112), so no write in place followed it.
    return header if 0 < int(header["page_bytes"]) <= PAGE_SIZES_BYTES[-1] else None


def _read(files: Files, file: File, offset: int, words: int) -> Words | None:
    """Read `words` words; None if they are missing or unreadable: nothing has been acknowledged yet (F41)."""
    buffer = np.zeros(words, dtype=np.int64)
    try:
        got = files.pread_into(file, offset, buffer)
    except IoFailed:
        if files.failure.first is not None:
            raise
        return None
    return buffer if got == words * 8 else None
