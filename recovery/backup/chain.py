"""The levels of one fragment together: the rows that it had at the epoch of the newest one.

Rows of a level that a newer one made dead are left out. Then each row is in exactly one level.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tidemark.engine.access.scan_batch import ScanBatch
from tidemark.engine.base.errors import BackupDamaged
from tidemark.engine.memory.arena import NOTHING
from tidemark.engine.memory.arena_layout import ENTRY_WORDS, OK, ST_SPACE
from tidemark.engine.rows.columnar import encode_rows
from tidemark.engine.rows.row_format import RowFormat
from tidemark.recovery.backup.level_file import LevelFile, columns_of, read_level
from tidemark.recovery.backup.restore_kernels import merge_rows
from tidemark.recovery.backup.restore_layout import (
    P_EPOCH,
    P_LEVEL_HAS_VAR,
    P_SINCE,
    R_NEXT,
    R_ROWID,
    RESTORE_STATE_WORDS,
    ROW_WORDS,
    SHAPE_WORDS,
)
from tidemark.recovery.backup.rows_file import (
    AUTHOR,
    EPOCH,
    FRAGMENT_SHIFT,
    PLACE,
    ROWID_MASK,
    VALUES,
    RowsReader,
    hidden_columns,
    refused,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemark.engine.files.protocol import Files
    from tidemark.engine.memory.arena import Words
    from tidemark.engine.schema.definition import TableDefinition
    from tidemark.engine.schema.row_shape import RowLayout
    from tidemark.recovery.backup.rows_file import Level


@dataclass(frozen=True)
class LevelRows:
    """Some rows of a level, as `merge_rows` takes them."""

    images: Words
    starts: Words  # of each image, and the end of the last
    rows: Words


def shape_of(layout: RowLayout, table_id: int, fragment: int, slots: int) -> Words:
    """Return the shape of a fragment's rows, as kernels of a restore take it."""
    shape: Words = np.zeros(SHAPE_WORDS, dtype=np.int64)
    key_words = 0 if layout.key_in_var else layout.key_words
    shape[:7] = [layout.fixed_words, int(layout.has_var), layout.var_since, key_words, table_id, fragment, slots]
    return shape


