"""Rows of one fragment from files alone: a local checkpoint's data file and copies.

The content of files is not trusted: blocks are verified as they are read, entries are checked one by one, and at the
end the counts must equal those in the control file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from tidemark.engine.access.scan_batch import SCAN_BATCH_ROWS, ScanBatch
from tidemark.engine.base.errors import LcpDamaged, Unsupported
from tidemark.engine.memory.arena_layout import OK, ST_INVARIANT, ST_SPACE
from tidemark.engine.rows.lcp_layout import BLOCK_HEADER_WORDS, COPIES_FRAGMENT, COPIES_TABLE
from tidemark.engine.schema.row_shape import compute_layout
from tidemark.recovery.backup.entries_layout import B_ENTRIES, B_NEXT, B_USED, BACKUP_STATE_WORDS
from tidemark.recovery.local_checkpoint.data_file import copies_name, data_name, read_blocks
from tidemark.recovery.system_restart.load import check_counts, shapes_of
from tidemark.recovery.verification.digests_kernels import copy_entries, copy_of_fragment

if TYPE_CHECKING:
    from tidemark.engine.base.errors import Damaged
    from tidemark.engine.files.protocol import Files
    from tidemark.engine.memory.arena import Words
    from tidemark.engine.schema.definition import TableDefinition
    from tidemark.recovery.local_checkpoint.control import Control
    from tidemark.recovery.local_checkpoint.data_file import DataBlock


def _pieces(
    copy: Callable[[Words, Words, Words], int], words: int, stop: int, refuse: Callable[[int], Damaged]
) -> Iterator[ScanBatch]:
    """Yield the batches that a kernel copies out of a block of `words` words, one after the other."""
    state = np.zeros(BACKUP_STATE_WORDS, dtype=np.int64)
    room = words
    while int(state[B_NEXT]) < stop:
        out = np.empty(room, dtype=np.int64)
        offsets = np.empty(SCAN_BATCH_ROWS, dtype=np.int64)
        state[B_USED] = state[B_ENTRIES] = 0
        status = int(copy(out, offsets, state))
        if status == ST_INVARIANT:
            raise refuse(int(state[B_NEXT]))
        count = int(state[B_ENTRIES])
        if status != OK and not count:
            room = max(2 * room, ST_SPACE - status)
            continue
        if count:
            yield ScanBatch(out, offsets[:count])
        if status == OK:
            return


class LcpFragment:
    """The rows of one fragment of a local checkpoint, of memory columns."""

    def __init__(self, files: Files, store: bytes, control: Control, definition: TableDefinition, number: int) -> None:
        """Raises: Unsupported for a table with disk columns."""
        if compute_layout(definition).disk is not None:
            raise Unsupported(
                f"{definition.name} has disk columns, which a local checkpoint does not have; compare a backup",
                table=definition.name,
            )
        self._files = files
        self._store = store
        self._control = control
        self._definition = definition
        self._number = number

    def batches(self) -> Iterator[ScanBatch]:
        """Yield the rows: those of the data file in the order of ROWIDs, then old rows copied by commits.

        Raises: LcpDamaged, FileMissing (the checkpoint was retired meanwhile, or a file is lost), FileTruncated,
        ForeignFile.
        """
        control, place = self._control, (self._definition.table_id, self._number)
        layout = compute_layout(self._definition)
        shape = np.array([layout.fixed_words, int(layout.has_var), *place], dtype=np.int64)
        name = data_name(control.lcp_id, *place)
        entries = 0
        for block in self._blocks(name, place):
            copy = partial(copy_entries, block.words, BLOCK_HEADER_WORDS, block.stop, shape)
            for batch in _pieces(copy, block.words.size, block.stop, self._refusal(name)):
                entries += batch.count
                yield batch
        check_counts(name, (entries, block.blocks, block.size_bytes), control.fragments[place])
        yield from self._copies(place)

    def _copies(self, place: tuple[int, int]) -> Iterator[ScanBatch]:
        name = copies_name(self._control.lcp_id)
        shapes, _ = shapes_of(self._control.tables, lambda definition, number: 0)
        for block in self._blocks(name, (COPIES_TABLE, COPIES_FRAGMENT)):
            copy = partial(copy_of_fragment, block.words, BLOCK_HEADER_WORDS, block.stop, shapes, *place)
            yield from _pieces(copy, block.words.size, block.stop, self._refusal(name))

    def _blocks(self, name: str, place: tuple[int, int]) -> Iterator[DataBlock]:
        return read_blocks(self._files, name, self._store, self._control.lcp_id, *place)

    def _refusal(self, name: str) -> Callable[[int], LcpDamaged]:
        return lambda at: LcpDamaged(
            f"{name} has an impossible row at word {at} of a block; compare a backup", file=name
        )
