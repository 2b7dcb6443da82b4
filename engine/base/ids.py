"""Number types of the field, so that a GCI is never passed for an LSN."""

from __future__ import annotations

from typing import NewType

from tidemark.engine.base.errors import LimitExceeded
from tidemark.engine.base.limits import INCARNATION_MAX

Gci = NewType("Gci", int)
Epoch = NewType("Epoch", int)
TxId = NewType("TxId", int)

MICRO_BITS = 32
SLOT_BITS = 16
TXID_COUNTER_BITS = 40
NO_EPOCH = 0  # before every epoch
LAST_EPOCH = (1 << 63) - 1  # after every epoch


def make_epoch(gci: int, micro: int) -> Epoch:
    """Return the epoch of a GCI (high word) and a micro GCI (low word) (D4)."""
    return Epoch(gci << MICRO_BITS | micro)


def gci_of(epoch: int) -> Gci:
    """Return the GCI (high word) of an epoch."""
    return Gci(epoch >> MICRO_BITS)


def micro_of(epoch: int) -> int:
    """Return the micro GCI (low word) of an epoch."""
    return epoch & ((1 << MICRO_BITS) - 1)


def first_txid(incarnation: int) -> TxId:
    """Return the first transaction id of an incarnation (D14)."""
    return TxId(incarnation << TXID_COUNTER_BITS | 1)


def next_incarnation(incarnation: int) -> int:
    """Return the incarnation of the next opening, or of the node that begins to lead a node group.

    Raises: LimitExceeded if transaction ids are exhausted.
    """
    if incarnation >= INCARNATION_MAX:
        raise LimitExceeded(
            f"the store is in incarnation {incarnation}, and ids of transactions have no room for another; restore a"
            " backup into an empty directory, where the count begins anew, or open it with read_only=True",
            incarnation=incarnation,
        )
    return incarnation + 1


def txids_from(txid: int) -> range:
    """Return the ids from this one to the last of its incarnation; later ones belong to the next opening."""
    return range(txid, (txid >> TXID_COUNTER_BITS) + 1 << TXID_COUNTER_BITS)
