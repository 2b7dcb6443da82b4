"""Levels of isolation and anomalies: what each level allows, in the terms of Adya and Hermitage.

`docs/guide.md` has the same tables, and `test_guide.py` compares them.
"""

from __future__ import annotations

import enum
import inspect
from typing import Any

import tidemark as tm

READ_COMMITTED, SNAPSHOT = "read committed", "snapshot"
G0, G1A, G1B, G1C, OTV = "G0", "G1a", "G1b", "G1c", "OTV"
PMP, P4, G_SINGLE, G2_ITEM, G2 = "PMP", "P4", "G-single", "G2-item", "G2"
ANOMALIES = (G0, G1A, G1B, G1C, OTV, PMP, P4, G_SINGLE, G2_ITEM, G2)

# The anomalies that each level allows; it prevents all others.
ALLOWED = {
    READ_COMMITTED: frozenset({PMP, P4, G_SINGLE, G2_ITEM, G2}),
    SNAPSHOT: frozenset({G2_ITEM, G2}),
}


class Outcome(enum.Enum):
    """How a play of two or three transactions ended: with its anomaly, or how it was prevented."""

    HAPPENS = "the anomaly happened"
    WAITS = "a transaction waited for a lock"
    REFUSED = "a Retryable error rolled a transaction back"
    READS = "no transaction waited, and each read what was committed"


def begun(db: Any, level: str) -> Any:
    """Return a transaction of this level. Where there is one level only, no call names it."""
    return db.transaction(isolation=level) if _HAS_LEVELS else db.transaction()


_HAS_LEVELS = "isolation" in inspect.signature(tm.Database.transaction).parameters
LEVELS = list(ALLOWED) if _HAS_LEVELS else [READ_COMMITTED]