class Chain:
    """The levels of one fragment, newest first."""

    def __init__(self, files: Files, store: bytes, definition: TableDefinition, levels: list[Level]) -> None:
        """definition: of the table, as it was backed up. levels: none for a fragment that was not backed up.

        Raises: FileMissing, BackupDamaged, ForeignFile.
        """
        self._files = files
        self._store = store
        self._format = RowFormat(definition)
        self.contents = [read_level(files, store, each.place.level_name, each) for each in levels]
        self.rows = levels[0].sizes.rows if levels else 0
        if levels:
            self._check(columns_of(definition))

    def _check(self, columns: Any) -> None:
        newest, *older = self.contents
        name = newest.level.place.level_name
        epochs = {each.level.place.epoch for each in older}
        alive = newest.level.sizes.entries
        for each in older:
            dead = self.dead(each)
            if dead.size and int(dead[-1]) >= each.level.sizes.entries:
                raise BackupDamaged(f"{name} has dead rows past the end of an older level; use another copy", file=name)
            alive += each.level.sizes.entries - dead.size
        if not newest.dead.keys() <= epochs or any(each.columns != columns for each in self.contents):
            raise BackupDamaged(f"{name} belongs to other levels, or to a table with other columns", file=name)
        if alive != self.rows:
            raise BackupDamaged(
                f"the files of fragment {newest.level.place.fragment} of {newest.level.place.table} have {alive} rows"
                f" where {self.rows} were backed up; use another backup",
                file=name,
            )

    def dead(self, content: LevelFile) -> Words:
        """Return the positions of a level's rows that are not taken."""
        return self.contents[0].dead.get(content.level.place.epoch, NOTHING)

    def batches(self, content: LevelFile) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a level that are taken, with all columns of its file, in the order of ROWIDs.

        Raises: FileMissing, FileTruncated, BackupDamaged, IoFailed.
        """
        import pyarrow as pa

        dead = self.dead(content)
        reader = RowsReader(self._files, self._store, content.level, content.ranges)
        try:
            for first, batch in reader.groups():
                gone = dead[np.searchsorted(dead, first) : np.searchsorted(dead, first + batch.num_rows)]
                if gone.size:
                    taken = np.ones(batch.num_rows, dtype=bool)
                    taken[gone - first] = False
                    batch = batch.filter(pa.array(taken))
                if batch.num_rows:
                    yield batch
        finally:
            reader.close()

    def dead_rows(self, content: LevelFile) -> Words:
        """Return `$PLACE` and `$EPOCH` of a level's rows that are not taken; a newer level may have the same place. The
        tail of its file is checked in any case. Shapes: (rows, 2).

        Raises: FileMissing, FileTruncated, BackupDamaged, IoFailed.
        """
        dead = self.dead(content)
        found: list[Words] = [NOTHING.reshape(0, 2)]
        reader = RowsReader(self._files, self._store, content.level, content.ranges)
        try:
            for first, batch in reader.groups([PLACE, EPOCH], dead):
                some = dead[np.searchsorted(dead, first) : np.searchsorted(dead, first + batch.num_rows)]
                found.append(np.stack([column.to_numpy()[some - first] for column in batch.columns], axis=1))
        finally:
            reader.close()
        return np.concatenate(found)

    def level_rows(self, content: LevelFile) -> Iterator[LevelRows]:
        """Yield the rows of a level that are taken, in the order of ROWIDs. Raises: as `batches`."""
        place = content.level.place
        definition = self._format.definition
        names = [column.name for column in definition.columns]
        for batch in self.batches(content):
            with refused(place.name):
                if batch.schema.names != [*names, *hidden_columns(definition)]:
                    raise ValueError(f"its columns are {', '.join(batch.schema.names)}")
                rows: Words = np.full((batch.num_rows, ROW_WORDS), -1, dtype=np.int64)
                for number, name in enumerate((PLACE, EPOCH, AUTHOR, VALUES)):
                    if name in batch.schema.names:
                        rows[:, number] = batch.column(name).to_numpy(zero_copy_only=True)
                if (rows[:, 0] >> FRAGMENT_SHIFT != place.fragment).any():
                    raise ValueError("it has a row of another fragment")
                rows[:, 0] &= ROWID_MASK
                encoded = encode_rows(self._format, batch.select(names))
                starts = encoded.offsets
                if encoded.stride_words:
                    starts = np.arange(encoded.count + 1, dtype=np.int64) * encoded.stride_words
            yield LevelRows(encoded.images, starts, rows.reshape(-1))

    def level_shape(self, content: LevelFile, shape: Words) -> None:
        """Complete the shape of the fragment by that of a level."""
        place = content.level.place
        shape[P_LEVEL_HAS_VAR] = int(self._format.layout.has_var)
        shape[P_SINCE], shape[P_EPOCH] = place.since, place.epoch

    def entries(self, content: LevelFile) -> Iterator[tuple[ScanBatch, int]]:
        """Yield the rows of a level that are taken, as consecutive entries of its table, and the words of all of them.

        Raises: as `batches`.
        """
        place = content.level.place
        shape = shape_of(self._format.layout, place.table_id, place.fragment, place.slots)
        self.level_shape(content, shape)
        state: Words = np.zeros(RESTORE_STATE_WORDS, dtype=np.int64)
        state[R_ROWID] = -1
        for some in self.level_rows(content):
            count = some.starts.size - 1
            out = np.empty(some.images.size + (ENTRY_WORDS + 1) * count, dtype=np.int64)
            offsets, used = np.empty(count, dtype=np.int64), np.zeros(2, dtype=np.int64)
            state[R_NEXT] = 0
            arrays = (some.images, some.starts, some.rows, shape, NOTHING, NOTHING, out, offsets, used, state)
            status = int(merge_rows(*arrays))
            if status != OK:
                raise impossible(content.level, int(state[R_NEXT]), status)
            yield ScanBatch(out, offsets, count), int(used[0])


def impossible(level: Level, row: int, status: int) -> BackupDamaged:
    """Return the error for a row of a level that a kernel refused."""
    assert status > ST_SPACE
    return BackupDamaged(
        f"{level.place.name} has an impossible row at {row} of a batch (status {status}), or the archived log one that"
        " does not fit it; restore another backup",
        file=level.place.name,
    )
