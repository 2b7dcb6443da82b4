"""Rows in a real arena, and an ordered index over them that only the test changes."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from tests.index.whole import WholeIndex
from tests.store.support import open_memory
from tidemark.engine.index import index_layout as ix
from tidemark.engine.index.key_values import KeyShape
from tidemark.engine.memory import arena_layout as a
from tidemark.engine.memory.arena import address_of
from tidemark.engine.schema.partition import HashPartition
from tidemark.engine.types import Binary, Enum

NAME = "test.indexed"


def page_of(mem: Any, fragment: int, logical: int) -> int:
    middle = int(mem[address_of(fragment) + a.F_MAP + (logical >> 18)])
    leaf = int(mem[middle + (logical >> 9 & 511)]) if middle else 0
    return int(mem[leaf + (logical & 511)]) if leaf else 0


def order_of(column: Any, value: Any) -> tuple[Any, ...]:
    """What values of a column sort by: NULL first, NaN last, text by its UTF-8 bytes, members by their place."""
    if value is None:
        return (0,)
    if isinstance(column.type, Enum):
        return (1, column.type.members.index(value))
    if isinstance(value, str):
        return (1, value.encode())
    if isinstance(column.type, Binary):
        return (1, value.rstrip(b"\0"))
    if isinstance(value, float) and value != value:
        return (2,)
    return (1, value + 0.0 if isinstance(value, float) else value)


class Stage:
    """A table with an Int64 column `id`, rows in it, and an index: twin is the sorted list of (key, place)."""

    def __init__(
        self,
        columns: Sequence[Any],
        key: Sequence[str],
        primary_key: Any = "id",
        capacities: tuple[int, int] | None = None,
        fragments: int = 1,
        **options: Any,
    ) -> None:
        self.db = open_memory(**options)
        self.handle = (
            self.db.create_table(NAME, list(columns), primary_key=primary_key, partition=HashPartition(fragments))
            if fragments > 1
            else self.db.create_table(NAME, list(columns), primary_key=primary_key)
        )
        self.store = self.db.parts.store
        self.table = self.store.tables.named(NAME)
        self.mem: Any = self.store.mem
        self.names = [column.name for column in self.table.definition.columns]
        self.key = tuple(key)
        self.model: dict[int, dict[str, Any]] = {}
        self.indexed: dict[int, tuple[Any, ...]] = {}  # place -> its sort key
        self.index = self.make_index(capacities)

    def make_index(self, capacities: tuple[int, int] | None = None) -> WholeIndex:
        return WholeIndex(
            self.store.arena,
            KeyShape(self.table.definition, self.table.format.layout, self.key),
            self.table.fragments,
            capacities=capacities,
        )

    # --- rows -----------------------------------------------------------------------------------
    def put(self, rows: Iterable[dict[str, Any]]) -> None:
        rows = list(rows)
        self.handle.insert_many(rows)
        for row in rows:
            self.model[row["id"]] = row

    def places(self) -> dict[int, int]:
        """Place of every LIVE row by id, found by a walk of the pages."""
        where = self.table.format.layout.places[self.names.index("id")].offset
        found = {}
        for fragment in self.table.fragments:
            words = int(self.mem[address_of(fragment) + a.F_ROW_WORDS])
            for logical in range(int(self.mem[address_of(fragment) + a.F_PAGES])):
                page = page_of(self.mem, fragment, logical)
                if page <= 0:
                    continue
                base = page << a.PAGE_SHIFT
                for slot in range(int(self.mem[base + a.PG_FRESH])):
                    row = base + a.PAGE_HEADER_WORDS + slot * words
                    if int(self.mem[row]) >> a.STATE_SHIFT & a.STATE_MASK == a.LIVE:
                        image = self.mem[row + 2 : row + words].tobytes()
                        found[struct.unpack_from("<q", image, where)[0]] = page << ix.PLACE_SHIFT | slot
        return found

    def sort_key(self, row: dict[str, Any]) -> tuple[Any, ...]:
        return tuple(order_of(column, row.get(column.name)) for column in self.index.shape.columns)

    # --- index and twin -------------------------------------------------------------------------
    def add(self, ids: Iterable[int], places: dict[int, int]) -> None:
        ids = list(ids)
        self.index.reserve(len(ids))
        new = [places[each] for each in ids]
        assert self.index.insert(new) == len(set(new) - self.indexed.keys())
        self.index.release(len(ids))
        for each in ids:
            self.indexed[places[each]] = self.sort_key(self.model[each])

    def remove(self, ids: Iterable[int], places: dict[int, int]) -> None:
        gone = [places[each] for each in ids]
        assert self.index.delete(gone) == len(set(gone) & self.indexed.keys())
        for each in gone:
            self.indexed.pop(each, None)

    def twin(self) -> list[int]:
        """Places in the order of the index."""
        return [place for _, place in sorted((key, place) for place, key in self.indexed.items())]

    def tree(self, reverse: bool = False, batch: int = 64, low: Any = None, high: Any = None) -> list[int]:
        return [int(each) for places in self.index.scan(low, high, reverse, batch) for each in places]

    def verify(self) -> None:
        twin = self.twin()
        assert self.tree() == twin
        assert self.tree(reverse=True) == twin[::-1]
        self.check_structure()

    def check_structure(self) -> None:
        fault = self.index.check()
        if fault is not None and len(self.indexed) != len(self.model):
            # Rows the test left out of the index on purpose.
            assert fault.number in (ix.FAULT_MISSING, ix.FAULT_COUNT), fault
            fault = None
        assert fault is None, fault
        counters = self.index.counters()
        assert counters["entries"] == len(self.indexed)

    def owned_blocks(self) -> int:
        counters = self.index.counters()
        return counters["leaves"] + counters["inner_nodes"] + counters["free_blocks"]


def numpy_random(seed: int) -> np.random.Generator:
    print(f"seed {seed}")
    return np.random.default_rng(seed)
