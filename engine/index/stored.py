"""An index that hangs on a table: its definition, its tree or hash, and who reads it just now.

Commits find trees through the table's list in the arena, so nobody changes one that was taken out of it. Readers enter
and leave: the memory of a dropped tree goes when the last one has left, and from the instant of the drop each finds
that it is gone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import numpy as np

from engine.errors import NoSuchIndex
from engine.index.ordered import OrderedIndex
from engine.kernels.index_lists import remove_rows
from engine.kernels.tree_setup import set_tree_state
from engine.layout import index_arena as ix
from engine.layout.arena import ST_MORE

if TYPE_CHECKING:
    from engine.index_definition import IndexDefinition
    from engine.memory.arena import Arena, Words
    from engine.row_layout import RowLayout
    from engine.schema import TableDefinition

SLICE_SLOTS = 128


class Tree(Protocol):
    """What an index keeps in the arena."""

    mem: Words
    address: int

    def drop(self) -> None:
        """Give all memory back."""


T = TypeVar("T", bound=Tree)


class Stored(Generic[T]):
    """One index of one table, of either kind."""

    __slots__ = ("_held", "_readers", "definition", "is_dropped", "table_name", "tree")

    def __init__(self, table_name: str, definition: IndexDefinition, tree: T) -> None:
        """In no list yet."""
        self.definition = definition
        self.table_name = table_name
        self.tree = tree
        self.is_dropped = False
        self._readers: set[object] = set()
        self._held = [tree]  # whoever pops it gives its memory back

    @property
    def name(self) -> str:
        """Name of the index."""
        return self.definition.name

    @contextmanager
    def reading(self) -> Iterator[T]:
        """The tree, whose memory stays for the time of the block. Raises: NoSuchIndex if it was dropped."""
        reader = object()
        try:
            self._readers.add(reader)  # in here: Ctrl-C right behind it would leave a reader for ever (F117)
            if self.is_dropped:
                raise self.gone()
            yield self.tree
        finally:
            self._readers.discard(reader)
            if self.is_dropped:
                self._free()

    def gone(self) -> NoSuchIndex:
        """What readers of a dropped index are told."""
        return NoSuchIndex(
            f"index {self.name} of table {self.table_name} was dropped; see indexes()",
            table=self.table_name,
            index=self.name,
        )

    def drop(self) -> None:
        """It is in no list any more: readers find it gone, and its memory goes with the last of them."""
        if not self.is_dropped:
            set_tree_state(self.tree.mem, self.tree.address, ix.INDEX_DROPPING)
        self.is_dropped = True
        self._free()

    def _free(self) -> None:
        if self._readers:
            return
        try:
            tree = self._held.pop()
        except IndexError:
            return
        tree.drop()


class StoredIndex(Stored[OrderedIndex]):
    """One ordered index of one table."""

    __slots__ = ()

    def __init__(
        self,
        arena: Arena,
        table: TableDefinition,
        layout: RowLayout,
        definition: IndexDefinition,
        fragments: Sequence[int],
        state: int,
    ) -> None:
        """An empty one that is in no list. Raises: MemoryExhausted, SchemaInvalid."""
        tree = OrderedIndex(arena, table, layout, definition.columns, fragments, state)
        super().__init__(table.name, definition, tree)

    def forget(self, fragment: int) -> None:
        """Remove the entries of a dropped fragment's rows, before its memory goes."""
        state = np.zeros(3, dtype=np.int64)
        status = ST_MORE
        while status == ST_MORE:
            state[1] = SLICE_SLOTS
            status = remove_rows(self.tree.mem, self.tree.address, fragment, state)

    def to_dict(self) -> dict[str, Any]:
        """What it is, as plain values."""
        return {
            "name": self.name,
            "columns": list(self.definition.columns),
            "unique": self.definition.is_unique,
            "entries": int(self.tree.mem[self.tree.address + ix.I_COUNT]),
        }
