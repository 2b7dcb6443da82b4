"""What a transaction larger than memory needs of the kernels besides ST_SPOOLED: its promises, blocks and reference."""

# mypy: ignore-errors

from __future__ import annotations

from engine.jit.kernel import helper, kernel
from engine.jit.words_kernels import move_words
from engine.log.redo_layout import (
    GROUP_WORDS,
    KIND_BEFORE,
    KIND_DELETE,
    KIND_MASK,
    KIND_TRANSACTION,
    KIND_UPDATE,
    TABLE_MASK,
    TRANSACTION_WORDS,
    WORDS_SHIFT,
    pack_kind,
)
from engine.memory.arena_layout import (
    O_FRAGMENT,
    O_NEXT,
    O_RECORD,
    O_ROWID,
    OP_KIND_MASK,
    ROWID_MASK,
    S_COPY_RESERVED,
    S_REDO_RESERVED,
    X_CHANGES,
    X_COPY_WORDS,
    X_CURSOR,
    X_FIRST,
    X_REDO_WORDS,
    X_RUN,
    X_SPOOLED,
    X_STATE,
)
from engine.rows.rows_kernels import known_row_address
from engine.txn.changes_kernels import copy_words

_pack_kind = helper(pack_kind)


@kernel("int64(int64[::1], int64, int64)")
def begin_spool(mem, txn, redo_words):
    """From here on a transaction's records go to a file: of its promises `redo_words` of the log are left."""
    mem[S_COPY_RESERVED] -= mem[txn + X_COPY_WORDS]
    mem[txn + X_COPY_WORDS] = 0
    left = min(mem[txn + X_REDO_WORDS], redo_words)
    mem[S_REDO_RESERVED] -= mem[txn + X_REDO_WORDS] - left
    mem[txn + X_REDO_WORDS] = left
    mem[txn + X_RUN] = 0
    mem[txn + X_SPOOLED] = 1
    return left


@kernel("int64(int64[::1], int64, int64, int64)")
def block_end(buf, start, stop, words):
    """Where a block of whole records from buf[start] on ends that has at least `words` words, or all up to `stop`.

    An image before stays with the record it belongs to. -1 if what stands there is no run of records.
    """
    at = start
    kind = 0
    while at < stop and (at - start < words or kind == KIND_BEFORE):
        kind = buf[at] & KIND_MASK
        size = buf[at] >> WORDS_SHIFT
        if size < 2 or at + size > stop:
            return -1
        at += size
    return at


@kernel("int64(int64[::1], int64, int64, int64[::1])")
def has_updates(buf, start, stop, tables):
    """Whether an UPDATE of one of these tables is among the whole records buf[start:stop]."""
    at = start
    while at < stop:
        size = buf[at] >> WORDS_SHIFT
        if size < 2:
            return 0
        if buf[at] & KIND_MASK == KIND_UPDATE:
            for i in range(tables.size):
                if buf[at + 1] & TABLE_MASK == tables[i]:
                    return 1
        at += size
    return 0


@kernel("int64(int64[::1], int64, int64)")
def slice_copy_words(mem, txn, budget):
    """Most words the next `budget` operations of a commit copy for a running local checkpoint."""
    words = 0
    operation = mem[txn + X_CURSOR]
    for _ in range(budget):
        if operation == 0:
            break
        kind = mem[operation + O_RECORD] & OP_KIND_MASK
        if kind == KIND_UPDATE or kind == KIND_DELETE:
            fragment = mem[operation + O_FRAGMENT]
            row = known_row_address(mem, fragment, mem[operation + O_ROWID] & ROWID_MASK)
            words += copy_words(mem, fragment, row)
        operation = mem[operation + O_NEXT]
    return words


@kernel("int64(int64[::1], int64, int64[::1], int64, int64[::1])")
def commit_spooled(mem, txn, words, txid, record):
    """First step of a commit by reference: the group with the record that names the files; returns words used."""
    at = GROUP_WORDS
    words[at] = _pack_kind(KIND_TRANSACTION, 0, TRANSACTION_WORDS + record.size)
    words[at + 1] = txid
    words[at + 2] = mem[txn + X_CHANGES]
    words[at + 3] = 0
    at += TRANSACTION_WORDS
    move_words(record, 0, words, at, record.size)
    mem[txn + X_CURSOR] = mem[txn + X_FIRST]
    mem[txn + X_STATE] = 3
    return at + record.size
