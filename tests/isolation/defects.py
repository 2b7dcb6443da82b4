"""Planted defects: what would break a level of isolation. Each has the anomalies whose plays must see it.

Nothing of the program is imported: it is loaded after a defect is planted.
"""

from __future__ import annotations

from dataclasses import dataclass

LOCKED = ", locked"  # after the name of an anomaly: the plays in which all that is read is locked
ONE_CALL = "one call"


@dataclass(frozen=True)
class Defect:
    """One changed place. is_compiled: in a kernel, so that kernels run as plain Python. level: at which plays run."""

    name: str
    module: str
    old: str
    new: str
    seen_by: frozenset[str]
    is_compiled: bool = False
    level: str = "read committed"


DEFECTS = (
    Defect(
        "new rows are seen before their commit",
        "tidemark.engine.access.reads_kernels",
        "    return 1 if state == A.LIVE else 0\n",
        "    return 1 if state != 0 else 0\n",
        frozenset({"G1a", "G1b", "G1c"}),
        is_compiled=True,
    ),
    Defect(
        "a shared lock is not kept",
        "tidemark.engine.txn.locks",
        "            txn.shared[key] = None\n            holders = self.shared",
        "            return True\n            holders = self.shared",
        frozenset({"P4" + LOCKED, "G-single" + LOCKED, "G2-item" + LOCKED}),
    ),
    Defect(
        "a call that reads in steps has no view",
        "tidemark.engine.txn.views",
        "        if self.epochs is None:\n            return view\n",
        "        return view\n",
        frozenset({ONE_CALL, "PMP"}),
    ),
    Defect(
        "a condition is not evaluated again under the lock",
        "tidemark.engine.access.conditional_changes",
        "        yield entries, offsets\n",
        "        yield batch.entries, batch.offsets\n",
        frozenset({"PMP"}),
    ),
    Defect(
        "a snapshot does not compare the rows that it changes",
        "tidemark.engine.txn.own_view",
        "        self.mem[self.desc + X_VIEW] = self.view.view\n",
        "        self.mem[self.desc + X_VIEW] = 0\n",
        frozenset({"G0", "OTV", "PMP", "P4", "G-single", "G2-item" + LOCKED}),
        level="snapshot",
    ),
    Defect(
        "a snapshot reads what is committed now",
        "tidemark.engine.table.table",
        "        if txn is not None:\n            if txn.view is not None:\n",
        "        if txn is not None:\n            if False:\n",
        frozenset({"G1b", "PMP", "G-single"}),
        level="snapshot",
    ),
)
