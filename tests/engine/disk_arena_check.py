"""The part of the arena walk for disk columns: the region after `data_memory`, and the content of the pool.

Everything is counted again from layout and buffers: extents by owner, pages by class, open pages by list, and the space
of each page that plans of open transactions have reserved. These plans must account for all reserved space.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from tidemark.engine.disk import cache_layout as d
from tidemark.engine.disk.disk_layout import PIECE_HEADER_WORDS, PIECE_LINK_WORDS
from tidemark.engine.log import redo_layout as redo
from tidemark.engine.memory import arena_layout as a
from tidemark.engine.txn import delete_log_layout as dl
from tidemark.engine.txn.delete_log import delete_log_words
from tidemark.engine.txn.versions_layout import VIEW_LIST_WORDS

if TYPE_CHECKING:
    from tests.engine.arena_check import ArenaCheck

LINKED_WORDS = PIECE_HEADER_WORDS + PIECE_LINK_WORDS


class DiskArenaCheck:
    """Claims every word disk columns use, through the walk it belongs to."""

    def __init__(self, check: ArenaCheck) -> None:
        self.check = check
        self.word = check.word
        self.extents: dict[int, int] = {}  # first page → extent
        self.tablespace_of: dict[int, int] = {}  # extent → tablespace
        self.open_pages: dict[int, int] = {}  # page → cell
        self.promised: Counter[int] = Counter()  # by page, from the plans
        self.seen: set[int] = set()  # extents some list has

    def run(self, fragments: list[int]) -> None:
        """fragments: all there are, including those of dropped tables that are still in use."""
        self.region()
        directory = self.word(a.S_FILE_DIRECTORY)
        if directory:
            self.check.block(directory, "file directory")
            self.data_files(directory)
        for fragment in fragments:
            if self.word(fragment + a.F_HAS_DISK):
                self.fragment(fragment)
        self.tablespaces()
        assert self.seen == set(self.extents.values()), "an extent is in no list"
        self.plans()
        cells = {page: self.word(cell + d.OP_RESERVED) for page, cell in self.open_pages.items()}
        assert +self.promised == +Counter(cells), "pages are not promised what the plans of open transactions say"

    # --- after data_memory -----------------------------------------------------------------------
    def versions(self) -> None:
        """The list of open views, the buckets and the ring of the version store."""
        buckets = self.word(a.S_VERSION_MASK) + 1
        assert buckets & (buckets - 1) == 0
        self.check.claim(self.word(a.S_VIEW_LIST), VIEW_LIST_WORDS, "open views")
        self.check.claim(self.word(a.S_VERSION_BUCKETS), 2 * buckets, "buckets of the version store")
        self.check.claim(self.word(a.S_VERSION_RING), self.word(a.S_VERSION_RING_WORDS), "ring of the version store")
        assert self.word(a.S_VERSION_HEAD) - self.word(a.S_VERSION_TAIL) <= self.word(a.S_VERSION_RING_WORDS)

    def region(self) -> None:
        """Version store, caches and the UNDO log, then the memory that was never taken."""
        arena = self.check.store.arena
        begin = arena.pages_end
        undo = self.word(a.S_UNDO)
        if undo:
            size = self.word(undo + d.U_SIZE)
            self.check.claim(undo, d.UNDO_WORDS, "UNDO descriptor")
            for each in (d.U_ACTIVE, d.U_OTHER):
                assert (self.word(undo + each) - undo - d.UNDO_WORDS) % size == 0
                self.check.claim(self.word(undo + each), size, "UNDO buffer")
            assert 0 <= self.word(undo + d.U_USED) <= size
            promised = sum(self.word(txn.desc + a.X_UNDO_WORDS) for txn in self.check.store.locks.by_slot.values())
            assert self.word(undo + d.U_RESERVED) == promised, "UNDO log is reserved for no transaction"
        self.versions()
        log = self.word(a.S_DELETE_LOG)
        if log:
            entries = self.word(log + dl.DL_CAPACITY) * dl.DELETE_ENTRY_WORDS
            self.check.claim(log, delete_log_words(self.check.store.options), "delete log")
            assert self.word(log + dl.DL_END) == log + dl.DL_WORDS + entries
        for cache in self.caches():
            self.cache(cache)
        taken = arena.region
        assert begin <= taken <= self.check.mem.size
        assert self.check.owner[begin:taken].all(), "words of the region have no owner"
        assert not self.check.owner[taken:].any() and not self.check.mem[taken:].any(), "the region was used untaken"
        self.check.owner[taken:] = 1

    def caches(self) -> list[int]:
        return [cache.address for cache in self.check.store.disk.caches.values()]

    def cache(self, at: int) -> None:
        word = self.word
        heads, entries, frames = word(at + d.C_HASH_MASK) + 1, word(at + d.C_ENTRIES), word(at + d.C_FRAMES)
        self.check.claim(at, d.CACHE_WORDS, "page cache")
        self.check.claim(word(at + d.C_HASH), heads, "hash heads")
        self.check.claim(word(at + d.C_ENTRY), entries * d.CACHE_ENTRY_WORDS, "cache entries")
        page_words = word(at + d.C_PAGE_WORDS)
        self.check.claim(word(at + d.C_FRAME), frames * page_words, "frames")
        held: set[int] = set()
        dirty = pinned = resident = 0
        for head in range(heads):
            entry = word(word(at + d.C_HASH) + head)
            while entry:
                frame, flags = word(entry + d.CE_FRAME), word(entry + d.CE_FLAGS)
                dirty += bool(flags & d.CE_IS_DIRTY)
                pinned += word(entry + d.CE_PINS) > 0
                if frame:
                    assert frame not in held and (frame - word(at + d.C_FRAME)) % page_words == 0
                    held.add(frame)
                    resident += 1
                entry = word(entry + d.CE_HASH_NEXT)
        assert (dirty, pinned) == (word(at + d.C_DIRTY), word(at + d.C_PINNED)), "the cache counts its pages wrong"
        assert resident + word(at + d.C_FREE_FRAMES) == frames, "a frame is neither free nor any page's"

    # --- files and tablespaces -------------------------------------------------------------------
    def data_files(self, directory: int) -> None:
        for leaf in self.entries(directory, 0, a.BLOCK_WORDS):
            self.check.block(leaf, "file directory leaf")
            for file in self.entries(leaf, 0, a.BLOCK_WORDS):
                self.check.block(file, "data file")
                for each in self.entries(file, d.FL_LEAVES, a.BLOCK_WORDS):
                    self.check.block(each, "extent map")
                self.extents_of(file)

    def entries(self, at: int, start: int, stop: int) -> list[int]:
        held: list[int] = self.check.mem[at + start : at + stop].tolist()
        return [each for each in held if each]

    def extents_of(self, file: int) -> None:
        tablespace = self.word(file + d.FL_TABLESPACE)
        pages = self.word(tablespace + d.TS_EXTENT_PAGES)
        for number in range(self.word(file + d.FL_EXTENTS)):
            leaf = self.word(file + d.FL_LEAVES + number // a.BLOCK_WORDS)
            extent = self.word(leaf + number % a.BLOCK_WORDS)
            first = self.word(file + d.FL_ID) << d.FILE_SHIFT | d.FIRST_DATA_PAGE + number * pages
            assert self.word(extent + d.EX_FIRST) == first, "an extent lies at another place than its file says"
            self.extents[first] = extent
            self.tablespace_of[extent] = tablespace

    def tablespaces(self) -> None:
        for each in self.check.store.space.tablespaces():
            at = self.check.block(each.address, "tablespace")
            size = d.EX_PAGES + self.word(at + d.TS_EXTENT_PAGES)
            block, used = self.word(at + d.TS_EXTENT_BLOCK), self.word(at + d.TS_EXTENT_USED)
            carved = set()
            while block:
                self.check.block(block, "extents")
                carved |= set(range(block + 1, block + used, size))
                block, used = self.word(block), 1 + (a.BLOCK_WORDS - 1) // size * size
            assert carved == {extent for extent, space in self.tablespace_of.items() if space == at}
            assert len(carved) == self.word(at + d.TS_EXTENTS)
            free = self.listed(self.word(at + d.TS_FREE), d.POSITION_FREE)
            assert len(free) == self.word(at + d.TS_FREE_COUNT)
            assert (free[-1] if free else 0) == self.word(at + d.TS_FREE_LAST)
            for extent in [*free, *self.listed(self.word(at + d.TS_DROPPED), d.POSITION_DROPPED)]:
                assert self.word(extent + d.EX_FRAGMENT) == 0 and self.tablespace_of[extent] == at
                assert (self.check.mem[extent + d.EX_PAGES : extent + size] >= 0).all(), "a page of no fragment is open"

    def listed(self, extent: int, position: int) -> list[int]:
        """A doubly linked list of extents, all of which say that they are in it."""
        found: list[int] = []
        while extent:
            assert extent not in self.seen, "an extent is in two lists"
            assert self.word(extent + d.EX_POSITION) == position
            assert self.word(extent + d.EX_PREVIOUS) == (found[-1] if found else 0)
            self.seen.add(extent)
            found.append(extent)
            extent = self.word(extent + d.EX_NEXT)
        return found

    # --- fragments -------------------------------------------------------------------------------
    def fragment(self, f: int) -> None:
        owned: set[int] = set()
        extent = self.word(f + a.F_DISK_EXTENTS)
        while extent:
            owned.add(extent)
            self.extent(f, extent)
            extent = self.word(extent + d.EX_OWNED)
        assert len(owned) == self.word(f + a.F_DISK_EXTENT_COUNT)
        listed: set[int] = set()
        for position in range(a.MATRIX_ROWS * a.DISK_CLASSES):
            found = self.listed(self.word(f + a.F_DISK_MATRIX + position), position)
            assert all(self.position(each) == position for each in found), "an extent is in a wrong list"
            listed.update(found)
        current = self.word(f + a.F_DISK_CURRENT)
        if current:
            assert current not in listed
            listed.update(self.listed(current, d.POSITION_CURRENT))
        assert listed == owned, "the matrix has not the extents of its fragment"
        self.open_lists(f, owned)

    def extent(self, f: int, extent: int) -> None:
        """Class counts and sum, from the page words alone."""
        tablespace = self.tablespace_of[extent]
        assert self.word(f + a.F_TABLESPACE) == tablespace and self.word(extent + d.EX_FRAGMENT) == f
        owner = self.word(extent + d.EX_TABLE), self.word(extent + d.EX_NUMBER)
        assert owner == (self.word(f + a.F_TABLE), self.word(f + a.F_NUMBER))
        classes: Counter[int] = Counter()
        total = 0
        for index in range(self.word(tablespace + d.TS_EXTENT_PAGES)):
            word, page = self.word(extent + d.EX_PAGES + index), self.word(extent + d.EX_FIRST) + index
            if word < 0:
                self.check.claim(-word, a.CELL_WORDS, "open page")
                assert (self.word(d.OP_PAGE - word), self.word(d.OP_EXTENT - word)) == (page, extent)
                self.open_pages[page] = -word
                word = self.word(d.OP_FREE - word) - self.word(d.OP_RESERVED - word)
            assert 0 <= word <= self.word(tablespace + d.TS_PAYLOAD)
            classes[self.class_of(f, word)] += 1
            total += word
        assert total == self.word(extent + d.EX_FREE), "EX_FREE is wrong"
        held = [self.word(extent + d.EX_CLASSES + each) for each in range(a.DISK_CLASSES)]
        assert held == [classes[each] for each in range(a.DISK_CLASSES)], "pages by class are counted wrong"

    def class_of(self, f: int, free: int) -> int:
        payload = self.word(self.word(f + a.F_TABLESPACE) + d.TS_PAYLOAD)
        floors = (payload, self.word(f + a.F_DISK_ANY), self.word(f + a.F_DISK_SMALL))
        return next((number for number, floor in enumerate(floors) if free >= floor), 3)

    def position(self, extent: int) -> int:
        """Row by free words, column by the best class present."""
        tablespace = self.tablespace_of[extent]
        limit = self.word(tablespace + d.TS_PAYLOAD) * self.word(tablespace + d.TS_EXTENT_PAGES)
        free = self.word(extent + d.EX_FREE)
        row = next((row for row in range(4) if free >= (4 - row) * limit // 5), 4)
        column = next((each for each in range(3) if self.word(extent + d.EX_CLASSES + each)), 3)
        return row * a.DISK_CLASSES + column

    def open_lists(self, f: int, owned: set[int]) -> None:
        listed: set[int] = set()
        heads = {place: f + a.F_DISK_REQUESTS + place for place in range(a.DISK_CLASSES)}
        heads |= {d.OP_DIRTY_LIST + place: f + a.F_DISK_DIRTY + place for place in range(a.DISK_CLASSES)}
        for place, head in heads.items():
            before, cell = 0, self.word(head)
            while cell:
                assert cell not in listed and self.word(cell + d.OP_PREVIOUS) == before
                assert self.word(cell + d.OP_LIST) == place
                free = self.word(cell + d.OP_FREE) - self.word(cell + d.OP_RESERVED)
                assert self.class_of(f, free) == place % d.OP_DIRTY_LIST, "an open page is in a wrong list"
                assert place >= d.OP_DIRTY_LIST or self.word(cell + d.OP_RESERVED), "an open page serves nothing"
                listed.add(cell)
                before, cell = cell, self.word(cell + d.OP_NEXT)
        mine = {cell for cell in self.open_pages.values() if self.word(cell + d.OP_EXTENT) in owned}
        assert listed == mine, "open pages are in no list"

    # --- plans -----------------------------------------------------------------------------------
    def plans(self) -> None:
        """What open transactions have planned, read from the record images in their buffers."""
        for txn in [place.owner() for place in self.check.store.locks.open_now() if place.owner is not None]:
            for cell, owner in self.check.operations.items():
                if owner == txn.desc:
                    self.plans_of(txn.buf, cell)

    def plans_of(self, buf: Any, operation: int) -> None:
        f, word = self.word(operation + a.O_FRAGMENT), self.word(operation + a.O_RECORD)
        kind, record = word & a.OP_KIND_MASK, word >> a.OP_RECORD_SHIFT
        if not self.word(f + a.F_HAS_DISK) or kind not in (redo.KIND_INSERT, redo.KIND_UPDATE):
            return
        flags = int(buf[record]) >> redo.FLAGS_SHIFT & redo.FLAGS_MASK
        if flags & redo.FLAG_DISK_KEPT:
            return
        image = record + redo.OPERATION_WORDS
        for _ in range(self.word(operation + a.O_ROWID) >> a.COUNT_SHIFT if kind == redo.KIND_INSERT else 1):
            part = image + self.word(f + a.F_FIXED_WORDS)
            plan = int(buf[part - 1])
            if self.word(f + a.F_HAS_VAR):
                part += int(buf[part]) & a.VAR_WORDS_MASK
            words = int(buf[part]) & a.VAR_WORDS_MASK
            self.plan(self.word(f + a.F_TABLESPACE), plan, words)
            image = part + words

    def plan(self, tablespace: int, plan: int, words: int) -> None:
        payload = self.word(tablespace + d.TS_PAYLOAD)
        if plan > 0:
            self.promised[plan >> d.SLOT_BITS] += PIECE_HEADER_WORDS + words + 1
        elif plan < 0:
            self.check.claim(-plan, a.CELL_WORDS, "plan")
            chunks = self.word(d.PL_CHUNKS - plan)
            size = payload - 1 - LINKED_WORDS
            assert chunks == (words - 1) // size
            self.promised[self.word(d.PL_PAGE - plan)] += LINKED_WORDS + words - chunks * size + 1
            page = self.word(d.PL_CHUNK - plan)
            for _ in range(chunks):
                self.promised[page] += payload
                page = self.word(self.open_pages[page] + d.OP_CHAIN)
            assert page == 0, "a plan has more pages than chunks"
