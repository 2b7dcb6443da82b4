"""A table in memory: its definition, its row format and where its fragments lie in the arena."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from engine.errors import Unsupported
from engine.kernels.disk_extents import drop_fragment_extents, join_tablespace
from engine.layout.arena import F_ROWS, ST_MORE
from engine.layout.disk import PIECE_HEADER_WORDS
from engine.layout.disk_arena import TS_PAYLOAD
from engine.memory.arena import Arena
from engine.row_format import RowFormat
from engine.row_layout import disk_part_words
from engine.schema import TableDefinition

if TYPE_CHECKING:
    from engine.disk.columns import DiskColumns

EXTENTS_PER_CALL = 64


class Table:
    """One table of an open store."""

    __slots__ = ("address", "arena", "definition", "format", "fragments", "hash_header", "is_dropped", "mem", "opened")

    def __init__(
        self,
        arena: Arena,
        definition: TableDefinition,
        seed: int,
        disk: DiskColumns | None,
        tablespace: int | None = None,
    ) -> None:
        """tablespace: address of the descriptor of the one its disk columns lie in, if it has any."""
        self.arena = arena
        self.opened = disk
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
                int(self.format.has_disk),
            ]
        )
        if tablespace is not None:
            self._join(tablespace)
        self.hash_header = np.array([count, self.format.fixed_words, seed], dtype=np.int64)
        self.is_dropped = False

    def _join(self, tablespace: int) -> None:
        """Let the disk parts lie in a tablespace: how large a piece may be, and how large all are if they are equal."""
        payload = int(self.mem[tablespace + TS_PAYLOAD])
        words = disk_part_words(self.definition) + PIECE_HEADER_WORDS
        equal = self.format.disk_words and self.format.disk_words + PIECE_HEADER_WORDS
        if any(column.type.is_lob for column in self.definition.columns if column.is_disk):
            # Pieces of up to half a page share pages; larger ones, and chunks, begin on an empty one.
            words, equal = payload // 2, -1
        join_tablespace(self.mem, self.address, tablespace, words, equal)

    @property
    def disk(self) -> DiskColumns:
        """Where its disk columns are. Raises: Unsupported in a view of a local checkpoint, which has only memory's."""
        if self.opened is None:
            raise Unsupported(
                f"disk columns of {self.name} cannot be read from a read-only view, which shows what a local checkpoint"
                " has of memory; name memory columns only, open the store for writing, or restore a backup",
                table=self.name,
            )
        return self.opened

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
        if self.format.has_disk:
            for fragment in self.fragments:
                while drop_fragment_extents(self.mem, fragment, EXTENTS_PER_CALL) == ST_MORE:
                    pass
        self.arena.drop_table(self.address)

    def shown_key(self, key: Any) -> str:
        """A key for a message, shortened."""
        text = repr(key)
        return text if len(text) <= 60 else text[:57] + "..."
