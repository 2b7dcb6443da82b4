"""The threads that take part in a scheduled life next to the writers and the changer of the stress program."""

from __future__ import annotations

import abc
from collections import namedtuple
from collections.abc import Callable, Sequence, Set
from typing import Any

from tests.crash.programs.stress import Keeper, Reader, Stress
from tests.crash.programs.stress_rows import INDEX_KEYS, MAIN, UNIQUE_KEYS, is_whole
from tests.crash.programs.stress_threads import Worker
from tests.simulation.threads.sites import SITES
from tidemark.engine.base.errors import NoPartition, NoSuchIndex, NoSuchTable, Retryable
from tidemark.engine.programs.expressions import col
from tidemark.recovery.backup.writer import BackupWriter
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles
from tidemark.recovery.crash_harness.program import Violation

# Errors that a reader may get about something that another thread has dropped.
GONE = (NoSuchIndex, NoSuchTable, NoPartition, Retryable)


class Actor(Worker):
    """A thread next to the program, without pauses between its steps."""

    def __init__(self, stress: Stress, name: str) -> None:
        super().__init__(name, stress.seed, stress.is_over)
        self.stress = stress
        self.db = stress.db

    def pause(self) -> None:
        """Make a point, and no more."""
        self.db.parts.store.clock.sleep(0)

    def step(self) -> None:
        """Act, unless the object was dropped meanwhile."""
        try:
            self.act()
        except GONE:
            return

    @abc.abstractmethod
    def act(self) -> None:
        """Do one thing."""

    def whole(self, row: Any, how: str) -> None:
        """Raise Violation if a row does not match its stamps."""
        if not is_whole(row):
            raise Violation(f"{self.name}: row {row.id} is not what its stamps say ({how})")


class Scanner(Reader):
    """The reader of the program, without pauses between its scans."""

    def pause(self) -> None:
        """Make a point, and no more."""
        self.stress.db.parts.store.clock.sleep(0)


class FollowingReader(Scanner):
    """A reader of a store that follows, which receives its tables only later."""

    def step(self) -> None:
        """Scan once, if the table exists."""
        try:
            super().step()
        except NoSuchTable:
            return


class Lookups(Actor):
    """Looks rows up by a unique index: one and many, alone and in a transaction, with locks or without."""

    def act(self) -> None:
        """Look up some rows of a scan by their keys."""
        name = self.rng.choice(sorted(UNIQUE_KEYS))
        rows = [row for row in self.db[MAIN].scan(limit=200) if row.grade is not None]
        if not rows:
            return
        rows = self.rng.sample(rows, min(len(rows), 8))
        keys = [self._key(row, name) for row in rows]
        draw = self.rng.random()
        if draw < 0.4:
            found = [self.db[MAIN].get(keys[0], index=name)]
        elif draw < 0.7:
            found = self._many(name, keys)
        else:
            with self.db.transaction() as txn:
                found = [txn.get(MAIN, keys[0], lock=self.rng.choice(["shared", "exclusive"]), index=name)]
        for row in found:
            if row is not None:
                self.whole(row, f"looked for by {name}")
                if self._key(row, name) not in keys:
                    raise Violation(f"{self.name}: {name} led to row {row.id} with key {self._key(row, name)}")

    def _key(self, row: Any, name: str) -> Any:
        key = tuple(getattr(row, column) for column in UNIQUE_KEYS[name])
        return key[0] if len(key) == 1 else key

    def _many(self, name: str, keys: list[Any]) -> list[Any]:
        batch = self.db[MAIN].get_many(keys, index=name)
        make = namedtuple("Row", batch.schema.names)  # type: ignore[misc]
        return [make(**row) for row in batch.to_pylist()]


