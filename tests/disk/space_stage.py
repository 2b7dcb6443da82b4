"""A flat memory with one tablespace and one fragment, and the helpers of reservation called by name."""

from __future__ import annotations

import numpy as np

from tidemark.engine.disk import cache_layout as d
from tidemark.engine.disk import extents_kernels as disk_extents
from tidemark.engine.disk import matrix_kernels as disk_matrix
from tidemark.engine.disk import matrix_layout as m
from tidemark.engine.disk import space_kernels as s
from tidemark.engine.jit.kernel import kernel
from tidemark.engine.jit.registry import REGISTRY
from tidemark.engine.memory import arena_layout as a
from tidemark.engine.memory.handles_kernels import descriptor_of
from tidemark.engine.memory.pool_kernels import setup_memory
from tidemark.engine.table.setup_kernels import fragment_handles, make_table

RESERVE, RELEASE, SETTLE, CLEANED, FREE, FRESH, WORD, ROW = range(8)


@kernel("int64(int64[::1], int64[::1], int64[::1])")
def steps(mem, calls, results):  # type: ignore[no-untyped-def]
    """Make calls of four words each (which, and three arguments); one result each."""
    for number in range(calls.size // 4):
        which, one, two, three = calls[4 * number], calls[4 * number + 1], calls[4 * number + 2], calls[4 * number + 3]
        if which == RESERVE:
            results[number] = s.space_reserve(mem, descriptor_of(mem, one), two, three)
        elif which == RELEASE:
            results[number] = s.space_release(mem, one, two)
        elif which == SETTLE:
            results[number] = s.space_settle(mem, one, two, three)
        elif which == CLEANED:
            results[number] = s.space_cleaned(mem, one)
        elif which == FREE:
            results[number] = s.space_free(mem, one)
        elif which == FRESH:
            results[number] = s.space_is_fresh(mem, one)
        elif which == WORD:
            results[number] = s.space_word(mem, one)
        else:
            results[number] = s.matrix_row(one, two)
    return 0


# Kernels of the product only are listed there.
REGISTRY.pop(f"{__name__}.steps")


class Stage:
    """One table of one fragment in one tablespace with one file."""

    def __init__(
        self,
        page_words: int = 64,
        extent_pages: int = 4,
        extents: int = 3,
        any_words: int = 20,
        piece_words: int = 0,
        pages: int = 40,
    ) -> None:
        self.mem = np.zeros(pages * a.PAGE_WORDS, dtype=np.int64)
        assert setup_memory(self.mem, 2, 6, pages) == a.OK
        self.tablespace = disk_extents.setup_tablespace(self.mem, 7, page_words, extent_pages, 0)
        self.file = disk_extents.add_data_file(self.mem, self.tablespace, 3)
        assert disk_extents.add_extents(self.mem, self.file, extents) == extents
        self.fragment = self.make_fragment(11, any_words, piece_words)
        self.payload = int(self.mem[self.tablespace + d.TS_PAYLOAD])
        self.pages = extent_pages

    def make_fragment(self, table_id: int, any_words: int, piece_words: int = 0) -> int:
        table = make_table(self.mem, np.array([table_id, 1, 4, 0, 1, 0, 1, 1], dtype=np.int64))
        assert disk_extents.join_tablespace(self.mem, table, self.tablespace, any_words, piece_words) == a.OK
        handles = np.zeros(1, dtype=np.int64)
        assert fragment_handles(self.mem, table, handles) == 1
        return int(handles[0])

    def call(self, *words: int) -> int:
        result = np.zeros(1, dtype=np.int64)
        steps(self.mem, np.array([*words, 0, 0, 0, 0][:4], dtype=np.int64), result)
        return int(result[0])

    def reserve(self, words: int, near: int = 0, fragment: int = 0) -> int:
        return self.call(RESERVE, fragment or self.fragment, words, near)

    def release(self, page: int, words: int) -> int:
        return self.call(RELEASE, page, words)

    def settle(self, page: int, promised: int, free: int) -> int:
        return self.call(SETTLE, page, promised, free)

    def cleaned(self, page: int) -> int:
        return self.call(CLEANED, page)

    def free(self, page: int) -> int:
        return self.call(FREE, page)

    def is_fresh(self, page: int) -> bool:
        return bool(self.call(FRESH, page))

    def check(self, fragment: int = 0) -> int:
        """What the recount finds, in calls of one extent each."""
        state = np.zeros(4, dtype=np.int64)
        while (status := disk_matrix.check_space(self.mem, fragment or self.fragment, state, 1)) == a.ST_MORE:
            pass
        return int(status)

    def matrix(self) -> list[int]:
        """Numbers of extents by list of the matrix."""
        return self.numbers()[: m.MATRIX_LISTS]

    def numbers(self) -> list[int]:
        state, out = np.zeros(1, dtype=np.int64), np.zeros(m.MATRIX_WORDS, dtype=np.int64)
        while disk_matrix.matrix_of(self.mem, self.fragment, state, out, 1) == a.ST_MORE:
            pass
        return [int(each) for each in out]

    def position(self, page: int) -> int:
        """Place in the matrix of the extent that begins at `page`."""
        return int(self.mem[self.call(WORD, page) - d.EX_PAGES + d.EX_POSITION])

    def copies(self) -> list[int]:
        """Extent headers of the file."""
        out, state = np.zeros(4_096, dtype=np.int64), np.zeros(3, dtype=np.int64)
        while disk_extents.copy_extents(self.mem, self.file, out, state, 1) == a.ST_MORE:
            pass
        return [int(each) for each in out[: state[1]]]
