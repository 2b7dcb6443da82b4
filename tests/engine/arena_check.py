"""A walk over the whole arena of a live store: every word has one owner, and every structure's counts are right.

Written from the layout alone, in plain Python: it shares no code with the kernels it checks, except the constants.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from tests.engine.disk_arena_check import DiskArenaCheck
from tests.naive.sip_hash import keyed_hash
from tests.store.support import let_read_ahead_end
from tidemark.engine.access.batch_operations import scan
from tidemark.engine.index import index_layout as ix
from tidemark.engine.index.stored import StoredUnique
from tidemark.engine.log.redo_layout import KIND_DELETE, KIND_INSERT
from tidemark.engine.memory import arena_layout as a
from tidemark.engine.memory.arena import address_of
from tidemark.engine.schema.partitions_layout import SP_UNIT_COUNT, SP_UNIT_IS_PAGE, SP_UNITS
from tidemark.engine.table.table import DroppedFragment


class ArenaCheck:
    """One walk; raises AssertionError with what it found."""

    def __init__(self, store: Any) -> None:
        self.store = store
        self.mem: Any = store.mem
        self.owner = np.zeros(self.mem.size, dtype=np.uint8)
        self.operations: dict[int, int] = {}  # cell → transaction descriptor
        self.chunks: Counter[int] = Counter()  # var references rows and operations hold
        self.fragments: list[int] = []
        self.free_blocks: list[int] = []

    def word(self, at: int) -> int:
        return int(self.mem[at])

    def claim(self, start: int, words: int, what: str) -> None:
        taken = self.owner[start : start + words]
        assert start > 0 or what == "store header"
        assert not taken.any(), f"{what} at word {start} has another owner"
        taken[:] = 1

    def page(self, number: int, what: str) -> int:
        self.claim(number << a.PAGE_SHIFT, a.PAGE_WORDS, what)
        return number << a.PAGE_SHIFT

    def block(self, at: int, what: str) -> int:
        assert at % a.BLOCK_WORDS == 0
        self.claim(at, a.BLOCK_WORDS, what)
        return at

    def run(self) -> None:
        """Check everything."""
        self.page(0, "store header")
        pool = a.S_POOL
        self.page(self.word(pool + a.P_SCRATCH) >> a.PAGE_SHIFT, "scratch page")
        self.free_list(self.word(pool + a.P_FREE_PAGES), "page", self.word(pool + a.P_FREE_PAGE_COUNT))
        self.free_list(self.word(pool + a.P_FREE_BLOCKS), "block", self.word(pool + a.P_FREE_BLOCK_COUNT))
        self.cells()
        self.free_list(self.word(a.S_FREE_DESCRIPTORS), "descriptor", self.word(a.S_FREE_DESCRIPTOR_COUNT))
        self.transactions()
        for table in self.store.tables.by_name.values():
            self.table(table)
        for dropped, _ in self.store.users.dropped:
            if isinstance(dropped, DroppedFragment):
                self.fragment(self.block(address_of(dropped.fragment), "dropped fragment"), None)
            else:
                self.table(dropped)
        DiskArenaCheck(self).run(self.fragments)
        # A restart takes pages from both ends; the pages between were never used.
        self.everything_owned(self.word(pool + a.P_HIGH) << a.PAGE_SHIFT, self.word(pool + a.P_LIMIT) << a.PAGE_SHIFT)

    def everything_owned(self, end: int, begin: int) -> None:
        assert not self.owner[end:begin].any(), "something is in memory never used"
        self.owner[end:begin] = 1
        lost = np.flatnonzero(self.owner == 0)
        assert not lost.size, f"{lost.size} words have no owner, the first is {lost[0]}"
        used = self.store.arena.pages - (begin - end >> a.PAGE_SHIFT) - self.word(a.S_POOL + a.P_FREE_PAGE_COUNT)
        assert self.store.arena.used_pages() == used

    def cells(self) -> None:
        """Counts of free blocks, free cells, and cells that were never used."""
        counts, first = self.word(a.S_BLOCK_COUNTS), self.store.arena.cells
        self.claim(counts, first - counts, "counts of free blocks")
        free = Counter(block >> a.PAGE_SHIFT for block in self.free_blocks)
        assert {page: self.word(counts + page) for page in free} == free
        assert sum(self.mem[counts:first].tolist()) == len(self.free_blocks)
        assert max(free.values(), default=0) < a.BLOCKS_PER_PAGE, "a page whose blocks are all free is not joined"
        self.free_list(self.word(a.S_FREE_CELLS), "cell", None)
        high, limit = self.word(a.S_CELL_HIGH), self.word(a.S_CELL_LIMIT)
        assert first <= high <= limit
        self.claim(high, limit - high, "cells never used")

    def free_list(self, first: int, kind: str, count: int | None) -> None:
        found, back = 0, 0
        while first:
            at = first << a.PAGE_SHIFT if kind == "page" else first
            words = {"page": a.PAGE_WORDS, "cell": a.CELL_WORDS}.get(kind, a.BLOCK_WORDS)
            self.claim(at, words, f"free {kind}")
            if kind == "block":
                assert self.word(at + 1) == back, "a free block leads back to another one"
                self.free_blocks.append(at)
            back = at
            first = self.word(at)
            found += 1
        assert count is None or found == count, f"{found} free {kind}s, {count} counted"

    # --- transactions ----------------------------------------------------------------------------
    def transactions(self) -> None:
        store = self.store
        open_now = [txn.desc for txn in store.locks.by_slot.values()]
        idle = [place.desc for place in store.resources.spare_places] + list(store.arena.spare_descriptors)
        idle += [] if store.resources.place_of_calls is None else [store.resources.place_of_calls.desc]
        for desc in open_now + idle:
            self.claim(desc, a.TXN_WORDS, "transaction descriptor")
        for desc in idle:
            assert self.word(desc + a.X_FIRST) == 0, "an ended transaction has operations"
        for txn in store.locks.by_slot.values():
            back, count, entries = 0, 0, 0
            cell = self.word(txn.desc + a.X_FIRST)
            while cell:
                self.claim(cell, a.CELL_WORDS, "operation")
                assert self.word(cell + a.O_BACK) == back and self.word(cell + a.O_TXN) == txn.desc
                self.operations[cell] = txn.desc
                if self.word(cell + a.O_VAR):
                    self.chain(self.word(cell + a.O_VAR))
                entries += self.entries_of(txn.desc, cell)
                back, cell, count = cell, self.word(cell + a.O_NEXT), count + 1
            assert self.word(txn.desc + a.X_LAST) == back and self.word(txn.desc + a.X_OPS) == count
            assert self.word(txn.desc + a.X_INDEXED) == entries, "X_INDEXED counts what was refused or undone"

    def entries_of(self, txn: int, cell: int) -> int:
        """The entries of ordered indexes that the commit of an operation may change."""
        listed = self.word(self.word(cell + a.O_FRAGMENT) + a.F_INDEXES)
        kind = self.word(cell + a.O_RECORD) & a.OP_KIND_MASK
        if not listed or kind == a.OP_LOCK:
            return 0
        trees = self.mem[listed + ix.XL_FIRST :][: self.word(listed + ix.XL_COUNT)].tolist()
        used = sum(self.word(tree + ix.I_BIRTH) <= self.word(txn + a.X_GENERATION) for tree in trees)
        if kind == KIND_DELETE:
            return used
        return 2 * used * (self.word(cell + a.O_ROWID) >> a.COUNT_SHIFT if kind == KIND_INSERT else 1)

    def chain(self, reference: int) -> None:
        """Count the chunks of a var part."""
        while reference:
            self.chunks[reference] += 1
            base = (reference >> 16) << a.PAGE_SHIFT
            entry = self.word(base + a.PAGE_WORDS - 1 - (reference & 0xFFFF))
            assert not entry & a.VAR_ENTRY_FREE, "a reference leads to a free chunk"
            reference = self.word(base + (entry & 0xFFFF)) if entry & a.VAR_CHAINED else 0

    # --- tables ----------------------------------------------------------------------------------
    def table(self, table: Any) -> None:
        at = self.block(address_of(table.handle), "table descriptor")
        count = self.word(at + a.T_FRAGMENTS)
        partition = table.definition.partition
        assert count == partition.next_number and list(table.by_number) == list(partition.numbers)
        fragments = self.word(at + a.T_FRAGMENT_LIST)
        assert self.word(at + a.T_LIST_WORDS) == (a.BLOCK_WORDS if count <= a.BLOCK_WORDS else a.PAGE_WORDS)
        self.claim(fragments, self.word(at + a.T_LIST_WORDS), "fragment list")
        for number in range(count):
            found = self.word(fragments + number)
            assert found == address_of(table.by_number.get(number, 0))
            if found:
                assert self.word(found + a.F_SCHEMA_VERSION) == table.definition.version
                self.fragment(self.block(found, "fragment descriptor"), number)
        if self.word(at + a.T_PARTITION):
            self.partition_words(self.word(at + a.T_PARTITION))
        self.trees(table)

    def trees(self, table: Any) -> None:
        """The list of ordered indexes and everything that hangs on it."""
        listed = self.word(address_of(table.handle) + a.T_INDEXES)
        if not listed:
            assert not table.indexes and not table.uniques
            return
        self.block(listed, "list of indexes")
        indexes = [*table.indexes.values(), *table.uniques.values(), *table.building]
        trees = [address_of(index.tree.handle) for index in indexes]
        assert sorted(trees) == sorted(self.mem[listed + ix.XL_FIRST :][: self.word(listed + ix.XL_COUNT)].tolist())
        uniques = [index for index in indexes if isinstance(index, StoredUnique)]
        assert self.word(listed + ix.XL_UNIQUES) == len(uniques)
        for index in uniques:
            self.unique(table, index)
        for tree in trees:
            self.block(tree, "index descriptor")
            side = self.word(tree + ix.I_SIDE)
            if self.word(tree + ix.I_SIDE_IS_PAGE):
                self.page(side >> a.PAGE_SHIFT, "scratch parts")
            else:
                self.block(side, "scratch parts")
            if self.word(tree + ix.I_UNIQUE):
                continue
            block, count = self.word(tree + ix.I_FREE), 0
            while block:
                self.block(block, "free block of an index")
                block, count = self.word(block), count + 1
            assert count == self.word(tree + ix.I_FREE_COUNT)
            self.node(tree, self.word(tree + ix.I_ROOT), self.word(tree + ix.I_HEIGHT) - 1)

    def unique(self, table: Any, index: Any) -> None:
        """The hash of a unique index; if no transaction has changed rows, its entries are those of the rows without
        NULL.
        """
        at = self.block(self.word(address_of(index.tree.handle) + ix.I_UNIQUE), "hash of a unique index")
        found: dict[Any, int] = {}
        self.hash_of(at, found, is_many=True)
        if self.operations or self.store.users.dropped or index.name not in table.uniques:
            return
        wanted = set()
        seed = self.word(address_of(index.tree.handle) + ix.U_SEED) % 2**64
        for batch in scan(table, None, None, [table.definition.columns[0].name]):
            for start, rowid, number in zip(batch.offsets, batch.rowids(), batch.fragments(), strict=True):
                view = batch.entries.data.cast("B")
                values = table.format.decode_columns(view, int(start), index.definition.columns)
                if None not in values:
                    words = np.array(index.tree.shape.encode(values), dtype=np.int64)
                    page = self.page_of(address_of(table.by_number[int(number)]), int(rowid) >> 16)
                    tag = keyed_hash(words.tobytes(), seed) & a.TAG_MASK
                    wanted.add((page << 16 | int(rowid) & 0xFFFF, tag))
        assert found.keys() == wanted, "a unique index and the rows differ"

    def page_of(self, f: int, logical: int) -> int:
        middle = self.word(f + a.F_MAP + (logical >> 18))
        return self.word(self.word(middle + (logical >> 9 & 511)) + (logical & 511))

    def node(self, tree: int, node: int, level: int) -> None:
        self.block(node, "index node")
        assert self.word(node + ix.N_LEVEL) == level
        if level:
            capacity = self.word(tree + ix.I_INNER_CAPACITY)
            children = node + ix.NODE_HEADER_WORDS + (self.word(tree + ix.I_WORDS) + 1) * capacity
            for number in range(self.word(node + ix.N_COUNT)):
                self.node(tree, self.word(children + number), level - 1)

    def partition_words(self, at: int) -> None:
        self.block(at, "partition words")
        for number in range(self.word(at + SP_UNIT_COUNT)):
            words = a.PAGE_WORDS if self.word(at + SP_UNIT_IS_PAGE) else a.BLOCK_WORDS
            self.claim(self.word(at + SP_UNITS + number), words, "bounds of partitions")

    def fragment(self, f: int, number: int | None) -> None:
        assert number is None or self.word(f + a.F_NUMBER) == number
        assert self.word(f + a.F_POOL) == a.S_POOL
        self.fragments.append(f)
        rows = self.fixed_pages(f)
        self.var_pages(f)
        self.index(f, rows)

    def fixed_pages(self, f: int) -> dict[int, int]:
        """Rows that are not free: ROWID → address."""
        rows: dict[int, int] = {}
        states: Counter[int] = Counter()
        with_room: set[int] = set()
        made, released, seen = 0, 0, 0
        for root in range(a.MAP_ROOTS):
            middle = self.word(f + a.F_MAP + root)
            if not middle:
                continue
            self.block(middle, "map")
            for i in range(a.BLOCK_WORDS):
                leaf = self.word(middle + i)
                if not leaf:
                    continue
                self.block(leaf, "map leaf")
                for j in np.flatnonzero(self.mem[leaf : leaf + a.BLOCK_WORDS]).tolist():
                    logical, entry = root << 18 | i << 9 | j, self.word(leaf + j)
                    seen += 1
                    assert logical < self.word(f + a.F_PAGES)
                    if entry < 0:
                        released += 1
                        continue
                    made += 1
                    if self.fixed_page(f, self.page(entry, "fixed page"), logical, rows, states):
                        with_room.add(entry)
        assert seen == self.word(f + a.F_PAGES)
        assert made == self.word(f + a.F_FIXED_PAGES) and released == self.word(f + a.F_RELEASED)
        assert states[a.LIVE] == self.word(f + a.F_ROWS), "F_ROWS is wrong"
        assert states[a.RESERVED] == self.word(f + a.F_RESERVED_ROWS), "F_RESERVED_ROWS is wrong"
        listed, before, page = set(), 0, self.word(f + a.F_FREE_HEAD)
        while page:
            base = page << a.PAGE_SHIFT
            assert page not in listed and self.word(base + a.PG_PREVIOUS) == before
            listed.add(page)
            before, page = page, self.word(base + a.PG_NEXT)
        assert before == self.word(f + a.F_FREE_TAIL)
        assert listed == with_room, "the list of pages with free slots is wrong"
        return rows

    def fixed_page(self, f: int, base: int, logical: int, rows: dict[int, int], states: Counter[int]) -> bool:
        words, slots = self.word(f + a.F_ROW_WORDS), self.word(f + a.F_SLOTS)
        fresh = self.word(base + a.PG_FRESH)
        assert self.word(base + a.PG_FRAGMENT) == f and self.word(base + a.PG_LOGICAL) == logical
        assert 0 <= fresh <= slots
        free, used = set(), 0
        side = self.word(base + a.PG_USED) >> a.SIDE_SHIFT
        held = self.page(side, "side page") if side else 0
        assert not side or self.word(f + a.F_VAR_SINCE), "a table without such var parts has a side page"
        for slot in range(fresh):
            row = base + a.PAGE_HEADER_WORDS + slot * words
            state = self.word(row) >> a.STATE_SHIFT & a.STATE_MASK
            if state == a.FREE:
                free.add(slot)
                assert self.word(row) & a.LOCK_MASK == 0, "a free slot is locked"
                continue
            used += 1
            states[state] += 1
            rows[logical << 16 | slot] = row
            self.lock(f, row, logical << 16 | slot, state)
            if self.word(f + a.F_VAR_SINCE):
                if side and self.word(held + slot):
                    self.chain(self.word(held + slot))
            elif self.word(f + a.F_HAS_VAR):
                self.chain(self.word(row + words - 1))
        assert used == self.word(base + a.PG_USED) & a.USED_MASK
        unused = [*free, *range(fresh, a.PAGE_WORDS)]
        assert not side or not any(self.word(held + slot) for slot in unused), "a free slot has a var part"
        chained, link, before = set(), self.word(base + a.PG_FREE), 0
        while link:
            assert link - 1 in free and link - 1 not in chained, "the chain of free slots is wrong"
            chained.add(link - 1)
            word = self.word(base + a.PAGE_HEADER_WORDS + (link - 1) * words + 2)
            assert word >> 16 & 0xFFFF == before
            before, link = link, word & 0xFFFF
        assert chained == free
        return bool(free) or fresh < slots

    def lock(self, f: int, row: int, rowid: int, state: int) -> None:
        lock = self.word(row) & a.LOCK_MASK
        if lock & a.LOCK_SHARED:
            shared = {(address_of(fragment), each) for fragment, each in self.store.locks.shared}
            assert (f, rowid) in shared, "no transaction shares a shared row"
        elif lock:
            assert (lock & a.LOCK_OP_MASK) << 3 in self.operations, "no operation holds a lock"
        assert lock or state == a.LIVE, "a row that no transaction inserts is reserved"

    def var_pages(self, f: int) -> None:
        count = 0
        for number in range(a.VAR_CLASSES):
            page, before = self.word(f + a.F_VAR_LISTS + number), 0
            while page:
                base = self.page(page, "var page")
                assert self.word(base + a.VP_PREVIOUS) == before and self.word(base + a.VP_CLASS) == number
                assert self.word(base + a.VP_FRAGMENT) == f
                assert max(self.word(base + a.VP_FREE_WORDS), 1).bit_length() - 1 == number, "a page is in a wrong list"
                self.var_page(base, page)
                before, page, count = page, self.word(base + a.VP_NEXT), count + 1
        assert count == self.word(f + a.F_VAR_PAGES)

    def var_page(self, base: int, page: int) -> None:
        entries, top = self.word(base + a.VP_ENTRIES), self.word(base + a.VP_TOP)
        spans, free = [], set()
        for entry in range(entries):
            word = self.word(base + a.PAGE_WORDS - 1 - entry)
            if word & a.VAR_ENTRY_FREE:
                free.add(entry)
                continue
            spans.append((word & 0xFFFF, (word >> 16) & 0xFFFF))
            assert self.chunks.pop(page << 16 | entry, 0) == 1, "a chunk does not have exactly one owner"
        spans.sort()
        end = a.VAR_HEADER_WORDS
        for start, length in spans:
            assert start >= end, "two chunks overlap"
            end = start + length
        assert end <= top <= a.PAGE_WORDS - entries
        held = sum(length for _, length in spans)
        assert self.word(base + a.VP_FREE_WORDS) == a.PAGE_WORDS - a.VAR_HEADER_WORDS - entries - held
        assert spans, "an empty var page was kept"
        link, chained = self.word(base + a.VP_FREE_ENTRY), set()
        while link:
            assert link - 1 in free and link - 1 not in chained
            chained.add(link - 1)
            link = self.word(base + a.PAGE_WORDS - link) & 0xFFFF
        assert chained == free

    # --- index -----------------------------------------------------------------------------------
    def index(self, f: int, rows: dict[int, int]) -> None:
        found: dict[Any, int] = {}
        self.hash_of(f, found, is_many=False)
        assert found.keys() == rows.keys(), "the index and the rows differ"
        for rowid, tag in found.items():
            assert self.tag(f, rows[rowid]) == tag, "an entry has the tag of another key"

    def hash_of(self, f: int, found: dict[Any, int], is_many: bool) -> None:
        """Everything a hash index consists of; tags by ROWID, or, if a row may have several, by ROWID and tag."""
        depth = self.word(f + a.F_INDEX_DEPTH)
        leaves = [self.word(f + a.F_DIRECTORY + leaf) for leaf in range(a.DIRECTORY_LEAVES)]
        for leaf in leaves:
            if leaf:
                self.block(leaf, "index directory")
        block, used = self.word(f + a.F_SEGMENT_BLOCK), self.word(f + a.F_SEGMENT_USED)
        segments = set()
        while block:
            self.block(block, "segment descriptors")
            segments |= {block + number * a.SEG_WORDS for number in range(1, used)}
            block, used = self.word(block), a.SEGS_PER_BLOCK
        assert len(segments) == self.word(f + a.F_SEGMENTS)
        prefixes: dict[int, set[int]] = {segment: set() for segment in segments}
        for i in range(1 << depth if segments else 0):
            prefixes[self.word(leaves[i >> 9] + (i & 511))].add(i)
        blocks = 0
        for segment, reached in prefixes.items():
            own = self.word(segment + a.SEG_DEPTH)
            assert len(reached) == 1 << (depth - own) and len({i & ((1 << own) - 1) for i in reached}) == 1
            blocks += self.word(segment + a.SEG_BLOCKS)
            self.segment(segment, min(reached), found, is_many)
        assert blocks == self.word(f + a.F_INDEX_BLOCKS)
        assert len(found) == self.word(f + a.F_INDEX_COUNT)

    def segment(self, segment: int, prefix: int, found: dict[Any, int], is_many: bool) -> None:
        count, blocks = 0, self.word(segment + a.SEG_BLOCKS)
        own_mask = (1 << self.word(segment + a.SEG_DEPTH)) - 1
        places = [(self.block(self.word(segment + a.SEG_BLOCK + n), "index block"), n * 64) for n in range(blocks)]
        overflow = self.word(segment + a.SEG_OVERFLOW)
        if overflow:
            places.append((self.block(overflow, "index overflow"), -1))
        for at, first in places:
            for i in np.flatnonzero(self.mem[at : at + a.BLOCK_WORDS]).tolist():
                entry = self.word(at + i)
                tag, compact = entry >> a.ENTRY_TAG_SHIFT & a.TAG_MASK, entry & a.COMPACT_MASK
                assert tag & own_mask == prefix & own_mask, "an entry is in a segment of other tags"
                if first >= 0:
                    assert first + i // 8 in self.buckets(tag, blocks * 64), "an entry is in neither of its buckets"
                rowid = (compact >> a.COMPACT_SLOT_BITS) << 16 | compact & a.COMPACT_SLOT_MASK
                key = (rowid, tag) if is_many else rowid
                assert key not in found, "two entries lead to one row"
                found[key] = tag
                count += 1
        assert count == self.word(segment + a.SEG_COUNT)

    def buckets(self, tag: int, count: int) -> tuple[int, int]:
        """Numbers of the two buckets of a tag (ADR 0003)."""
        first = (tag * 0x9E3779B1 >> 12) & 0xFFFFF
        second = ((tag ^ tag >> 15) * 0x85EBCA77 >> 10) & 0xFFFFF
        return first * count >> 20, second * count >> 20

    def tag(self, f: int, row: int) -> int:
        words = self.word(f + a.F_KEY_WORDS)
        key = self.mem[row + 2 : row + 2 + words]
        if not words:
            reference = self.word(row + self.word(f + a.F_ROW_WORDS) - 1)
            base = (reference >> 16) << a.PAGE_SHIFT
            entry = self.word(base + a.PAGE_WORDS - 1 - (reference & 0xFFFF))
            at = base + (entry & 0xFFFF) + bool(entry & a.VAR_CHAINED)
            key = self.mem[at + 1 : at + 1 + (self.word(at) >> a.VAR_KEY_WORDS_SHIFT & a.VAR_KEY_WORDS_MASK)]
        seed = self.word(f + a.F_INDEX_SEED) % 2**64
        return keyed_hash(key.tobytes(), seed) & a.TAG_MASK


def check_arena(db: Any) -> None:
    """Walk the arena of an open database that no other thread changes."""
    let_read_ahead_end(db.parts.store)
    check = ArenaCheck(db.parts.store)
    check.run()
    assert not check.chunks, f"var parts that are in no page: {dict(check.chunks)}"
