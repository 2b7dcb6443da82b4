"""The begin of a transaction in shared memory, and its reservation of REDO log (D3, D5)."""

# mypy: ignore-errors

from __future__ import annotations

from tidemark.engine.jit.kernel import helper, kernel
from tidemark.engine.log import redo_layout as L
from tidemark.engine.memory import arena_layout as A

TXID_MASK = (1 << 40) - 1  # what counts the transactions of an opening, in an id


@helper
def redo_reserve(mem, txn, words):
    """Reserve room in the REDO log; OK or ST_REDO."""
    if mem[A.S_REDO_RESERVED] + words > mem[A.S_REDO_FREE]:
        return A.ST_REDO
    mem[A.S_REDO_RESERVED] += words
    mem[txn + A.X_REDO_WORDS] += words
    return A.OK


@helper
def has_txid(mem):
    """Whether this opening of the store has a transaction id left."""
    return (mem[A.S_TXID] + 1) & TXID_MASK != 0


@helper
def txid_next(mem):
    """Return a new transaction id. It is taken within one kernel call, so that ids are unique and only grow. If none is
    left, return the first of the next opening, which is not taken, and which the caller refuses.
    """
    if not has_txid(mem):
        return mem[A.S_TXID] + 1
    mem[A.S_TXID] += 1
    return mem[A.S_TXID]


@kernel("int64(int64[::1])")
def next_txid(mem):
    """Return a new transaction id, for a record without a transaction."""
    return txid_next(mem)


@kernel("int64(int64[::1], int64, int64)")
def reserve_redo(mem, txn, words):
    """Reserve more room in the REDO log for an open transaction; OK or ST_REDO."""
    return redo_reserve(mem, txn, words)


@helper
def begin_at(mem, txn, slot, tail_word, redo_words):
    """Initialize a transaction descriptor, see `begin_transaction`; OK or ST_REDO."""
    for i in range(A.TXN_WORDS):
        mem[txn + i] = 0
    if redo_reserve(mem, txn, redo_words) != A.OK:
        return A.ST_REDO
    mem[txn + A.X_SLOT] = slot
    mem[txn + A.X_TAIL_WORD] = tail_word
    mem[txn + A.X_AUTHOR] = (tail_word >> A.AUTHOR_SHIFT) & A.AUTHOR_MASK
    mem[txn + A.X_USED] = L.GROUP_WORDS + L.TRANSACTION_WORDS
    mem[txn + A.X_GENERATION] = mem[A.S_INDEX_GENERATION]
    mem[txn + A.X_STATE] = 1
    return A.OK


@kernel("int64(int64[::1], int64, int64, int64, int64)")
def begin_transaction(mem, txn, slot, tail_word, redo_words):
    """Initialize a transaction descriptor; return the new transaction id, or ST_REDO, after which the descriptor must
    not be used.

    tail_word: any-value | author << 32 of its records. redo_words: room to reserve in the REDO log, padding included.
    """
    if begin_at(mem, txn, slot, tail_word, redo_words) != A.OK:
        return A.ST_REDO
    return txid_next(mem)


@kernel("int64(int64[::1], int64, int64)")
def tag_transaction(mem, txn, tail_word):
    """Set any-value and author of a transaction's next records; OK, or ST_INVARIANT if an earlier operation has another
    author: all operations of a transaction have the same author, or none.
    """
    author = (tail_word >> A.AUTHOR_SHIFT) & A.AUTHOR_MASK
    if author != 0 and mem[txn + A.X_AUTHOR] != 0 and mem[txn + A.X_AUTHOR] != author:
        return A.ST_INVARIANT
    if author != 0:
        mem[txn + A.X_AUTHOR] = author
    mem[txn + A.X_TAIL_WORD] = tail_word
    return A.OK
