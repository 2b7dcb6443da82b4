"""Writers and a changer of the schema at once, power losses and kills in the middle: index, table and ledger agree."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tidemark as tm
from tests.crash.programs import stress, stress_actions, stress_verify
from tests.crash.programs.stress_rows import INDEX_KEYS, MAIN, row_of, stamps_of
from tests.store.support import open_memory
from tidemark.recovery.crash_harness.kill_loop import kill_loop
from tidemark.recovery.crash_harness.power_loop import power_loop
from tidemark.recovery.crash_harness.program import Ledger, Violation, Work

NAME = "tests.crash.programs.stress"
WORKS = pytest.mark.parametrize("work", [stress.work, stress.disk_work], ids=["memory", "disk"])


@WORKS
def test_power_losses_under_writers_and_schema_changes_lose_nothing(work: Work) -> None:
    """The seed decides how much is done before a loss, not the machine: a busy one was once too slow."""
    report = power_loop(work, stress_verify.verify, losses=4, seed=21, calls_max=600, lines_max=120)
    assert report.losses == 4
    assert report.acknowledged >= report.awaited > 100


def test_kills_under_writers_and_schema_changes_lose_nothing(tmp_path: Path) -> None:
    path = str(tmp_path / "store")
    report = kill_loop(f"{NAME}:work", f"{NAME}_verify:verify", path, 3, 5, life_ms_max=500, lines_max=60)
    assert report.kills == 3
    assert report.acknowledged >= report.awaited > 20


def worked(
    path: Path, seed: int, transactions: int, is_enough: Callable[[stress.Stress], bool] = lambda life: True
) -> tuple[stress.Stress, Ledger]:
    """Run a life of the program until it is over and `is_enough` is true; return the program and its ledger."""
    made: list[stress.Stress] = []
    ledger = Ledger()

    class Watched(stress.Stress):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            made.append(self)

        def is_enough(self) -> bool:
            return super().is_enough() and is_enough(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stress, "Stress", Watched)
        stress.work(lambda **options: tm.open(path, **options), seed, ledger, transactions)
    return made[0], ledger


def whole_life(path: Path, seed: int) -> int:
    """Run a life until it has seen each kind of change, dropped ranges, and transactions during them. Open its store
    again and verify it. Return how many lines of rows were acknowledged.
    """
    wanted = {action.__name__ for action, _ in stress_actions.ACTIONS}

    def has_seen(life: stress.Stress) -> bool:
        # On a busy machine most attempts may end as lock timeouts, which count as done.
        acknowledged = sum(writer.acknowledged for writer in life.writers)
        return set(life.changer.counts) == wanted and life.changer.drops_done > 2 and acknowledged > 150

    life, ledger = worked(path, seed, 200, has_seen)
    assert has_seen(life)
    assert any(line.startswith("shape ") for line in ledger.acknowledged)
    with tm.open(path, background=False, data_memory="64 MiB") as db:
        assert stress_verify.verify(db, ledger) == []
    return sum(line.startswith("rows ") for line in ledger.acknowledged)


def test_lives_of_the_program_reach_what_it_is_for(tmp_path: Path) -> None:
    assert whole_life(tmp_path / "store", 0) > 150


@pytest.mark.soak
def test_hundreds_of_lives_of_the_program_reach_what_it_is_for(tmp_path: Path) -> None:
    acknowledged = [whole_life(tmp_path / str(seed), seed) for seed in range(400)]
    print(f"400 lives, {sum(acknowledged)} acknowledged")
    assert min(acknowledged) > 150


@pytest.fixture
def store(tmp_path: Path) -> Any:
    """A store the program has worked in, opened again, and its ledger."""
    _, ledger = worked(tmp_path / "store", 4, 40)
    with tm.open(tmp_path / "store", background=False, data_memory="64 MiB") as db:
        yield db, ledger


def lose_row(db: Any) -> str:
    row = next(iter(db[MAIN].scan()))
    db[MAIN].delete(row.id)
    return f"row {row.id} is lost"


def bring_row_back(db: Any) -> str:
    held = {row.id for row in db[MAIN].scan()}
    high = db.partitions(MAIN)[-1]["upper"]
    key = next(key for key in range(high - 1, 0, -1) if key not in held)
    db[MAIN].insert(row_of(key, (1, 1)))
    return f"row {key} "


def take_old_values(db: Any) -> str:
    row = next(iter(db[MAIN].scan()))
    db[MAIN].write(row_of(row.id, (stamps_of(row)[0] - 1, row.second)))
    return f"row {row.id} has stamps"


def tear_row(db: Any) -> str:
    row = next(iter(db[MAIN].scan()))
    db[MAIN].update(row.id, {"price": row.price + 1})
    return f"row {row.id} is not what its stamps say"


def lose_transaction(db: Any) -> str:
    db["stress.progress"].update(2, {"sequence": db["stress.progress"][2].sequence - 1})
    return "writer 2 ends at transaction"


def change_schema(db: Any) -> str:
    names = [each["name"] for each in db.indexes(MAIN)]
    missing = sorted(set(INDEX_KEYS) - set(names))
    if missing:
        db.create_index(MAIN, missing[0], INDEX_KEYS[missing[0]])
    else:
        db.drop_index(MAIN, names[0])
    return "the schema is"


WRONGS = [lose_row, bring_row_back, take_old_values, tear_row, lose_transaction, change_schema]


@pytest.mark.parametrize("wrong", WRONGS, ids=lambda wrong: wrong.__name__)
def test_oracle_sees_what_is_wrong(store: Any, wrong: Callable[[Any], str]) -> None:
    db, ledger = store
    said = wrong(db)
    found = stress_verify.verify(db, ledger)
    assert found and said in found[0]


def test_oracle_takes_what_a_restart_has_shown_as_promised(store: Any) -> None:
    db, ledger = store
    assert stress_verify.verify(db, ledger) == []
    assert stress_verify.verify(db, ledger) == []
    lose_row(db)
    assert "is lost" in stress_verify.verify(db, ledger)[0]


def test_entries_of_a_dropped_range_that_is_still_looked_at_are_none_too_many() -> None:
    """Story: at the end of a life a local checkpoint still held the dropped range, whose entries are kept for that
    long. The oracle counted them and said that a unique index had too many.
    """
    db = open_memory()
    columns = [tm.Column("id", tm.Int64), tm.Column("u", tm.Int64)]
    ranges = tm.RangePartition("id", [("a", 100), ("b", 200)])
    db.create_table("t", columns, primary_key="id", partition=ranges)
    db["t"].insert_many({"id": list(range(200)), "u": list(range(200))})
    db.create_index("t", "once_u", ("u",), unique=True)
    checkpoint = object()
    db.parts.store.users.pin(checkpoint)  # as a local checkpoint does
    db.drop_partition("t", "a")
    assert stress_verify.index_problems(db, "t") == []
    assert stress_verify.leftovers(db) == ["1 dropped tables and partitions are left", "1 pins are left"]
    db.parts.store.users.unpin(checkpoint)
    assert stress_verify.index_problems(db, "t") == [] and stress_verify.leftovers(db) == []


def ledger_of(*lines: str, under_way: str = "") -> Ledger:
    ledger = Ledger()
    ledger.acknowledged = list(lines)
    ledger.under_way = {under_way} - {""}
    return ledger


@pytest.mark.parametrize(
    ("seen", "drops", "verdict"),
    [
        (5, 0, False),  # it had ended before the drop began
        (4, 0, None),  # at the same time
        (4, 1, True),  # begun when the drop had ended
    ],
)
def test_row_of_a_dropped_range_exists_if_its_transaction_was_before_the_drop(
    seen: int, drops: int, verdict: bool | None
) -> None:
    shape = {"partitions": [["b", 240]], "indexes": [], "tables": {}}
    ledger = ledger_of(
        f"shown {json.dumps([shape, [4, 0, 0, 0], [[8, [1, 1]]]])}",
        f"rows {json.dumps([0, 5, drops, [[4, [9, 9]]]])}",
        f"shape {json.dumps([1, shape, [0, 120], 1, [seen, 0, 0, 0]])}",
    )
    life = stress_verify.Life(ledger)
    assert life.verdict(4, 0, 5, drops) is verdict
    assert life.verdict(8, 0, 0, 0) is False
    assert life.verdict(124, 0, 0, 0) is True


def test_broken_promise_under_threads_is_seen() -> None:
    with pytest.raises(Violation, match="seed 2, loss 1 .* nothing is right"):
        power_loop(stress.work, lambda db, ledger: ["nothing is right"], losses=2, seed=2, calls_max=300)


def test_what_ends_a_thread_otherwise_ends_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(changer: stress_actions.Changer) -> bool:
        raise Violation("an action saw something")

    monkeypatch.setattr(stress_actions, "ACTIONS", ((wrong, 1),))
    with pytest.raises(Violation, match="power loop, seed 3, .* an action saw something"):
        power_loop(stress.work, stress_verify.verify, losses=20, seed=3)
