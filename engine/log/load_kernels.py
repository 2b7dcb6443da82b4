"""Load files: rows packed into insert records on private memory, and read back with every length checked.

A record has at most LOAD_RUN rows at consecutive slots of one page; pages count from 0 (docs/load.md).
"""

# mypy: ignore-errors

from __future__ import annotations

from engine.jit.kernel import helper, kernel
from engine.jit.words_kernels import move_words
from engine.log.load_arena_layout import (
    LI_DISK,
    LI_FIXED,
    LI_FRAGMENT,
    LI_IDENTITY,
    LI_KEY_WORDS,
    LI_SLOTS,
    LI_VAR,
    LR_AT,
    LR_RECORD,
    LR_ROWID,
    LR_TAG,
    LR_WORDS,
    LS_RECORD,
    LS_ROWS,
    LS_USED,
)
from engine.log.load_layout import LOAD_RUN
from engine.log.redo_layout import KIND_INSERT, KIND_MASK, OPERATION_WORDS, WORDS_SHIFT, pack_kind, pack_rows
from engine.memory.arena_layout import (
    COUNT_SHIFT,
    MAP_ROOTS,
    OK,
    ROWID_MASK,
    ST_INVARIANT,
    ST_PARTITION,
    VAR_KEY_WORDS_MASK,
    VAR_KEY_WORDS_SHIFT,
    VAR_WORDS_MASK,
)
from engine.rows.lcp_kernels import checked_image_words
from engine.rows.primary_kernels import image_key, tag_of
from engine.schema.partitions_kernels import private_number
from engine.schema.partitions_layout import HH_SEED

PAGES_MAX = MAP_ROOTS << 18

_pack_kind = helper(pack_kind)
_pack_rows = helper(pack_rows)


@kernel(
    "int64(int64[::1], int64[::1], int64[::1], int64[::1], int64, int64, int64[::1], int64[::1])",
    nogil=True,
)
def pack_rows_of_file(shape, images, offsets, order, start, stop, block, state):
    """Append images order[start:stop] (or start to stop, if order is empty) to a block as insert records.

    offsets: of the images, count + 1, or empty if all have the fixed words. state: LS_ words, kept between calls.
    Returns the position reached: less than `stop` if the block has no room for the next row and its header.
    """
    fixed = shape[LI_FIXED]
    slots = shape[LI_SLOTS]
    for position in range(start, stop):
        i = order[position] if order.size else position
        at = offsets[i] if offsets.size else i * fixed
        size = offsets[i + 1] - at if offsets.size else fixed
        used = state[LS_USED]
        row = state[LS_ROWS]
        record = state[LS_RECORD]
        need = size
        if record == 0 or block[record + 2] >> COUNT_SHIFT >= LOAD_RUN or row % slots == 0:
            need += OPERATION_WORDS
        if used + need > block.size:
            return position
        if need > size:
            record = used
            block[record] = _pack_kind(KIND_INSERT, 0, OPERATION_WORDS)
            block[record + 1] = shape[LI_IDENTITY]
            block[record + 2] = _pack_rows(row // slots << 16 | row % slots, 0)
            block[record + 3] = 0
            state[LS_RECORD] = record
            used += OPERATION_WORDS
        move_words(images, at, block, used, size)
        block[record] += size << WORDS_SHIFT
        block[record + 2] += 1 << COUNT_SHIFT
        state[LS_USED] = used + size
        state[LS_ROWS] = row + 1
    return stop


@helper
def checked_row_words(shape, words, at, stop):
    """Words of the image at words[at:stop], disk part included; -1 if it cannot be one."""
    size = checked_image_words(shape[LI_FIXED], shape[LI_VAR], words, at, stop)
    if size < 0:
        return -1
    if shape[LI_KEY_WORDS] == 0:
        held = (words[at + shape[LI_FIXED]] >> VAR_KEY_WORDS_SHIFT) & VAR_KEY_WORDS_MASK
        if held < 1 or 1 + held > size - shape[LI_FIXED]:
            return -1
    if shape[LI_DISK]:
        if at + size >= stop:
            return -1
        disk = words[at + size] & VAR_WORDS_MASK
        if disk < 1 or disk > stop - at - size:
            return -1
        size += disk
    return size


@kernel("int64(int64[::1], int64[::1], int64[::1], int64, int64, int64, int64, int64[::1], int64[::1])", nogil=True)
def survey_block(shape, header, words, start, stop, first_row, last_row, rows, key):
    """Check the records words[start:stop] of a load file and list their rows; how many, or a status below 0.

    shape: LI_ words; header: the table's private hash header. first_row: rows in the blocks before, last_row: in all of
    the file. rows: LR_WORDS for each row. key: room for a key. ST_INVARIANT: this is not what a task writes;
    ST_PARTITION: a row is of another fragment.
    """
    slots = shape[LI_SLOTS]
    at = start
    row = first_row
    count = 0
    while at < stop:
        if at + OPERATION_WORDS > stop or words[at] & ((1 << WORDS_SHIFT) - 1) != KIND_INSERT:
            return ST_INVARIANT
        size = words[at] >> WORDS_SHIFT
        run = words[at + 2] >> COUNT_SHIFT
        rowid = words[at + 2] & ROWID_MASK
        if size < OPERATION_WORDS or size > stop - at or words[at] & KIND_MASK != KIND_INSERT:
            return ST_INVARIANT
        if words[at + 1] != shape[LI_IDENTITY] or words[at + 3] != 0 or run < 1 or run > LOAD_RUN:
            return ST_INVARIANT
        if rowid != (row // slots << 16 | row % slots) or row % slots + run > slots or row + run > last_row:
            return ST_INVARIANT
        image = at + OPERATION_WORDS
        for number in range(run):
            length = checked_row_words(shape, words, image, at + size)
            if length < 0 or (count + 1) * LR_WORDS > rows.size:
                return ST_INVARIANT
            first, key_words = image_key(words, image, shape[LI_FIXED], shape[LI_KEY_WORDS])
            if private_number(header, words, first, key_words, key, 0) != shape[LI_FRAGMENT]:
                return ST_PARTITION
            rows[count * LR_WORDS + LR_AT] = image
            rows[count * LR_WORDS + LR_ROWID] = rowid + number
            rows[count * LR_WORDS + LR_TAG] = tag_of(words, first, key_words, header[HH_SEED])
            rows[count * LR_WORDS + LR_RECORD] = at
            count += 1
            image += length
        if image != at + size:
            return ST_INVARIANT
        row += run
        at += size
    return count


@kernel("int64(int64[::1], int64, int64, int64)", nogil=True)
def add_pages(words, start, stop, pages):
    """Add so many pages to the ROWIDs of the insert records words[start:stop]; OK, or ST_INVARIANT if they are none."""
    at = start
    while at < stop:
        size = words[at] >> WORDS_SHIFT
        if size < OPERATION_WORDS or size > stop - at or words[at] & KIND_MASK != KIND_INSERT:
            return ST_INVARIANT
        if (words[at + 2] & ROWID_MASK) >> 16 >= PAGES_MAX - pages:
            return ST_INVARIANT
        words[at + 2] += pages << 16
        at += size
    return OK
