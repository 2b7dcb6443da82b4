"""The buffer of a transaction larger than memory: blocks of records written to its spool file and evicted (D3).

Every record keeps its offset in the buffer, which is a reservation of `transaction_limit` bytes. The blocks are
before `head`, in order and without gaps; the tail after it is in memory. An evicted block is *away*: its words are
zero and its content is only in the file. No record begins with 0, so a kernel that reads 0 there stops with ST_SPOOLED.

Invariants: see W1–W5 in docs/internals/access.md, section 13. Everything here can be repeated after a KeyboardInterrupt
at any point.
"""

from __future__ import annotations

from bisect import bisect_right
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tidemark.engine.base.errors import InvariantBroken, IoFailed, TransactionTooLarge
from tidemark.engine.log.redo_layout import FILES_SPOOL, FILES_WORDS, KIND_FILES, pack_kind
from tidemark.engine.log.spool_files import damaged, spool_name
from tidemark.engine.log.spool_layout import SPOOL_ALIGN_WORDS, SPOOL_HEADER_WORDS
from tidemark.engine.log.spool_reader import FIRST_WORD, is_block, records_digest, seal_block
from tidemark.engine.memory.arena import NOTHING, Reservation
from tidemark.engine.txn.spool_kernels import block_end, has_updates

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tidemark.engine.files.protocol import File
    from tidemark.engine.log.spool_files import SpoolFiles
    from tidemark.engine.memory.arena import Words

BLOCK_WORDS_MAX = 32_768  # 256 KiB: small enough to read for one record, large enough to write at full speed
BLOCK_SHARE = 16  # of `transaction_memory`
LOADED_MIN = 2  # blocks: a row's newest image and its newest disk part may be in two

_start_of = attrgetter("start")


