"""Keys of a batch, looked up in groups. What a whole group needs is asked for first: its cache misses overlap."""

# mypy: ignore-errors

from __future__ import annotations

from tidemark.engine.jit.ahead_kernels import read_ahead
from tidemark.engine.jit.kernel import helper
from tidemark.engine.memory import arena_layout as A
from tidemark.engine.rows.primary_kernels import ask_for_buckets, candidate, entry_rowid, index_find, key_equals, tag_of
from tidemark.engine.rows.rows_kernels import known_row_address
from tidemark.engine.rows.segments_kernels import segment_of
from tidemark.engine.schema.partitions_kernels import fragment_number

AHEAD_ROWS = 32  # keys of a group
HINT_SHIFT = 46
HINT_MASK = (1 << HINT_SHIFT) - 1


@helper
def look_ahead(mem, table, keys, key_offsets, stride, begin, end, hints, origin):
    """Ask for the memory that a group of keys will need; hints[i - origin] gets fragment number << 46 | index entry of
    key i, -1 for a key that no partition takes.

    Each step runs over the whole group before the next begins, so that cache misses overlap. An entry of 0 means that
    the key must be searched for.
    """
    fragments = mem[table + A.T_FRAGMENT_LIST]
    seed = mem[table + A.T_SEED]
    for i in range(begin, end):
        first = key_offsets[i] if key_offsets.size else i * stride
        words = key_offsets[i + 1] - first if key_offsets.size else stride
        number = fragment_number(mem, table, keys, first, words)
        fragment = mem[fragments + number] if number >= 0 else 0
        hints[i - origin] = -1
        if fragment != 0:
            tag = tag_of(keys, first, words, seed)
            ask_for_buckets(mem, fragment, tag)
            hints[i - origin] = number << A.TAG_BITS | tag
    for i in range(begin, end):
        if hints[i - origin] < 0:
            continue
        number = hints[i - origin] >> A.TAG_BITS
        tag = hints[i - origin] & A.TAG_MASK
        fragment = mem[fragments + number]
        entry = 0
        if mem[fragment + A.F_INDEX_COUNT] > 0:
            entry = max(0, candidate(mem, segment_of(mem, fragment, tag), tag))
        hints[i - origin] = number << HINT_SHIFT | entry
        if entry != 0:
            row = known_row_address(mem, fragment, entry_rowid(mem, entry))
            # Its first word and its last: a row of the usual size spans two cache lines.
            read_ahead(mem, row)
            read_ahead(mem, row + mem[fragment + A.F_ROW_WORDS] - 1)


@helper
def confirmed(mem, table, fragment, entry, keys, first, words):
    """Return the address of the index entry of a key, given the candidate of `look_ahead`."""
    if entry != 0:
        row = known_row_address(mem, fragment, entry_rowid(mem, entry))
        if key_equals(mem, fragment, row, keys, first, words):
            return entry
    return index_find(mem, fragment, tag_of(keys, first, words, mem[table + A.T_SEED]), keys, first, words)
