"""An index attached to a table: its definition, and its tree or hash. A unique index that is ordered has both: two
parts under one name.

Commits find indexes through the table's list in the arena. The kernel call that removes one from the list also
withdraws its handle (`engine/memory/handles_kernels.py`): from then on every reader finds that it is gone.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from tidemark.engine.base.errors import NoSuchIndex, SnapshotTooOld
from tidemark.engine.index import index_layout as ix
from tidemark.engine.index.key_values import KeyShape
from tidemark.engine.index.lists_kernels import remove_rows
from tidemark.engine.index.ordered import OrderedIndex, drop_index
from tidemark.engine.index.unique import UniqueHash
from tidemark.engine.memory.arena_layout import OK, S_UNLISTED, ST_DROPPED, ST_MORE
from tidemark.engine.memory.handles_kernels import descriptor_word, descriptor_words
from tidemark.engine.rows.columns_layout import COLUMN_WORDS, CW_MISSING

if TYPE_CHECKING:
    from tidemark.engine.memory.arena import Words
    from tidemark.engine.schema.definition import TableDefinition
    from tidemark.engine.schema.index_definition import IndexDefinition
    from tidemark.engine.schema.row_shape import RowLayout

SLICE_SLOTS = 128


def drop_unlisted(mem: Words) -> None:
    """Free an index whose creator lost its handle to a KeyboardInterrupt. Call with `schema_latch` held."""
    handle = int(mem[S_UNLISTED])
    if handle:
        drop_index(mem, handle)
        mem[S_UNLISTED] = 0


T = TypeVar("T", bound=OrderedIndex | UniqueHash)


class Stored(Generic[T]):
    """One part of an index of a table: its tree or its hash."""

    __slots__ = ("definition", "is_replaced", "since", "table_name", "tree")

    def __init__(self, table_name: str, definition: IndexDefinition, tree: T) -> None:
        """Wrap an index that is in no list yet."""
        self.definition = definition
        self.table_name = table_name
        self.tree = tree
        self.since = 0  # the version of the table that made it anew; older ones have columns elsewhere
        self.is_replaced = False  # by one that was made anew

    def moved_columns(self, definition: TableDefinition, layout: RowLayout) -> list[str]:
        """Return the columns that rows of this layout have elsewhere than where the index reads them; [] is right."""
        held = np.zeros(ix.I_COLUMNS + len(self.definition.columns) * COLUMN_WORDS, dtype=np.int64)
        if descriptor_words(self.tree.mem, self.tree.handle, 0, held) != OK:
            return []
        shape = KeyShape(definition, layout, self.definition.columns).descriptor[: held.size]
        # Without the constants of missing values: they change with a default that no row needs any more.
        pairs = [words[ix.I_COLUMNS :].reshape(-1, COLUMN_WORDS)[:, :CW_MISSING] for words in (held, shape)]
        names = self.definition.columns
        return [name for name, one, other in zip(names, *pairs, strict=True) if not np.array_equal(one, other)]

    @property
    def name(self) -> str:
        """Name of the index."""
        return self.definition.name

    @property
    def is_dropped(self) -> bool:
        """Whether the index was withdrawn."""
        return int(descriptor_word(self.tree.mem, self.tree.handle, ix.I_STATE)) == ST_DROPPED

    def gone(self) -> NoSuchIndex | SnapshotTooOld:
        """Return the error for a reader of a dropped index."""
        if self.is_replaced:
            return self.made_anew()
        return NoSuchIndex(
            f"index {self.name} of table {self.table_name} was dropped; see indexes()",
            table=self.table_name,
            index=self.name,
        )

    def made_anew(self) -> SnapshotTooOld:
        """Return the error for a reader that began before the index was made anew."""
        return SnapshotTooOld(
            f"index {self.name} of table {self.table_name} was made anew for a column that got a wider type, after the"
            " call or its snapshot had begun; begin again, or read without the index",
            table=self.table_name,
            index=self.name,
        )

    def drop(self) -> None:
        """Free the memory of an index that was removed from its list. The next kernel call of a reader reports that the
        index is gone.
        """
        self.tree.drop()

    def forget(self, fragment: int) -> None:
        """Remove the entries of a dropped fragment's rows before the fragment's memory is freed."""
        state = np.zeros(2, dtype=np.int64)
        status = ST_MORE
        while status == ST_MORE:
            state[1] = SLICE_SLOTS
            status = remove_rows(self.tree.mem, self.tree.handle, fragment, state)


class StoredIndex(Stored[OrderedIndex]):
    """The tree of an ordered index."""

    __slots__ = ()


class StoredUnique(Stored[UniqueHash]):
    """The hash of a unique index."""

    __slots__ = ()


AnyIndex = StoredIndex | StoredUnique


def kinds_of(definition: IndexDefinition) -> list[type[AnyIndex]]:
    """Return the kinds of the parts of an index, in the order in which they are made and filled."""
    kinds: list[type[AnyIndex]] = [StoredIndex] if definition.is_ordered else []
    return [*kinds, StoredUnique] if definition.is_unique else kinds


def counters_of(parts: Iterable[AnyIndex]) -> dict[str, dict[str, int]]:
    """Return the counters of indexes by name, from all their parts. Where an index has a tree, `entries` are those of
    the tree: a row with NULL is not in the hash.
    """
    found: dict[str, dict[str, int]] = {}
    for each in parts:
        counters = each.tree.counters()
        if not each.is_dropped:
            found[each.name] = {**counters, **found.get(each.name, {})}
    return found


def describe(definition: IndexDefinition, entries: int) -> dict[str, Any]:
    """Return what `indexes()` says about an index."""
    return {
        "name": definition.name,
        "columns": list(definition.columns),
        "unique": definition.is_unique,
        "ordered": definition.is_ordered,
        "entries": entries,
    }