class Block:
    """A run of records: its place in the buffer, and in the file."""

    __slots__ = ("checksum", "is_evicted", "offset", "start", "stays", "stop", "words")

    def __init__(self, start: int, stop: int, offset: int) -> None:
        self.start = start
        self.stop = stop
        self.offset = offset
        used = SPOOL_HEADER_WORDS + stop - start
        self.words = -(-used // SPOOL_ALIGN_WORDS) * SPOOL_ALIGN_WORDS
        self.checksum: int | None = None
        self.is_evicted = False
        self.stays = False  # stays in memory until the transaction ends


def _found(blocks: Sequence[Any], at: int) -> Any:
    number = bisect_right(blocks, at, key=_start_of) - 1
    return None if number < 0 or at >= blocks[number].stop else blocks[number]


def block_with(blocks: Sequence[Any], at: int, txid: int) -> Any:
    """Return the block of a transaction's buffer that has this word. Raises: InvariantBroken."""
    block = _found(blocks, at)
    if block is None:
        raise InvariantBroken(f"transaction {txid} has no block with word {at}; report this")
    return block


class Reference(NamedTuple):
    """Records in files instead of the log: the referring record, and the names of the files."""

    record: Words
    size_bytes: int
    names: tuple[str, ...]


def too_large(limit_words: int) -> TransactionTooLarge:
    """Return the error of a transaction that needs more words than its limit."""
    return TransactionTooLarge(
        f"the transaction needs more than transaction_limit ({limit_words * 8} bytes);"
        " split it or open the store with a larger transaction_limit"
    )


class Spool:
    """The buffer of one transaction. Belongs to the transaction's thread."""

    def __init__(
        self,
        files: SpoolFiles,
        txid: int,
        memory_words: int,
        limit_words: int,
        unique_tables: Callable[[], Words] = lambda: NOTHING,
    ) -> None:
        """Reserve the buffer. memory_words: limit in memory. limit_words: limit in total. unique_tables: ids of the
        tables with unique indexes. Raises: MemoryExhausted.
        """
        self._unique_tables = unique_tables
        self._files = files
        self.txid = txid
        self._memory_words = memory_words
        self.limit_words = limit_words
        self._reservation = Reservation(limit_words)
        self.words = self._reservation.words
        self._block_words = max(SPOOL_ALIGN_WORDS, min(BLOCK_WORDS_MAX, memory_words // BLOCK_SHARE))
        self._file: File | None = None
        self.blocks: list[Block] = []
        self._loaded: list[Block] = []  # least recently loaded first
        self._room_at = 0
        self._room_words = 0
        self._reach = 0  # no word from here on was ever written
        self._is_sealed = False  # a group of the log refers to the file: W2

    @property
    def head(self) -> int:
        """The first word of the tail."""
        return self.blocks[-1].stop if self.blocks else FIRST_WORD

    # --- room ------------------------------------------------------------------------------------
    def room(self, used: int) -> Words:
        """Return the buffer with room after `used`: with more than last time if no record was added since.

        Raises: TransactionTooLarge, with nothing changed; StorageFull, IoFailed, TooManyFiles.
        """
        is_stuck = used == self._room_at
        words = 2 * self._room_words if is_stuck else self._memory_words // 2
        stop = min(used + words, self.limit_words)
        if is_stuck and stop == min(used + self._room_words, self.limit_words):
            raise too_large(self.limit_words)
        self.spill(used, self._memory_words // 4)
        self._room_at, self._room_words = used, words
        self._reach = max(self._reach, stop)
        return self.words[:stop]

    def spill(self, used: int, left_words: int) -> None:
        """Write the oldest records of the tail to the file until at most `left_words` of it are in memory."""
        while used - self.head > left_words:
            stop = int(block_end(self.words, self.head, used, self._block_words))
            if stop < 0:
                raise InvariantBroken(f"transaction {self.txid} has no record at word {self.head}; report this")
            last = self.blocks[-1] if self.blocks else None
            block = Block(self.head, stop, last.offset + last.words * 8 if last is not None else 0)
            self._write(block)
            # A rollback compares the keys of all images of a row: with unique indexes, they must not be evicted.
            block.stays = bool(has_updates(self.words, block.start, stop, self._unique_tables()))
            self.blocks.append(block)  # after a KeyboardInterrupt before this it is written again
            if not block.stays:
                self._evict(block)

    def _write(self, block: Block) -> None:
        """Write a block to its place in the file, unless it is unchanged."""
        unit = np.zeros(block.words, dtype=np.int64)
        unit[SPOOL_HEADER_WORDS : SPOOL_HEADER_WORDS + block.stop - block.start] = self.words[block.start : block.stop]
        number = bisect_right(self.blocks, block.start - 1, key=_start_of)
        checksum = seal_block(unit, self._files.identity, self.txid, number, block.start, block.stop - block.start)
        if checksum == block.checksum:
            return
        if self._file is None:
            self._file = self._files.create(self.txid)
        self._files.files.pwrite(self._file, block.offset, unit.data.cast("B"))
        block.checksum = checksum
        self._files.grown(self.txid, self.size_bytes, unit.nbytes)

    @property
    def size_bytes(self) -> int:
        """The size of the blocks in the file in bytes."""
        return self.blocks[-1].offset + self.blocks[-1].words * 8 if self.blocks else 0

    def _evict(self, block: Block) -> None:
        """Evict a block: write it to the file first (W5), then free its memory. Never stops halfway."""
        whole(lambda: self._evict_once(block))

    def _evict_once(self, block: Block) -> None:
        if not block.is_evicted and not self._is_sealed:
            self._write(block)
        block.is_evicted = True
        if block in self._loaded:
            self._loaded.remove(block)
        page = self._reservation.page_words
        low, high = block.start // page * page, -(-block.stop // page) * page
        # A page shared with a neighbour is freed with the block evicted last.
        if not self._is_evicted(low, block.start):
            low += page
            self.words[block.start : min(low, block.stop)] = 0
        if low < high and not self._is_evicted(block.stop, high):
            high -= page
            self.words[max(high, block.start) : block.stop] = 0
        self._reservation.free_range(low, high)

    def _is_evicted(self, start: int, stop: int) -> bool:
        while start < stop:
            block = _found(self.blocks, start)
            if block is None or not block.is_evicted:
                return False
            start = block.stop
        return True

    # --- bringing back ---------------------------------------------------------------------------
    def load(self, at: int) -> None:
        """Read the block with the record at `at` into memory again; evict others. Raises: SpoolDamaged, IoFailed,
        StorageFull if there is no space to write a changed block before its eviction.
        """
        block: Block = block_with(self.blocks, at, self.txid)
        if not block.is_evicted:
            return
        budget = self._memory_words // 4 - (block.stop - block.start)
        while len(self._loaded) >= LOADED_MIN and sum(each.stop - each.start for each in self._loaded) > budget:
            self._evict(self._loaded[0])
        whole(lambda: self._load_once(block))

    def _load_once(self, block: Block) -> None:
        if block.is_evicted:
            unit = np.empty(block.words, dtype=np.int64)
            assert self._file is not None
            try:
                read = self._files.files.pread_into(self._file, block.offset, unit.data.cast("B"))
            except IoFailed as error:
                error.evidence.setdefault("txid", self.txid)
                raise
            number = bisect_right(self.blocks, block.start, key=_start_of) - 1
            is_whole = read == unit.nbytes and int(unit[0]) == block.checksum
            if not is_whole or not is_block(unit, self._files.identity[0], self.txid, number, block.start):
                raise damaged(
                    spool_name(self.txid), self.txid, block.offset, "does not hold the records that were written there"
                )
            used = block.stop - block.start
            self.words[block.start : block.stop] = unit[SPOOL_HEADER_WORDS : SPOOL_HEADER_WORDS + used]
            block.is_evicted = False
        if block not in self._loaded:
            self._loaded.append(block)

    # --- savepoints ------------------------------------------------------------------------------
    def truncate(self, used: int) -> Words:
        """Drop the records from word `used` on, where a record begins; return the buffer with as much room after it as
        the first call of `room` gives. Can be repeated.
        """
        while self.blocks and self.blocks[-1].stop > used:
            block = self.blocks[-1]
            if block.start < used and block.is_evicted:
                self.load(block.start)
            if block in self._loaded:
                self._loaded.remove(block)
            self.blocks.pop()
        self._room_at = 0
        stop = min(used + self._memory_words // 2, self.limit_words)
        page = self._reservation.page_words
        self._reservation.free_range(-(-stop // page) * page, -(-self._reach // page) * page)
        self._reach = stop
        return self.words[:stop]

    # --- the end ---------------------------------------------------------------------------------
    def finish(self, used: int) -> Reference:
        """Write the records still in memory and make the file durable, name included (W1). Can be repeated until
        `seal`.

        Raises: StorageFull, IoFailed, SyncFailed.
        """
        for block in list(self._loaded):
            self._evict(block)
        self.spill(used, 0)
        for block in self.blocks:
            if block.stays:
                self._write(block)
            elif not block.is_evicted:  # a KeyboardInterrupt arrived right after its first write
                self._evict(block)
        assert self._file is not None
        self._files.files.fdatasync(self._file)
        self._files.sync_names()
        digest = records_digest([block.checksum or 0 for block in self.blocks])
        record = [pack_kind(KIND_FILES, 0, FILES_WORDS), FILES_SPOOL, self.txid, len(self.blocks), used - FIRST_WORD]
        record += [self.size_bytes, digest, 0]
        return Reference(np.array(record, dtype=np.int64), self.size_bytes, (spool_name(self.txid),))

    def seal(self) -> None:
        """Forbid further writes: a group of the log refers to the file (W2)."""
        self._is_sealed = True

    def close(self, is_committed: bool) -> None:
        """Release memory and file; the file is removed unless the transaction was committed."""
        file, self._file = self._file, None
        if file is not None:
            self._files.files.close(file)
        if not is_committed:
            self._files.remove(self.txid)


def whole(step: Callable[[], object]) -> None:
    """Run a repeatable step to its end; a KeyboardInterrupt is raised afterwards."""
    interrupt: KeyboardInterrupt | None = None
    while True:
        try:
            step()
            break
        except KeyboardInterrupt as error:
            interrupt = error
    if interrupt is not None:
        raise interrupt
