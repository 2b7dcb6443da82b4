"""SIGKILL on a real directory, again and again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tidemark as tm
from tests.crash.programs import bank
from tidemark.recovery.crash_harness.kill_loop import kill_loop
from tidemark.recovery.crash_harness.program import Ledger, Violation

BANK = "tests.crash.programs.bank"
HISTORY = "tests.crash.programs.history"
NUMBERS = "tests.crash.programs.numbers_history"


def test_kills_of_one_store_lose_nothing(tmp_path: Path) -> None:
    path = str(tmp_path / "store")
    report = kill_loop(f"{BANK}:work", f"{BANK}:verify", path, kills=3, seed=5, life_ms_max=200, lines_max=60)
    assert report.kills == 3
    assert report.acknowledged >= report.awaited > 20


def test_kills_of_a_store_with_disk_columns_lose_nothing(tmp_path: Path) -> None:
    path = str(tmp_path / "store")
    report = kill_loop(f"{BANK}:disk_work", f"{BANK}:verify", path, kills=3, seed=5, life_ms_max=200, lines_max=40)
    assert report.kills == 3
    assert report.acknowledged >= report.awaited > 10
    with tm.open(path, background=False, data_memory="64 MiB") as db:
        assert db.check()["problems"] == []


def test_kills_between_durable_calls_of_one_row_lose_nothing(tmp_path: Path) -> None:
    path = str(tmp_path / "store")
    verify = "tidemark.recovery.crash_harness.program:whole_state"
    report = kill_loop(f"{HISTORY}:durable_single_work", verify, path, kills=3, seed=5, life_ms_max=200, lines_max=60)
    assert report.kills == 3
    assert report.acknowledged >= report.awaited > 10


def test_kills_of_a_store_that_gives_numbers_give_none_twice(tmp_path: Path) -> None:
    path = str(tmp_path / "store")
    work, verify = f"{NUMBERS}:endless_work", f"{NUMBERS}:verify"
    report = kill_loop(work, verify, path, kills=3, seed=5, life_ms_max=200, lines_max=60)
    assert report.kills == 3
    assert report.acknowledged >= report.awaited > 10


def test_life_of_the_store_with_disk_columns_reaches_what_the_kills_are_for(tmp_path: Path) -> None:
    """Timers make local checkpoints: a life too short for one, on a fast machine, is followed by a longer one."""
    reached: list[bool] = []
    for transfers in (150, 600, 2_400, 9_600):
        stores: list[tm.Database] = []

        def open_store(
            *, stores: list[tm.Database] = stores, transfers: int = transfers, **options: Any
        ) -> tm.Database:
            stores.append(tm.open(tmp_path / f"store {transfers}", **options))
            return stores[-1]

        bank.disk_work(open_store, 3, Ledger(), transfers=transfers)
        status = stores[0].status()
        reached = [
            status["disk"]["page_buffer"]["4096"]["pages_written"] > 25,
            status["disk"]["undo"]["records_filtered"] > 0,
            status["lcp"]["completed"] > 0,
        ]
        if all(reached):
            break
    assert all(reached), reached


def test_broken_promise_is_seen(tmp_path: Path) -> None:
    with pytest.raises(Violation, match="kill 1 of the store in .*: nothing is right"):
        kill_loop(f"{BANK}:work", lambda db, ledger: ["nothing is right"], str(tmp_path / "store"), kills=2, seed=5)
