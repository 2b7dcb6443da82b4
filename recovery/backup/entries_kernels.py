"""Entries of tables with disk columns as REDO records: entries of a local checkpoint, the disk part after the image."""

# mypy: ignore-errors

from __future__ import annotations

from tidemark.engine.jit.kernel import helper, kernel
from tidemark.engine.jit.words_kernels import move_words
from tidemark.engine.log import redo_layout as L
from tidemark.engine.memory import arena_layout as A
from tidemark.engine.rows import lcp_layout as E
from tidemark.engine.rows.lcp_kernels import whole_entry_words
from tidemark.recovery.backup import entries_layout as I

_entry_table = helper(E.entry_table)
_entry_fragment = helper(E.entry_fragment)
_pack_kind = helper(L.pack_kind)


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
