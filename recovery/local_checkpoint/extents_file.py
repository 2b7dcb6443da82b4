"""Extents file: the extent headers of a local checkpoint, `lcp/<id>-extents.data` (ADR 0009).

The headers are copied from the arena under the commit latch when the epoch is closed, and are written later, from the
copy. Space that transactions have reserved counts as free in them: reservations end with the process.

Order of writes: blocks → sync, before the control file that has its counts. Damage is reported as `DataFileDamaged`:
the local checkpoint is then unusable for disk columns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tidemark.engine.base.errors import Damaged, FileTruncated, ForeignFile, IoFailed, LcpDamaged
from tidemark.engine.disk import disk_layout as d
from tidemark.engine.disk.cache_layout import EXTENT_PAGES_MAX, EXTENT_PAGES_MIN
from tidemark.engine.disk.space import header_words
from tidemark.engine.files.opened import Opened
from tidemark.engine.files.sequential import SequentialFile
from tidemark.engine.rows.lcp_layout import EXTENTS_FRAGMENT, EXTENTS_TABLE, UNIT_WORDS_MIN
from tidemark.engine.sealed.sealed_layout import KIND_EXTENTS, SEAL, header_of, is_sealed, seal, store_of, write_seal
from tidemark.engine.sealed.version import check_version
from tidemark.recovery.local_checkpoint.data_file import FOLDER
from tidemark.recovery.system_restart.load import DataFileDamaged

if TYPE_CHECKING:
    from tidemark.engine.disk.space import Space
    from tidemark.engine.files.protocol import File, Files
    from tidemark.engine.memory.arena import Words
    from tidemark.engine.store.store import Store

BLOCK_WORDS = (256 << 10) // 8
BLOCK_HEADER_WORDS = d.EXTENTS.itemsize // 8
Sizes = tuple[int, int, int]  # extents, blocks, bytes


def extents_name(lcp_id: int) -> str:
    return f"{FOLDER}/{lcp_id}-extents.data"


def copy_headers(space: Space) -> Words:
    """Copy the current headers of all extents that tables have or had. The caller holds the commit latch."""
    files = [file for tablespace in space.tablespaces() for file in tablespace.files]
    parts = [part for file in files for part in space.extent_headers(file)]
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)


# --- writing ------------------------------------------------------------------------------------
def write_extents(files: Files, identity: tuple[bytes, int], lcp_id: int, headers: Words) -> Sizes:
    """Write copied headers. Durable on return: the content; the name needs a sync of the directory.

    Return extents, blocks and bytes, for the control file. Raises: StorageFull.
    """
    out = SequentialFile(files, extents_name(lcp_id))
    try:
        at = extents = blocks = 0
        while blocks == 0 or at < headers.size:
            stop, count = _block_end(headers, at)
            words = np.zeros(max(UNIT_WORDS_MIN, BLOCK_HEADER_WORDS + stop - at), dtype=np.int64)
            header = header_of(words, d.EXTENTS)
            write_seal(header, KIND_EXTENTS, words.size, *identity)
            header["lcp_id"] = lcp_id
            header["number"] = blocks
            header["is_last"] = int(stop == headers.size)
            header["extents"] = count
            header["used_words"] = stop - at
            words[BLOCK_HEADER_WORDS : BLOCK_HEADER_WORDS + stop - at] = headers[at:stop]
            seal(words, words.size)
            out.write(words.data.cast("B"))
            at, extents, blocks = stop, extents + count, blocks + 1
        out.close()
    finally:
        out.leave()
    return extents, blocks, out.size_bytes


def _block_end(headers: Words, at: int) -> tuple[int, int]:
    """Return the end of the block that begins at `at`, and the number of its headers: as many as fit whole."""
    limit = at + BLOCK_WORDS - BLOCK_HEADER_WORDS
    count = 0
    while at < headers.size and (stop := at + header_words(int(headers[at + 2]))) <= limit:
        at, count = stop, count + 1
    return at, count


# --- reading ------------------------------------------------------------------------------------
def read_extents(files: Files, store: bytes, lcp_id: int, expected: Sizes) -> Words:
    """Return all headers of an extents file, checked, as consecutive words. `expected`: the sizes in the control file.

    Raises: DataFileDamaged (damaged, missing or unreadable), ForeignFile, VersionTooNew.
    """
    name = extents_name(lcp_id)
    try:
        with Opened(files, files.open(name, False)) as file:
            return _read(files, file, name, store, lcp_id, expected)
    except ForeignFile:
        raise
    except (Damaged, IoFailed) as error:
        if files.failure.first is not None:
            raise
        raise DataFileDamaged((lcp_id, EXTENTS_TABLE, EXTENTS_FRAGMENT), error) from error


def _read(files: Files, file: File, name: str, store: bytes, lcp_id: int, expected: Sizes) -> Words:
    size = files.size(file)
    if size < expected[2]:
        raise FileTruncated(f"{name} has {size} of {expected[2]} bytes", file=name)
    words = np.zeros(expected[2] // 8, dtype=np.int64)
    files.pread_into(file, 0, words.data.cast("B"))
    parts: list[Words] = []
    at = extents = 0
    while at < words.size:
        block = words[at:]
        if block.size < UNIT_WORDS_MIN or not is_sealed(block, KIND_EXTENTS, block.size):
            raise LcpDamaged(f"{name} fails its checksum at {at * 8}", file=name, offset=at * 8)
        if store_of(block) != store:
            raise ForeignFile(f"{name} belongs to another store; put the right one back", file=name)
        check_version(block, name)
        header, count = header_of(block, d.EXTENTS), int(header_of(block, SEAL)["words"])
        used, is_last = int(header["used_words"]), at + count == words.size
        place = (int(header["lcp_id"]), int(header["number"]), int(header["is_last"]))
        if place != (lcp_id, len(parts), int(is_last)) or used > count - BLOCK_HEADER_WORDS:
            raise LcpDamaged(f"{name} holds a block of another file at {at * 8}", file=name, offset=at * 8)
        parts.append(block[BLOCK_HEADER_WORDS : BLOCK_HEADER_WORDS + used])
        extents += int(header["extents"])
        at += count
    headers = np.concatenate(parts) if parts else words
    if (extents, len(parts)) != expected[:2] or _count(headers) != extents:
        raise LcpDamaged(f"{name} does not have the {expected[0]} extents of its control file", file=name)
    return headers


def _count(headers: Words) -> int:
    """Return the number of whole headers; -1 if they do not fill the words exactly. Every length is checked (F112)."""
    at = count = 0
    while at + d.EXTENT_HEADER_WORDS <= headers.size:
        pages = int(headers[at + 2])
        if not EXTENT_PAGES_MIN <= pages <= EXTENT_PAGES_MAX:
            return -1
        at += header_words(pages)
        count += 1
    return count if at == headers.size else -1


def restore_extents(store: Store, headers: Words, lcp_id: int) -> int:
    """Restore the owners and free words of all extents; return the number of extents. The extents of a dropped table or
    partition stay until no checkpoint has them. Raises: DataFileDamaged.
    """
    at = count = 0
    while at < headers.size:
        owner = int(headers[at])
        table = store.tables.by_id.get(owner & d.OWNER_TABLE_MASK)
        number = owner >> d.OWNER_FRAGMENT_SHIFT
        fragment = 0
        if table is not None:
            # A number without a fragment belongs to a partition that was dropped before the checkpoint.
            is_given = 0 <= number < table.definition.partition.next_number
            fragment = table.by_number.get(number, 0) if is_given else -1
        if fragment < 0 or not store.space.restore_extent(int(headers[at + 1]), fragment, headers, at):
            cause = LcpDamaged(
                f"{extents_name(lcp_id)} has an extent at page {int(headers[at + 1]):#x} that is in no data file, or"
                " has two owners",
                file=extents_name(lcp_id),
            )
            raise DataFileDamaged((lcp_id, EXTENTS_TABLE, EXTENTS_FRAGMENT), cause)
        at += header_words(int(headers[at + 2]))
        count += 1
    return count
