"""Changes of a few rows by kernels are those of the general path: rows, outcomes, errors, and all or none.

Two stores get the same calls. In one of them kernels are never asked. Log records may come in another order.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

import tidemark as tm
from tests.engine.arena_check import check_arena
from tests.point.support import EVERY, value, wrong
from tests.point.test_changes import NUMBERS, Twins
from tests.seeds import fresh_seeds
from tests.shares import few as share
from tests.store.support import open_memory
from tidemark.engine.point import few


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts the calls that the general path makes, and those that it does not."""
    count: Counter[str] = Counter()
    generally = few.generally

    def general(call: Any, txn: Any, table: Any, *arguments: Any) -> Any:
        count["general" if table.plan is not None else "never asked"] += 1
        return generally(call, txn, table, *arguments)

    monkeypatch.setattr(few, "generally", general)
    return count


class FewRows(Twins):
    """Calls that change several rows."""

    def do(self, what: str, call: Any) -> Any:
        self.log.append(what)
        quick, general = (side.do(call) for side in self.sides)
        assert quick == general, self.log[-5:]
        self.compare()
        return quick

    def compare(self) -> None:
        """Rows that were undone leave free places, so ROWIDs differ."""
        quick, general = (sorted(repr(tuple(row)) for row in side.db["t"].scan()) for side in self.sides)
        assert quick == general, self.log[-9:]

    def row(self) -> Any:
        """Mostly a right row, as a tuple: a new one, or one with a key that there is, or was."""
        if self.rng.random() < 0.2:
            return super().row()
        world, columns = self.quick.world, self.quick.table.definition.columns
        row = {
            each.name: None if each.nullable and self.rng.random() < 0.3 else value(self.rng, each.type)
            for each in columns
        }
        if self.rng.random() < 0.4:
            row.update(zip(world.key, self.rng.choice(world.keys), strict=True))
        else:
            world.keys.append(tuple(row[name] for name in world.key))
        return tuple(row.values())

    def key(self) -> Any:
        keys = self.quick.world.keys
        if self.rng.random() < 0.1 or not keys:
            return wrong(self.rng)
        pieces = self.rng.choice(keys)
        return pieces[0] if len(pieces) == 1 else pieces

    def condition(self) -> Any:
        """A condition that a select may answer, and often something else."""
        rng, columns = self.rng, self.quick.table.definition.columns
        names = self.quick.world.key
        if rng.random() < 0.7:
            pieces = rng.choice(self.quick.world.keys)
            tests = [tm.col(name) == piece for name, piece in zip(names, pieces, strict=True)]
        else:
            tests = [tm.col(each.name) == self.values([each])[each.name] for each in rng.sample(list(columns), 1)]
        made = tests[0]
        for each in tests[1:]:
            made = made & each
        return made

    def step(self) -> None:
        rng = self.rng
        kind = rng.random()
        size = rng.choice([1, 2, 3, 5])
        in_txn = self.quick.txn is not None and rng.random() < 0.8
        try:
            if kind < 0.15:
                self.call("insert_many", in_txn, [self.row() for _ in range(size)])
            elif kind < 0.3:
                self.call("write_many", in_txn, [self.row() for _ in range(size)])
            elif kind < 0.4:
                self.call("upsert_many", in_txn, [self.row() for _ in range(size)])
            elif kind < 0.5:
                changes = rng.choice([None, None, self.computed(self.changes())])
                self.call("upsert", in_txn, self.row(), changes)
            elif kind < 0.6:
                self.call("delete_many", in_txn, [self.key() for _ in range(size)])
            elif kind < 0.7:
                self.update_many(in_txn, size)
            elif kind < 0.8:
                self.call("update_where", in_txn, self.computed(self.changes()), self.condition())
            elif kind < 0.85:
                self.call("delete_where", in_txn, self.condition())
            elif kind < 0.93:
                self.transaction()
            elif kind < 0.97:
                self.hold()
            else:
                self.do("advance", lambda side: side.db.parts.clockwork.advance_epoch())
        except (TypeError, tm.TypeMismatch):
            return  # a condition that Python refuses to build

    def update_many(self, in_txn: bool, size: int) -> None:
        columns = [each for each in self.quick.table.definition.columns if each.name not in self.quick.world.key]
        chosen = self.rng.sample(columns, min(len(columns), 2))
        rows = []
        for _ in range(size):
            pieces = self.rng.choice(self.quick.world.keys)
            row = dict(zip(self.quick.world.key, pieces, strict=True))
            rows.append(row | self.values(chosen))
        self.call("update_many", in_txn, rows)


