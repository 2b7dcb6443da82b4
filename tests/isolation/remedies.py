"""What prevents the anomalies that a level allows, and plays that use it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import tidemark as tm
from tests.isolation import levels
from tests.isolation.plays import HAPPENS, PLAYS, Happened
from tests.isolation.stage import Stage, Step
from tests.isolation.ways import NAMES

N = tm.col("n")
ONE_MORE = {"n": N + 1}

# --- remedies of the guide, at read committed -----------------------------------------------------
LOCKS, ONE_CHANGE, ONE_READ, SNAPSHOTS, RULE = "locks", "one change", "one read", "snapshot", "rule"
YES, NO, ROWS, NOTHING = "yes", "no", "rows", "–"
_OPEN = (levels.PMP, levels.P4, levels.G_SINGLE, levels.G2_ITEM, levels.G2)


def _by(*cells: str) -> dict[str, str]:
    return dict(zip(_OPEN, cells, strict=True))


# Whether a remedy prevents an anomaly that the level allows. ROWS: in rows, and not in what a condition finds. NOTHING:
# who uses it takes no part in the anomaly.
REMEDIES = {
    LOCKS: _by(NO, YES, ROWS, YES, NO),
    ONE_CHANGE: _by(NOTHING, YES, NOTHING, NOTHING, NOTHING),
    ONE_READ: _by(YES, NOTHING, YES, NOTHING, NOTHING),
    SNAPSHOTS: _by(YES, NOTHING, YES, NOTHING, NOTHING),
    RULE: _by(YES, YES, YES, YES, YES),
}


def cells_of_locks() -> dict[str, str]:
    """What the plays with locks say of each anomaly."""
    found: dict[str, set[bool]] = {}
    for case in PLAYS:
        for outcome in case.locked.get(levels.READ_COMMITTED, {}).values():
            found.setdefault(case.anomaly, set()).add(outcome is HAPPENS)
    return {name: ROWS if len(found[name]) == 2 else NO if True in found[name] else YES for name in _OPEN}


# --- a row that stands for a rule -----------------------------------------------------------------
def lock_rule(txn: Any) -> None:
    """Lock the row that stands for the rule."""
    txn.get("rule", 1, lock="exclusive")


def change_rule(txn: Any) -> None:
    """Change that row."""
    txn.update("rule", 1, ONE_MORE)


# --- calls that compute ---------------------------------------------------------------------------
COMPUTING: Mapping[str, Callable[[Any], object]] = {
    "update": lambda txn: txn.update("t", 1, ONE_MORE),
    "update by a unique index": lambda txn: txn.update("t", NAMES[1], ONE_MORE, index="by_name"),
    "update_where": lambda txn: txn.update_where("t", ONE_MORE, where=tm.col("g") == 10),
    "upsert": lambda txn: txn.upsert("t", (1, NAMES[1], 0, 0), ONE_MORE),
    "upsert by a unique index": lambda txn: txn.upsert("t", (1, NAMES[1], 0, 0), ONE_MORE, "by_name"),
    "upsert_many": lambda txn: txn.upsert_many("t", [(1, NAMES[1], 0, 0)], ONE_MORE),
}


def counted_by(change: Callable[[Any], object]) -> Callable[[Stage], Happened]:
    """A play in which both count up in one call."""

    def counted(stage: Stage) -> Happened:
        one, two = stage.begin(), stage.begin()
        one.do(change)
        two.do(change)
        one.commit()
        two.commit()
        return lambda: one.has_committed and two.has_committed and stage.face.rows()[1] == 11

    return counted


def _replace(read: Step, txn: Any) -> bool:
    return bool(txn.update("t", 1, {"n": 11}, where=N == read.value[1]))


def compared_update(stage: Stage) -> Happened:
    """Both change the row only if it still is as they have read it; the second is told that it is not."""
    one, two = stage.begin(), stage.begin()
    of_one, of_two = one.read(1), two.read(1)
    changed = [each.do(partial(_replace, of)) for each, of in ((one, of_one), (two, of_two))]
    one.commit()
    two.commit()
    assert changed[0].value is True
    return lambda: two.has_committed and changed[1].value is not False


def compared_delete(stage: Stage) -> Happened:
    """The same by a deletion."""
    one, two = stage.begin(), stage.begin()
    of_one = one.read(1)
    two.write(1, 11)
    two.commit()
    deleted = one.do(lambda txn: txn.delete("t", 1, where=N == of_one.value[1]))
    one.commit()
    return lambda: one.has_committed and deleted.value is not False


def one_name(stage: Stage) -> Happened:
    """Both insert a row of one name, with keys that differ: a unique index is a rule that the store checks."""
    one, two = stage.begin(), stage.begin()
    one.do(lambda txn: txn.insert("t", (3, "the same", 30, 30)))
    two.do(lambda txn: txn.insert("t", (4, "the same", 30, 30)))
    one.commit()
    two.commit()
    return lambda: len(stage.face.rows()) != 3


class SnapshotReader:
    """A `db.snapshot()` in place of a transaction that only reads."""

    def __init__(self, db: tm.Database) -> None:
        self._snapshot = db.snapshot()
        self.commit = self.rollback = self._snapshot.close

    def get(self, table: str, key: Any, **more: Any) -> Any:
        return self._snapshot[table].get(key, **more)

    def get_many(self, table: str, keys: Any, columns: Any) -> Any:
        return self._snapshot[table].get_many(keys, columns)

    def scan(self, table: str, columns: Any = None, **more: Any) -> Any:
        return self._snapshot[table].scan(columns, **more)

    def aggregate(self, table: str, where: Any = None, **more: Any) -> Any:
        return self._snapshot[table].aggregate(where, **more)
