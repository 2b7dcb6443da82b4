"""The arena: one private anonymous reservation that holds every row, page map and index (D1).

The array is reserved whole and committed by the operating system as it is touched, so `data_memory` costs nothing until
rows need it. It holds, in this order: the header, a count of free blocks for each page, operation cells of open
transactions (not part of `data_memory`: rows can still be deleted when that is full), the pages of `data_memory`, and
regions of fixed size.
"""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidemark.engine.base.errors import InvariantBroken, MemoryExhausted
from tidemark.engine.base.options import larger
from tidemark.engine.memory.arena_layout import (
    BLOCK_SHIFT,
    BLOCK_WORDS,
    CELL_WORDS,
    HANDLE_BLOCK_BITS,
    HANDLE_BLOCK_MASK,
    LOCK_OP_MASK,
    OK,
    P_FREE_PAGE_COUNT,
    P_HIGH,
    P_KEPT,
    P_LIMIT,
    P_REFUSED,
    PAGE_BYTES,
    PAGE_SHIFT,
    PAGE_WORDS,
    S_CELL_HIGH,
    S_CELL_LIMIT,
    S_COPY_LIMIT,
    S_FREE_CELLS,
    S_POOL,
    S_POOL_TOP,
    TXN_WORDS,
)
from tidemark.engine.memory.handles_kernels import descriptor_word, set_descriptor_word, sum_words
from tidemark.engine.memory.pool_kernels import join_pools, setup_memory, split_pool, take_transaction_block

Words = NDArray[np.int64]
NOTHING: Words = np.zeros(0, dtype=np.int64)  # for kernels that take an array but do not read it
KEPT_PAGES_MAX = 8  # the partition words after a drop of a partition take two
CELL_SHARE = 4  # bytes of cells per byte of `data_memory`: even the smallest rows can be deleted in one transaction
CELL_PAGES_MAX = (LOCK_OP_MASK + 1) * CELL_WORDS // 2 >> PAGE_SHIFT  # row locks can address twice as many


def address_of(handle: int) -> int:
    """Return the address of the descriptor of a structure that is pinned, or that no other thread uses."""
    return (handle & HANDLE_BLOCK_MASK) << BLOCK_SHIFT


def next_handle(handle: int) -> int:
    """Return the handle that a structure has after its withdrawal, by which the caller frees its memory."""
    return handle + (1 << HANDLE_BLOCK_BITS)


# The system accounts for such memory when it is touched, not when it is reserved. Python 3.11 has no name for it.
_MAP_NORESERVE = 0x4000


def reserve(words: int, option: str, advice: int) -> mmap.mmap:
    """Reserve private anonymous memory, zeroed, in whole pages of the system; it costs nothing before it is touched.
    option: the option to name in the error. Raises: MemoryExhausted.
    """
    size_bytes = -(-words * 8 // mmap.PAGESIZE) * mmap.PAGESIZE
    try:
        reserved = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE)
    except (OSError, ValueError, OverflowError) as error:
        raise MemoryExhausted(
            f"{size_bytes} bytes of address space cannot be reserved; open with a smaller {option}"
        ) from error
    with contextlib.suppress(OSError):  # the system may have no huge pages
        reserved.madvise(advice)
    return reserved


def larger_memory(mem: Words) -> str:
    """Return, for a message, the size of `data_memory` and a larger one to give."""
    limit = max(int(mem[S_POOL + P_LIMIT]), int(mem[S_POOL_TOP + P_LIMIT]))  # the pool may be split
    return larger("data_memory", (limit - (int(mem[S_CELL_LIMIT]) >> PAGE_SHIFT)) * PAGE_BYTES)


def memory_full(mem: Words, what: str, advice: str = "") -> MemoryExhausted:
    """Return the error for a call that found no memory for `what`. advice: what else helps, with the words after it."""
    return MemoryExhausted(
        f"data_memory has no room for {what}; {advice}open the store with a larger data_memory ({larger_memory(mem)})"
    )


class Reservation:
    """Memory outside the arena that costs nothing before it is touched, and can be freed in parts."""

    def __init__(self, words: int) -> None:
        """Reserve zeroed memory; `words` are rounded up to whole pages of the system. Raises: MemoryExhausted."""
        # Without huge pages: freeing a part of one would keep most of its 2 MiB.
        self._map = reserve(words, "transaction_limit", mmap.MADV_NOHUGEPAGE)
        self.words: Words = np.frombuffer(self._map, dtype=np.int64)
        self.page_words = mmap.PAGESIZE // 8

    def free_range(self, start: int, stop: int) -> None:
        """Free words [start, stop), whole pages: they are zero afterwards, and cost nothing until touched again."""
        if start < stop:
            self._map.madvise(mmap.MADV_DONTNEED, start * 8, (stop - start) * 8)


