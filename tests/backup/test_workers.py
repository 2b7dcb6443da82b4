"""Worker processes of a restore killed again and again: no half-made store opens, and another attempt completes it."""

from __future__ import annotations

import errno
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import tidemark as tm
from tests.backup.support import Tables, content
from tidemark.backup import restore
from tidemark.recovery.backup import workers as room
from tidemark.recovery.backup.restore_task import FRAGMENTS, RestoreTask
from tidemark.recovery.backup.workers import Workers

ROOM: dict[str, Any] = {"data_memory": "64 MiB", "redo_log": "4 MiB", "background": False}
TASK = RestoreTask(FRAGMENTS, 0, "/nowhere", "/nowhere", "00" * 16, "00" * 16, 1, 2, 0, 0)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Tables]:
    folder = tmp_path_factory.mktemp("backups")
    with tm.open(folder / "store", **ROOM) as db:
        columns = [tm.Column("id", tm.Int64), tm.Column("n", tm.Binary(100))]
        for name in ("a", "b"):
            db.create_table(f"test.{name}", columns, "id", tm.HashPartition(4))
            db[f"test.{name}"].insert_many([(key, bytes(100)) for key in range(3_000)])
        db.archive(folder / "place")
        db.backup(folder / "place")
        db["test.a"].update_many([{"id": key, "n": b"x" * 100} for key in range(0, 3_000, 3)])
        db.backup(folder / "place", incremental=True)
        db["test.b"].delete_many(list(range(0, 3_000, 7)))
        db.archive()
        want = content(db)
    return folder / "place", want


def opened(path: Path) -> Tables:
    with tm.open(path, create=False, **ROOM) as db:
        assert db.check()["problems"] == []
        return content(db)


def test_several_processes_make_the_store_that_one_makes(
    place: tuple[Path, Tables], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidemark.recovery.backup.planner.TASK_BYTES_MIN", 1)  # many tasks
    monkeypatch.setattr("tidemark.recovery.backup.planner.TASKS_EACH", 100)
    said: list[tuple[int, int, str]] = []
    two = restore(place[0], tmp_path / "two", processes=2, progress=lambda *what: said.append(what), **ROOM)
    one = restore(f"file://{place[0]}", tmp_path / "one", **ROOM)
    assert two["tasks"] >= 8 and two["rows"] == one["rows"] and two["operations"] == one["operations"]
    assert said[-1][0] == said[-1][1] == 6_000
    assert opened(tmp_path / "two") == opened(tmp_path / "one") == place[1]


def test_worker_killed_at_any_time_is_replaced_and_the_store_whole(
    place: tuple[Path, Tables], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each process that is started first is killed while it is at its first task."""
    monkeypatch.setattr("tidemark.recovery.backup.planner.TASK_BYTES_MIN", 1)
    made: list[subprocess.Popen[str]] = []
    real = subprocess.Popen

    def popen(*arguments: Any, **how: Any) -> Any:
        process = real(*arguments, **how)
        made.append(process)
        if len(made) in (1, 3):
            process.kill()
        return process

    monkeypatch.setattr(room.subprocess, "Popen", popen)
    report = restore(place[0], tmp_path / "copy", processes=2, **ROOM)
    assert len(made) >= 4 and report["is_verified"]
    assert all(process.poll() is not None for process in made)  # none outlives the restore
    assert opened(tmp_path / "copy") == place[1]


def test_task_whose_process_dies_each_time_ends_the_restore(
    place: tuple[Path, Tables], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = subprocess.Popen

    def popen(*arguments: Any, **how: Any) -> Any:
        process = real(*arguments, **how)
        process.kill()
        return process

    with monkeypatch.context() as patch, pytest.raises(tm.LimitExceeded, match="died 3 times"):
        patch.setattr(room.subprocess, "Popen", popen)
        restore(place[0], tmp_path / "copy", processes=2, **ROOM)
    assert [path for path in (tmp_path / "copy").rglob("*") if path.is_file() and path.name != "LOCK"] == []
    restore(place[0], tmp_path / "copy", **ROOM)
    assert opened(tmp_path / "copy") == place[1]


@pytest.mark.parametrize(
    ("code", "kind"), [(errno.EMFILE, tm.TooManyFiles), (errno.EAGAIN, tm.MemoryExhausted), (errno.ENOENT, tm.Rejected)]
)
def test_process_that_cannot_be_started_ends_the_restore(
    code: int, kind: type[tm.Error], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Story: no process could be started. The error ended the thread that was to talk to it, silently, and the restore
    waited for its report without end.
    """

    def popen(*arguments: Any, **how: Any) -> Any:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(room.subprocess, "Popen", popen)
    with Workers(2) as workers, pytest.raises(kind, match="with fewer processes"):
        list(workers([TASK, TASK]))


def killed_restores(place: tuple[Path, Tables], tmp_path: Path, turns: int, seed: int) -> int:
    """Kill the restoring process at random moments, and its workers with it; return how often a store was left."""
    print(f"seed {seed}")
    rng = random.Random(seed)
    program = (
        "import sys; from tidemark.backup import restore; print('go', flush=True);"
        f" restore({str(place[0])!r}, sys.argv[1], processes=2, data_memory='64 MiB', redo_log='4 MiB');"
        " print('done', flush=True)"
    )
    whole = 0
    for turn in range(turns):
        path = tmp_path / f"copy{turn}"
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        process = subprocess.Popen(
            [sys.executable, "-c", program, str(path)],
            stdout=subprocess.PIPE,
            env=environment,
            start_new_session=True,
            text=True,
        )
        assert process.stdout is not None and process.stdout.readline() == "go\n"
        timer = threading.Timer(rng.uniform(0, 8), os.killpg, (process.pid, signal.SIGKILL))
        timer.start()
        is_done = process.stdout.readline() == "done\n"
        timer.cancel()
        process.wait()
        process.stdout.close()
        try:
            assert opened(path) == place[1]
            whole += 1
        except (tm.RestoreUnfinished, tm.FileMissing):
            assert not is_done
            # Into what it left.
            restore(place[0], path, processes=1, verify=False, **ROOM)
            assert opened(path) == place[1]
        shutil.rmtree(path)
    return whole


def test_restore_killed_with_its_workers_leaves_no_store_or_the_whole_one(
    place: tuple[Path, Tables], tmp_path: Path
) -> None:
    killed_restores(place, tmp_path, 3, 23)


@pytest.mark.soak
def test_restore_killed_again_and_again_leaves_no_store_or_the_whole_one(
    place: tuple[Path, Tables], tmp_path: Path
) -> None:
    assert 0 < killed_restores(place, tmp_path, 60, 29) < 60


def test_error_of_a_task_keeps_its_class_and_evidence() -> None:
    with Workers(1) as workers, pytest.raises(tm.FileMissing) as found:
        list(workers([TASK]))
    assert found.value.evidence["file"] == "/nowhere"
    assert workers.pids == []
