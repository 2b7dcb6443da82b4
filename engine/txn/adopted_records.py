"""The buffer of a transaction that adopts load files: their bytes as on disk, one file after the other.

The buffer is a reservation of addresses. A block is in memory while its rows are placed, and again when a commit or a
rollback needs its records, which happens only for rows with disk parts. Otherwise it is evicted (*away*), as blocks of
a spool file are (`engine/txn/spool.py`), and its words are zero. Files are never written here. Plans for disk parts are
in the images while a block is in memory, and in `Block.plans` while it is evicted.
"""

from __future__ import annotations

from bisect import bisect_right
from operator import attrgetter
from typing import TYPE_CHECKING

import numpy as np

from tidemark.engine.base.errors import InvariantBroken
from tidemark.engine.log.load_arena_layout import (
    LP_FIRST,
    LP_FRAGMENT,
)
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
from tidemark.engine.txn.load_rows_kernels import close_page, release_pages
from tidemark.engine.txn.spool import Reference

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tidemark.engine.files.protocol import Files
    from tidemark.engine.memory.arena import Words

BROUGHT_MAX = 4  # blocks in memory besides the one that a commit or rollback requests
RELEASE_PAGES = 4_096  # in one kernel call

_start_of = attrgetter("start")


class Part:
    """One load file, and where its rows are placed."""

    __slots__ = ("file", "fragment", "place", "reader", "start")

    def __init__(self, file: LoadFile, start: int, reader: FileReader) -> None:
        self.file = file
        self.start = start  # of its first block in the buffer
        self.reader = reader
        self.place: Words | None = None  # LP_ words, after it has pages


class Block:
    """One block of a file, words [start, stop) of the buffer."""

    __slots__ = ("checksum", "images", "is_away", "part", "plans", "start", "stop")

    def __init__(self, part: Part, start: int, stop: int, checksum: int, images: NDArray[np.int32]) -> None:
        """Describe a block. images: offsets from `start` of the last fixed word of each image; empty without disk
        parts.
        """
        self.part = part
        self.start = start
        self.stop = stop
        self.checksum = checksum
        self.images = images
        self.plans: Words | None = None
        self.is_away = False


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
        self._brought: list[Block] = []  # least recently brought first

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
        self._give_back(block)

    def drop(self, start: int, stop: int) -> None:
        """Evict the words of a whole block: they become zero and take no memory."""
        if self._reservation.page_words <= SPOOL_ALIGN_WORDS:
            self._reservation.give_back(start, stop)
        else:
            self.words[start:stop] = 0

    def _give_back(self, block: Block) -> None:
        if not block.is_away and block.images.size:
            block.plans = self.words[block.start + block.images]
        block.is_away = True
        if block in self._brought:
            self._brought.remove(block)
        self.drop(block.start, block.stop)

    def bring(self, at: int) -> None:
        """Read the block with the record at `at` into memory again; evict others. Raises: SpoolDamaged, IoFailed."""
        number = bisect_right(self._blocks, at, key=_start_of) - 1
        if number < 0 or at >= self._blocks[number].stop:
            raise InvariantBroken(f"transaction {self._txid} has no block with word {at}; report this")
        block = self._blocks[number]
        if not block.is_away:
            return
        while len(self._brought) >= BROUGHT_MAX:
            self._give_back(self._brought[0])
        offset = (block.start - block.part.start) * 8
        # Read to private memory first: a KeyboardInterrupt must not leave half a block, which would look complete.
        unit = block.part.reader.read_again(offset, block.stop - block.start, block.checksum)
        if block.plans is not None:
            unit[block.images] = block.plans
        self.words[block.start : block.stop] = unit
        block.is_away = False
        self._brought.append(block)

    # --- the end ---------------------------------------------------------------------------------
    def finish(self, used: int) -> Reference:
        """Make the files' names durable, then return the log's reference to the files. Raises: SyncFailed, IoFailed."""
        self._files.sync_directory(FOLDER)
        first = self.parts[0].file
        record = [pack_kind(KIND_FILES, 0, self.record_words), FILES_LOAD, self._txid, first.job, first.table_id]
        record.append(len(self.parts))
        for part in self.parts:
            file = part.file
            assert part.place is not None
            record += [file.fragment, file.part, file.attempt, file.tag, file.rows, file.pages]
            record += [file.blocks, file.records_words, file.size_bytes, file.digest, int(part.place[LP_FIRST])]
        names = tuple(part.file.name for part in self.parts)
        size_bytes = sum(part.file.size_bytes for part in self.parts)
        return Reference(np.array(record, dtype=np.int64), size_bytes, names)

    def seal(self) -> None:
        """Do nothing: a group of the log refers to the files, which are never written here."""

    def abandon(self, mem: Words) -> None:
        """Release the unused parts of pages and page numbers before the rows are rolled back. Can be repeated."""
        for part in self.parts:
            place = part.place
            if place is None:
                continue
            close_page(mem, place)
            fragment, first = int(place[LP_FRAGMENT]), int(place[LP_FIRST])
            for begin in range(0, part.file.pages, RELEASE_PAGES):
                release_pages(mem, fragment, first + begin, min(RELEASE_PAGES, part.file.pages - begin))

    def close(self, is_committed: bool) -> None:
        """Release the memory. Files that no group of the log names still belong to the job."""
        self._blocks.clear()
        self._brought.clear()
