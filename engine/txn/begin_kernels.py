"""Begin of a transaction in shared memory, and its promises of log (D3, D5)."""

# mypy: ignore-errors

from __future__ import annotations

from engine.jit.kernel import helper, kernel
from engine.log.redo_layout import GROUP_WORDS, TRANSACTION_WORDS
from engine.memory.arena_layout import (
    AUTHOR_MASK,
    AUTHOR_SHIFT,
    OK,
    S_INDEX_GENERATION,
    S_REDO_FREE,
    S_REDO_RESERVED,
    S_TXID,
    ST_INVARIANT,
    ST_REDO,
    TXN_WORDS,
    X_AUTHOR,
    X_GENERATION,
    X_REDO_WORDS,
    X_SLOT,
    X_STATE,
    X_TAIL_WORD,
    X_USED,
)


@helper
def promise_redo(mem, txn, words):
    """Promise room in the REDO log; OK or ST_REDO."""
    if mem[S_REDO_RESERVED] + words > mem[S_REDO_FREE]:
        return ST_REDO
    mem[S_REDO_RESERVED] += words
    mem[txn + X_REDO_WORDS] += words
    return OK


@kernel("int64(int64[::1])")
def next_txid(mem):
    """A transaction id never given before: one call, so that none is given twice and the newest never goes back."""
    mem[S_TXID] += 1
    return mem[S_TXID]


@kernel("int64(int64[::1], int64, int64)")
def reserve_redo(mem, txn, words):
    """Promise an open transaction more room in the REDO log; OK or ST_REDO."""
    return promise_redo(mem, txn, words)


@kernel("int64(int64[::1], int64, int64, int64, int64)")
def begin_transaction(mem, txn, slot, tail_word, redo_words):
    """Make a transaction descriptor ready; OK, or ST_REDO (then it must not be used).

    tail_word: any-value | author << 32 of its records. redo_words: promised room in the REDO log, padding included.
    """
    for i in range(TXN_WORDS):
        mem[txn + i] = 0
    if promise_redo(mem, txn, redo_words) != OK:
        return ST_REDO
    mem[txn + X_SLOT] = slot
    mem[txn + X_TAIL_WORD] = tail_word
    mem[txn + X_AUTHOR] = (tail_word >> AUTHOR_SHIFT) & AUTHOR_MASK
    mem[txn + X_USED] = GROUP_WORDS + TRANSACTION_WORDS
    mem[txn + X_GENERATION] = mem[S_INDEX_GENERATION]
    mem[txn + X_STATE] = 1
    return OK


@kernel("int64(int64[::1], int64, int64)")
def tag_transaction(mem, txn, tail_word):
    """Give the records a transaction makes from now on another any-value and author; OK, or ST_INVARIANT: operations of
    one transaction have one author, or none.
    """
    author = (tail_word >> AUTHOR_SHIFT) & AUTHOR_MASK
    if author != 0 and mem[txn + X_AUTHOR] != 0 and mem[txn + X_AUTHOR] != author:
        return ST_INVARIANT
    if author != 0:
        mem[txn + X_AUTHOR] = author
    mem[txn + X_TAIL_WORD] = tail_word
    return OK
