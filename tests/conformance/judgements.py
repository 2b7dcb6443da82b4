"""Judgements about one row, in plain Python: what the programs of conflict functions decide for many."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tidemark.replication.applier.stops import Stop
from tidemark.replication.conflict.functions import CODES, Check, Decision, Failure, Handling, Operation
from tidemark.replication.settings.conflict_function import LOW_MASK, saturated_from
from tidemark.replication.settings.exceptions_table import Cause

Words = NDArray[np.int64]
Mask = NDArray[np.bool_]
# The handling of operations of a rejected transaction, on any table.
IMPLICATED: Final = Handling(Cause.TRANS_IN_CONFLICT, is_refreshed=True, is_logged=True)


def parameter_words(values: Sequence[Any]) -> NDArray[np.int64]:
    """Return words of unsigned values; None counts as 0."""
    return np.array([each or 0 for each in values], dtype=np.uint64).view(np.int64)


def order(first: Any, second: Any) -> int:
    """Compare two values; return -1, 0 or 1."""
    return int(first > second) - int(first < second)


def image_order(image: Sequence[Any], row: Sequence[Any]) -> int:
    """Return the order of two rows of one table by stored values, column by column, None first. It is the same at every
    site.
    """
    for one, other in zip(image, row, strict=True):
        if one is None or other is None:
            if (one is None) != (other is None):
                return -1 if one is None else 1
        elif result := order(one, other):
            return result
    return 0


def read_epoch(epoch: int, bits: int) -> int:
    """Return the epoch as NDB would read it back."""
    return epoch | LOW_MASK if epoch & LOW_MASK >= saturated_from(bits) else epoch


def is_in_conflict(author: int, epoch: int, max_replicated_epoch: int, bits: int) -> bool:
    """Return whether a row is in conflict by the test of the EPOCH family on a primary: it was written here, in an
    epoch after the newest that the peer has confirmed.
    """
    return author == 0 and read_epoch(epoch, bits) > max_replicated_epoch


def outcomes(decision: Decision, found: Mask, accepted: Mask, refreshed: Mask) -> NDArray[np.int8]:
    """Return for each row APPLIED or the code of its failure. `found`: whether the key exists; `accepted`: whether the
    program accepted the row, ignored without a program; `refreshed`: whether the row was refreshed earlier in the same
    epoch transaction.
    """
    codes = np.zeros(len(found), dtype=np.int8)
    if decision.check is not Check.NONE:
        codes[found & ~accepted] = CODES[Failure.REFUSED]
    if decision.operation is Operation.INSERT:
        codes[found] = CODES[Failure.EXISTS]
    elif decision.operation is not Operation.UPSERT:
        codes[~found] = CODES[Failure.MISSING]
    codes[refreshed] = CODES[Failure.REFRESHED]
    return codes


def stop_of(error: BaseException) -> Stop:
    """Return the class of an error that has stopped the applier."""
    evidence = getattr(error, "evidence", {})
    found = evidence.get("stop", Stop.OTHER)
    return found if isinstance(found, Stop) else Stop.OTHER


def pack_keys(parts: Sequence[tuple[NDArray[np.uint8], Words]]) -> tuple[Words, Words]:
    """Pack keys of several columns into words, so that different keys have different words: each column is its length
    and its bytes.

    `parts` has for each key column the bytes of all rows and the offsets of the rows' bytes. Return (words, offsets in
    words). Shapes: offsets have one entry more than rows.
    """
    lengths = np.stack([np.diff(offsets) for _, offsets in parts], axis=1)
    words = 1 + -(-lengths // 8)
    ends = np.cumsum(words.reshape(-1))
    starts = (ends - words.reshape(-1)).reshape(words.shape)
    packed = np.zeros(int(ends[-1]) if ends.size else 0, dtype=np.int64)
    packed[starts] = lengths
    octets = packed.view(np.uint8)
    for number, (data, offsets) in enumerate(parts):
        rows = lengths[:, number]
        target = (starts[:, number] + 1) * 8 - offsets[:-1]
        source = np.arange(offsets[0], offsets[-1], dtype=np.int64)
        octets[np.repeat(target, rows) + source] = data[source]
    return packed, np.concatenate([np.zeros(1, dtype=np.int64), starts[1:, 0], ends[-1:]]).astype(np.int64)
