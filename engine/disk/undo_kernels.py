"""The UNDO log in memory: room promised to transactions, records into the active buffer, the filter, the parser.

The descriptor at mem[S_UNDO] and its two buffers change under the commit latch. U_FREE is what the ring can still take,
already halved, because what is written counts twice until a local checkpoint is complete (U4). A record that goes to
the buffer takes its words from U_FREE at once, and the first one the header and padding of its group; a flush works
U_FREE out anew (`engine/disk/undo.py`, where the proof is).
"""

# mypy: ignore-errors

from __future__ import annotations

import numpy as np

from tidemark.engine.disk import cache_layout as C
from tidemark.engine.disk import disk_layout as D
from tidemark.engine.jit.kernel import helper, kernel
from tidemark.engine.jit.words_kernels import move_words
from tidemark.engine.memory import arena_layout as A

RECORD_SHARE_WORDS = 96  # at least six records of a slice pay for the header and padding of a group
GROUP_SHARE_WORDS = 576  # header and padding of one group: 24 + 511 at most
MARK_ROOM_WORDS = 64  # of a buffer, kept back for records that no flush can make room for
RECORD_WORDS_MAX = (1 << 31) - 1
# Filter: what `state` holds afterwards.
FILTER_KEPT_WORDS = 0
FILTER_KEPT = 1
FILTER_DROPPED = 2
FILTER_EPOCH = 3
FILTER_DROPPED_WORDS = 4
FILTER_STATE_WORDS = 5


def undo_region_words(buffer_words: int) -> int:
    """Words of the descriptor and its two buffers."""
    return C.UNDO_WORDS + 2 * buffer_words


def setup_undo(mem: np.ndarray, at: int, buffer_words: int) -> None:
    """Lay the descriptor out at `at`, two buffers behind it; mem[S_UNDO] leads to it. Nothing can be promised yet."""
    mem[at : at + C.UNDO_WORDS] = 0
    mem[at + C.U_ACTIVE] = at + C.UNDO_WORDS
    mem[at + C.U_OTHER] = at + C.UNDO_WORDS + buffer_words
    mem[at + C.U_SIZE] = buffer_words
    mem[A.S_UNDO] = at


@helper
def undo_promise(mem, txn, words, page):
    """Promise a record of `words` words to a transaction; OK or ST_UNDO.

    page: of the change, 0 if unknown. A record on another page than the one before it pays a share of a group's header
    and padding: a slice of a commit, which a flush may follow, ends only behind so many pages (U4).
    """
    undo = mem[A.S_UNDO]
    if undo == 0 or words < 0 or words > RECORD_WORDS_MAX:
        return A.ST_UNDO
    charge = words
    if page == 0 or page != mem[txn + A.X_UNDO_PAGE]:
        charge += RECORD_SHARE_WORDS
    if mem[txn + A.X_UNDO_WORDS] == 0:
        charge += GROUP_SHARE_WORDS
    if mem[undo + C.U_PROMISED] + charge > mem[undo + C.U_FREE]:
        return A.ST_UNDO
    mem[undo + C.U_PROMISED] += charge
    mem[txn + A.X_UNDO_WORDS] += charge
    mem[txn + A.X_UNDO_PAGE] = page
    return A.OK


@helper
def undo_unpromise(mem, txn):
    """The transaction ended: what was promised to it, used or not, may be promised again."""
    undo = mem[A.S_UNDO]
    if undo != 0:
        mem[undo + C.U_PROMISED] -= mem[txn + A.X_UNDO_WORDS]
    mem[txn + A.X_UNDO_WORDS] = 0


@helper
def undo_has_room(mem, words):
    """1 if the active buffer takes that many words, 0 if it must be flushed first."""
    undo = mem[A.S_UNDO]
    if undo == 0 or words < 0:
        return 0
    return 1 if words <= mem[undo + C.U_SIZE] - MARK_ROOM_WORDS - mem[undo + C.U_USED] else 0


@helper
def take_record(mem, words, kind):
    """Address of a new record of `words` words, words 0 and 1 written; 0 if it would not end inside the buffer."""
    undo = mem[A.S_UNDO]
    if undo == 0 or words < 2 or words > RECORD_WORDS_MAX:
        return 0
    used = mem[undo + C.U_USED]
    if used < 0 or words > mem[undo + C.U_SIZE] - used:
        return 0
    at = mem[undo + C.U_ACTIVE] + used
    mem[at] = kind | words << D.UNDO_WORDS_SHIFT
    mem[at + 1] = mem[undo + C.U_LSN]
    mem[undo + C.U_LSN] += words * 8
    mem[undo + C.U_USED] = used + words
    mem[undo + C.U_FREE] -= words + (GROUP_SHARE_WORDS if used == 0 else 0)
    mem[undo + C.U_RECORDS] += 1
    mem[undo + C.U_WORDS] += words
    return at


