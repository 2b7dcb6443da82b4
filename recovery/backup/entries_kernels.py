"""Entries of tables with disk columns: those of a scan in the form of files, and those of a backup as REDO records.

The format of entries is that of a local checkpoint; the disk part follows the image.
"""

# mypy: ignore-errors

from __future__ import annotations

from tidemark.engine.jit.kernel import helper, kernel
from tidemark.engine.jit.words_kernels import move_words
from tidemark.engine.log import redo_layout as L
from tidemark.engine.memory import arena_layout as A
from tidemark.engine.rows import lcp_layout as E
from tidemark.engine.rows.lcp_kernels import whole_entry_words
from tidemark.engine.schema import row_layout as R
from tidemark.recovery.backup import entries_layout as I

_entry_table = helper(E.entry_table)
_entry_fragment = helper(E.entry_fragment)
_pack_kind = helper(L.pack_kind)


@kernel("int64(int64[::1], int64[::1], int64, int64, int64, int64[::1], int64[::1])", nogil=True)
def append_entries(words, offsets, fixed, has_var, stop, out, state):
    """Copy the entries of rows [state[B_NEXT], stop) of a table with disk columns to out[state[B_USED]:], with a disk
    reference of 0. offsets: those of the images in `words`.

    fixed, has_var: the shape of an image by the definition; a var part that the table got later is omitted. Return OK,
    or ST_SPACE - words needed at row state[B_NEXT].
    """
    while state[I.B_NEXT] < stop:
        image = offsets[state[I.B_NEXT]]
        part = fixed
        if has_var:
            part += words[image + fixed] & A.VAR_WORDS_MASK
        rest = image + part
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
        move_words(words, image - A.ENTRY_WORDS, out, place, A.ENTRY_WORDS + part)
        out[place + A.ENTRY_WORDS + fixed - 1] = 0
        move_words(words, rest, out, place + A.ENTRY_WORDS + part, disk)
        state[I.B_USED] = place + need
        state[I.B_ENTRIES] += 1
        state[I.B_NEXT] += 1
    return A.OK


@kernel("int64(int64[::1], int64, int64, int64[::1], int64[::1], int64[::1])", nogil=True)
def records_of_entries(words, start, stop, shape, out, state):
    """Write REDO INSERT records of the entries words[state[B_NEXT]:stop] of a table with disk columns. start: offset of
    the first entry.

    shape: [fixed words, has var, word 1 of the records, table, fragment]. state[B_USED]: words of out in use.
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
