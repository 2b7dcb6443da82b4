"""Blocks of load files: packing rows into insert records, and listing the rows of a block that was read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tidemark.engine.base.errors import InvariantBroken
from tidemark.engine.log.load_arena_layout import LI_FIXED, LR_WORDS, LS_RECORD, LS_ROWS, LS_USED, LS_WORDS
from tidemark.engine.log.load_kernels import pack_rows_of_file, survey_block
from tidemark.engine.log.redo_layout import OPERATION_WORDS
from tidemark.engine.log.spool_layout import SPOOL_ALIGN_WORDS, SPOOL_HEADER_WORDS
from tidemark.engine.memory.arena_layout import ST_PARTITION
from tidemark.engine.schema.partition_words import KEY_ROOM_WORDS

if TYPE_CHECKING:
    from tidemark.engine.memory.arena import Words


class InvalidRecords(Exception):
    """The records of a block do not have the form that `RecordPacker` writes."""


class OtherFragment(Exception):
    """A row of a block belongs to another fragment than its file."""


def _aligned(words: int) -> int:
    return -(-words // SPOOL_ALIGN_WORDS) * SPOOL_ALIGN_WORDS


class RecordPacker:
    """The block of a load file that is being filled with insert records."""

    def __init__(self, shape: Words, block_words: int) -> None:
        """shape: LI_ words. block_words: size of a block; a block of a single row may be larger."""
        self._shape = shape
        self._block: Words = np.empty(_aligned(block_words), dtype=np.int64)
        self._state: Words = np.zeros(LS_WORDS, dtype=np.int64)
        self.clear()

    @property
    def rows(self) -> int:
        """The number of rows in all blocks so far."""
        return int(self._state[LS_ROWS])

    @property
    def records_words(self) -> int:
        """The words of the records in the block."""
        return int(self._state[LS_USED]) - SPOOL_HEADER_WORDS

    def append(self, images: Words, offsets: Words, order: Words, start: int, stop: int) -> int:
        """Append images order[start:stop], or images [start, stop) if `order` is empty; return the position reached,
        which is less than `stop` if the block is full: then it has at least one row.

        offsets: word offsets of the images and their end, or empty if all images have only the shape's fixed words.
        """
        reached = self._packed(images, offsets, order, start, stop)
        if reached == start < stop and not self.records_words:
            row = int(order[start]) if order.size else start
            words = int(offsets[row + 1] - offsets[row]) if offsets.size else int(self._shape[LI_FIXED])
            self._block = np.empty(_aligned(SPOOL_HEADER_WORDS + OPERATION_WORDS + words), dtype=np.int64)
            reached = self._packed(images, offsets, order, start, stop)
        return reached

    def _packed(self, images: Words, offsets: Words, order: Words, start: int, stop: int) -> int:
        rest = (order, start, stop, self._block, self._state)
        return int(pack_rows_of_file(self._shape, images, offsets, *rest))

    def unit(self) -> Words:
        """Return the block as whole aligned words: zeros for a header, the records, zeros. Valid until `append`."""
        used = int(self._state[LS_USED])
        unit = self._block[: _aligned(used)]
        unit[:SPOOL_HEADER_WORDS] = 0
        unit[used:] = 0
        return unit

    def clear(self) -> None:
        """Begin the next block."""
        self._state[LS_USED] = SPOOL_HEADER_WORDS
        self._state[LS_RECORD] = 0


class Surveyor:
    """Lists the rows of blocks, one block at a time, and checks every record."""

    def __init__(self) -> None:
        self._rows: Words = np.empty(0, dtype=np.int64)
        self._key: Words = np.empty(KEY_ROOM_WORDS, dtype=np.int64)

    def rows_of(
        self, shape: Words, header: Words, words: Words, start: int, stop: int, first_row: int, last_row: int
    ) -> Words:
        """Return LR_ words for each row of the records words[start:stop]; valid until the next call.

        shape: LI_ words. header: the table's private hash header. first_row: rows in the blocks before; last_row: rows
        in the whole file. Shape: (rows * LR_WORDS,). Raises: InvalidRecords, OtherFragment.
        """
        if not 0 <= start <= stop <= words.size:
            raise InvariantBroken(f"records from {start} to {stop} of {words.size} words; report this")
        most = ((stop - start) // max(1, int(shape[LI_FIXED])) + 1) * LR_WORDS
        if self._rows.size < most:
            self._rows = np.empty(most, dtype=np.int64)
        rest = (start, stop, first_row, last_row, self._rows, self._key)
        count = int(survey_block(shape, header, words, *rest))
        if count == ST_PARTITION:
            raise OtherFragment
        if count < 0:
            raise InvalidRecords
        return self._rows[: count * LR_WORDS]
