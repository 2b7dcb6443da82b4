"""The buffer of a transaction that adopts load files: their bytes as on disk, one file after the other.

The buffer is a reservation of addresses. A block is in memory while its rows are placed, and again when a commit or a
rollback needs its records, which happens only for rows with disk parts. Otherwise it is evicted (*away*), as blocks of
a spool file are (`engine/txn/spool.py`), and its words are zero. Files are never written here. Plans for disk parts are
in the images while a block is in memory, and in `Block.plans` while it is evicted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tidemark.engine.base.errors import LimitExceeded
from tidemark.engine.log import load_arena_layout as li
from tidemark.engine.log.load_files import FOLDER, LoadFile
from tidemark.engine.log.redo_layout import (
    FILES_LOAD,
    KIND_FILES,
    LOAD_FILE_WORDS,
    LOAD_PLACE_WORDS,
    LOAD_WORDS,
    pack_kind,
)
from tidemark.engine.log.spool_layout import SPOOL_ALIGN_WORDS
from tidemark.engine.log.spool_reader import FileReader, RecordFile
from tidemark.engine.memory.arena import Reservation
from tidemark.engine.memory.arena_layout import ST_DROPPED, X_ROW
from tidemark.engine.txn.load_rows_kernels import close_page, place_rows, release_pages, reserve_pages
from tidemark.engine.txn.spool import Reference, block_with

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tidemark.engine.files.protocol import Files
    from tidemark.engine.memory.arena import Words
    from tidemark.engine.table.table import Table

LOADED_MAX = 4  # blocks in memory besides the one that a commit or rollback requests
RELEASE_PAGES = 4_096  # in one kernel call


class Part:
    """One load file, and where its rows are placed."""

    __slots__ = ("_place", "file", "reader", "start")

    def __init__(self, file: LoadFile, start: int, reader: FileReader) -> None:
        self.file = file
        self.start = start  # of its first block in the buffer
        self.reader = reader
        self._place: Words = np.zeros(li.LP_WORDS, dtype=np.int64)

    @property
    def first_page(self) -> int:
        """The logical page of the file's page 0."""
        return int(self._place[li.LP_FIRST])

    @property
    def found(self) -> int:
        """How many of the keys that were only looked up were in the table."""
        return int(self._place[li.LP_COUNT])

    def reserve(self, table: Table, fragment: int, format_version: int) -> bool:
        """Reserve page numbers in the file's fragment; return False, with nothing reserved, if the fragment was
        dropped. format_version: that of the images. Raises: LimitExceeded.
        """
        self._place[li.LP_NUMBER] = self.file.fragment
        self._place[li.LP_FORMAT] = format_version
        first = int(reserve_pages(table.mem, fragment, self.file.pages))
        if first == ST_DROPPED:
            return False
        if first < 0:
            raise LimitExceeded(
                f"fragment {self.file.fragment} of {table.name} has no {self.file.pages} page numbers left; make a new"
                " table with more fragments",
                table=table.name,
            )
        self._place[li.LP_FIRST] = first
        self._place[li.LP_FRAGMENT] = fragment
        return True

    def only_look_up(self) -> None:
        """From now on, place no rows; only count the keys that are in the table."""
        self._place[li.LP_PROBES] = 1

    def put(self, table: Table, txn: int, buf: Words, rows: Words, start: int, stop: int) -> tuple[int, int]:
        """Place rows [start, stop) of a block; return (status of `place_rows`, position of its row).

        txn: address of the transaction's descriptor. buf: the words of the records. rows: LR_ words for each row.
        """
        status = place_rows(table.mem, table.handle, txn, buf, rows, start, stop, self._place)
        return int(status), int(table.mem[txn + X_ROW])

    def close_page(self, mem: Words) -> None:
        """Release the remaining slots of the page being filled to all transactions. Can be repeated."""
        close_page(mem, self._place)

    def abandon(self, mem: Words) -> None:
        """Release the unused parts of pages and page numbers before the rows are rolled back. Can be repeated."""
        fragment = int(self._place[li.LP_FRAGMENT])
        if not fragment:
            return  # it has no pages yet
        self.close_page(mem)
        for begin in range(0, self.file.pages, RELEASE_PAGES):
            release_pages(mem, fragment, self.first_page + begin, min(RELEASE_PAGES, self.file.pages - begin))


