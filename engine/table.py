"""A table in memory: its definition, its row format and where its fragments lie in the arena."""

from __future__ import annotations

from typing import Any

import numpy as np

from engine.layout.arena import F_ROWS
from engine.memory.arena import Arena
from engine.row_format import RowFormat
from engine.schema import TableDefinition


class Table:
    """One table of an open store."""

    __slots__ = ("address", "arena", "definition", "format", "fragments", "hash_header", "is_dropped", "mem")

    def __init__(self, arena: Arena, definition: TableDefinition, seed: int) -> None:
        self.arena = arena
        self.mem = arena.mem
        self.definition = definition
        self.format = RowFormat(definition)
        count = definition.partition.fragments
        self.address, self.fragments = arena.make_table(
            [
                definition.table_id,
                count,
                self.format.fixed_words,
                int(self.format.has_var),
                0 if self.format.key_in_var else self.format.key_words,
                seed,
                definition.version,
            ]
        )
        self.hash_header = np.array([count, self.format.fixed_words, seed], dtype=np.int64)
        self.is_dropped = False

    @property
    def name(self) -> str:
        """Qualified name, "database.table"."""
        return self.definition.name

    @property
    def table_id(self) -> int:
        """Number of the table, never reused."""
        return self.definition.table_id

    def count(self) -> int:
        """Committed rows."""
        return sum(int(self.mem[fragment + F_ROWS]) for fragment in self.fragments)

    def drop(self) -> None:
        """Give back all memory; the caller has made sure that nobody reads or writes the table."""
        self.is_dropped = True
        self.arena.drop_table(self.address)

    def shown_key(self, key: Any) -> str:
        """A key for a message, shortened."""
        text = repr(key)
        return text if len(text) <= 60 else text[:57] + "..."
