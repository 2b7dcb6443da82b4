"""Reads rows from the files of a plan, in Arrow batches, with verification (docs/spark.md, section 3).

Every block is verified before its rows are used, and at the end of each part the counts must equal those in the
manifest or control file. This module does not know Spark and changes no file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from tidemark.engine.access.conditions import Running
from tidemark.engine.base.errors import BackupDamaged, LcpDamaged, PageDamaged
from tidemark.engine.memory.arena import NOTHING
from tidemark.engine.memory.arena_layout import ENTRY_SHAPE_WORDS, ENTRY_WORDS, OK
from tidemark.engine.programs.compiled import compile_filter
from tidemark.engine.rows.backup_layout import BACKUP_BLOCK_WORDS
from tidemark.engine.rows.column_output import decode_rows
from tidemark.engine.rows.lcp_layout import (
    BLOCK_HEADER_WORDS,
    COPIES_FRAGMENT,
    COPIES_TABLE,
    ENTRY_AUTHOR_MASK,
    ENTRY_FRAGMENT_MASK,
    ENTRY_FRAGMENT_SHIFT,
)
from tidemark.engine.rows.row_format import RowFormat
from tidemark.engine.schema.row_layout import VAR_HEADER_WORDS, var_header
from tidemark.engine.schema.types_base import shown
from tidemark.recovery.backup.entries_kernels import find_entries
from tidemark.recovery.backup.entries_layout import B_ENTRIES, B_NEXT, B_USED, BACKUP_STATE_WORDS
from tidemark.recovery.backup.rows_file import LevelsReader
from tidemark.recovery.backup.storage import at_place
from tidemark.recovery.backup.writer import layout_at
from tidemark.recovery.local_checkpoint.data_file import copies_name, data_name, read_blocks
from tidemark.recovery.spark.plan import AUTHOR, COPIES, EPOCH, FRAGMENT, ROWID, pin_local_checkpoint
from tidemark.recovery.system_restart.load import check_counts

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemark.engine.base.errors import Damaged
    from tidemark.engine.files.protocol import Files
    from tidemark.engine.memory.arena import Words
    from tidemark.engine.programs.expressions import Expression
    from tidemark.engine.schema.definition import TableDefinition
    from tidemark.recovery.spark.plan import Origin, Part, ReadPlan


def read_task(task: ReadPlan) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a task in the store's own types; hidden columns come after the others.

    Raises: Damaged (BackupDamaged, LcpDamaged, FileMissing, FileTruncated, ForeignFile), SnapshotTooOld if the local
    checkpoint is gone, Incompatible, IoFailed.
    """
    origin = task.origin
    with at_place(origin.place, what="store or backup") as files:
        # Pin even if the whole read has a pin: the process that holds it may have ended.
        pin = None if origin.is_backup else pin_local_checkpoint(files, origin.number)
        try:
            reader = PartReader(files, task)
            for part in task.parts:
                yield from reader.read_backup_part(part) if origin.is_backup else reader.read_store_part(part)
        finally:
            if pin is not None:
                pin.release()


