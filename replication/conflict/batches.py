"""A decision applied to a batch: which rows are applied, how the others fail, and what is counted. No Python per row.

A batch has changes of one table and kind. No key occurs twice, so that its rows do not affect each other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from tidemark.replication.conflict.functions import Check, Decision, Failure, Operation

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Mask = NDArray[np.bool_]
    Codes = NDArray[np.int8]

APPLIED: Final = 0
CODES: Final = {failure: code for code, failure in enumerate(Failure, 1)}
FAILURES: Final = {code: failure for failure, code in CODES.items()}


def outcomes(decision: Decision, found: Mask, accepted: Mask, refreshed: Mask) -> Codes:
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


def rows_with(decision: Decision, codes: Codes, what: str) -> Mask:
    """Return the rows whose failure is handled with the flag `what`, such as `is_refreshed`."""
    wanted = [CODES[failure] for failure, handling in decision.failures.items() if getattr(handling, what)]
    return np.isin(codes, np.array(wanted, dtype=np.int8))


def unhandled(decision: Decision, codes: Codes) -> Mask:
    """Return the rows that fail in a way that the decision does not handle: the applier stops."""
    known = [APPLIED, *(CODES[failure] for failure in decision.failures)]
    return ~np.isin(codes, np.array(known, dtype=np.int8))
