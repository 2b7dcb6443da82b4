"""SIGKILL on a real directory, again and again."""

from __future__ import annotations

from pathlib import Path

import pytest

from recovery.crash_harness.kill_loop import kill_loop
from recovery.crash_harness.program import Violation

BANK = "recovery.crash_harness.bank"


def test_kills_of_one_store_lose_nothing(tmp_path: Path) -> None:
    report = kill_loop(f"{BANK}:work", f"{BANK}:verify", str(tmp_path / "store"), kills=8, seed=5)
    assert report.kills == 8
    assert report.acknowledged > 100


@pytest.mark.soak
def test_two_hundred_kills_of_one_store_lose_nothing(tmp_path: Path) -> None:
    report = kill_loop(f"{BANK}:work", f"{BANK}:verify", str(tmp_path / "store"), kills=220, seed=20_261_121)
    print(report)
    assert report.kills == 220


def test_broken_promise_is_seen(tmp_path: Path) -> None:
    with pytest.raises(Violation, match="kill 1: nothing is right"):
        kill_loop(f"{BANK}:work", lambda db, ledger: ["nothing is right"], str(tmp_path / "store"), kills=2, seed=5)
