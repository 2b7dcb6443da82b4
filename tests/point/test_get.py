"""`get` by kernels is `get` by the general path: rows, types of values, errors, and what a transaction has seen."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

import tidemark as tm
from tests.elsewhere import elsewhere
from tests.point.support import World, on_both_paths, outcome
from tests.seeds import fresh_seeds
from tests.shares import few
from tests.store.support import open_memory
from tidemark.engine.base.ids import LAST_EPOCH, NO_EPOCH
from tidemark.engine.memory.arena_layout import S_TICK, S_UNFINISHED, S_UNFINISHED_KINDS, X_DELETES, X_UPDATES
from tidemark.engine.point.plan import plan_of


@pytest.fixture
def db() -> Iterator[Any]:
    db = open_memory(data_memory="32 MiB")
    yield db
    db.close()


@pytest.mark.parametrize("seed", [*range(few(40, 400)), *fresh_seeds(few(10, 200))])
def test_both_paths_answer_alike(db: Any, seed: int) -> None:
    print(f"seed {seed}")
    rng = random.Random(seed)
    world = World(db, rng)
    answered = calls = 0
    for _ in range(4):
        handle, table = db["t"], db["t"].table.newest
        rows = list(handle)
        for _ in range(25):
            key = world.some_key()
            quick, general = on_both_paths(table, lambda key=key, handle=handle: handle.get(key))
            assert quick == general, key
            plan = plan_of(table)
            calls += general[0] not in tm_errors()
            answered += plan.get(plan.mem, plan.words, key) is not ...
            if world.index:
                key = world.some_index_key(rows)
                quick, general = on_both_paths(table, lambda key=key, handle=handle: handle.get(key, index="u"))
                assert quick == general, key
        in_transaction(world, rng, rows)
        world.change_columns()
        world.insert(db["t"], 4)
    print(f"{answered} of {calls} calls answered by kernels")


def tm_errors() -> tuple[type, ...]:
    return (tm.TypeMismatch, tm.ValueOutOfRange, tm.NotNullViolation)


def in_transaction(world: World, rng: random.Random, rows: list[Any]) -> None:
    """Compare both paths in a transaction with changes of its own, which it rolls back."""
    table = world.db["t"].table.newest
    kept = list(world.keys)
    txn = world.db.transaction()
    world.insert(txn, 3, "t")
    for row in rng.sample(rows, min(3, len(rows))):
        key = tuple(row[name] for name in world.key)
        plain: Any = key[0] if len(key) == 1 else key
        if rng.random() < 0.3:
            txn.delete("t", plain)
            continue
        changed = {name: given for name, given in world.row().items() if name not in world.key}
        try:
            if changed:
                txn.update("t", plain, changed)
        except tm.DuplicateKey:
            pass
    seen = NO_EPOCH
    for _ in range(25):
        index = "u" if world.index and rng.random() < 0.4 else None
        key = world.some_key() if index is None else world.some_index_key(rows)
        found = []
        for plan in (None, plan_of(table)):
            table.plan = plan
            txn.seen = seen
            found.append((outcome(lambda key=key, index=index: txn.get("t", key, index=index)), txn.seen))
        assert found[0] == found[1], (key, index)
        seen = rng.choice([NO_EPOCH, txn.seen])
    txn.rollback()
    world.keys = kept


def test_most_calls_with_keys_of_the_column_are_answered_by_kernels(db: Any) -> None:
    columns = [tm.Column("id", tm.Int64), tm.Column("a", tm.VarChar(9), nullable=True), tm.Column("b", tm.Date)]
    import datetime

    table = db.create_table("main.t", columns, "id")
    db.create_index("t", "u", "a", unique=True)
    table.insert((1, "one", datetime.date(2000, 2, 29)))
    plan = plan_of(table.table)
    assert plan.get(plan.mem, plan.words, 1) == (1, "one", datetime.date(2000, 2, 29))
    assert plan.get(plan.mem, plan.words, 2) is None
    assert plan.unique("one", "u") == table[1]
    assert plan.unique("two", "u") is None
    for key in (1.0, True, "1", 2**70, None, (1,)):
        assert plan.get(plan.mem, plan.words, key) is ...


def test_a_row_that_is_not_there_makes_a_transaction_wait_for_all_before(db: Any) -> None:
    table = db.create_table("t", [tm.Column("id", tm.Int64)], "id")
    table.insert((1,))
    with db.transaction() as txn:
        for _ in range(2):  # the general path makes the plan
            txn.seen = NO_EPOCH
            assert txn.get("t", 1) == (1,)
            assert NO_EPOCH < txn.seen < LAST_EPOCH
            assert txn.get("t", 2) is None
            assert txn.seen == LAST_EPOCH
        assert table.table.plan is not None


def test_rows_of_an_unfinished_large_commit_are_left_to_the_general_path(db: Any) -> None:
    """A read that meets one waits for the end of the commit, unless the commit only adds rows (ADR 0030)."""
    table = db.create_table("t", [tm.Column("id", tm.Int64), tm.Column("n", tm.Int64)], "id")
    db.create_index("t", "u", "n", unique=True)
    table.insert((1, 1))
    rows = iter(table)
    assert next(rows) == (1, 1)  # a view is open, so the next commit is of another instant
    table.insert((2, 2))
    plan, mem = plan_of(table.table), table.table.mem
    tick = int(mem[S_TICK])
    assert tick > 0

    def answers() -> list[Any]:
        found = [plan.get(plan.mem, plan.words, key) for key in (1, 2, 3)]
        with db.transaction() as txn:
            arguments = (plan.mem, plan.words, txn.desc, txn.buf, txn.shown)
            assert [plan.get_seen(*arguments, key) for key in (1, 2, 3)] == found
        return [None if each is None or each is ... else int(each[0]) for each in found], [
            each is ... for each in found
        ]

    assert answers() == ([1, 2, None], [False, False, False])
    try:
        mem[S_UNFINISHED] = tick
        for kinds, left in ((X_UPDATES, [False, True, False]), (X_DELETES, [False, True, True])):
            mem[S_UNFINISHED_KINDS] = kinds
            assert answers()[1] == left
            assert plan.unique(2, "u") is ... and plan.unique(3, "u") is ... and plan.unique(1, "u") == (1, 1)
        mem[S_UNFINISHED_KINDS] = 0
        assert answers() == ([1, None, None], [False, False, False])
        assert plan.unique(2, "u") is None
    finally:
        mem[S_UNFINISHED] = mem[S_UNFINISHED_KINDS] = 0


def test_a_changed_row_in_the_spool_file_is_left_to_the_general_path(db: Any) -> None:
    columns = [tm.Column("id", tm.Int64), tm.Column("blob", tm.Binary(250)), tm.Column("n", tm.Int64)]
    table = db.create_table("t", columns, "id")
    table.insert_many([(number, bytes(250), number) for number in range(6_000)])
    plan = plan_of(table.table)
    with db.transaction() as txn:
        for number in range(6_000):
            txn.update("t", number, {"n": -number})
        assert txn.spool is not None
        arguments = (plan.mem, plan.words, txn.desc, txn.buf, txn.shown)
        assert any(plan.get_seen(*arguments, number) is ... for number in range(0, 6_000, 100))
        assert all(txn.get("t", number).n == -number for number in range(0, 6_000, 100))
        txn.rollback()


def test_a_dropped_table_and_a_closed_store_answer_no_call(db: Any) -> None:
    table = db.create_table("t", [tm.Column("id", tm.Int64), tm.Column("n", tm.Int64)], "id")
    db.create_index("t", "u", "n", unique=True)
    table.insert((1, 5))
    with db.transaction() as txn:
        for _ in range(2):
            assert table.get(1) == txn.get("t", 1) == table.get(5, index="u") == txn.get("t", 5, index="u") == (1, 5)
        db.drop_index("t", "u")
        for call in (lambda: table.get(5, index="u"), lambda: txn.get("t", 5, index="u")):
            with pytest.raises(tm.NoSuchIndex):
                call()
        db.drop_table("t")
        for call in (lambda: table.get(1), lambda: txn.get("t", 1)):
            with pytest.raises(tm.NoSuchTable):
                call()
        db.create_table("t", [tm.Column("id", tm.Int64)], "id").insert((1,))
        assert txn.get("t", 1) == txn.get("t", 1) == (1,)
    other = db["t"]
    assert other.get(1) == other.get(1) == (1,)
    db.close()
    with pytest.raises(tm.StoreClosed):
        other.get(1)


def test_a_transaction_that_has_ended_or_is_of_another_thread_answers_no_call(db: Any) -> None:
    table = db.create_table("t", [tm.Column("id", tm.Int64)], "id")
    table.insert((1,))
    txn = db.transaction()
    assert txn.get("t", 1) == txn.get("t", 1) == (1,)
    with pytest.raises(tm.WrongThread):
        elsewhere(lambda: txn.get("t", 1))
    txn.rollback()
    with pytest.raises(tm.TransactionEnded):
        txn.get("t", 1)


def test_names_that_are_no_names_are_refused_as_before(db: Any) -> None:
    table = db.create_table("t", [tm.Column("id", tm.Int64), tm.Column("n", tm.Int64)], "id")
    db.create_index("t", "u", "n", unique=True)
    table.insert((1, 5))
    with db.transaction() as txn:
        for name in ([], None, 5, "no such", b"t"):
            quick, general = on_both_paths(table.table.newest, lambda name=name: txn.get(name, 1))
            assert quick == general and issubclass(quick[0], tm.Error)
        for index in ([], 5, "no such", b"u"):
            quick, general = on_both_paths(table.table.newest, lambda index=index: txn.get("t", 5, index=index))
            assert quick == general and issubclass(quick[0], tm.Error)
            quick, general = on_both_paths(table.table.newest, lambda index=index: table.get(5, index=index))
            assert quick == general and issubclass(quick[0], tm.Error)
