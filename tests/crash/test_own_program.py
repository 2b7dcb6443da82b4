"""A user's own program under the harness, by its command: a right one passes; a wrong one is reported,
with the place.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import tidemark as tm
from tidemark.recovery.crash_harness.__main__ import main
from tidemark.recovery.crash_harness.program import Ledger, OpenStore

HERE = "tests.crash.test_own_program"


def work(open_store: OpenStore, seed: int, ledger: Ledger) -> None:
    db = open_store()
    if "app.event" not in db:
        db.create_table("app.event", [tm.Column("id", tm.Int64)], primary_key="id")
    first = len(db["app.event"])
    for number in range(first, first + 8):
        db["app.event"].insert((number,))
        ledger.acknowledge(str(number))
    db.checkpoint()
    db.close()


def hasty_work(open_store: OpenStore, seed: int, ledger: Ledger) -> None:
    """Takes a commit that does not wait for the disk for a durable one."""
    db = open_store(durability="epoch")
    db.create_table("app.event", [tm.Column("id", tm.Int64)], primary_key="id")
    for number in range(8):
        db["app.event"].insert((number,))
        ledger.acknowledge(str(number))
    db.close()


def verify(db: Any, ledger: Ledger) -> list[str]:
    held = {row.id for row in db["app.event"].scan()} if "app.event" in db else set()
    return [f"event {line} is lost" for line in ledger.acknowledged if int(line) not in held]


def test_right_program_passes_and_figures_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["states", "--work", f"{HERE}:work", "--verify", f"{HERE}:verify", "--distinct", "100", "--json"]
    assert main(asked) == 0
    assert json.loads(capsys.readouterr().out)["distinct"] >= 100
    asked = ["anomalies", "--only", "sync-error", "--work", f"{HERE}:work", "--verify", f"{HERE}:verify"]
    assert main(asked) == 0
    assert "points" in capsys.readouterr().out


def test_wrong_program_is_reported_with_seed_and_place(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["states", "--work", f"{HERE}:hasty_work", "--verify", f"{HERE}:verify", "--seed", "3"]
    assert main(asked) == 1
    reported = capsys.readouterr().err
    assert "seed 3" in reported and "point" in reported and "event 0 is lost" in reported


def test_program_that_ends_is_verified_and_not_counted_as_killed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bank = "tests.crash.programs.bank"
    asked = ["kills", str(tmp_path / "store"), "--kills", "1", "--life-ms-max", "1"]
    assert main([*asked, "--work", f"{bank}:work", "--verify", f"{bank}:verify", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["kills"] == 1


def test_unknown_program_is_an_error_in_words() -> None:
    with pytest.raises(tm.SchemaInvalid, match="cannot be imported"):
        main(["states", "--work", "nowhere:work"])
