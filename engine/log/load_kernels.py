"""Load files: rows packed into insert records in private memory, and read back with every length checked.

A record has at most LOAD_RUN rows at consecutive slots of one page; pages count from 0 (docs/load.md).
"""

# mypy: ignore-errors

from __future__ import annotations

from tidemark.engine.jit.kernel import helper, kernel
from tidemark.engine.jit.words_kernels import move_words
from tidemark.engine.log import load_arena_layout as N
from tidemark.engine.log import load_layout as F
from tidemark.engine.log import redo_layout as L
from tidemark.engine.log.records_kernels import record_at, record_flags, rows_of
from tidemark.engine.memory import arena_layout as A
from tidemark.engine.rows.lcp_kernels import checked_disk_words, checked_image_words
from tidemark.engine.rows.primary_kernels import image_key, tag_of
from tidemark.engine.schema import partitions_layout as H
from tidemark.engine.schema.partitions_kernels import private_number

PAGES_MAX = A.MAP_ROOTS << 18

_pack_kind = helper(L.pack_kind)
_pack_rows = helper(L.pack_rows)


@kernel(
    "int64(int64[::1], int64[::1], int64[::1], int64[::1], int64, int64, int64[::1], int64[::1])",
    nogil=True,
)
def pack_rows_of_file(shape, images, offsets, order, start, stop, block, state):
    """Append images order[start:stop] (images [start, stop) if `order` is empty) to a block as insert records.

    offsets: word offsets of the images and their end, or empty if all have only fixed words. state: LS_ words, kept
    between calls. Return the position reached, which is less than `stop` if the block has no room for the next row and
    its record header.
    """
    fixed = shape[N.LI_FIXED]
    slots = shape[N.LI_SLOTS]
    for position in range(start, stop):
        i = order[position] if order.size else position
        at = offsets[i] if offsets.size else i * fixed
        size = offsets[i + 1] - at if offsets.size else fixed
        used = state[N.LS_USED]
        row = state[N.LS_ROWS]
        record = state[N.LS_RECORD]
        need = size
        if record == 0 or block[record + 2] >> A.COUNT_SHIFT >= F.LOAD_RUN or row % slots == 0:
            need += L.OPERATION_WORDS
        if used + need > block.size:
            return position
        if need > size:
            record = used
            block[record] = _pack_kind(L.KIND_INSERT, 0, L.OPERATION_WORDS)
            block[record + 1] = shape[N.LI_IDENTITY]
            block[record + 2] = _pack_rows(row // slots << 16 | row % slots, 0)
            block[record + 3] = 0
            state[N.LS_RECORD] = record
            used += L.OPERATION_WORDS
        move_words(images, at, block, used, size)
        block[record] += size << L.WORDS_SHIFT
        block[record + 2] += 1 << A.COUNT_SHIFT
        state[N.LS_USED] = used + size
        state[N.LS_ROWS] = row + 1
    return stop


@helper
def checked_row_words(shape, words, at, stop):
    """Return the words of the image at words[at:stop], disk part included; -1 if it is invalid."""
    size = checked_image_words(shape[N.LI_FIXED], shape[N.LI_VAR], words, at, stop)
    if size < 0:
        return -1
    if shape[N.LI_KEY_WORDS] == 0:
        held = (words[at + shape[N.LI_FIXED]] >> A.VAR_KEY_WORDS_SHIFT) & A.VAR_KEY_WORDS_MASK
        if held < 1 or 1 + held > size - shape[N.LI_FIXED]:
            return -1
    if shape[N.LI_DISK]:
        disk = checked_disk_words(words, at + size, stop)
        return -1 if disk < 0 else size + disk
    return size


@kernel("int64(int64[::1], int64[::1], int64[::1], int64, int64, int64, int64, int64[::1], int64[::1])", nogil=True)
def survey_block(shape, header, words, start, stop, first_row, last_row, rows, key):
    """Check the records words[start:stop] of a load file and list their rows; return their number or a status below 0.

    shape: LI_ words; header: the table's private hash header. first_row: rows in the blocks before; last_row: rows in
    the whole file. rows: LR_WORDS for each row. key: scratch space for a key. ST_INVARIANT: the records are invalid;
    ST_PARTITION: a row belongs to another fragment.
    """
    slots = shape[N.LI_SLOTS]
    at = start
    row = first_row
    count = 0
    while at < stop:
        kind, size = record_at(words, at, stop)
        if size < 0 or kind != L.KIND_INSERT or record_flags(words, at) != 0:
            return A.ST_INVARIANT
        rowid, run = rows_of(words, at, kind)
        if words[at + 1] != shape[N.LI_IDENTITY] or words[at + 3] != 0 or run < 1 or run > F.LOAD_RUN:
            return A.ST_INVARIANT
        if rowid != (row // slots << 16 | row % slots) or row % slots + run > slots or row + run > last_row:
            return A.ST_INVARIANT
        image = at + L.OPERATION_WORDS
        for number in range(run):
            length = checked_row_words(shape, words, image, at + size)
            if length < 0 or (count + 1) * N.LR_WORDS > rows.size:
                return A.ST_INVARIANT
            first, key_words = image_key(words, image, shape[N.LI_FIXED], shape[N.LI_KEY_WORDS])
            if private_number(header, words, first, key_words, key, 0) != shape[N.LI_FRAGMENT]:
                return A.ST_PARTITION
            rows[count * N.LR_WORDS + N.LR_AT] = image
            rows[count * N.LR_WORDS + N.LR_ROWID] = rowid + number
            rows[count * N.LR_WORDS + N.LR_TAG] = tag_of(words, first, key_words, header[H.HH_SEED])
            rows[count * N.LR_WORDS + N.LR_RECORD] = at
            count += 1
            image += length
        if image != at + size:
            return A.ST_INVARIANT
        row += run
        at += size
    return count


@kernel("int64(int64[::1], int64, int64, int64)", nogil=True)
def add_pages(words, start, stop, pages):
    """Add `pages` to the ROWIDs of the insert records words[start:stop]; OK, or ST_INVARIANT if one is invalid."""
    at = start
    while at < stop:
        kind, size = record_at(words, at, stop)
        if size < 0 or kind != L.KIND_INSERT:
            return A.ST_INVARIANT
        if (words[at + 2] & A.ROWID_MASK) >> 16 >= PAGES_MAX - pages:
            return A.ST_INVARIANT
        words[at + 2] += pages << 16
        at += size
    return A.OK
