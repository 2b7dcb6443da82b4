"""The outcome of a transaction, read from the kept log, for commits whose reply was lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemark.engine.base.errors import RedoDamaged, ValueOutOfRange
from tidemark.engine.log.geometry import open_files
from tidemark.engine.log.reader import GroupRead, LogReader
from tidemark.engine.log.records import InvalidRecord, transactions
from tidemark.engine.log.redo_layout import GROUP_WORDS
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
    handles = open_files(files, store.log.geometry, False)
    reader = LogReader(files, store.log.geometry, identity, handles)
    lsn, sequence = store.log.tail_lsn, store.log.tail_sequence
    # The log of a copied store may begin at its first byte with a later group than the first.
    is_covered = sequence == 1
    try:
        while (group := reader.group_at(lsn, sequence)) is not None:
            if _holds(group, txid):
                return "committed"
            if sequence == store.log.tail_sequence and group.next_txid <= txid:
                is_covered = True
            lsn, sequence = group.end_lsn, sequence + 1
    finally:
        reader.close()
    return "aborted" if is_covered and store.resources.refusal is None else "unknown"


def _holds(group: GroupRead, txid: int) -> bool:
    stop = GROUP_WORDS + group.records_words
    try:
        return any(int(group.words[frame.at + 1]) == txid for frame in transactions(group.words, GROUP_WORDS, stop))
    except InvalidRecord as error:
        raise RedoDamaged(
            f"REDO group {group.sequence} is not made of transactions; restore from a backup", lsn=group.lsn
        ) from error
