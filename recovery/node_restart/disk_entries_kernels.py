"""Entries of tables with disk columns, as a scan has them, in the form in which another node takes them."""

# mypy: ignore-errors

from __future__ import annotations

from tidemark.engine.jit.kernel import kernel
from tidemark.engine.jit.words_kernels import move_words
from tidemark.engine.memory import arena_layout as A
from tidemark.engine.schema import row_layout as R
from tidemark.recovery.backup import entries_layout as I


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
