"""The built-in program over a table whose partitions come and go, also while a local checkpoint is being made.

As `history` (or `disk_history`), and ranges are added at the end and dropped anywhere, with their rows. When a range is
dropped, the range above it takes its keys from then on. Rows that fit no range are refused in a savepoint.
"""

from __future__ import annotations

import contextlib
from typing import Any

from tests.crash.programs.disk_history import DiskHistory
from tests.crash.programs.history import MAIN, History, Model, program
from tidemark.engine.base.errors import NoPartition
from tidemark.engine.schema.partition import HashPartition, Partition, RangePartition
from tidemark.recovery.crash_harness.program import Ledger, digest_of, state_of

WIDTH = 10
PARTITIONS_MAX = 5
BOUNDS = "bounds of partitions"


class PartitionHistory(History):
    """A run of the program; `bounds` are the ranges of the main table after the last acknowledged step."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.bounds: list[tuple[str, int]] = []
        self.made = 0

    def partition(self, name: str) -> Partition:
        """Ranges for the main table."""
        return RangePartition("id", self.bounds) if name == MAIN else HashPartition(2)

    def ddl(self, name: str) -> None:
        """Make a table or drop it, or change the partitions of the main one."""
        if name == MAIN:
            self.made = 3
            self.bounds = [(f"r{number}", WIDTH * (number + 1)) for number in range(3)]
            self.keys = self.bounds[-1][1]
        if name != MAIN and self.rng.random() < 0.7:
            self.repartition()
        else:
            super().ddl(name)

    def commit_beside(self) -> None:
        """One transaction, or one change of partitions, while a local checkpoint is being made."""
        if self.rng.random() < 0.4:
            self.repartition()
        else:
            super().commit_beside()

    def repartition(self) -> None:
        """Add a range or drop one."""
        bounds, after = list(self.bounds), {name: dict(rows) for name, rows in self.model.items()}
        if len(bounds) == 1 or (len(bounds) < PARTITIONS_MAX and self.rng.random() < 0.5):
            bounds.append((f"r{self.made}", bounds[-1][1] + WIDTH))
            self.made += 1
            self._change(bounds, after)
            return
        gone = self.rng.randrange(len(bounds))
        low = bounds[gone - 1][1] if gone else 0
        high = bounds.pop(gone)[1]
        after[MAIN] = {key: row for key, row in after[MAIN].items() if not low <= key < high}
        self._change(bounds, after)

    def _change(self, bounds: list[tuple[str, int]], after: Model) -> None:
        before, self.bounds = self.bounds, bounds
        line = self.begin(after)
        dropped = [name for name, _ in before if name not in dict(bounds)]
        if dropped:
            self.db.drop_partition(MAIN, dropped[0])
        else:
            self.db.add_partition(MAIN, *bounds[-1])
        self.keys = bounds[-1][1]
        self.done(after, line, True)

    def begin(self, after: Model) -> str:
        """A change is under way; its line names the partitions, too."""
        line = digest_of({**{name: rows.values() for name, rows in after.items()}, BOUNDS: self.bounds})
        self.ledger.begin(line)
        return line

    def undone(self, txn: Any, name: str, key: int) -> None:
        """Changes after a savepoint that is rolled back, because there is no partition for them."""
        with contextlib.suppress(NoPartition):
            super().undone(txn, name, key)


class DiskPartitionHistory(PartitionHistory, DiskHistory):
    """The same over disk columns: the extents of a dropped partition come back."""


def verify(db: Any, ledger: Ledger) -> list[str]:
    """`whole_state`, partitions included."""
    bounds = [(each["name"], each["upper"]) for each in db.partitions(MAIN)] if MAIN in db else []
    found = digest_of({**state_of(db), BOUNDS: bounds})
    last = ledger.acknowledged[-1] if ledger.acknowledged else digest_of({BOUNDS: []})
    if found in {last, *ledger.under_way} or (MAIN not in db and not ledger.acknowledged):
        return []
    which = ledger.acknowledged.index(found) + 1 if found in ledger.acknowledged else 0
    rows = {name: len(rows) for name, rows in state_of(db).items()}
    return [
        f"state {which or 'that never was'} of {len(ledger.acknowledged)} (rows {rows}, bounds {bounds}, 0: no line)"
    ]


# The program, for crash states: 60 steps.
work = program(PartitionHistory, 60)
# The program over disk columns, for crash states: 40 steps.
disk_work = program(DiskPartitionHistory, 40)
# The program over disk columns, for a look at every point in seconds: 16 steps, four of them local checkpoints.
tiny_disk_work = program(DiskPartitionHistory, 16, lcp_every=4)
# The program, for anomaly loops.
short_work = program(PartitionHistory, 30)
