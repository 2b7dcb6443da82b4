"""An index that hangs on a table: its definition, and its tree or hash.

Commits find trees through the table's list in the arena. The kernel call that takes one out of the list withdraws its
handle too (`engine/kernels/handles.py`): from that instant every reader finds that it is gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import numpy as np

from engine.errors import NoSuchIndex
from engine.index.ordered import OrderedIndex
from engine.kernels.handles import descriptor_word
from engine.kernels.index_lists import remove_rows
from engine.layout import index_arena as ix
from engine.layout.arena import ST_DROPPED, ST_MORE

if TYPE_CHECKING:
    from engine.index_definition import IndexDefinition
    from engine.memory.arena import Arena, Words
    from engine.row_layout import RowLayout
    from engine.schema import TableDefinition

SLICE_SLOTS = 128


class Tree(Protocol):
    """What an index keeps in the arena."""

    mem: Words
    handle: int

    def drop(self) -> None:
        """Give all memory back."""


T = TypeVar("T", bound=Tree)


class Stored(Generic[T]):
    """One index of one table, of either kind."""

    __slots__ = ("definition", "table_name", "tree")

    def __init__(self, table_name: str, definition: IndexDefinition, tree: T) -> None:
        """In no list yet."""
        self.definition = definition
        self.table_name = table_name
        self.tree = tree

    @property
    def name(self) -> str:
        """Name of the index."""
        return self.definition.name

    @property
    def is_dropped(self) -> bool:
        """Whether it was withdrawn."""
        return int(descriptor_word(self.tree.mem, self.tree.handle, ix.I_STATE)) == ST_DROPPED

    def gone(self) -> NoSuchIndex:
        """The error for a reader of a dropped index."""
        return NoSuchIndex(
            f"index {self.name} of table {self.table_name} was dropped; see indexes()",
            table=self.table_name,
            index=self.name,
        )

    def drop(self) -> None:
        """It is in no list any more: give its memory back. A reader finds it gone at its next call of a kernel."""
        self.tree.drop()


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
            status = remove_rows(self.tree.mem, self.tree.handle, fragment, state)

    def to_dict(self) -> dict[str, Any]:
        """What it is, as plain values."""
        return {
            "name": self.name,
            "columns": list(self.definition.columns),
            "unique": self.definition.is_unique,
            "entries": max(0, int(descriptor_word(self.tree.mem, self.tree.handle, ix.I_COUNT))),
        }
