"""A page cache on a disk in memory, without a store around it: one tablespace, two data files of one extent each."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.disk import kernels as k
from tidemark.engine.base.clock import ManualClock
from tidemark.engine.base.errors import FileMissing
from tidemark.engine.disk import cache_layout as c
from tidemark.engine.disk.cache import PageCache
from tidemark.engine.disk.disk_layout import PAGE_HEADER_WORDS
from tidemark.engine.disk.double_write import DoubleWrite, create_double_write, rewrite_last_batch
from tidemark.engine.disk.frames_kernels import cache_region_words
from tidemark.engine.disk.page_writer import PageWriter
from tidemark.engine.memory import arena_layout as a
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles

STORE = b"0123456789abcdef"
PAGE_WORDS = 256  # four sectors, so that a page can be torn
PAGE_BYTES = PAGE_WORDS * 8
EXTENT_PAGES = 100
FILES = (1, 2)
BLOCK = 3 * a.PAGE_WORDS
CACHE = 8 * a.PAGE_WORDS
OWNER = 7 | 2 << 32
FIRST_LSN = 1_000


def page(number: int, file: int = 1) -> int:
    return file << c.FILE_SHIFT | number


class Places:
    """Data files by number."""

    def __init__(self, files: Any) -> None:
        self._files = files
        self.handles = {number: files.open(f"space/{number}.data", writable=True) for number in FILES}
        self.syncs = 0

    def place(self, number: int) -> tuple[Any, int]:
        file = self.handles.get(number >> c.FILE_SHIFT)
        if file is None:
            raise FileMissing("no such data file; create it", page=number)
        return file, (number & c.PAGE_IN_FILE_MASK) * PAGE_BYTES

    def sync_files(self) -> None:
        self.syncs += 1
        for file in self.handles.values():
            self._files.fdatasync(file)


class UndoMarks:
    """An UNDO log that only records its flushes with the disk."""

    def __init__(self, files: Any) -> None:
        self._files = files
        self.error: Exception | None = None
        self.asked: list[int] = []

    def flush_through(self, lsn: int) -> None:
        if self.error is not None:
            raise self.error
        self.asked.append(lsn)
        self._files.mark("undo", lsn=lsn)


def new_disk() -> MemoryFiles:
    files = MemoryFiles()
    files.make_directory("space")
    files.sync_directory("")
    for number in FILES:
        file = files.create(f"space/{number}.data", (1 + EXTENT_PAGES) * PAGE_BYTES)
        files.fdatasync(file)
    files.sync_directory("space")
    create_double_write(files, PAGE_BYTES)
    files.sync_directory("")
    return files


def space_in(mem: Any) -> None:
    """A tablespace with its files and extents, laid out by hand; every page is wholly free."""
    directory, leaf, space = (BLOCK + number * a.BLOCK_WORDS for number in range(3))
    mem[a.S_FILE_DIRECTORY] = directory
    mem[directory] = leaf
    mem[space + c.TS_EXTENT_PAGES] = EXTENT_PAGES
    mem[space + c.TS_CACHE] = CACHE
    mem[space + c.TS_PAYLOAD] = PAGE_WORDS - PAGE_HEADER_WORDS
    for position, number in enumerate(FILES):
        file, extents, extent = (BLOCK + (3 + 3 * position + each) * a.BLOCK_WORDS for each in range(3))
        mem[leaf + number] = file
        mem[file + c.FL_TABLESPACE] = space
        mem[file + c.FL_EXTENTS] = 1
        mem[file + c.FL_LEAVES] = extents
        mem[extents] = extent
        mem[extent + c.EX_TABLE] = OWNER & 0xFFFFFFFF
        mem[extent + c.EX_NUMBER] = OWNER >> 32
        mem[extent + c.EX_FIRST] = page(c.FIRST_DATA_PAGE, number)
        mem[extent + c.EX_PAGES : extent + c.EX_PAGES + EXTENT_PAGES] = PAGE_WORDS - PAGE_HEADER_WORDS


class Stage:
    """The cache and everything around it."""

    def __init__(self, files: Any = None, frames: int = 25, clock: Any = None, **keywords: Any) -> None:
        self.files = new_disk() if files is None else files
        self.mem: Any = np.zeros(CACHE + cache_region_words(PAGE_WORDS, frames), dtype=np.int64)
        self.mem[a.S_POOL + a.P_SCRATCH] = a.PAGE_WORDS
        self.mem[a.S_UNDO] = 2 * a.PAGE_WORDS
        self.mem[2 * a.PAGE_WORDS + c.U_LSN] = FIRST_LSN
        space_in(self.mem)
        self.places = Places(self.files)
        self.undo = UndoMarks(self.files)
        self.double_write = DoubleWrite(self.files, (STORE, 3))
        self.writer = PageWriter(self.files, self.places, self.undo, self.double_write, (STORE, 3))
        self.clock = ManualClock() if clock is None else clock
        self.cache = PageCache(
            self.mem,
            CACHE,
            PAGE_WORDS,
            frames,
            files=self.files,
            places=self.places,
            writer=self.writer,
            store=STORE,
            clock=self.clock,
            **keywords,
        )

    def put(self, number: int, value: int) -> int:
        """Write a value as a transaction would; the LSN."""
        self.cache.hold([number | c.FRESH_PAGE])
        lsn = k.put_value(self.mem, CACHE, number, value)
        self.cache.release([number])
        assert lsn > 0
        return lsn

    def get(self, number: int) -> int:
        self.cache.hold([number])
        value = k.value_of(self.mem, CACHE, number)
        self.cache.release([number])
        return value

    def frame(self, number: int) -> int:
        return k.frame(self.mem, CACHE, number)

    def counter(self, name: str) -> int:
        return self.cache.counters()[name]


def restart(files: Any) -> tuple[Stage, int]:
    """The double-write file put to use, then a cache over what the disk has; also how many pages were repaired."""
    files.read_errors_latch = False
    repaired = rewrite_last_batch(files, Places(files), STORE)
    files.read_errors_latch = True
    stage = Stage(files)
    for number in FILES:  # no page is cached: the disk is read
        extent = BLOCK + (3 + 3 * (number - 1) + 2) * a.BLOCK_WORDS
        stage.mem[extent + c.EX_PAGES : extent + c.EX_PAGES + EXTENT_PAGES] = 0
    return stage, repaired


def spoil(files: Any, name: str, offset: int, data: bytes = b"\xee\xee") -> None:
    """Write bytes past the store, durably."""
    file = files.open(name, writable=True)
    files.pwrite(file, offset, data)
    files.fdatasync(file)
