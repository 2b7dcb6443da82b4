"""Data files: `space/<file id>.data`, a first page that identifies the file, then extents of pages.

Order of writes: zeros → first page → sync → sync of the directory. Only then may a schema record name the file, so a
named file is complete. If a crash comes earlier, no record names the file, and it is removed (F13). A file whose
growth was interrupted has as many extents as fit into its size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tidemark.engine.base.errors import FileTruncated, ForeignFile, IoFailed, PageDamaged, StorageFull
from tidemark.engine.disk.cache_layout import FILE_ID_MAX
from tidemark.engine.disk.disk_layout import DATA_FILE, DATA_FILE_HEADER_BYTES
from tidemark.engine.files.durable_files import check_room, make_folder
from tidemark.engine.sealed.sealed_layout import KIND_DATA_FILE, header_of, is_sealed, seal, store_of, write_seal
from tidemark.engine.sealed.version import check_version

if TYPE_CHECKING:
    from collections.abc import Set

    from tidemark.engine.disk.tablespaces import TablespaceDefinition
    from tidemark.engine.files.protocol import File, Files

FOLDER = "space"
SUFFIX = ".data"
PIECE_BYTES = 1 << 20  # size of each write of zeros


def file_name(file_id: int) -> str:
    """Return the name of a data file."""
    return f"{FOLDER}/{file_id}{SUFFIX}"


def file_bytes(definition: TablespaceDefinition, extents: int) -> int:
    """Return the size of a data file with this number of extents."""
    return definition.page_bytes + extents * definition.extent_bytes


def create_data_file(
    files: Files, identity: tuple[bytes, int], definition: TablespaceDefinition, file_id: int, extents: int, now_us: int
) -> File:
    """Create and open a zero-filled data file. Durable on return: content and name. Raises: StorageFull; then no file
    is left.
    """
    check_room(files, file_bytes(definition, extents), "the data file", "give a smaller size")
    make_folder(files, FOLDER)
    name = file_name(file_id)
    if files.exists(name):  # left by an interrupted call: no record names it
        files.unlink(name)
    file = files.create(name, file_bytes(definition, extents))
    file.read_errors_latch = False
    try:
        words = np.zeros(DATA_FILE_HEADER_BYTES // 8, dtype=np.int64)
        header = header_of(words, DATA_FILE)
        write_seal(header, KIND_DATA_FILE, words.size, *identity)
        header["file_id"] = file_id
        header["tablespace_id"] = definition.tablespace_id
        header["page_bytes"] = definition.page_bytes
        header["extent_pages"] = definition.extent_pages
        header["created_us"] = now_us
        seal(words, words.size)
        files.pwrite(file, 0, words)
        files.fdatasync(file)
        files.sync_directory(FOLDER)
    except StorageFull:
        files.close(file)
        files.unlink(name)
        raise
    return file


def open_data_file(files: Files, store: bytes, definition: TablespaceDefinition, file_id: int) -> tuple[File, int]:
    """Open a data file that a definition names; returns it and its number of extents.

    Raises: FileMissing, FileTruncated, ForeignFile (of another store or tablespace), PageDamaged (its first page),
    VersionTooNew.
    """
    name = file_name(file_id)
    file = files.open(name, True)
    file.read_errors_latch = False
    try:
        words = np.zeros(DATA_FILE_HEADER_BYTES // 8, dtype=np.int64)
        if _first_page(files, file, words.data.cast("B")) < DATA_FILE_HEADER_BYTES:
            raise FileTruncated(f"{name} ends in its first page; restore the store from a backup", file=name)
        if not is_sealed(words, KIND_DATA_FILE, words.size):
            raise PageDamaged(
                f"the first page of {name} fails its checksum; restore the store from a backup", file=name
            )
        if store_of(words) != store:
            raise ForeignFile(f"{name} belongs to another store; put the right one back", file=name)
        check_version(words, name)
        header = header_of(words, DATA_FILE)
        found = tuple(int(header[field]) for field in ("file_id", "tablespace_id", "page_bytes", "extent_pages"))
        if found != (file_id, definition.tablespace_id, definition.page_bytes, definition.extent_pages):
            raise ForeignFile(
                f"{name} is data file {found[0]} of tablespace number {found[1]}, not a file of tablespace"
                f" {definition.name}; put the right one back",
                file=name,
            )
        extents = max(files.size(file) - definition.page_bytes, 0) // definition.extent_bytes
    except BaseException:
        files.close(file)
        raise
    return file, extents


def _first_page(files: Files, file: File, view: memoryview) -> int:
    """Read the first page; returns the bytes read. Raises: PageDamaged if the disk cannot read it (F41)."""
    try:
        return files.pread_into(file, 0, view)
    except IoFailed as error:
        if files.failure.first is not None:
            raise
        raise PageDamaged(f"the first page of {file.name} cannot be read: {error.message}", file=file.name) from error


def grow_data_file(files: Files, file: File, definition: TablespaceDefinition, extents: int, count: int) -> int:
    """Append up to `count` extents of zeros to the first `extents`; returns how many the disk had room for.

    Nothing is durable on return. A partial extent is truncated. Raises: StorageFull if not even one fits.
    """
    start = file_bytes(definition, extents)
    stop = file_bytes(definition, extents + count)
    zeros = bytes(min(PIECE_BYTES, definition.extent_bytes))
    offset = start
    try:
        while offset < stop:
            piece = zeros[: min(len(zeros), stop - offset)]
            files.pwrite(file, offset, piece)
            offset += len(piece)
    except StorageFull:
        whole = (offset - start) // definition.extent_bytes
        files.truncate(file, file_bytes(definition, extents + whole))
        if whole == 0:
            raise
        return whole
    return count


def remove_unnamed(files: Files, named: Set[int]) -> list[str]:
    """Remove data files that no definition names, left by a crash while one was created or dropped; returns their
    names.
    """
    if not files.exists(FOLDER):
        return []
    removed = []
    for leaf in files.list(FOLDER):
        number = leaf.removesuffix(SUFFIX)
        is_ours = leaf.endswith(SUFFIX) and number.isascii() and number.isdigit() and str(int(number)) == number
        if is_ours and 1 <= int(number) <= FILE_ID_MAX and int(number) not in named:
            files.unlink(f"{FOLDER}/{leaf}")
            removed.append(f"{FOLDER}/{leaf}")
    return removed
