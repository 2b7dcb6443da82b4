"""Rows written to and read from the files of a backup (docs/backup.md).

The format of entries is that of a local checkpoint; in tables with disk columns the disk part follows the image. A
backup takes entries from a scan of a snapshot. A restore checks everything in a file, even if its checksum is correct.
"""

# mypy: ignore-errors

from __future__ import annotations

from tidemark.engine.jit.kernel import helper, kernel
from tidemark.engine.jit.words_kernels import move_words
from tidemark.engine.log import redo_layout as L
from tidemark.engine.memory import arena_layout as A
from tidemark.engine.rows import lcp_layout as E
from tidemark.engine.rows.lcp_kernels import live_bit, take_bit, whole_entry_words
from tidemark.engine.schema import row_layout as R
from tidemark.recovery.backup import entries_layout as I

_entry_table = helper(E.entry_table)
_entry_fragment = helper(E.entry_fragment)
_pack_kind = helper(L.pack_kind)


@kernel(
    "int64(int64[::1], int64[::1], int64, int64, int64, int64, int64, int64[::1], int64, int64[::1], int64[::1])",
    nogil=True,
)
def append_entries(words, offsets, fixed, has_var, has_disk, since, stop, live, slots, out, state):
    """Copy the entries of rows [state[B_NEXT], stop) that changed after epoch `since` to out[state[B_USED]:], and set
    every row's bit in `live`, unless `live` is empty. offsets: those of the images in `words`.

    fixed, has_var, has_disk: the shape of an image by the backup's definition; a var part that the table got later
    is omitted. The disk reference is set to 0. Return OK, or ST_SPACE - words needed at row state[B_NEXT].
    """
    while state[I.B_NEXT] < stop:
        image = offsets[state[I.B_NEXT]]
        at = image - A.ENTRY_WORDS
        if words[at + 1] > since:
            part = fixed
            if has_var:
                part += words[image + fixed] & A.VAR_WORDS_MASK
            rest = image + part
            disk = 0
            if has_disk:
                head = words[rest]
                if not has_var and (
                    (head >> R.VAR_COUNT_SHIFT) & R.VAR_COUNT_MASK or head & A.VAR_WORDS_MASK == R.VAR_HEADER_WORDS
                ):
                    rest += head & A.VAR_WORDS_MASK
                disk = words[rest] & A.VAR_WORDS_MASK
            need = A.ENTRY_WORDS + part + disk
            place = state[I.B_USED]
            if place + need > out.size:
                return A.ST_SPACE - need
            move_words(words, at, out, place, A.ENTRY_WORDS + part)
            if has_disk:
                out[place + A.ENTRY_WORDS + fixed - 1] = 0
                move_words(words, rest, out, place + A.ENTRY_WORDS + part, disk)
            state[I.B_USED] = place + need
            state[I.B_ENTRIES] += 1
        if live.size:
            bit = live_bit(words[at], slots)
            if bit >= 0 and bit >> 6 < live.size:
                live[bit >> 6] |= 1 << (bit & 63)
        state[I.B_ROWID] = words[at]
        state[I.B_ROWS] += 1
        state[I.B_NEXT] += 1
    return A.OK


@kernel("int64(int64[::1], int64, int64, int64[::1], int64[::1], int64[::1])", nogil=True)
def check_entries(words, start, stop, shape, wanted, state):
    """Check that words[start:stop] are valid entries of a rows file: complete, of one fragment, in ROWID order, in
    existing slots, changed after `since` and not after `epoch`. Clear their bits in `wanted`, which may be empty.

    shape: [fixed words, has var, has disk, table, fragment, slots, since, epoch]. OK, or ST_INVARIANT at state[B_NEXT].
    """
    at = start
    while at < stop:
        state[I.B_NEXT] = at
        size, _ = whole_entry_words(shape[0], shape[1], shape[2], words, at, stop)
        if size < 0 or _entry_table(words[at + 2]) != shape[3] or _entry_fragment(words[at + 2]) != shape[4]:
            return A.ST_INVARIANT
        if words[at] <= state[I.B_ROWID] or live_bit(words[at], shape[5]) < 0:
            return A.ST_INVARIANT
        if words[at + 1] <= shape[6] - (shape[6] == 0) or words[at + 1] > shape[7]:
            return A.ST_INVARIANT
        take_bit(wanted, words[at], shape[5])
        state[I.B_ROWID] = words[at]
        state[I.B_ENTRIES] += 1
        at += size
    state[I.B_NEXT] = stop
    return A.OK