@dataclass(slots=True, eq=False)
class Block:
    """One block of a file, words [start, stop) of the buffer."""

    part: Part
    start: int
    stop: int
    checksum: int
    images: NDArray[np.int32]  # offsets from `start` of the last fixed word of each image; empty without disk parts
    plans: Words | None = None
    is_evicted: bool = False


class AdoptedRecords:
    """The records of one adopting transaction. Belongs to the transaction's thread."""

    def __init__(self, files: Files, store: bytes, txid: int, loaded: Sequence[LoadFile]) -> None:
        """Reserve addresses for the files `loaded` of one job, in the store's folder. Raises: MemoryExhausted."""
        self._files = files
        self._mem: Words | None = None
        self.parts: list[Part] = []
        start = SPOOL_ALIGN_WORDS
        for file in loaded:
            described = RecordFile(file.name, file.job, file.blocks, file.records_words, file.size_bytes, file.digest)
            self.parts.append(Part(file, start, FileReader(files, store, described, txid)))
            start += -(-file.size_bytes // (SPOOL_ALIGN_WORDS * 8)) * SPOOL_ALIGN_WORDS
        self._reservation = Reservation(start)
        self.words = self._reservation.words
        self._txid = txid
        self._blocks: list[Block] = []
        self._loaded: list[Block] = []  # least recently loaded first

    @property
    def record_words(self) -> int:
        """The number of words of the record that names all files."""
        return LOAD_WORDS + len(self.parts) * (LOAD_FILE_WORDS + LOAD_PLACE_WORDS)

    def room_for(self, part: Part, offset: int, words: int) -> Words:
        """Return the words of the buffer for a block at a byte offset of a file."""
        start = part.start + offset // 8
        return self.words[start : start + words]

    # --- blocks ----------------------------------------------------------------------------------
    def placed(self, block: Block) -> None:
        """Evict the next block, whose rows are placed."""
        self._blocks.append(block)
        self._evict(block)

    def drop(self, start: int, stop: int) -> None:
        """Evict the words of a whole block: they become zero, and take no memory unless system pages are too large."""
        if self._reservation.page_words <= SPOOL_ALIGN_WORDS:
            self._reservation.free_range(start, stop)
        else:
            self.words[start:stop] = 0

    def _evict(self, block: Block) -> None:
        if not block.is_evicted and block.images.size:
            block.plans = self.words[block.start + block.images]
        block.is_evicted = True
        if block in self._loaded:
            self._loaded.remove(block)
        self.drop(block.start, block.stop)

    def load(self, at: int) -> None:
        """Read the block with the record at `at` into memory again; evict others. Raises: SpoolDamaged, IoFailed."""
        block: Block = block_with(self._blocks, at, self._txid)
        if not block.is_evicted:
            return
        while len(self._loaded) >= LOADED_MAX:
            self._evict(self._loaded[0])
        offset = (block.start - block.part.start) * 8
        # Read to private memory first: a KeyboardInterrupt must not leave half a block, which would look complete.
        unit = block.part.reader.read_again(offset, block.stop - block.start, block.checksum)
        if block.plans is not None:
            unit[block.images] = block.plans
        self.words[block.start : block.stop] = unit
        block.is_evicted = False
        self._loaded.append(block)

    # --- the end ---------------------------------------------------------------------------------
    def finish(self, used: int) -> Reference:
        """Make the files' names durable, then return the log's reference to the files. Raises: SyncFailed, IoFailed."""
        self._files.sync_directory(FOLDER)
        first = self.parts[0].file
        record = [pack_kind(KIND_FILES, 0, self.record_words), FILES_LOAD, self._txid, first.job, first.table_id]
        record.append(len(self.parts))
        for part in self.parts:
            file = part.file
            record += [file.fragment, file.part, file.attempt, file.tag, file.rows, file.pages]
            record += [file.blocks, file.records_words, file.size_bytes, file.digest, part.first_page]
        names = tuple(part.file.name for part in self.parts)
        size_bytes = sum(part.file.size_bytes for part in self.parts)
        return Reference(np.array(record, dtype=np.int64), size_bytes, names)

    def seal(self) -> None:
        """Do nothing: a group of the log refers to the files, which are never written here."""

    def abandon(self, mem: Words) -> None:
        """Release the unused parts of pages and page numbers before the rows are rolled back. Can be repeated."""
        for part in self.parts:
            part.abandon(mem)

    def close(self, is_committed: bool) -> None:
        """Release the memory. Files that no group of the log names still belong to the job."""
        self._blocks.clear()
        self._loaded.clear()