class Counter(Actor):
    """Counts and sums rows, by aggregates in the store and by scans with conditions."""

    def act(self) -> None:
        """Compute one figure of the table."""
        table, draw = self.db[MAIN], self.rng.random()
        if draw < 0.3:
            sums = table.scan(where=col("second") >= self.rng.choice([0, 2])).aggregate(
                second=("sum", "second"), weight=("sum", "weight")
            )
            if (sums.second or 0) + (sums.weight or 0) != 0:
                raise Violation(f"{self.name}: second adds up to {sums.second}, weight to {sums.weight}")
        elif draw < 0.5:
            table.update_where({"weight": 0}, where=col("id") < 0)
        elif draw < 0.7:
            for row in table.scan(where=col("price") >= self.rng.randrange(-50, 70)):
                self.whole(row, "by a condition")
        elif draw < 0.8:
            table.explain(where=col("price") > 3)
        elif draw < 0.9:
            len(table), table.partitions(), table.indexes()
        else:
            table.scan(index=self.rng.choice(sorted(INDEX_KEYS))).count()


class Historian(Actor):
    """Takes snapshots: a snapshot must always show the same rows."""

    def act(self) -> None:
        """Take one snapshot and read it twice."""
        with self.db.snapshot() as snapshot:
            table = snapshot[MAIN]
            rows = list(table.scan(limit=self.rng.choice([None, 50])))
            for row in rows:
                self.whole(row, "in a snapshot")
            index = self.rng.choice([None, *sorted(INDEX_KEYS)])
            if len(table) < len(rows):
                raise Violation(f"{self.name}: a snapshot of {len(table)} rows showed {len(rows)}")
            try:
                again = list(table.scan(index=index, reverse=index is not None and self.rng.random() < 0.5))
            except NoSuchIndex:
                again = list(table.scan())
            seen = {row.id: row for row in again}
            for row in rows:
                if seen.get(row.id) != row:
                    raise Violation(f"{self.name}: a snapshot showed {row}, then {seen.get(row.id)} (index {index})")


class Checker(Actor):
    """Runs `check` next to everything else."""

    def act(self) -> None:
        """Run one check."""
        found = self.db.check()["problems"]
        if found:
            raise Violation(f"{self.name}: {found[0]}")


class Backups(Actor):
    """Makes backups into a place in memory, full and incremental ones."""

    def __init__(self, stress: Stress, name: str) -> None:
        super().__init__(stress, name)
        self.place = MemoryFiles()

    def act(self) -> None:
        """Make one backup."""
        opened = self.db.parts.opened
        timeline = opened.keeper.content.timeline
        writer = BackupWriter(opened.store, self.place, opened.identity, timeline, 0, True, None)
        writer.run(self.rng.random() < 0.5)


def _named(kind: Any, name: str) -> Callable[[Stress], Worker]:
    return lambda stress: kind(stress, name)


def _scanner(stress: Stress) -> Worker:
    made = Scanner(stress)
    made.name = "scanner"
    made.rng.seed(f"{stress.seed} scanner")
    return made


ACTORS: dict[str, Callable[[Stress], Worker]] = {
    "reader": Scanner,
    "scanner": _scanner,
    "keeper": Keeper,
    "lookups": _named(Lookups, "lookups"),
    "counter": _named(Counter, "counter"),
    "historian": _named(Historian, "historian"),
    "checker": _named(Checker, "checker"),
    "backups": _named(Backups, "backups"),
}
ALL = frozenset({*ACTORS, *SITES, "background"})


class _FollowingStress:
    """A store that follows the one of the program, in the form that its readers need."""

    def __init__(self, stress: Stress, db: Any) -> None:
        self.seed = stress.seed
        self.is_over = stress.is_over
        self.db = db


def others(stress: Stress, wanted: Set[str], following: Any = None) -> Sequence[Worker]:
    """Return the threads of these names. following: a store that follows, which gets a reader too."""
    made = [make(stress) for name, make in ACTORS.items() if name in wanted]
    if following is not None:
        reader = FollowingReader(_FollowingStress(stress, following))  # type: ignore[arg-type]
        reader.name = "following-reader"
        made.append(reader)
    return made