@kernel("int64(int64[::1], int64, int64, int64[::1], int64[::1], int64[::1], int64[::1], int64[::1])", nogil=True)
def find_entries(words, start, stop, shapes, wanted, live, out, state):
    """Write the offsets of the images of the chosen entries words[start:stop] to out[state[B_USED]:].

    shapes: those of the possible tables, as for `load_copies`. wanted: [table, fragment (-1: all fragments, and entries
    of other tables are skipped), slots of a page, whether its entries have a disk part, whether each must be chosen].
    live: bits of the chosen ROWIDs, cleared when found; if it is empty, all are chosen. Return OK; ST_SPACE if `out` is
    too small; ST_INVARIANT if the entry at state[B_NEXT] is invalid.
    """
    at = start
    while at < stop:
        state[I.B_NEXT] = at
        if at + A.ENTRY_WORDS > stop:
            return A.ST_INVARIANT
        table = _entry_table(words[at + 2])
        number = _entry_fragment(words[at + 2])
        shape = table * A.ENTRY_SHAPE_WORDS
        if shape >= shapes.size or number >= shapes[shape + 2]:
            return A.ST_INVARIANT
        is_own = table == wanted[0]
        if wanted[1] >= 0 and not (is_own and number == wanted[1]):
            return A.ST_INVARIANT
        size, _ = whole_entry_words(shapes[shape], shapes[shape + 1], wanted[3] if is_own else 0, words, at, stop)
        if size < 0:
            return A.ST_INVARIANT
        if is_own:
            chosen = take_bit(live, words[at], wanted[2])
            if chosen < 0 or (wanted[4] and not chosen):
                return A.ST_INVARIANT
            if chosen:
                if state[I.B_USED] >= out.size:
                    return A.ST_SPACE
                out[state[I.B_USED]] = at + A.ENTRY_WORDS
                state[I.B_USED] += 1
        state[I.B_ENTRIES] += 1
        at += size
    state[I.B_NEXT] = stop
    return A.OK


@kernel("int64(int64[::1], int64, int64, int64[::1], int64[::1], int64, int64[::1], int64[::1])", nogil=True)
def records_of_entries(words, start, stop, shape, live, is_newest, out, state):
    """Write REDO INSERT records of the entries words[state[B_NEXT]:stop] whose bit is set in `live`, and clear the
    bits; for tables with disk columns. start: offset of this block's first entry.

    shape: [fixed words, has var, word 1 of the records, table, fragment, slots]. state[B_USED]: words of out in use.
    OK; ST_SPACE - words needed if out is full; ST_INVARIANT at state[B_NEXT].
    """
    at = max(start, state[I.B_NEXT])
    while at < stop:
        state[I.B_NEXT] = at
        size, part = whole_entry_words(shape[0], shape[1], 1, words, at, stop)
        if size < 0 or _entry_table(words[at + 2]) != shape[3] or _entry_fragment(words[at + 2]) != shape[4]:
            return A.ST_INVARIANT
        need = L.OPERATION_WORDS + size - A.ENTRY_WORDS
        if state[I.B_USED] + need > out.size:
            return A.ST_SPACE - need
        chosen = take_bit(live, words[at], shape[5])
        if chosen < 0 or (is_newest and not chosen):
            return A.ST_INVARIANT
        if chosen:
            to = state[I.B_USED]
            out[to] = _pack_kind(L.KIND_INSERT, 0, need)
            out[to + 1] = shape[2]
            out[to + 2] = words[at] | 1 << L.COUNT_SHIFT
            out[to + 3] = (words[at + 2] & E.ENTRY_AUTHOR_MASK) << L.AUTHOR_SHIFT
            move_words(words, at + A.ENTRY_WORDS, out, to + L.OPERATION_WORDS, size - A.ENTRY_WORDS)
            state[I.B_USED] = to + need
            state[I.B_ENTRIES] += 1
        at += size
    state[I.B_NEXT] = stop
    return A.OK


assert A.AUTHOR_MASK == E.ENTRY_AUTHOR_MASK and A.AUTHOR_SHIFT == L.AUTHOR_SHIFT
