"""`tm.restore(binlog=)` and `tidemark restore --binlog`: plans, lists, positions, notes, tasks elsewhere."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import tidemark as tm
import tidemark.spark
from tests.backup.binlog_support import ROOM, Tables, content, noted
from tests.cli.support import document, run
from tidemark.backup import backups, plan, restore
from tidemark.recovery.backup.tasks import restore_fragment
from tidemark.recovery.spark import jobs

OPTIONS: dict[str, Any] = {
    "server_id": 5,
    "log_bin": "changes",
    "background": False,
    "log_empty_update": True,
    **ROOM,
}
COLUMNS = [tm.Column("id", tm.Int64), tm.Column("n", tm.Int64, nullable=True)]


def worked(path: Path, place: Path) -> tuple[Any, dict[int, Tables]]:
    """An open store, backed up, with three epochs after that."""
    db = tm.open(path, **OPTIONS)
    history: dict[int, Tables] = {}
    db.create_table("test.t", COLUMNS, "id")
    db["test.t"].insert_many([(key, key) for key in range(30)])
    noted(db, history)
    db.backup(place)
    for key in range(3):
        db["test.t"].update(key, {"n": None})
        db["test.t"].delete(29 - key)
        noted(db, history)
    return db, history


def test_plan_and_list_show_the_reach_of_the_binlog(tmp_path: Path) -> None:
    db, history = worked(tmp_path / "store", tmp_path / "place")
    first, *_, last = sorted(history)
    listed = backups(tmp_path / "place", binlog=tmp_path / "store" / "binlog")["binlog"]
    assert listed["first_epoch"] <= first and listed["last_epoch"] == last and listed["first_wall_us"] > 0
    assert listed["gaps"] == [] and listed["damage"] == "" and listed["files"][0]["file"] == "changes.000001"
    planned = plan(tmp_path / "place", binlog=tmp_path / "store")
    assert planned["epoch"] == planned["reach"] == planned["binlog"]["last_epoch"] == last
    assert planned["binlog"]["epochs"] == 3 and planned["binlog"]["files"][0]["bytes"] > 0
    assert "binlog" not in backups(tmp_path / "place") and plan(tmp_path / "place")["binlog"] is None
    with pytest.raises(tm.ValueOutOfRange, match=f"is after {last}"):
        plan(tmp_path / "place", last + 1, binlog=tmp_path / "store")
    db.close()


def test_tasks_run_in_other_processes_and_the_binlog_is_applied_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by Spark, of a store that is open."""
    monkeypatch.setattr(jobs, "restorer", lambda spark: lambda tasks: map(restore_fragment, tasks))
    no_spark: Any = None
    db, history = worked(tmp_path / "store", tmp_path / "place")
    reported: list[tuple[int, int, str]] = []
    report = tidemark.spark.restore(
        no_spark,
        tmp_path / "place",
        tmp_path / "copy",
        binlog=tmp_path / "store",
        apply_status=True,
        progress=lambda *said: reported.append(said),
        **ROOM,
    )
    last = max(history)
    assert (report["epoch"], report["later_epochs"], report["later_rows"], report["notes"]) == (last, 3, 6, [])
    assert reported[-1] == (3, 3, "epochs") and report["is_verified"]
    with tm.open(tmp_path / "copy", background=False, **ROOM) as copy:
        assert content(copy)["test.t"] == history[last]["test.t"]
        (row,) = copy["mysql.ndb_apply_status"].scan()
        assert (row.server_id, row.epoch) == (5, last)
        assert len(copy["mysql.ndb_binlog_index"]) == 0
    # A replica made of it continues where it ends.
    db["test.t"].insert((500, 1))
    db.sync()
    with tm.open(tmp_path / "copy", background=False, server_id=6, **ROOM) as copy, tm.Channel(db, copy) as channel:
        channel.apply_all()
        assert [tuple(row) for row in copy["test.t"].scan()] == [tuple(row) for row in db["test.t"].scan()]
    db.close()


def test_what_a_binlog_is_known_to_lack_is_reported(tmp_path: Path) -> None:
    with tm.open(tmp_path / "store", **OPTIONS) as db:
        db.create_replication_table()
        db["mysql.ndb_replication"].insert(
            {"db": b"test", "table_name": b"quiet", "server_id": 0, "binlog_type": 1, "conflict_fn": None}
        )
    with tm.open(tmp_path / "store", **OPTIONS) as db:
        for name in ("test.quiet", "test.t"):
            db.create_table(name, COLUMNS, "id")
        db.backup(tmp_path / "place")
        db["test.quiet"].insert((1, 1))
        db["test.t"].insert((1, 1))
        db.sync()
    report = restore(tmp_path / "place", tmp_path / "copy", binlog=tmp_path / "store", **ROOM)
    assert len(report["notes"]) == 1 and report["notes"][0].startswith("test.quiet is not logged (binlog_type 1)")
    with tm.open(tmp_path / "copy", background=False, **ROOM) as copy:
        assert len(copy["test.t"]) == 1 and len(copy["test.quiet"]) == 0


def test_command_restores_with_a_binlog(tmp_path: Path) -> None:
    db, history = worked(tmp_path / "store", tmp_path / "place")
    db.close()
    place, binlog = tmp_path / "place", tmp_path / "store" / "binlog"
    first, _, third, last = sorted(history)
    shown = run("restore", place, "--list", "--binlog", binlog)
    assert shown.exit_code == 0 and f"to {last} (" in shown.stdout and "binlog changes.000001" in shown.stdout
    listed = document("restore", place, "--list", "--binlog", binlog)["binlog"]
    at = datetime.fromtimestamp(listed["last_wall_us"] / 1e6, UTC).isoformat(timespec="seconds")
    assert at in shown.stdout
    shown = run("restore", place, "--plan", "--until", third, "--binlog", binlog)
    assert shown.exit_code == 0 and "2 epochs, from" in shown.stdout and f"ends at epoch {third} (" in shown.stdout
    done = run("restore", place, tmp_path / "copy", "--until", third, "--binlog", binlog, "--data-memory", "64 MiB")
    assert done.exit_code == 0, done.output
    with tm.open(tmp_path / "copy", background=False, **ROOM) as copy:
        assert content(copy)["test.t"] == history[third]["test.t"]
    failed = run("restore", place, tmp_path / "other", "--until", last + 9, "--binlog", binlog)
    assert failed.exit_code == 1 and failed.stderr.count("\n") == 1 and not (tmp_path / "other").exists()
    assert first < third
