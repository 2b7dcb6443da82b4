"""Kernels for the spool of a transaction larger than memory: its reservations, blocks and reference."""

# mypy: ignore-errors

from __future__ import annotations

from tidemark.engine.jit.kernel import helper, kernel
from tidemark.engine.jit.words_kernels import move_words
from tidemark.engine.log import redo_layout as L
from tidemark.engine.log.records_kernels import record_at
from tidemark.engine.memory import arena_layout as A
from tidemark.engine.rows.rows_kernels import known_row_address
from tidemark.engine.txn.changes_kernels import copy_words

_pack_kind = helper(L.pack_kind)


@kernel("int64(int64[::1], int64, int64)")
def begin_spool(mem, txn, redo_words):
    """Begin to spool a transaction, whose records then go to a file. Keep at most `redo_words` of its log reservation;
    return the words kept.
    """
    mem[A.S_COPY_RESERVED] -= mem[txn + A.X_COPY_WORDS]
    mem[txn + A.X_COPY_WORDS] = 0
    left = min(mem[txn + A.X_REDO_WORDS], redo_words)
    mem[A.S_REDO_RESERVED] -= mem[txn + A.X_REDO_WORDS] - left
    mem[txn + A.X_REDO_WORDS] = left
    mem[txn + A.X_RUN] = 0
    mem[txn + A.X_SPOOLED] = 1
    return left


@kernel("int64(int64[::1], int64, int64, int64)")
def block_end(buf, start, stop, words):
    """Return the end of a block of whole records from buf[start] on with at least `words` words, or all up to `stop`.

    A before-image stays with its record. -1 if the words are not a run of records.
    """
    at = start
    kind = 0
    while at < stop and (at - start < words or kind == L.KIND_BEFORE):
        kind, size = record_at(buf, at, stop)
        if size < 0:
            return -1
        at += size
    return at


@kernel("int64(int64[::1], int64, int64, int64[::1])")
def has_updates(buf, start, stop, tables):
    """Whether the whole records buf[start:stop] include an UPDATE of one of these tables."""
    at = start
    while at < stop:
        kind, size = record_at(buf, at, stop)
        if size < 0:
            return 0
        if kind == L.KIND_UPDATE:
            for i in range(tables.size):
                if buf[at + 1] & L.TABLE_MASK == tables[i]:
                    return 1
        at += size
    return 0


@kernel("int64(int64[::1], int64, int64)")
def slice_copy_words(mem, txn, budget):
    """Return the maximum words that the next `budget` operations of a commit copy for a running local checkpoint."""
    words = 0
    operation = mem[txn + A.X_CURSOR]
    for _ in range(budget):
        if operation == 0:
            break
        kind = mem[operation + A.O_RECORD] & A.OP_KIND_MASK
        if kind == L.KIND_UPDATE or kind == L.KIND_DELETE:
            fragment = mem[operation + A.O_FRAGMENT]
            row = known_row_address(mem, fragment, mem[operation + A.O_ROWID] & A.ROWID_MASK)
            words += copy_words(mem, fragment, row)
        operation = mem[operation + A.O_NEXT]
    return words


@kernel("int64(int64[::1], int64, int64[::1], int64, int64[::1])")
def commit_spooled(mem, txn, words, txid, record):
    """Begin a commit by reference: write the group with the record that names the files; return the words used."""
    at = L.GROUP_WORDS
    words[at] = _pack_kind(L.KIND_TRANSACTION, 0, L.TRANSACTION_WORDS + record.size)
    words[at + 1] = txid
    words[at + 2] = mem[txn + A.X_CHANGES]
    words[at + 3] = 0
    at += L.TRANSACTION_WORDS
    move_words(record, 0, words, at, record.size)
    mem[txn + A.X_CURSOR] = mem[txn + A.X_FIRST]
    mem[txn + A.X_STATE] = 3
    return at + record.size
