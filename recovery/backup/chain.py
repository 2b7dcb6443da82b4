"""The levels of one fragment together: the rows that it had at the epoch of the newest one.

Rows of a level that a newer one made dead are left out. Then each row is in exactly one level.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tidemark.engine.access.scan_batch import AUTHOR, EPOCH, ScanBatch
from tidemark.engine.base.errors import BackupDamaged
from tidemark.engine.memory.arena import NOTHING
from tidemark.engine.memory.arena_layout import ENTRY_WORDS, OK, ST_SPACE
from tidemark.engine.rows.columnar import encode_rows
from tidemark.engine.rows.row_format import RowFormat
from tidemark.recovery.backup import restore_layout as j
from tidemark.recovery.backup.level_file import LevelFile, columns_of, read_level
from tidemark.recovery.backup.restore_kernels import merge_rows
from tidemark.recovery.backup.rows_file import (
    FRAGMENT_SHIFT,
    PLACE,
    ROWID_MASK,
    VALUES,
    RowsReader,
    hidden_columns,
)
from tidemark.recovery.backup.units import refused

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemark.engine.files.protocol import Files
    from tidemark.engine.memory.arena import Words
    from tidemark.engine.schema.definition import TableDefinition
    from tidemark.recovery.backup.rows_file import Level


def shape_of(
    fixed: int, has_var: int, var_since: int, key_words: int, table_id: int, fragment: int, slots: int
) -> Words:
    """Return the shape of a fragment's rows, as kernels of a restore take it."""
    shape: Words = np.zeros(j.SHAPE_WORDS, dtype=np.int64)
    shape[:7] = [fixed, has_var, var_since, key_words, table_id, fragment, slots]
    return shape


