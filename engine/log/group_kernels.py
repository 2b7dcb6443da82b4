"""Header, padding and lanes of the checksum of a group that is about to be written (`engine/log/group_layout.py`)."""

# mypy: ignore-errors

from __future__ import annotations

from tidemark.engine.jit.kernel import helper, kernel
from tidemark.engine.log import redo_layout as L
from tidemark.engine.sealed.checksums_kernels import fill_lanes

_SIGNATURE = (
    "int64(int64[::1], int64[::1], int64, int64, int64, int64, int64, int64, int64, int64, int64, int64, int64[::1])"
)


@helper
def fill_group(
    words, head, used, written, sequence, lsn, lap, transactions, epoch, wall_us, next_txid, unsynced, lanes
):
    """See `prepare_group`."""
    if used < L.GROUP_WORDS or written < used or written > words.size or head.size < L.GROUP_WORDS:
        return -1
    for i in range(1, L.GROUP_WORDS):
        words[i] = head[i]
    words[1] |= written << 32
    words[5] = sequence
    words[6] = lsn
    words[7] = lap | transactions << 32
    words[8] = epoch
    words[9] = wall_us
    words[10] = next_txid
    words[11] = used - L.GROUP_WORDS
    words[12] = unsynced
    for i in range(used, written):
        words[i] = 0
    return fill_lanes(words, 1, written - 1, lanes)


@kernel(_SIGNATURE)
def prepare_group(
    words, head, used, written, sequence, lsn, lap, transactions, epoch, wall_us, next_txid, unsynced, lanes
):
    """Write all of a group but its checksum, and fill the lanes of that; 0, or -1 for invalid words.

    head: a header with what all groups of an opening share. used, written: words with and without the padding.
    """
    return fill_group(
        words, head, used, written, sequence, lsn, lap, transactions, epoch, wall_us, next_txid, unsynced, lanes
    )


@kernel(_SIGNATURE, nogil=True)
def prepare_large_group(
    words, head, used, written, sequence, lsn, lap, transactions, epoch, wall_us, next_txid, unsynced, lanes
):
    """Do `prepare_group` without the GIL. For a small group that takes longer: another thread may have it then."""
    return fill_group(
        words, head, used, written, sequence, lsn, lap, transactions, epoch, wall_us, next_txid, unsynced, lanes
    )
