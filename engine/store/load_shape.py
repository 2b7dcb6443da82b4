"""The shape of a table for code that writes or adopts its load files."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from tidemark.engine.log import load_arena_layout as li
from tidemark.engine.log.redo_layout import pack_identity
from tidemark.engine.memory.arena_layout import PAGE_HEADER_WORDS, PAGE_WORDS, ROW_HEADER_WORDS
from tidemark.engine.programs.checks import Checks
from tidemark.engine.rows.row_format import RowFormat
from tidemark.engine.schema.definition import TableDefinition
from tidemark.engine.schema.partition_words import hash_header
from tidemark.engine.schema.partitions_kernels import PARTITION_SEED
from tidemark.engine.table.table import shown_key

if TYPE_CHECKING:
    from tidemark.engine.memory.arena import Words


class LoadShape:
    """Row format, partition function and page geometry of one version of a table."""

    def __init__(self, definition: TableDefinition) -> None:
        self.definition = definition
        self.format = RowFormat(definition)
        self.hash_header = hash_header(definition, self.format.fixed_words, int(PARTITION_SEED))
        layout = self.format.layout
        reference = int(self.format.has_var and not layout.var_since)
        row_words = ROW_HEADER_WORDS + max(self.format.fixed_words, 1) + reference
        self.slots = (PAGE_WORDS - PAGE_HEADER_WORDS) // row_words
        self.key_words = 0 if self.format.key_in_var else self.format.key_words
        self.checks = Checks(definition, definition.checks) if definition.checks else None

    @property
    def name(self) -> str:
        """The name of the table."""
        return self.definition.name

    def format_key(self, key: Any) -> str:
        """Return a key for a message, shortened."""
        return shown_key(key)

    def words(self, fragment: int) -> Words:
        """Return the LI_ words of one fragment for the kernels."""
        words: Words = np.zeros(li.LI_WORDS, dtype=np.int64)
        words[li.LI_FIXED] = self.format.fixed_words
        words[li.LI_VAR] = int(self.format.has_var)
        words[li.LI_DISK] = int(self.format.has_disk)
        words[li.LI_KEY_WORDS] = self.key_words
        words[li.LI_SLOTS] = self.slots
        words[li.LI_IDENTITY] = pack_identity(self.definition.table_id, fragment, self.definition.version)
        words[li.LI_FRAGMENT] = fragment
        return words


@lru_cache(maxsize=8)
def shape_of(definition_json: bytes) -> LoadShape:
    """Return the shape of a definition; recently used ones are cached in the process."""
    return LoadShape(TableDefinition.from_json(definition_json))