class Chain:
    """The levels of one fragment, newest first."""

    def __init__(self, files: Files, store: bytes, definition: TableDefinition, levels: list[Level]) -> None:
        """definition: of the table, as it was backed up. levels: one or more.

        Raises: FileMissing, BackupDamaged, ForeignFile.
        """
        self._files = files
        self._store = store
        self._format = RowFormat(definition)
        self.contents = [read_level(files, store, each.level_name, each) for each in levels]
        self.rows = levels[0].rows
        self._check(columns_of(definition))

    def _check(self, columns: Any) -> None:
        newest = self.contents[0]
        level, name = newest.level, newest.level.level_name
        alive = 0
        for each in self.contents:
            dead = self.dead(each)
            if dead.size and int(dead[-1]) >= each.level.entries:
                raise BackupDamaged(f"{name} has dead rows past the end of an older level; use another copy", file=name)
            alive += each.level.entries - dead.size
        epochs = {each.level.epoch for each in self.contents[1:]}
        if not newest.dead.keys() <= epochs or any(each.columns != columns for each in self.contents):
            raise BackupDamaged(f"{name} belongs to other levels, or to a table with other columns", file=name)
        if alive != self.rows:
            raise BackupDamaged(
                f"the files of fragment {level.fragment} of {level.table} have {alive} rows where {self.rows} were"
                " backed up; use another backup",
                file=name,
            )

    def dead(self, content: LevelFile) -> Words:
        """Return the positions of a level's rows that are not taken."""
        return self.contents[0].dead.get(content.level.epoch, NOTHING)

    def groups(
        self, content: LevelFile, columns: Sequence[str] | None = None, with_dead: bool = False
    ) -> Iterator[tuple[int, pa.RecordBatch, Words]]:
        """Yield the row groups of a level: the position of the first row, the rows, and which of them are not taken.

        columns: None: all. with_dead: only groups with such rows. The tail of the file is checked in any case.
        Raises: FileMissing, FileTruncated, BackupDamaged, IoFailed.
        """
        dead = self.dead(content)
        with RowsReader(self._files, self._store, content.level, content.ranges) as reader:
            for first, batch in reader.groups(columns, dead if with_dead else None):
                start, stop = np.searchsorted(dead, [first, first + batch.num_rows])
                yield first, batch, dead[start:stop] - first

    def dead_places(self, content: LevelFile) -> Words:
        """Return `$PLACE` of a level's rows that are not taken; a newer level may have the same place. Raises: as
        `groups`.
        """
        found: list[Words] = [NOTHING]
        for _, batch, dead in self.groups(content, [PLACE], with_dead=True):
            found.append(batch.column(0).to_numpy()[dead])
        return np.concatenate(found)

    def level_rows(self, content: LevelFile) -> Iterator[tuple[Words, Words, Words]]:
        """Yield the rows of a level that are taken, in the order of ROWIDs, as the first arguments of `merge_rows`.
        Raises: as `groups`.
        """
        import pyarrow as pa

        level, definition = content.level, self._format.definition
        names = [column.name for column in definition.columns]
        for _, batch, dead in self.groups(content):
            with refused(level.name):
                if batch.schema.names != [*names, *hidden_columns(definition)]:
                    raise ValueError(f"its columns are {', '.join(batch.schema.names)}")
                if dead.size:
                    taken = np.ones(batch.num_rows, dtype=bool)
                    taken[dead] = False
                    batch = batch.filter(pa.array(taken))
                rows: Words = np.full((batch.num_rows, j.ROW_WORDS), -1, dtype=np.int64)
                for number, name in enumerate((PLACE, EPOCH, AUTHOR, VALUES)):
                    if name in batch.schema.names:
                        rows[:, number] = batch.column(name).to_numpy(zero_copy_only=True)
                if (rows[:, 0] >> FRAGMENT_SHIFT != level.fragment).any():
                    raise ValueError("it has a row of another fragment")
                rows[:, 0] &= ROWID_MASK
                encoded = encode_rows(self._format, batch.select(names))
                starts = encoded.offsets
                if encoded.stride_words:
                    starts = np.arange(encoded.count + 1, dtype=np.int64) * encoded.stride_words
            yield encoded.images, starts, rows.reshape(-1)

    def level_shape(self, content: LevelFile, shape: Words) -> None:
        """Complete the shape of the fragment by that of a level."""
        shape[j.P_LEVEL_HAS_VAR] = int(self._format.layout.has_var)
        shape[j.P_SINCE], shape[j.P_EPOCH] = content.level.since, content.level.epoch

    def entries(self, content: LevelFile) -> Iterator[tuple[ScanBatch, int]]:
        """Yield the rows of a level that are taken, as consecutive entries of its table, and the words of all of them.

        Raises: as `groups`.
        """
        level, layout = content.level, self._format.layout
        place = (level.table_id, level.fragment, level.slots)
        shape = shape_of(layout.fixed_words, int(layout.has_var), layout.var_since, 0, *place)
        self.level_shape(content, shape)
        state: Words = np.zeros(j.RESTORE_STATE_WORDS, dtype=np.int64)
        state[j.R_ROWID] = -1
        for images, starts, rows in self.level_rows(content):
            count = starts.size - 1
            out = np.empty(images.size + (ENTRY_WORDS + 1) * count, dtype=np.int64)
            offsets, used = np.empty(count, dtype=np.int64), np.zeros(2, dtype=np.int64)
            state[j.R_NEXT] = 0
            status = int(merge_rows(images, starts, rows, shape, NOTHING, NOTHING, out, offsets, used, state))
            if status != OK:
                raise impossible(level, int(state[j.R_NEXT]), status)
            yield ScanBatch(out, offsets[:count]), int(used[0])

    def batches(self) -> Iterator[ScanBatch]:
        """Yield the entries of all levels. Raises: as `groups`."""
        for content in self.contents:
            for batch, _ in self.entries(content):
                yield batch


def impossible(level: Level, row: int, status: int) -> BackupDamaged:
    """Return the error for a row of a level that a kernel refused."""
    assert status > ST_SPACE
    return BackupDamaged(
        f"{level.name} has an impossible row at {row} of a batch (status {status}), or the archived log one that does"
        " not fit it; restore another backup",
        file=level.name,
    )
