"""The tablespaces of an open store: their data files, the places of pages in them, and their growth.

Owns the open data files, and the descriptors in the arena that `engine/disk/space_kernels.py` works on. A new extent is
counted in memory only after its file has been synced at that size. The size of a file gives its number of extents, so
growing needs no record (ADR 0009). The store logs the creation and dropping of files (`engine/store/store.py`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tidemark.engine.base.errors import (
    LimitExceeded,
    MemoryExhausted,
    NoSuchTablespace,
    PageDamaged,
    SchemaInvalid,
    StorageFull,
)
from tidemark.engine.disk import cache_layout as c
from tidemark.engine.disk.data_file import create_data_file, file_name, grow_data_file, open_data_file, remove_unnamed
from tidemark.engine.disk.disk_layout import EXTENT_FREE_BITS, EXTENT_HEADER_WORDS
from tidemark.engine.disk.extents_kernels import (
    add_data_file,
    add_extents,
    copy_extents,
    drop_data_file,
    drop_tablespace,
    free_dropped_extents,
    restore_extent,
    setup_tablespace,
)
from tidemark.engine.memory.arena import memory_full
from tidemark.engine.memory.arena_layout import BLOCK_WORDS, OK, ST_MORE

if TYPE_CHECKING:
    from tidemark.engine.disk.tablespaces import TablespaceDefinition
    from tidemark.engine.files.protocol import File, Files
    from tidemark.engine.memory.arena import Words

EXTENTS_PER_CALL = 64
COPIED_PER_CALL = 512
BLOCKS_PER_CALL = 256
GROWTH_EXTENTS_MIN = 16
GROWTH_SHARE = 8  # a file grows by this fraction of itself
FILE_EXTENTS_MAX = c.FILE_LEAVES * BLOCK_WORDS


def header_words(pages: int) -> int:
    """Return the number of words of the header of an extent of `pages` pages."""
    return EXTENT_HEADER_WORDS + -(-pages // (64 // EXTENT_FREE_BITS))


@dataclass
class DataFile:
    """An open data file; its `extents` are durable, and memory never counts more."""

    file_id: int
    file: File
    address: int
    extents: int


@dataclass
class Tablespace:
    """An open tablespace."""

    definition: TablespaceDefinition
    address: int
    files: list[DataFile] = field(default_factory=list)

    @property
    def extents(self) -> int:
        """The number of extents of all its files."""
        return sum(each.extents for each in self.files)


class Space:
    """All tablespaces of one store. Creating and dropping them needs `schema_latch`; growing has its own lock."""

    def __init__(self, mem: Words, files: Files, store: bytes, cache_of: Callable[[int], int] = lambda _: 0) -> None:
        """store: its UUID. cache_of: returns the address of the page cache for a page size in bytes."""
        self.mem = mem
        self.cache_of = cache_of
        self.incarnation = 0
        self.next_tablespace_id = 1
        self.next_file_id = 1
        self.by_name: dict[str, Tablespace] = {}
        self._files = files
        self._store = store
        self._by_id: dict[int, Tablespace] = {}
        self.open_files: dict[int, tuple[File, int]] = {}  # file number: file, bytes of a page
        self._growing = threading.Lock()
        self._counting = threading.Lock()  # for work on counts and lists of extents that takes several calls
        self._making: set[int] = set()  # data files that no definition names yet
        self._syncing = threading.Lock()

    # --- looking ---------------------------------------------------------------------------------
    def named(self, name: str) -> Tablespace:
        """Return the tablespace of this name. Raises: NoSuchTablespace."""
        found = self.by_name.get(name)
        if found is None:
            raise NoSuchTablespace(f"tablespace {name!r} does not exist; see tablespaces()", tablespace=name)
        return found

    def definitions(self) -> list[TablespaceDefinition]:
        """Return the definitions of all tablespaces, in order of their numbers."""
        return [each.definition for each in self.tablespaces()]

    def tablespaces(self) -> list[Tablespace]:
        """Return all tablespaces, in order of their numbers."""
        return [each for _, each in sorted(self._by_id.items())]

    def place(self, page: int) -> tuple[File, int]:
        """Return the file of a page and its byte offset. Raises: PageDamaged for a number that no data file has."""
        found = self.open_files.get(page >> c.FILE_SHIFT)
        if found is None:
            raise PageDamaged(f"page {page:#x} is in no data file; run check()", page=page)
        return found[0], (page & c.PAGE_IN_FILE_MASK) * found[1]

    def page_bytes(self, page: int) -> int:
        """Return the bytes of a page. Raises: PageDamaged for a number that no data file has."""
        self.place(page)
        return self.open_files[page >> c.FILE_SHIFT][1]

    def counters(self) -> dict[str, Any]:
        """Return sizes and free extents, by name."""
        return {each.definition.name: self._counters(each) for each in self.tablespaces()}

    def _counters(self, tablespace: Tablespace) -> dict[str, Any]:
        definition = tablespace.definition
        return {
            "id": definition.tablespace_id,
            "page_bytes": definition.page_bytes,
            "extent_bytes": definition.extent_bytes,
            "files": {file_name(each.file_id): each.extents * definition.extent_bytes for each in tablespace.files},
            "extents": tablespace.extents,
            "free_extents": int(self.mem[tablespace.address + c.TS_FREE_COUNT]),
            "is_autoextending": definition.is_autoextending,
            "limit_bytes": definition.limit_bytes,
        }

    def extent_headers(self, file: DataFile) -> Iterator[Words]:
        """Yield copies of the headers of a file's extents that tables own or owned; each part has consecutive headers.

        Reserved words count as free. All parts show one instant if the caller holds the commit latch meanwhile.
        """
        pages = int(self.mem[self.mem[file.address + c.FL_TABLESPACE] + c.TS_EXTENT_PAGES])
        state = np.zeros(3, dtype=np.int64)
        status = ST_MORE
        while status == ST_MORE:
            out = np.empty(COPIED_PER_CALL * header_words(pages), dtype=np.int64)
            state[1] = 0
            status = int(copy_extents(self.mem, file.address, out, state, COPIED_PER_CALL))
            yield out[: int(state[1])]

    # --- syncing ---------------------------------------------------------------------------------
    def sync_files(self) -> None:
        """Make everything written to data files so far durable. Raises: SyncFailed."""
        for file, _ in list(self.open_files.values()):
            self._sync(file)

    def _sync(self, file: File) -> None:
        with self._syncing:
            if file.is_open and file.writes != file.synced:
                self._files.fdatasync(file)

    # --- restart ---------------------------------------------------------------------------------
    def restore(self, definition: TablespaceDefinition) -> None:
        """Open an existing tablespace with all its files.

        Raises: FileMissing, ForeignFile, PageDamaged, VersionTooNew, MemoryExhausted.
        """
        tablespace = self._install(replace(definition, file_ids=()))
        self.publish(tablespace)
        for file_id in definition.file_ids:
            self.restore_file(definition.tablespace_id, file_id)

    def restore_file(self, tablespace_id: int, file_id: int) -> None:
        """Open a data file of an existing tablespace, unless it is open. Raises: as `restore`."""
        tablespace = self._by_id.get(tablespace_id)
        if tablespace is None or file_id in self.open_files:
            return
        file, extents = open_data_file(self._files, self._store, tablespace.definition, file_id)
        file.writes += 1  # a killed process may have left unsynced writes
        try:
            made = DataFile(file_id, file, self._install_file(tablespace, file_id), extents)
        except BaseException:
            self._files.close(file)
            raise
        self.publish_file(tablespace, made)
        if not self._count(tablespace):
            raise self._memory_error()

    def restore_extent(self, page: int, fragment: int, headers: Words, at: int) -> bool:
        """Restore the owner and the free words of an extent from its header at headers[at].

        page: its first. fragment: the owner's handle, 0 if its table was dropped. Return False, with nothing done, if
        the extent does not exist, is not free, or cannot have this header.
        """
        return bool(restore_extent(self.mem, page, fragment, headers, at) == OK)

    def number(self, definition: TablespaceDefinition) -> None:
        """Record the numbers of a definition, so that they are never reused."""
        self.next_tablespace_id = max(self.next_tablespace_id, definition.tablespace_id + 1)
        self.next_file_id = max([self.next_file_id, *(each + 1 for each in definition.file_ids)])

    def close(self) -> None:
        """Close all data files, so that the restart can begin again."""
        for file, _ in self.open_files.values():
            self._files.close(file)
        self.open_files.clear()

    def remove_unnamed(self, kept: Iterable[TablespaceDefinition]) -> list[str]:
        """Remove data files that neither this state nor a kept local checkpoint names; returns their names."""
        named = self._making | {each for definition in [*self.definitions(), *kept] for each in definition.file_ids}
        return remove_unnamed(self._files, named)

    # --- making and dropping; the caller holds `schema_latch` ------------------------------------
    def make(self, definition: TablespaceDefinition, size_bytes: int, now_us: int) -> Tablespace:
        """Create a tablespace with one file, not visible before `publish`. Durable on return: the file.

        Raises: StorageFull, MemoryExhausted, SchemaInvalid, LimitExceeded.
        """
        numbered = replace(definition, tablespace_id=self.next_tablespace_id, file_ids=())
        extents = self._extents_of(numbered, size_bytes, 0)
        tablespace = self._install(numbered)
        try:
            tablespace.files.append(self._make_file(tablespace, extents, now_us))
        except BaseException:
            self._forget_memory(tablespace)
            raise
        tablespace.definition = replace(numbered, file_ids=(tablespace.files[0].file_id,))
        self.next_tablespace_id += 1
        return tablespace

    def make_file(self, tablespace: Tablespace, size_bytes: int, now_us: int) -> DataFile:
        """Create one more file, not visible before `publish_file`; otherwise like `make`."""
        extents = self._extents_of(tablespace.definition, size_bytes, tablespace.extents)
        return self._make_file(tablespace, extents, now_us)

    def publish(self, tablespace: Tablespace) -> None:
        """Make a tablespace visible and its extents usable."""
        definition = tablespace.definition
        self.by_name[definition.name] = tablespace
        self._by_id[definition.tablespace_id] = tablespace
        self.number(definition)
        for each in tablespace.files:
            self.open_files[each.file_id] = (each.file, definition.page_bytes)
            self._making.discard(each.file_id)
        self._count(tablespace)

    def publish_file(self, tablespace: Tablespace, made: DataFile) -> None:
        """Make the extents of a new file usable."""
        definition = tablespace.definition
        self.open_files[made.file_id] = (made.file, definition.page_bytes)
        if made.file_id not in definition.file_ids:
            tablespace.definition = replace(definition, file_ids=(*definition.file_ids, made.file_id))
        if made not in tablespace.files:
            tablespace.files.append(made)
        self._making.discard(made.file_id)
        self._count(tablespace)

    def is_used(self, tablespace: Tablespace) -> bool:
        """Whether an extent belongs to a table, including a dropped one that is still in use."""
        with self._counting:
            unused = int(self.mem[tablespace.address + c.TS_FREE_COUNT])
            extent = int(self.mem[tablespace.address + c.TS_DROPPED])
            while extent:
                unused += 1
                extent = int(self.mem[extent + c.EX_NEXT])
            return unused != int(self.mem[tablespace.address + c.TS_EXTENTS])

    def forget(self, tablespace: Tablespace) -> None:
        """Make an unused tablespace invisible. May be called again."""
        self.by_name.pop(tablespace.definition.name, None)
        self._by_id.pop(tablespace.definition.tablespace_id, None)
        for each in tablespace.files:
            self.open_files.pop(each.file_id, None)

    def release(self, tablespace: Tablespace) -> None:
        """Close the files of a forgotten tablespace and release its memory; the files stay until `remove_unnamed`."""
        for each in tablespace.files:
            with self._syncing:
                self._files.close(each.file)
        with self._counting:
            self._forget_memory(tablespace)

    def free_dropped(self, kept_owners: Iterable[int]) -> int:
        """Free the extents of dropped tables and partitions that are in no kept local checkpoint; returns how many.

        kept_owners: the fragments in kept local checkpoints, table | number << OWNER_FRAGMENT_SHIFT.
        """
        kept = np.unique(np.fromiter(kept_owners, dtype=np.int64))
        freed = 0
        with self._counting:
            for tablespace in self.tablespaces():
                while done := free_dropped_extents(self.mem, tablespace.address, kept, EXTENTS_PER_CALL):
                    freed += done
        return freed

    # --- growing ---------------------------------------------------------------------------------
    def extend(self, tablespace_id: int, can_write: bool = True) -> None:
        """Give a tablespace free extents, unless another thread has just done so. Durable on return: their space.

        can_write: False for a restart that only rehearses. Its extents are only in memory, like their pages. Raises:
        StorageFull (disk full, its limit, or autoextend off), MemoryExhausted, NoSuchTablespace.
        """
        tablespace = self._by_id.get(tablespace_id)
        if tablespace is None:
            raise NoSuchTablespace(f"tablespace number {tablespace_id} does not exist; see tablespaces()")
        with self._growing:
            if self._has_free(tablespace) or (self._count(tablespace) and self._has_free(tablespace)):
                return
            grown, count = tablespace.files[-1], self._growth(tablespace)
            if can_write:
                count = self._grow_file(tablespace.definition, grown, count)
            grown.extents += count
            if not self._count(tablespace) and not self._has_free(tablespace):
                raise self._memory_error()

    def _grow_file(self, definition: TablespaceDefinition, grown: DataFile, count: int) -> int:
        """Grow a file by up to `count` extents; returns how many. Durable on return. Raises: StorageFull."""
        try:
            count = grow_data_file(self._files, grown.file, definition, grown.extents, count)
        except StorageFull as error:
            raise StorageFull(
                f"tablespace {definition.name} is full and the disk has no room for another extent of"
                f" {definition.extent_bytes} bytes ({error.message}); make room on the disk, delete rows of the"
                " table that grows, or drop tables",
                tablespace=definition.name,
            ) from error
        self._sync(grown.file)
        return count

    def has_dropped(self, tablespace_id: int) -> bool:
        """Whether extents of dropped tables wait for local checkpoints to free them."""
        tablespace = self._by_id.get(tablespace_id)
        return tablespace is not None and bool(self.mem[tablespace.address + c.TS_DROPPED])

    def _has_free(self, tablespace: Tablespace) -> bool:
        return bool(self.mem[tablespace.address + c.TS_FREE])

    def _growth(self, tablespace: Tablespace) -> int:
        """Return by how many extents the last file grows. Raises: StorageFull if it may not grow."""
        definition = tablespace.definition
        size_bytes = tablespace.extents * definition.extent_bytes
        full = f"tablespace {definition.name} is full ({size_bytes} bytes)"
        if not definition.is_autoextending:
            raise StorageFull(
                f"{full} and does not extend itself; add a file with add_datafile(), delete rows of the table that"
                " grows, or drop tables",
                tablespace=definition.name,
            )
        last = tablespace.files[-1]
        count = min(max(GROWTH_EXTENTS_MIN, last.extents // GROWTH_SHARE), FILE_EXTENTS_MAX - last.extents)
        if definition.limit_extents is not None:
            count = min(count, definition.limit_extents - tablespace.extents)
            if count <= 0:
                raise StorageFull(
                    f"{full}, which is its limit of {definition.limit_bytes} bytes; delete rows of the table that"
                    " grows, drop tables, or make new ones in another tablespace",
                    tablespace=definition.name,
                )
        if count <= 0:
            raise StorageFull(
                f"{full} and its last file has all extents a file can have; add one with add_datafile()",
                tablespace=definition.name,
            )
        return count

    # --- memory ----------------------------------------------------------------------------------
    def _install(self, definition: TablespaceDefinition) -> Tablespace:
        address = setup_tablespace(
            self.mem,
            definition.tablespace_id,
            definition.page_bytes // 8,
            definition.extent_pages,
            self.cache_of(definition.page_bytes),
        )
        if address <= 0:
            raise self._memory_error()
        return Tablespace(definition, address)

    def _install_file(self, tablespace: Tablespace, file_id: int) -> int:
        address = int(add_data_file(self.mem, tablespace.address, file_id))
        if address <= 0:
            raise self._memory_error()
        return address

    def _make_file(self, tablespace: Tablespace, extents: int, now_us: int) -> DataFile:
        file_id = self.next_file_id
        if file_id > c.FILE_ID_MAX:
            raise LimitExceeded(f"{c.FILE_ID_MAX} data files have been made; copy the tables into a new store")
        address = self._install_file(tablespace, file_id)
        self._making.add(file_id)
        try:
            identity = (self._store, self.incarnation)
            file = create_data_file(self._files, identity, tablespace.definition, file_id, extents, now_us)
        except BaseException:
            self._making.discard(file_id)
            drop_data_file(self.mem, address)
            raise
        self.next_file_id += 1
        return DataFile(file_id, file, address, extents)

    def _extents_of(self, definition: TablespaceDefinition, size_bytes: int, present: int) -> int:
        """Return the extents of a new file of this size, at least one. Raises: SchemaInvalid if too many."""
        extents = -(-size_bytes // definition.extent_bytes)
        if extents < 1:
            raise SchemaInvalid(
                f"a data file has at least one extent, got {size_bytes} bytes; give {definition.extent_bytes} or more"
            )
        if extents > FILE_EXTENTS_MAX:
            raise SchemaInvalid(
                f"a data file has up to {FILE_EXTENTS_MAX} extents of {definition.extent_bytes} bytes, {size_bytes}"
                " bytes are more; add several files",
                tablespace=definition.name,
            )
        if definition.limit_extents is not None and present + extents > definition.limit_extents:
            raise SchemaInvalid(
                f"tablespace {definition.name}: {(present + extents) * definition.extent_bytes} bytes in all are more"
                f" than its limit of {definition.limit_bytes}; give a smaller size",
                tablespace=definition.name,
            )
        return extents

    def _count(self, tablespace: Tablespace) -> bool:
        """Create descriptors in memory for all durable extents; False if there is no room for all of them."""
        # One thread at a time: two for the same file would count an extent twice.
        with self._counting:
            for each in tablespace.files:
                while (missing := each.extents - int(self.mem[each.address + c.FL_EXTENTS])) > 0:
                    if add_extents(self.mem, each.address, min(missing, EXTENTS_PER_CALL)) == 0:
                        return False
        return True

    def _forget_memory(self, tablespace: Tablespace) -> None:
        for each in tablespace.files:
            drop_data_file(self.mem, each.address)
        while drop_tablespace(self.mem, tablespace.address, BLOCKS_PER_CALL) == ST_MORE:
            pass

    def _memory_error(self) -> MemoryExhausted:
        return memory_full(self.mem, "the extents of a tablespace")
