"""The UNDO log in memory: room reserved by transactions, records into the active buffer, the filter, the parser.

The descriptor at mem[S_UNDO] and its two buffers change under the commit latch. U_FREE is the free space of the ring,
already halved, because written records count twice until a local checkpoint is complete (U4). A record that goes to the
buffer takes its words from U_FREE at once, and the first record also the header and padding of its group. A flush
computes U_FREE anew (`engine/disk/undo.py`, where the proof is).
"""

# mypy: ignore-errors

from __future__ import annotations

import numpy as np

from tidemark.engine.disk import cache_layout as C
from tidemark.engine.disk import disk_layout as D
from tidemark.engine.jit.kernel import helper, kernel
from tidemark.engine.jit.words_kernels import move_words
from tidemark.engine.memory import arena_layout as A

RECORD_SHARE_WORDS = 96  # six records of a slice, or more, pay for the header and padding of a group
GROUP_SHARE_WORDS = 576  # header and padding of one group: 24 + 511 at most
MARK_ROOM_WORDS = 64  # words of a buffer that only mark records may use: they are appended without a flush before
RECORD_WORDS_MAX = (1 << 31) - 1
# Words of `state` after the filter.
FILTER_KEPT_WORDS = 0
FILTER_KEPT = 1
FILTER_DROPPED = 2
FILTER_EPOCH = 3
FILTER_DROPPED_WORDS = 4
FILTER_STATE_WORDS = 5


def undo_region_words(buffer_words: int) -> int:
    """Return the words of the descriptor and its two buffers."""
    return C.UNDO_WORDS + 2 * buffer_words


def setup_undo(mem: np.ndarray, at: int, buffer_words: int) -> None:
    """Lay out the descriptor at `at`, with two buffers after it; mem[S_UNDO] points to it. It has no free space yet."""
    mem[at : at + C.UNDO_WORDS] = 0
    mem[at + C.U_ACTIVE] = at + C.UNDO_WORDS
    mem[at + C.U_OTHER] = at + C.UNDO_WORDS + buffer_words
    mem[at + C.U_SIZE] = buffer_words
    mem[A.S_UNDO] = at


@helper
def undo_reserve(mem, txn, words, page):
    """Reserve a record of `words` words for a transaction; OK or ST_UNDO.

    page: of the change, 0 if unknown. A record on another page than its predecessor pays a share of a group's header
    and padding: a slice of a commit, after which a flush may follow, covers enough pages to pay for a group (U4).
    """
    undo = mem[A.S_UNDO]
    if undo == 0 or words < 0 or words > RECORD_WORDS_MAX:
        return A.ST_UNDO
    charge = words
    if page == 0 or page != mem[txn + A.X_UNDO_PAGE]:
        charge += RECORD_SHARE_WORDS
    if mem[txn + A.X_UNDO_WORDS] == 0:
        charge += GROUP_SHARE_WORDS
    if mem[undo + C.U_RESERVED] + charge > mem[undo + C.U_FREE]:
        return A.ST_UNDO
    mem[undo + C.U_RESERVED] += charge
    mem[txn + A.X_UNDO_WORDS] += charge
    mem[txn + A.X_UNDO_PAGE] = page
    return A.OK


@helper
def undo_release(mem, txn):
    """Release the words reserved for a transaction that has ended, used or not."""
    undo = mem[A.S_UNDO]
    if undo != 0:
        mem[undo + C.U_RESERVED] -= mem[txn + A.X_UNDO_WORDS]
    mem[txn + A.X_UNDO_WORDS] = 0


@helper
def undo_has_room(mem, words):
    """Return 1 if the active buffer has room for that many words, 0 if it must be flushed first."""
    undo = mem[A.S_UNDO]
    if undo == 0 or words < 0:
        return 0
    return 1 if words <= mem[undo + C.U_SIZE] - MARK_ROOM_WORDS - mem[undo + C.U_USED] else 0


@helper
def take_record(mem, words, kind):
    """Start a record of `words` words, writing words 0 and 1; returns its address, 0 if the buffer lacks room."""
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
    """Append an UNDO_ALLOC, UNDO_UPDATE or UNDO_FREE record, its piece source[start : start + words]; return its LSN.

    The caller has checked (`undo_has_room`) and reserved the room. Returns -1 and writes nothing if it does not fit.
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
    return undo_reserve(mem, txn, words, 0)


@kernel("int64(int64[::1], int64)")
def release_undo(mem, txn):
    undo_release(mem, txn)
    return A.OK


@kernel("int64(int64[::1], int64, int64, int64, int64, int64[::1], int64, int64)")
def append_undo(mem, kind, reference, owner, epoch, source, start, words):
    if undo_has_room(mem, D.UNDO_RECORD_WORDS + words) == 0:
        return -1
    return undo_append(mem, kind, reference, owner, epoch, source, start, words)


@kernel("int64(int64[::1], int64, int64, int64, int64, int64)")
def append_undo_mark(mem, kind, first, second, third, fourth):
    """Append a record of the kinds from UNDO_CREATE on, which may use MARK_ROOM_WORDS; returns its LSN, or -1."""
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
    """Return the words of the record at words[at:], -1 if it is invalid or ends past `stop`."""
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
    """Remove UNDO_UPDATE records of epochs up to `restorable_epoch` from words[start : stop], and close the gaps.

    state: words kept, records kept, records removed, newest epoch of these, their words. Returns OK, or ST_INVARIANT
    for invalid records; then words[start : stop] is useless.
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
                for i in range(size):  # target is below source, so an overlap does no harm
                    words[target + i] = words[at + i]
            target += size
            state[FILTER_KEPT] += 1
        at += size
    state[FILTER_KEPT_WORDS] = target - start
    return A.OK


@kernel("int64(int64[::1], int64, int64, int64[::1])", nogil=True)
def parse_records(words, start, stop, offsets):
    """List the offsets of the records in words[start : stop], oldest first; returns their number.

    ST_INVARIANT if any record is invalid or LSNs do not rise; ST_SPACE if `offsets` is too small.
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