class Arena:
    """Owner of the base array; everything in it is addressed by word index."""

    # A harness that decides which thread runs sets its own class here, to see words that Python reads or writes.
    words_kind: type[np.ndarray[Any, Any]] = np.ndarray
    # Number of the request for a page, a block or a cell that fails as if memory were full, for tests; 0: none.
    refused_take = 0

    def __init__(self, data_memory_bytes: int, checkpoint_memory_bytes: int, region_words: int = 0) -> None:
        """Reserve the arena. region_words: words after all pages, for `take_region`. Raises: MemoryExhausted."""
        self.pages = data_memory_bytes // PAGE_BYTES
        cells = min(CELL_SHARE * self.pages, CELL_PAGES_MAX)
        counts = (self.pages + cells) // (PAGE_WORDS - 1) + 1  # a word for every page
        first, limit = 1 + counts + cells, self.pages + counts + cells
        reserved = reserve((limit << PAGE_SHIFT) + region_words, "data_memory", mmap.MADV_HUGEPAGE)
        self.mem: Words = np.frombuffer(reserved, dtype=np.int64).view(self.words_kind)
        self.mem[S_COPY_LIMIT] = checkpoint_memory_bytes // 8
        self.mem[S_POOL + P_REFUSED] = self.refused_take
        if setup_memory(self.mem, 1 + counts, first, limit) != OK:
            raise MemoryExhausted("data_memory has no room for a single page; open with a larger data_memory")
        self.cells = 1 + counts << PAGE_SHIFT
        self.spare_descriptors: list[int] = []
        self.pages_end = self.region = limit << PAGE_SHIFT

    def keep_pages(self) -> None:
        """Reserve some pages for calls that free memory. Called after a restart has allocated its memory."""
        self.mem[S_POOL + P_KEPT] = min(KEPT_PAGES_MAX, self.pages // 16)

    def split_pool(self) -> bool:
        """Make the upper half of the never-used pages a second pool, S_POOL_TOP. Return False if there is no page."""
        return bool(split_pool(self.mem) == OK)

    def join_pools(self) -> None:
        """Join both pools again; the caller has given all fragments the pool S_POOL."""
        join_pools(self.mem)

    def take_region(self, words: int) -> int:
        """Take zeroed words after all pages, for good; return their address."""
        at = self.region
        if at + words > self.mem.size:
            raise InvariantBroken("the arena's region is smaller than its content; report this")
        self.region = at + words
        return at

    def sum_words(self, handles: Sequence[int], word: int) -> int:
        """Return the sum of one word over the descriptors of the handles that are not stale."""
        return int(sum_words(self.mem, np.array(handles, dtype=np.int64), word))

    def word(self, handle: int, word: int) -> int:
        """Return one word of a descriptor; 0 if its structure was withdrawn."""
        return max(0, int(descriptor_word(self.mem, handle, word)))

    def set_word(self, handle: int, word: int, value: int) -> None:
        """Set one word of the descriptor of a structure that is pinned, or that no other thread uses."""
        if set_descriptor_word(self.mem, handle, word, value) != OK:
            raise InvariantBroken("a fragment that was in use has been withdrawn; report this")

    def used_pages(self) -> int:
        """Return the number of pages in use, including pages carved into blocks."""
        never_used = self.mem[S_POOL + P_LIMIT] - self.mem[S_POOL + P_HIGH]  # a restart allocates from both ends
        return int(self.pages - never_used - self.mem[S_POOL + P_FREE_PAGE_COUNT])

    def operation_words(self) -> int:
        """Return the number of words that operations of open transactions have ever touched; they are not part of
        `data_memory`.
        """
        return int(self.mem[S_CELL_HIGH]) - self.cells

    def no_room(self, what: str, table: str | None = None) -> MemoryExhausted:
        """Return the error for a call that found no memory for `what`, or no operation cell."""
        if self.mem[S_FREE_CELLS] == 0 and self.mem[S_CELL_HIGH] + CELL_WORDS > self.mem[S_CELL_LIMIT]:
            operations = self.operation_words() // CELL_WORDS
            return MemoryExhausted(
                f"open transactions have changed or locked rows {operations} times, and there is no memory for more;"
                " the transaction was rolled back; end others, make smaller ones, or open the store with a larger"
                f" data_memory ({larger_memory(self.mem)})",
                table=table,
            )
        return MemoryExhausted(
            f"data_memory has no room for {what}; the transaction was rolled back; delete rows, drop tables, or"
            f" open the store with a larger data_memory ({larger_memory(self.mem)})",
            table=table,
        )

    def take_descriptor(self) -> int:
        """Take a transaction descriptor; return its address. Raises: MemoryExhausted."""
        try:
            return self.spare_descriptors.pop()
        except IndexError:
            pass
        block = take_transaction_block(self.mem)
        if block == 0:
            raise memory_full(self.mem, "another transaction", "end others, or ")
        addresses = list(range(block, block + BLOCK_WORDS, TXN_WORDS))
        self.spare_descriptors.extend(addresses[1:])
        return addresses[0]

    def free_descriptor(self, address: int) -> None:
        """Free a transaction descriptor."""
        self.spare_descriptors.append(address)