class PartReader:
    """Reads parts of one origin."""

    def __init__(self, files: Files, task: ReadPlan) -> None:
        self._files = files
        self._task = task
        self._origin: Origin = task.origin
        self._definition: TableDefinition = task.origin.definition
        self._format = RowFormat(self._definition)
        # A copy: to kernels read-only arrays are a different type.
        self._shapes: Words = np.frombuffer(task.origin.shapes, dtype=np.int64).copy()
        self._filter = None if task.where is None else _Filter(self._format, task.where)
        self._out: Words = NOTHING
        self._state: Words = np.zeros(BACKUP_STATE_WORDS, dtype=np.int64)

    # --- backups ---------------------------------------------------------------------------------
    def read_backup_part(self, part: Part) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a fragment."""
        reader = LevelsReader(self._files, self._origin.store, list(part.levels))
        rows = 0
        for level in reader.levels:
            shapes, has_var = self._shapes_at(level.place.table_version)
            name = level.place.name
            wanted = (part.fragment, level.place.slots, int(self._format.has_disk), int(reader.is_newest(level)))
            for block in reader.blocks(level):
                found = self._find(block.words, BACKUP_BLOCK_WORDS, block.stop, shapes, wanted, reader.live, name)
                rows += found.size
                yield from self._batch(block.words, found, has_var, name)
        reader.check(rows, part.fragment, self._definition.name)

    def _shapes_at(self, version: int) -> tuple[Words, bool]:
        """Return shapes for entries that an older version of the table wrote, and whether they have a var part."""
        has_var = layout_at(self._definition, version).has_var
        if has_var == self._format.has_var:
            return self._shapes, has_var
        shapes = self._shapes.copy()
        shapes[self._definition.table_id * ENTRY_SHAPE_WORDS + 1] = int(has_var)
        return shapes, has_var

    # --- local checkpoints -----------------------------------------------------------------------
    def read_store_part(self, part: Part) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a data file, or the table's rows in the copies file."""
        origin, table_id = self._origin, self._definition.table_id
        is_copies = part.fragment == COPIES
        place = (COPIES_TABLE, COPIES_FRAGMENT) if is_copies else (table_id, part.fragment)
        name = copies_name(origin.number) if is_copies else data_name(origin.number, *place)
        entries = 0
        for block in read_blocks(self._files, name, origin.store, origin.number, *place):
            wanted = (part.fragment, 0, 0, 0)
            found = self._find(block.words, BLOCK_HEADER_WORDS, block.stop, self._shapes, wanted, NOTHING, name)
            entries += int(self._state[B_ENTRIES])
            yield from self._batch(block.words, found, self._format.has_var, name)
        check_counts(name, (entries, block.blocks, block.size_bytes), part.sizes)

    # --- rows ------------------------------------------------------------------------------------
    def _find(
        self,
        words: Words,
        start: int,
        stop: int,
        shapes: Words,
        wanted: tuple[int, int, int, int],
        live: Words,
        name: str,
    ) -> Words:
        """Return the offsets of the images of one fragment. wanted: fragment; slots per page; 1 if images have disk
        parts; 1 if an image that `live` does not mark is damage.
        """
        found_max = (stop - start) // (ENTRY_WORDS + self._format.fixed_words) + 1
        if self._out.size < found_max:
            self._out = np.empty(found_max, dtype=np.int64)
        state = self._state
        state[:] = 0
        asked = np.array((self._definition.table_id, *wanted), dtype=np.int64)
        status = int(find_entries(words, start, stop, shapes, asked, live, self._out, state))
        if status != OK:
            raise self._damaged(name, f"has an impossible row at word {int(state[B_NEXT])} of a block")
        return self._out[: int(state[B_USED])]

    def _damaged(self, name: str, what: str) -> Damaged:
        kind = BackupDamaged if self._origin.is_backup else LcpDamaged
        return kind(f"{name} {what}; use another copy", file=name)

    def _batch(self, words: Words, found: Words, has_var: bool, name: str) -> Iterator[pa.RecordBatch]:
        if has_var != self._format.has_var:
            words, found = with_var_parts(words, found, self._format.fixed_words)
        try:
            if self._filter is not None:
                found = self._filter.accepted(words, found)
            if not found.size:
                return
            yield decode_rows(self._format, words, found, found.size, self._task.columns, self._hidden(words, found))
        except PageDamaged as error:
            raise self._damaged(name, "has a row whose lengths contradict each other") from error

    def _hidden(self, words: Words, found: Words) -> dict[str, Words]:
        made: dict[str, Callable[[], Words]] = {
            ROWID: lambda: words[found - ENTRY_WORDS],
            EPOCH: lambda: words[found - ENTRY_WORDS + 1],
            AUTHOR: lambda: words[found - ENTRY_WORDS + 2] & ENTRY_AUTHOR_MASK,
            FRAGMENT: lambda: (words[found - ENTRY_WORDS + 2] >> ENTRY_FRAGMENT_SHIFT) & ENTRY_FRAGMENT_MASK,
        }
        return {name: made[name]() for name in self._task.hidden}


def with_var_parts(words: Words, found: Words, fixed: int) -> tuple[Words, Words]:
    """Add an empty var part to entries written before their table had one; return (words, new offsets of images).
    fixed: words of the fixed part.
    """
    grown = np.insert(words, found + fixed, var_header(VAR_HEADER_WORDS, 0, 0))
    return grown, found + np.arange(found.size, dtype=np.int64) * VAR_HEADER_WORDS


class _Filter:
    """A condition on rows, as a program."""

    def __init__(self, row_format: RowFormat, where: Expression) -> None:
        definition = row_format.definition
        self.name = definition.name
        self.format = row_format
        self._running = Running(compile_filter(definition, where))

    def accepted(self, words: Words, found: Words) -> Words:
        """Return the images that satisfy the condition. Raises: ProgramFailed and the like for a row on which it fails,
        PageDamaged.
        """
        places, _ = self._running.accepted(self, words, found)
        accepted: Words = found[places]
        return accepted

    @staticmethod
    def format_key(key: Any) -> str:
        """Return a key for a message."""
        return shown(key)