@pytest.mark.parametrize("seed", [*range(share(16, 200)), *fresh_seeds(share(6, 200))])
def test_both_paths_change_a_few_rows_alike(seed: int, counted: Counter[str]) -> None:
    print(f"seed {seed}")
    FewRows(seed, NUMBERS if seed % 3 == 0 else EVERY).run(60)
    print(counted)


@pytest.fixture
def db() -> Any:
    db = open_memory(durability="epoch")
    yield db
    db.close()


@pytest.fixture
def table(db: Any) -> Any:
    made = db.create_table("t", [tm.Column("id", tm.Int64), tm.Column("n", tm.Int64), tm.Column("u", tm.Int64)], "id")
    made.insert_many([(number, number % 3, number) for number in range(9)])
    db.create_index("t", "by_u", "u", unique=True)
    db.create_index("t", "by_n", "n")
    made.update(1, {"n": 1})
    yield made
    assert db.check()["problems"] == []
    check_arena(db)


def test_kernels_change_few_rows(table: Any, counted: Counter[str]) -> None:
    """A change by the primary key took 600 µs: all the work of a scan was done for one row."""
    col = tm.col
    assert table.update_where({"n": col("n") + 10}, where=col("id") == 4) == 1
    assert table.update_where({"n": 7}, where=(col("id") == 4) & (col("n") == 0)) == 0
    assert table.delete_where(col("id") == 99) == 0
    assert table.delete_where(col("u") == 8) == 1
    assert table.insert_many([(10, 1, 10), (11, 1, 11)]) == 2
    assert table.write_many([{"id": 10, "n": 2, "u": 12}]) == 1
    assert table.update_many([{"id": 10, "n": 5}, {"n": 6, "id": 11}]) == 2
    assert table.delete_many([0, 1]) == 2
    assert table.upsert((20, 1, 20)) is True
    assert table.upsert((20, 3, 20), {"n": col("n") + 4}) is False
    assert counted["general"] == 0
    assert [tuple(table[key]) for key in (4, 10, 11, 20)] == [(4, 11, 4), (10, 5, 12), (11, 6, 11), (20, 5, 20)]


def test_an_upsert_judges_the_whole_row(table: Any) -> None:
    """Though the row exists, and `set` gives what is changed."""
    with pytest.raises(tm.ValueOutOfRange):
        table.upsert((3, 2**70, 3), {"n": 1})
    assert table.upsert((3, 0, 3), {}) is False
    assert tuple(table[3]) == (3, 0, 3)


def test_a_row_beside_a_condition_is_not_locked(db: Any, table: Any) -> None:
    """The key alone finds it. The general path looks for rows that the whole condition accepts, and locks these."""
    with db.transaction() as txn:
        assert txn.update_where("t", {"n": 70}, (tm.col("id") == 4) & (tm.col("n") == 70)) == 0
        assert txn.delete_where("t", (tm.col("id") == 5) & (tm.col("n") == 70)) == 0
        assert txn.update_where("t", {"n": 70}, (tm.col("id") == 6) & (tm.col("n") == 0)) == 1
        with db.transaction() as other:
            found = [other.get("t", key, lock="exclusive", skip_locked=True) for key in (4, 5, 6)]
            assert [row is not None for row in found] == [True, True, False]
            other.rollback()
        txn.rollback()


def test_a_row_that_others_hold_is_waited_for(db: Any, table: Any) -> None:
    """The rows before it are given back first, and all are changed once the lock is free."""
    holder = db.transaction()
    holder.get("t", 4, lock="exclusive")
    with db.transaction() as txn, pytest.raises(tm.Rejected):  # of this thread: no wait
        txn.update_many("t", [{"id": 3, "n": 70}, {"id": 4, "n": 70}])
    holder.rollback()
    assert table.update_many([{"id": 3, "n": 70}, {"id": 4, "n": 70}]) == 2
