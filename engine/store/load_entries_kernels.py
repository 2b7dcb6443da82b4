"""Kernels that load entries of a local checkpoint or a backup into a fragment, and set the epochs of replayed rows
(docs/backup.md, 4). All content is checked.
"""

# mypy: ignore-errors

from __future__ import annotations

from tidemark.engine.jit.kernel import helper, kernel
from tidemark.engine.memory import arena_layout as A
from tidemark.engine.memory.handles_kernels import descriptor_of
from tidemark.engine.rows import lcp_layout as E
from tidemark.engine.rows.lcp_kernels import checked_entry_words, place_image, whole_entry_words
from tidemark.engine.rows.primary_kernels import image_key, index_append_unordered, tag_of
from tidemark.engine.rows.rows_kernels import row_address

_entry_table = helper(E.entry_table)
_entry_fragment = helper(E.entry_fragment)


@kernel("int64(int64[::1], int64, int64[::1], int64, int64, int64[::1])", nogil=True)
def load_entries(mem, fragment, words, start, stop, state):
    """Load the entries words[start:stop] into a fragment on private memory; `finish_entries` must follow. F_LCP_HAS_VAR
    says whether entries have a var part.

    state: [offset reached, rows loaded]. Return OK, or a status for the invalid entry at state[0]; an entry of another
    fragment gives ST_INVARIANT.
    """
    fragment = descriptor_of(mem, fragment)
    if fragment == 0:
        return A.ST_DROPPED
    fixed = mem[fragment + A.F_FIXED_WORDS]
    has_var = mem[fragment + A.F_LCP_HAS_VAR]
    held = mem[fragment + A.F_KEY_WORDS]
    seed = mem[fragment + A.F_INDEX_SEED]
    table = mem[fragment + A.F_TABLE]
    number = mem[fragment + A.F_NUMBER]
    at = start
    while at < stop:
        state[0] = at
        size = checked_entry_words(fixed, has_var, words, at, stop)
        if size < 0 or _entry_table(words[at + 2]) != table or _entry_fragment(words[at + 2]) != number:
            return A.ST_INVARIANT
        image = at + A.ENTRY_WORDS
        first, key_words = image_key(words, image, fixed, held)
        if first + key_words > at + size:
            return A.ST_INVARIANT
        status = place_image(mem, fragment, words[at], words[at + 1], words[at + 2], words, image, size - A.ENTRY_WORDS)
        if status == A.OK:
            status = index_append_unordered(mem, fragment, tag_of(words, first, key_words, seed), words[at])
        if status != A.OK:
            return status
        state[1] += 1
        at += size
    state[0] = stop
    return A.OK


@kernel("int64(int64[::1], int64, int64[::1], int64, int64, int64[::1])", nogil=True)
def stamp_rows(mem, fragment, words, start, stop, shape):
    """Set the epochs of a fragment's rows to those of the entries words[start:stop]. Rows whose epoch is not above
    shape[2] keep theirs. shape: [fixed words, has var, epoch]. OK, ST_INVARIANT, ST_MISSING or ST_DROPPED.
    """
    fragment = descriptor_of(mem, fragment)
    if fragment == 0:
        return A.ST_DROPPED
    at = start
    while at < stop:
        size, _ = whole_entry_words(shape[0], shape[1], 1, words, at, stop)
        if size < 0:
            return A.ST_INVARIANT
        row = row_address(mem, fragment, words[at])
        if row != 0 and mem[row + 1] > shape[2]:
            if (mem[row] >> A.STATE_SHIFT) & A.STATE_MASK != A.LIVE:
                return A.ST_MISSING
            mem[row + 1] = words[at + 1]
        at += size
    return A.OK


assert A.ROW_HEADER_WORDS >= 2
