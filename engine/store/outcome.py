"""The outcome of a transaction, read from the kept log, for commits whose reply was lost."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from tidemark.engine.base.errors import ValueOutOfRange
from tidemark.engine.log.reader import LogReader
from tidemark.engine.types.base import shown

if TYPE_CHECKING:
    from tidemark.engine.files.protocol import Files
    from tidemark.engine.store.store import Store


def is_open(store: Store, txid: int) -> bool:
    """Whether a transaction of this process is still open."""
    return any(place.txid == txid for place in store.locks.open_now())


def find_outcome(store: Store, files: Files, identity: bytes, txid: int) -> str:
    """Return "committed", "aborted" or "unknown" (older than the kept log, still open, or not seen yet by a member of a
    node group that is not primary).

    A group records the first transaction id that was unused when it was sealed. So a transaction that began after the
    oldest kept group and is in no kept group was never committed.

    Raises: RedoDamaged; ValueOutOfRange if `txid` is not a transaction id.
    """
    if isinstance(txid, bool) or not isinstance(txid, int) or txid < 0:
        raise ValueOutOfRange(f"txid must be the id of a transaction, a whole number from 0, got {shown(txid)}")
    if is_open(store, txid):
        return "unknown"
    if txid >= store.resources.txid_limit():
        return "aborted" if store.resources.refusal is None else "unknown"
    store.log.flush()
    lsn, first = store.log.tail_lsn, store.log.tail_sequence
    # The log of a copied store may begin at its first byte with a later group than the first.
    is_covered = first == 1
    with closing(LogReader(files, store.log.geometry, identity)) as reader:
        for group in reader.intact(lsn, first):
            if any(int(group.words[frame.at + 1]) == txid for frame in group.transaction_frames()):
                return "committed"
            is_covered |= group.sequence == first and group.next_txid <= txid
    return "aborted" if is_covered and store.resources.refusal is None else "unknown"