@helper
def undo_append(mem, kind, reference, owner, epoch, source, start, words):
    """A record of the first three kinds with source[start : start + words] as its piece; its LSN.

    Room was checked (`undo_has_room`) and promised. -1, and nothing is written, for what would not fit.
    """
    if words < 0 or start < 0 or start + words > source.size:
        return -1
    at = take_record(mem, D.UNDO_RECORD_WORDS + words, kind)
    if at == 0:
        return -1
    mem[at + 2] = reference
    mem[at + 3] = owner
    mem[at + 4] = epoch
    move_words(source, start, mem, at + D.UNDO_RECORD_WORDS, words)
    undo = mem[A.S_UNDO]
    if epoch > mem[undo + C.U_EPOCH_MAX]:
        mem[undo + C.U_EPOCH_MAX] = epoch
    return mem[at + 1]


@kernel("int64(int64[::1], int64, int64)")
def reserve_undo(mem, txn, words):
    """Promise a record of `words` words to an open transaction; OK or ST_UNDO."""
    return undo_promise(mem, txn, words, 0)


@kernel("int64(int64[::1], int64)")
def release_undo(mem, txn):
    """Take back what was promised to a transaction."""
    undo_unpromise(mem, txn)
    return A.OK


@kernel("int64(int64[::1], int64, int64, int64, int64, int64[::1], int64, int64)")
def append_undo(mem, kind, reference, owner, epoch, source, start, words):
    """`undo_append` if `undo_has_room`: the LSN of the record, or -1."""
    if undo_has_room(mem, D.UNDO_RECORD_WORDS + words) == 0:
        return -1
    return undo_append(mem, kind, reference, owner, epoch, source, start, words)


@kernel("int64(int64[::1], int64, int64, int64, int64, int64)")
def append_undo_mark(mem, kind, first, second, third, fourth):
    """A record of the kinds from UNDO_CREATE on, into the room kept back for them too; its LSN, or -1."""
    at = take_record(mem, D.UNDO_MARK_WORDS, kind)
    if at == 0:
        return -1
    mem[at + 2] = first
    mem[at + 3] = second
    mem[at + 4] = third
    mem[at + 5] = fourth
    return mem[at + 1]


@helper
def record_size(words, at, stop):
    """Words of the record at words[at:], -1 if it is none that ends by `stop`."""
    if stop - at < D.UNDO_RECORD_WORDS:
        return -1
    kind = words[at] & D.UNDO_KIND_MASK
    size = words[at] >> D.UNDO_WORDS_SHIFT
    if words[at] != kind | size << D.UNDO_WORDS_SHIFT or size > stop - at:
        return -1
    if kind == D.UNDO_ALLOC:
        return size if size == D.UNDO_RECORD_WORDS else -1
    if kind == D.UNDO_UPDATE or kind == D.UNDO_FREE:
        return size if size > D.UNDO_RECORD_WORDS else -1
    if D.UNDO_FREE < kind <= D.UNDO_RESTART:
        return size if size == D.UNDO_MARK_WORDS else -1
    return -1


@kernel("int64(int64[::1], int64, int64, int64, int64[::1])", nogil=True)
def filter_records(words, start, stop, restorable_epoch, state):
    """Leave UNDO_UPDATE records of epochs up to `restorable_epoch` out of words[start : stop], the rest moved together.

    state: words kept, records kept, records left out, newest epoch of these, their words. OK, or ST_INVARIANT for what
    are no records; then words[start : stop] is worth nothing.
    """
    if start < 0 or stop > words.size or state.size < FILTER_STATE_WORDS:
        return A.ST_INVARIANT
    for i in range(FILTER_STATE_WORDS):
        state[i] = 0
    at = start
    target = start
    while at < stop:
        size = record_size(words, at, stop)
        if size < 0:
            return A.ST_INVARIANT
        epoch = words[at + 4]
        if words[at] & D.UNDO_KIND_MASK == D.UNDO_UPDATE and epoch <= restorable_epoch:
            state[FILTER_DROPPED] += 1
            state[FILTER_DROPPED_WORDS] += size
            if epoch > state[FILTER_EPOCH]:
                state[FILTER_EPOCH] = epoch
        else:
            if target != at:
                for i in range(size):  # downwards in memory, so overlap does no harm
                    words[target + i] = words[at + i]
            target += size
            state[FILTER_KEPT] += 1
        at += size
    state[FILTER_KEPT_WORDS] = target - start
    return A.OK


@kernel("int64(int64[::1], int64, int64, int64[::1])", nogil=True)
def parse_records(words, start, stop, offsets):
    """Offsets of the records in words[start : stop], in the order they were made; how many.

    ST_INVARIANT if anything there is no record or LSNs do not rise; ST_SPACE if `offsets` is too small.
    """
    if start < 0 or stop > words.size:
        return A.ST_INVARIANT
    at = start
    count = 0
    lsn = -1
    while at < stop:
        size = record_size(words, at, stop)
        if size < 0 or words[at + 1] <= lsn:
            return A.ST_INVARIANT
        if count >= offsets.size:
            return A.ST_SPACE
        offsets[count] = at
        lsn = words[at + 1]
        count += 1
        at += size
    return count
