"""The built-in program over tables whose indexes come and go, also during local checkpoints and inside partitions.

One of the indexes is unique; over rows in memory it is ordered too.

As `partition_history`, and indexes are built with commits between the slices of the build, and dropped. After a crash
the indexes are those that were acknowledged or under way, and they lead to the rows of the table, in order.
"""

from __future__ import annotations

from typing import Any

from tests.crash.programs.disk_history import DiskHistory
from tests.crash.programs.history import MAIN, Model, program
from tests.crash.programs.partition_history import BOUNDS, PartitionHistory
from tidemark.recovery.crash_harness.program import Ledger, digest_of, state_of

INDEXES = "names of indexes"
Keys = dict[str, tuple[str, ...]]


class IndexHistory(PartitionHistory):
    """A run of the program; `indexes` are those of the main table after the last acknowledged step."""

    index_keys: Keys = {"by_owner": ("owner", "balance"), "by_balance": ("balance",), "once": ("owner", "id")}
    unique: tuple[str, ...] = ("once",)
    ordered: tuple[str, ...] = ("once",)

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.indexes: list[str] = []

    def ddl(self, name: str) -> None:
        """What the program did before, or an index built or dropped."""
        if name != MAIN and self.rng.random() < 0.6:
            self.reindex()
        else:
            super().ddl(name)

    def commit_beside(self) -> None:
        """One transaction, or one index built or dropped, while a local checkpoint is being made."""
        if self.rng.random() < 0.3:
            self.reindex()
        else:
            super().commit_beside()

    def reindex(self) -> None:
        """Build the index drawn, or drop it."""
        name = self.rng.choice(sorted(self.index_keys))
        before = self.indexes
        if name in before:
            self.indexes = [each for each in before if each != name]
            line = self.begin(self.model)
            self.db.drop_index(MAIN, name)
            self.done(self.model, line, True)
            return
        lines: list[str] = []

        def beside(*_: Any) -> None:
            if not lines:  # a commit between two slices; after it the build may be published at any instant
                self.commit()
                lines.append(self._begin_with([*before, name]))

        if not self.model[MAIN]:
            lines.append(self._begin_with([*before, name]))
        is_unique, is_ordered = name in self.unique, name in self.ordered
        self.db.create_index(MAIN, name, self.index_keys[name], is_unique, progress=beside, ordered=is_ordered)
        self.indexes = [*before, name]
        self.done(self.model, lines[0], True)

    def _begin_with(self, indexes: list[str]) -> str:
        before, self.indexes = self.indexes, indexes
        try:
            return self.begin(self.model)
        finally:
            self.indexes = before

    def begin(self, after: Model) -> str:
        """A change is under way; its line names partitions and indexes, too."""
        line = digest_of(
            {
                **{name: rows.values() for name, rows in after.items()},
                BOUNDS: self.bounds,
                INDEXES: [(each,) for each in self.indexes],
            }
        )
        self.ledger.begin(line)
        return line


class DiskIndexHistory(IndexHistory, DiskHistory):
    """The same over disk columns, indexed by those in memory."""

    index_keys: Keys = {"by_owner": ("owner", "id"), "by_name": ("owner",), "once": ("id", "owner")}
    ordered = ()


def _unique_problem(db: Any, index: dict[str, Any], rows: Any) -> str:
    """What is wrong with a unique index: each row is found by its key, and there are no other entries."""
    places = [db[MAIN].definition.position(column) for column in index["columns"]]
    keys = [tuple(row[place] for place in places) for row in rows]
    found = [db[MAIN].get(key, index=index["name"]) for key in keys]
    if index["entries"] != len(keys) or [row and row.id for row in found] != [row[0] for row in rows]:
        return f"unique index {index['name']} has {index['entries']} entries, or does not find each of {len(keys)} rows"
    # Files may be half made; the index is as the restart built it.
    return next((str(each) for each in db.check()["problems"] if f"index {index['name']}:" in str(each)), "")


def verify(db: Any, ledger: Ledger) -> list[str]:
    """The store is in the state acknowledged last or in one under way, and each index leads to the rows
    of its table.
    """
    bounds = [(each["name"], each["upper"]) for each in db.partitions(MAIN)] if MAIN in db else []
    listed = db.indexes(MAIN) if MAIN in db else []
    indexes = {each["name"]: each["columns"] for each in listed}
    state = state_of(db)
    found = digest_of({**state, BOUNDS: bounds, INDEXES: [(name,) for name in indexes]})
    for each in listed:
        name, columns = each["name"], each["columns"]
        if each["unique"]:
            problem = _unique_problem(db, each, state[MAIN])
            if problem:
                return [problem]
        if not each["ordered"]:
            continue
        rows = [tuple(row) for row in db[MAIN].scan(index=name)]
        places = [db[MAIN].definition.position(column) for column in columns]
        keys = [tuple(row[place] for place in places) for row in rows]
        if sorted(rows, key=repr) != sorted(state[MAIN], key=repr) or keys != sorted(keys):
            return [f"index {name} leads to {len(rows)} rows of {len(state[MAIN])}, or out of order"]
    last = ledger.acknowledged[-1] if ledger.acknowledged else ""
    if found in {last, *ledger.under_way} or (MAIN not in db and not ledger.acknowledged):
        return []
    which = ledger.acknowledged.index(found) + 1 if found in ledger.acknowledged else 0
    return [
        f"state {which or 'that never was'} of {len(ledger.acknowledged)} (bounds {bounds}, indexes {list(indexes)})"
    ]


# The program, for crash states: 34 steps.
work = program(IndexHistory, 34)
# The program over disk columns, for crash states: 24 steps.
disk_work = program(DiskIndexHistory, 24)
