"""Writes one fragment of a backup into the data file of a local checkpoint, without a store (docs/backup.md, 4).

Changes of the archived log are folded to one change per row and merged while the levels are read. So memory holds the
fragment's changes and one batch, not its rows. Keys are compared only where log records have them; the process that
loads the file checks that keys are unique.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from tidemark.engine.base.errors import RedoDamaged
from tidemark.engine.memory.arena import NOTHING
from tidemark.engine.memory.arena_layout import OK, ST_DUPLICATE, ST_SPACE
from tidemark.engine.rows.lcp_layout import BLOCK_HEADER_WORDS
from tidemark.recovery.backup import restore_layout as j
from tidemark.recovery.backup.chain import Chain, impossible, shape_of
from tidemark.recovery.backup.restore_kernels import fold_changes, list_changes, merge_rows, put_new_rows
from tidemark.recovery.backup.rows_file import Level
from tidemark.recovery.backup.split import read_section
from tidemark.recovery.local_checkpoint.data_file import FOLDER, DataFileWriter, new_span

if TYPE_CHECKING:
    from tidemark.engine.files.protocol import Files
    from tidemark.engine.memory.arena import Words
    from tidemark.recovery.backup.level_file import LevelFile
    from tidemark.recovery.backup.restore_task import RestoreTask

# What a part of a task says of its fragment, in the order of `shape_of`.
PART_SHAPE = ("fixed_words", "has_var", "var_since", "key_words", "table_id", "fragment", "slots")


def attempt_name(lcp_id: int, table_id: int, fragment: int, attempt: str) -> str:
    """Return the name of a data file before the restore takes and renames it."""
    return f"{FOLDER}/{lcp_id}-{table_id}-{fragment}-{attempt}.data"


def write_fragment(
    place: Files,
    target: Files,
    task: RestoreTask,
    part: dict[str, Any],
    attempt: str,
    advance: Callable[[int], None] | None = None,
) -> tuple[list[Any], int]:
    """Write the data file of a fragment. Return table, fragment, name, entries, blocks and bytes of the file, and the
    number of changes of the log. Durable on return: its content.

    place: of the backups. target: files of the new store. part: as from `parts_of`. attempt: makes the name unique.
    advance: called with the number of rows done since the last call.

    Raises: BackupDamaged, FileMissing, FileTruncated, ForeignFile, RedoDamaged, StorageFull. The caller removes the
    file of a failed attempt.
    """
    table_id, number = part["table_id"], part["fragment"]
    name = attempt_name(task.lcp_id, table_id, number, attempt)
    with DataFileWriter(target, name, task.identity, (task.lcp_id, table_id, number), new_span()) as writer:
        merger = _Merger(place, target, task, part, writer, advance)
        merger.run()
        writer.close()
    return [table_id, number, name, writer.entries, writer.blocks, writer.size_bytes], merger.operations


class _Merger:
    """Merges levels and changes of one fragment into one writer."""

    def __init__(
        self,
        place: Files,
        target: Files,
        task: RestoreTask,
        part: dict[str, Any],
        writer: DataFileWriter,
        advance: Callable[[int], None] | None,
    ) -> None:
        self._target = target
        self._task = task
        self._part = part
        self._writer = writer
        self._advance = advance
        levels = [Level.of(values) for values in part["levels"]]
        self._chain = None
        if levels:
            self._chain = Chain(place, bytes.fromhex(task.source), task.definition(part["table_id"]), levels)
        self._shape = shape_of(*(part[name] for name in PART_SHAPE))
        self._state: Words = np.zeros(j.RESTORE_STATE_WORDS, dtype=np.int64)
        self._changes = NOTHING
        self._folded = NOTHING
        self.operations = 0

    def run(self) -> None:
        self._changes, self._folded = self._fold(self._read_changes())
        self._state[:] = 0
        if self._chain is not None:
            for content in self._chain.contents:
                self._merge(self._chain, content)
        self._put_new()

    # --- archived log ----------------------------------------------------------------------------
    def _read_changes(self) -> Words:
        """Return the fragment's changes in the order of the log."""
        sections = self._part["sections"]
        if not sections:
            return NOTHING
        store = self._task.identity[0]
        pieces = [
            words[BLOCK_HEADER_WORDS:stop].copy()
            for section in sections
            for words, stop in read_section(self._target, store, section)
        ]
        return np.concatenate(pieces)

    def _fold(self, changes: Words) -> tuple[Words, Words]:
        """Return the changes, and their result folded to one change per row. Raises: RedoDamaged."""
        state, shape = self._state, self._shape
        if not changes.size:
            return NOTHING, NOTHING
        status = int(list_changes(changes, changes.size, shape, NOTHING, NOTHING, NOTHING, state))
        if status != OK:
            raise self._does_not_fit("an invalid record", status)
        count = int(state[j.R_COUNT])
        lists = [np.empty(count, dtype=np.int64) for _ in range(3)]
        list_changes(changes, changes.size, shape, lists[0], lists[1], lists[2], state)
        order = np.argsort(lists[0], kind="stable")
        rowids, heads, images = (np.ascontiguousarray(each[order]) for each in lists)
        folded = np.empty(count * j.FOLDED_WORDS, dtype=np.int64)
        status = int(fold_changes(changes, rowids, heads, images, shape, folded, state))
        if status != OK:
            raise self._does_not_fit(f"a record for ROWID {int(rowids[int(state[j.R_NEXT])])}", status)
        self.operations = count
        return changes, folded[: int(state[j.R_USED]) * j.FOLDED_WORDS].copy()

    def _does_not_fit(self, what: str, status: int) -> RedoDamaged:
        part = self._part
        return RedoDamaged(
            f"the archived log has {what} in fragment {part['fragment']} of table {part['table_id']} that does not fit"
            f" the rows it meets (status {status}); restore to an earlier epoch, or from another backup",
            table=part["table_id"],
            fragment=part["fragment"],
        )

    # --- levels ----------------------------------------------------------------------------------
    def _merge(self, chain: Chain, content: LevelFile) -> None:
        state, writer = self._state, self._writer
        chain.level_shape(content, self._shape)
        state[j.R_ROWID], state[j.R_CHANGE] = -1, 0
        for images, starts, rows in chain.level_rows(content):
            state[j.R_NEXT], before = 0, int(state[j.R_COUNT])
            some = (images, starts, rows, self._shape, self._folded, self._changes)
            while (status := int(merge_rows(*some, writer.block, NOTHING, writer.state, state))) != OK:
                if status == ST_DUPLICATE:
                    rowid = int(rows[int(state[j.R_NEXT]) * j.ROW_WORDS])
                    raise self._does_not_fit(f"an insert at ROWID {rowid}", status)
                if status > ST_SPACE:
                    raise impossible(content.level, int(state[j.R_NEXT]), status)
                writer.make_room(ST_SPACE - status)
            if self._advance is not None:
                self._advance(int(state[j.R_COUNT]) - before)

    def _put_new(self) -> None:
        """Write rows that the log inserted and that are not in the backup."""
        state, writer = self._state, self._writer
        state[j.R_NEXT] = 0
        while True:
            arrays = (self._folded, self._changes, self._shape, writer.block, writer.state, state)
            status = int(put_new_rows(*arrays))
            if status == OK:
                return
            if status > ST_SPACE:
                rowid = int(self._folded[int(state[j.R_NEXT]) * j.FOLDED_WORDS + j.D_ROWID])
                raise self._does_not_fit(f"a change of ROWID {rowid}, where there is no row,", status)
            writer.make_room(ST_SPACE - status)
