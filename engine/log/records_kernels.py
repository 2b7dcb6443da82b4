"""Records of the log, as kernels read them (docs/adr/0023-one-reader-of-log-records.md).

No helper trusts a length. Words 1 to 3 of a record may be read after `record_at` has returned a size of four words or
more. A record that is invalid inside an intact group is damage, never the end of the log.
"""

# mypy: ignore-errors

from __future__ import annotations

from tidemark.engine.jit.kernel import helper, kernel
from tidemark.engine.log import redo_layout as L
from tidemark.engine.memory import arena_layout as A
from tidemark.engine.memory.handles_kernels import descriptor_of

FRAME_WORDS = 3  # of a record that `list_frames` lists: offset, kind, end


@helper
def is_operation(kind):
    """Whether records of a kind change rows."""
    return kind == L.KIND_INSERT or kind == L.KIND_UPDATE or kind == L.KIND_DELETE


@helper
def record_at(words, at, stop):
    """Return (kind, words) of the record at words[at:stop], which is not empty; words -1: invalid. For a transaction,
    these are the words of its TRANSACTION record alone, not the total that it states.
    """
    kind = words[at] & L.KIND_MASK
    size = L.TRANSACTION_WORDS if kind == L.KIND_TRANSACTION else words[at] >> L.WORDS_SHIFT
    if at + size > stop or kind < 1 or kind > L.KIND_MAX:
        return kind, -1
    if size < L.OPERATION_WORDS:
        # 6 was a tracked read once, and is skipped by its size.
        is_short = kind == L.KIND_SCHEMA or kind == L.KIND_FILES or kind == 6
        return kind, (size if size >= 2 and is_short else -1)
    return kind, size


@helper
def transaction_at(words, at, stop):
    """Return (end, kind of the first record) of the transaction at words[at:stop]; end -1: invalid; kind 0: it has no
    record.
    """
    kind, size = record_at(words, at, stop)
    end = at + (words[at] >> L.WORDS_SHIFT)
    if size < 0 or kind != L.KIND_TRANSACTION or end < at + size or end > stop:
        return -1, 0
    return end, (words[at + size] & L.KIND_MASK if end > at + size else 0)


@helper
def place_of(identity):
    """Return (table number, fragment number) of a record, given its word 1."""
    return identity & L.TABLE_MASK, (identity >> L.FRAGMENT_SHIFT) & L.FRAGMENT_MASK


@helper
def table_of(mem, tables, number):
    """Return the table with a number; 0: dropped, or to be skipped; -1: no table ever had the number."""
    return descriptor_of(mem, tables[number]) if number < tables.size else -1


@helper
def fragment_of(mem, tables, identity):
    """Return the fragment of a record, given its word 1; 0: dropped, or to be skipped; -1: invalid."""
    number, place = place_of(identity)
    table = table_of(mem, tables, number)
    if table <= 0:
        return table
    if place >= mem[table + A.T_FRAGMENTS]:
        return -1
    return mem[mem[table + A.T_FRAGMENT_LIST] + place]


@helper
def rows_of(words, at, kind):
    """Return (first ROWID, rows) of an operation; rows -1: an INSERT with no rows, too many, or rows past its page."""
    first = words[at + 2] & L.ROWID_MASK
    if kind != L.KIND_INSERT:
        return first, 1
    rows = words[at + 2] >> L.COUNT_SHIFT
    return first, (rows if 0 < rows <= L.COUNT_MASK and (first & 0xFFFF) + rows <= 1 << 16 else -1)


@helper
def author_of(words, at):
    """Return the author of an operation."""
    return (words[at + 3] >> L.AUTHOR_SHIFT) & L.AUTHOR_MASK


@helper
def record_flags(words, at):
    """Return the flags of a record."""
    return (words[at] >> L.FLAGS_SHIFT) & L.FLAGS_MASK


@helper
def record_has_var(mem, fragment, identity):
    """Whether images of a record have a var part, given its word 1."""
    if mem[fragment + A.F_HAS_VAR] == 0:
        return 0
    version = (identity >> L.SCHEMA_VERSION_SHIFT) & L.SCHEMA_VERSION_MASK
    return 1 if version >= mem[fragment + A.F_VAR_SINCE] else 0


@kernel("int64(int64[::1], int64, int64, int64, int64[::1], int64[::1])", nogil=True)
def list_frames(words, stop, by_transaction, wanted, out, state):
    """List the records words[state[0]:stop], FRAME_WORDS for each: offset, kind, end. With by_transaction, list the
    transactions, with the kind of the first record of each; there must be nothing else. wanted: list this kind alone;
    0: all. state: [offset reached, listed].

    OK; ST_MORE if `out` is full: call again; ST_INVARIANT at state[0], with the records before it listed.
    """
    state[1] = 0
    while state[0] < stop:
        at = state[0]
        if by_transaction:
            end, kind = transaction_at(words, at, stop)
        else:
            kind, size = record_at(words, at, stop)
            end = at + size
        if end < at:
            return A.ST_INVARIANT
        if wanted == 0 or kind == wanted:
            to = state[1] * FRAME_WORDS
            if to + FRAME_WORDS > out.size:
                return A.ST_MORE
            out[to] = at
            out[to + 1] = kind
            out[to + 2] = end
            state[1] += 1
        state[0] = end
    return A.OK
