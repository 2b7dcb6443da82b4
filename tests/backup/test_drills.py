"""Drills on a schedule, and the commands `backup drill` and `restore --plan --processes`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import tidemark as tm
from tests.backup.support import content
from tidemark.backup import drills
from tidemark.cli.commands import commands
from tidemark.engine.base.clock import ManualClock

ROOM: dict[str, Any] = {"data_memory": "16 MiB", "redo_log": "1 MiB", "undo_log": "1 MiB"}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    with tm.open(tmp_path / "store", background=False, **ROOM) as db:
        columns = [tm.Column("id", tm.Int64), tm.Column("n", tm.Int64)]
        db.create_table("test.t", columns, "id", tm.HashPartition(8))
        db.create_table("test.d", [*columns[:1], tm.Column("d", tm.Int64, storage="disk")], "id")
        db["test.t"].insert_many([(key, key) for key in range(100)])
        db["test.d"].insert((1, 2))
        db.backup(tmp_path / "place")
    return tmp_path / "place"


def test_drills_come_at_their_times_and_end_with_the_first_that_fails(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()
    began, times = clock.monotonic(), []
    for report in drills(place, tmp_path / "scratch", 60, clock=clock, **ROOM):
        times.append(clock.monotonic() - began)
        assert report["is_sound"] and report["restored"]["rows"] == 101
        clock.advance(70 if len(times) == 2 else 5)  # the second one takes longer than the distance
        if len(times) == 4:
            break
    assert [round(each) for each in times] == [0, 60, 180, 240]  # the multiple that was missed is left out


@pytest.mark.parametrize("wrong", [0, -1, True, float("nan"), "1h"])
def test_interval_that_is_not_above_0_is_refused_before_a_drill(wrong: Any, tmp_path: Path) -> None:
    """Story: an interval of 0 divided by zero, after the first drill."""
    with pytest.raises(tm.Rejected, match="every_seconds must be"):
        next(drills(tmp_path / "none", tmp_path / "scratch", wrong))
    assert list(tmp_path.iterdir()) == []


def test_drill_that_finds_a_problem_is_the_last(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidemark.backup.check_store", lambda *_, **__: {"is_sound": False, "problems": ["planted"]})
    reports = list(drills(place, tmp_path / "scratch", 60, clock=ManualClock(), **ROOM))
    assert len(reports) == 1
    with tm.open(tmp_path / "scratch", background=False, **ROOM) as left:  # to be looked at
        assert len(left["test.t"]) == 100


def test_commands_plan_and_restore_by_tasks_and_drill(place: Path, tmp_path: Path) -> None:
    runner = CliRunner()
    planned = runner.invoke(commands, ["restore", str(place), "--plan", "--processes", "2"])
    assert planned.exit_code == 0, planned.output
    assert "disk columns" in planned.output and "test.t/" in planned.output and "(8)" in planned.output
    found = runner.invoke(commands, ["restore", str(place), str(tmp_path / "copy"), "--processes", "2", "--json"])
    assert found.exit_code == 0, found.output
    assert json.loads(found.stdout)["rows"] == 101
    with (
        tm.open(tmp_path / "copy", background=False, **ROOM) as copy,
        tm.open(tmp_path / "store", background=False, **ROOM) as store,
    ):
        assert content(copy) == content(store)
    drilled = runner.invoke(commands, ["backup", "drill", str(place), str(tmp_path / "scratch"), "--json"])
    assert drilled.exit_code == 0, drilled.output
    for wrong in ("x", "6", "0h", "h", "-1m"):
        refused = runner.invoke(
            commands, ["backup", "drill", str(place), str(tmp_path / "scratch"), f"--every={wrong}"]
        )
        assert refused.exit_code == 2 and "--every" in refused.output
