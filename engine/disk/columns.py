"""Disk columns of one store, assembled: tablespaces, page caches, page writer, UNDO log.

A store without tablespaces has this object and nothing else: files, buffers and threads come with the first tablespace
(`start`). Rooms that build on this one request pages here by number, whatever cache they are in.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from tidemark.engine.base.errors import PageDamaged
from tidemark.engine.base.owner import call_owner
from tidemark.engine.disk.cache import BEHIND_PAGES_MAX, PageCache
from tidemark.engine.disk.cache_layout import FRAMES_MIN, FRESH_PAGE, U_LSN, U_USED
from tidemark.engine.disk.double_write import FILE_NAME, DoubleWrite, create_double_write
from tidemark.engine.disk.frames_kernels import cache_region_words
from tidemark.engine.disk.page_writer import PageWriter
from tidemark.engine.disk.space import Space
from tidemark.engine.disk.space_kernels import tablespace_of
from tidemark.engine.disk.tablespaces import PAGE_BYTES, PAGE_SIZES_BYTES
from tidemark.engine.disk.undo import UndoLog
from tidemark.engine.disk.undo_kernels import setup_undo, undo_region_words
from tidemark.engine.disk.undo_ring import UndoPosition, buffer_words_of, create_undo_files, undo_geometry
from tidemark.engine.memory.arena_layout import S_UNDO

if TYPE_CHECKING:
    from tidemark.engine.base.clock import Clock
    from tidemark.engine.base.options import Options
    from tidemark.engine.disk.space import Tablespace
    from tidemark.engine.files.protocol import Files
    from tidemark.engine.log.geometry import Geometry
    from tidemark.engine.memory.arena import Arena

UNPINNED_PAGES = 16  # a commit of up to this many pages is tried without pinning them
COMMIT_PAGES = 64  # pages of one slice of a commit: changing them takes about 200 µs


def region_words(options: Options, geometry: Geometry | None) -> int:
    """Return the words of arena after `data_memory` that disk columns may need; they are touched only when needed.

    geometry: of the UNDO log, if there is one.
    """
    undo = undo_region_words(buffer_words_of(geometry or undo_geometry(options.undo_log_bytes)))
    return undo + sum(cache_region_words(size // 8, frames_of(options, size)) for size in PAGE_SIZES_BYTES)


def frames_of(options: Options, page_bytes: int) -> int:
    """Return the frames of the cache for pages of this size: `page_buffer` less two batches on their way to disk."""
    pages = options.page_buffer_bytes // page_bytes
    return max(FRAMES_MIN, pages - 2 * min(BEHIND_PAGES_MAX, pages // 6))


class DiskColumns:
    """The parts of a store that keep columns on disk."""

    undo: UndoLog

    def __init__(
        self,
        arena: Arena,
        files: Files,
        clock: Clock,
        options: Options,
        latch: threading.Lock,
        identity: tuple[bytes, int],
        can_write: bool = True,
    ) -> None:
        """identity: store UUID, and the incarnation of this opening, even if the sysfile does not have it yet.
        can_write: False for a restart without writes.
        """
        self.mem = arena.mem
        self.space = Space(arena.mem, files, identity[0], call_owner(self._cache_address))
        self.space.incarnation = identity[1]
        self.can_write = can_write
        self.restorable_epoch: Callable[[], int] = lambda: -1
        self.declare_undo: Callable[[Geometry], None] = lambda geometry: None
        self.pages_repaired = 0
        self.has_writer = False  # a thread calls `clean_ahead` whenever `writer_wanted` is set
        self.writer_wanted = threading.Event()
        self._arena = arena
        self._files = files
        self._clock = clock
        self._options = options
        self._latch = latch
        self._identity = identity
        self.writer: PageWriter | None = None
        self.caches: dict[int, PageCache] = {}  # by bytes of a page
        self.pages_in_memory = np.zeros(1 + UNPINNED_PAGES, dtype=np.int64)

    # --- life ------------------------------------------------------------------------------------
    @property
    def is_started(self) -> bool:
        """Whether there is an UNDO log, that is, whether there ever was a tablespace."""
        return self.writer is not None

    @property
    def is_filtering(self) -> bool:
        """Whether UNDO records of restorable epochs are filtered from the log."""
        return self.is_started and self.undo.is_filtering

    def begin_first(self) -> None:
        """Create UNDO log and double-write file for the first tablespace. Durable on return, and declared by
        `declare_undo`.
        """
        if self.is_started:
            return
        geometry = undo_geometry(self._options.undo_log_bytes)
        create_undo_files(self._files, geometry)
        self.make_double_write()
        self.declare_undo(geometry)
        self.start(geometry, UndoPosition())

    def make_double_write(self) -> None:
        """Create the double-write file unless there is one; batches of larger pages lengthen it."""
        if not self._files.exists(FILE_NAME):
            create_double_write(self._files, PAGE_BYTES)

    def start(self, geometry: Geometry, position: UndoPosition) -> None:
        """Begin to use an existing UNDO log. Raises: FileMissing, FileTruncated."""
        buffer_words = buffer_words_of(geometry)
        if not int(self.mem[S_UNDO]):
            setup_undo(self.mem, self._arena.take_region(undo_region_words(buffer_words)), buffer_words)
        self.undo = UndoLog(
            self._files,
            geometry,
            self.mem,
            self._latch,
            self._identity,
            position,
            call_owner(self._ask_restorable_epoch),
            self._options.undo_filter,
        )
        self.writer = PageWriter(
            self._files, self.space, self.undo, DoubleWrite(self._files, self._identity), self._identity
        )

    def _ask_restorable_epoch(self) -> int:
        return self.restorable_epoch()

    def _cache_address(self, page_bytes: int) -> int:
        cache = self.caches.get(page_bytes)
        if cache is None:
            assert self.writer is not None, "tablespaces come after the UNDO log"
            frames = frames_of(self._options, page_bytes)
            cache = PageCache(
                self.mem,
                self._arena.take_region(cache_region_words(page_bytes // 8, frames)),
                page_bytes // 8,
                frames,
                files=self._files,
                places=self.space,
                writer=self.writer,
                store=self._identity[0],
                clock=self._clock,
                wait_ms=max(1, self._options.lock_timeout_ms),
                can_write=self.can_write,
                wake_writer=call_owner(self._wake_writer),
            )
            self.caches[page_bytes] = cache
        return cache.address

    def close(self) -> None:
        """Stop reading ahead. Dirty pages in memory are lost, as in a crash."""
        for cache in self.caches.values():
            cache.close()

    # --- pages -----------------------------------------------------------------------------------
    def _by_cache(self, pages: Iterable[int]) -> list[tuple[PageCache, list[int]]]:
        if len(self.caches) == 1:
            (only,) = self.caches.values()
            return [(only, list(pages))]
        found: dict[int, list[int]] = {}
        for page in pages:
            found.setdefault(self.space.page_bytes(page & ~FRESH_PAGE), []).append(page)
        return [(self.caches[size], found[size]) for size in sorted(found)]

    def hold(self, pages: list[int], is_reference: bool = True) -> None:
        """Load pages and pin them until `release`; all or none. Raises: as `PageCache.hold`."""
        if not pages:
            return
        held: list[tuple[PageCache, list[int]]] = []
        try:
            for cache, part in self._by_cache(pages):
                cache.hold(part, is_reference)
                held.append((cache, part))
        except BaseException:
            for cache, part in held:
                cache.release(part)
            raise

    def release(self, pages: list[int]) -> None:
        """Release held pages. A KeyboardInterrupt is raised only at the end, and a MemoryError is retried once; an
        interrupt right at the start of the call leaves the pages pinned until the store is closed.
        """
        if not pages:
            return
        interrupt: KeyboardInterrupt | None = None
        parts: list[tuple[PageCache, list[int]]] | None = None
        has_failed = False
        while parts is None:
            try:
                parts = self._by_cache(pages)
            except KeyboardInterrupt as error:
                interrupt = error
            except MemoryError:
                if has_failed:
                    raise
                has_failed = True
        for cache, part in parts:
            try:
                cache.release(part)
            except KeyboardInterrupt as error:
                interrupt = error
        if interrupt is not None:
            raise interrupt

    def load(self, page: int) -> None:
        """Load one page without pinning it, for a caller that reads it at once. Raises: as `hold`."""
        self._by_cache([page])[0][0].load(page)

    def ensure(self, pages: list[int]) -> None:
        """Load pages without pinning them. Raises: as `hold`."""
        for cache, part in self._by_cache(pages):
            cache.ensure(part)

    def read_ahead(self, pages: list[int]) -> None:
        """Have another thread load pages; never fails."""
        if pages:
            for cache, part in self._by_cache(pages):
                cache.read_ahead(part)

    def forget_pages(self, tablespace: Tablespace) -> None:
        """Drop all pages of a tablespace that holds no table. From then on nothing may be written to its files, and its
        pages have no valid content, even if the tablespace is not dropped after all. Raises: as
        `PageCache.forget_files`.
        """
        cache = self.caches[tablespace.definition.page_bytes]
        cache.forget_files(each.file_id for each in tablespace.files)

    @contextmanager
    def held(self, pages: list[int]) -> Iterator[None]:
        """Hold pages during a `with` block, without a reference to them."""
        self.hold(pages, False)
        try:
            yield
        finally:
            self.release(pages)

    def is_waiting(self, page: int) -> bool:
        """Whether a newer copy of the page is on its way to its place on disk."""
        return any(cache.write_behind.find(page) is not None for cache in list(self.caches.values()))

    def pages_per_hold(self, most: int) -> int:
        """Return how many pages one holder should pin at once: a quarter of the frames at most, so that several holders
        fit.
        """
        fewest = min((cache.frames for cache in self.caches.values()), default=FRAMES_MIN)
        return max(1, min(most, fewest // 4))

    def damaged(self, page: int, table: str) -> PageDamaged:
        """Return the error for a page that does not match its row."""
        file, offset = self.space.place(page)
        return PageDamaged(
            f"page at offset {offset} of {file.name} does not match the row of {table} that refers to it; run"
            " `tidemark check`",
            file=file.name,
            page=page,
            offset=offset,
            table=table,
        )

    # --- space ---------------------------------------------------------------------------------
    def extend(self, fragment: int) -> None:
        """Add free extents to the tablespace of a pinned fragment. Raises: StorageFull, MemoryExhausted."""
        self.space.extend(int(tablespace_of(self.mem, fragment)), self.can_write)

    def has_dropped(self, fragment: int) -> bool:
        """Whether local checkpoints will free room in the tablespace of a pinned fragment."""
        return self.space.has_dropped(int(tablespace_of(self.mem, fragment)))

    def drop_undo_records(self) -> None:
        """Drop the content of the UNDO buffer, which a restart without writes never needs."""
        self.mem[int(self.mem[S_UNDO]) + U_USED] = 0

    # --- local checkpoints and counters ----------------------------------------------------------
    def flush(self, bytes_per_second: int = 0) -> int:
        """Write all pages that are dirty now; returns how many. Durable on return: these pages, in their places."""
        return sum(cache.flush(bytes_per_second) for cache in list(self.caches.values()))

    def clean_ahead(self) -> int:
        """Write the UNDO buffer if it is half full, and full batches of pages; returns the pages written."""
        if self.undo.wants_flush():
            self.undo.flush_through(int(self.mem[int(self.mem[S_UNDO]) + U_LSN]))
        return sum(cache.write_behind.write_full() for cache in list(self.caches.values()))

    def _wake_writer(self) -> bool:
        if self.has_writer:
            self.writer_wanted.set()
        return self.has_writer

    def counters(self) -> dict[str, Any]:
        """Return the counters for `status()`."""
        found: dict[str, Any] = {"pages_repaired": self.pages_repaired}
        if self.writer is not None:
            found["page_buffer"] = {str(size): cache.counters() for size, cache in sorted(self.caches.items())}
            found["double_write_batches"] = self.writer.batches
            found["undo"] = self.undo.counters()
        return found
