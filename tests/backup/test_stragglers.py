"""Tasks of a restore that outlive their executor: what they do meanwhile, or leave when they are killed, hinders no
later restore.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tidemark as tm
from tests.backup.support import SMALL
from tidemark.recovery.backup.restore import Restore
from tidemark.recovery.backup.restore_task import RestoreTask, TaskReport
from tidemark.recovery.backup.tasks import is_of_attempt, restore_fragment
from tidemark.recovery.local_checkpoint.data_file import FOLDER

ROWS = 300


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A backup, and log after it."""
    path = tmp_path_factory.mktemp("backups")
    with tm.open(path.parent / "source", **SMALL) as db:
        db.create_table("numbers", [tm.Column("id", tm.Int64)], "id", partition=tm.HashPartition(3))
        db.archive(path)
        db["numbers"].insert_many([(key,) for key in range(ROWS + 10)])
        db.backup(path)
        db["numbers"].delete_many(range(10))
        db.sync()
        db.archive()
    return path


class Runner:
    """Carry out the tasks in this process; call `behind` with the last one when all of them are done."""

    def __init__(self, after_last: Callable[[RestoreTask], None] = lambda task: None) -> None:
        self._after_last = after_last
        self.kinds: list[str] = []

    def __call__(self, tasks: list[RestoreTask]) -> Iterator[TaskReport]:
        reports = [restore_fragment(task) for task in tasks]
        self.kinds.append(tasks[-1].kind)
        self._after_last(tasks[-1])
        yield from reports


def restored(place: Path, path: Path, runner: Runner) -> None:
    """Restore; return the content of the store."""
    assert tm.restore(place, path, runner=runner, processes=2, **SMALL)["rows"] == ROWS
    assert runner.kinds == ["split", "fragments"]
    assert not attempts(path)
    with tm.open(path, create=False, **SMALL) as db:
        assert sorted(row[0] for row in db["numbers"].scan()) == list(range(10, ROWS + 10))


def attempts(path: Path) -> list[str]:
    return [name for each in (path / FOLDER).glob("*") if is_of_attempt(name := f"{FOLDER}/{each.name}")]


def files_below(path: Path) -> list[str]:
    return [each.name for each in path.rglob("*") if each.is_file() and each.name != "LOCK"]


@pytest.fixture
def vanishing(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Names of files that are removed as soon as they have been listed."""
    from tidemark.engine.files.directory import PosixFiles

    names: list[str] = []
    real = PosixFiles.list

    def list_and_lose(files: PosixFiles, folder: str = "") -> Any:
        found = real(files, folder)
        for name in list(names):
            if folder and name.startswith(folder + "/"):
                (Path(files.directory) / name).unlink()
                names.remove(name)
        return found

    monkeypatch.setattr(PosixFiles, "list", list_and_lose)
    yield names
    assert not names


def test_task_that_takes_its_file_back_while_files_are_swept_does_not_fail_the_restore(
    place: Path, tmp_path: Path, vanishing: list[str]
) -> None:
    """Story: an executor was lost, and its task done again by another one. The first attempt, still alive, found the
    split files gone and removed its own file, which the restore had just listed: `FileMissing` ended a restore that was
    complete.
    """

    def again(task: RestoreTask) -> None:
        if task.kind == "fragments":
            before = set(attempts(tmp_path / "copy"))
            restore_fragment(task)
            vanishing.extend(sorted(set(attempts(tmp_path / "copy")) - before)[:1])

    restored(place, tmp_path / "copy", Runner(again))


def test_task_that_takes_its_file_back_does_not_stop_the_clearing_of_a_restore_that_failed(
    place: Path, tmp_path: Path, vanishing: list[str]
) -> None:
    """Story: the same during the abort of a restore. The clearing stopped at the file that was gone; the mark and all
    other files stayed, though an error of a restore must empty its directory.
    """

    def fail(task: RestoreTask) -> None:
        vanishing.extend(attempts(tmp_path / "copy")[:1])
        raise tm.BackupDamaged("planned")

    with pytest.raises(tm.BackupDamaged, match="planned"):
        tm.restore(place, tmp_path / "copy", runner=Runner(fail), processes=2, **SMALL)
    assert files_below(tmp_path / "copy") == []


def test_file_of_a_task_that_was_killed_after_the_end_of_its_restore_does_not_disturb_the_next(
    place: Path, tmp_path: Path
) -> None:
    """Story: a task outlived its executor, made its file after the restore had been aborted, and was killed before it
    could find that out. Every later restore into the directory was refused ("is not empty").
    """
    kept: dict[str, bytes] = {}

    def fail(task: RestoreTask) -> None:
        kept.update({name: (tmp_path / "copy" / name).read_bytes() for name in attempts(tmp_path / "copy")})
        raise tm.BackupDamaged("planned")

    with pytest.raises(tm.BackupDamaged, match="planned"):
        tm.restore(place, tmp_path / "copy", runner=Runner(fail), processes=2, **SMALL)
    assert kept
    for name, content in kept.items():
        (tmp_path / "copy" / name).write_bytes(content)
    # If there are other files, they are left alone.
    (tmp_path / "copy" / "notes").write_text("mine")
    with pytest.raises(tm.Rejected, match="not empty"):
        tm.restore(place, tmp_path / "copy", **SMALL)
    assert len(attempts(tmp_path / "copy")) == len(kept)
    (tmp_path / "copy" / "notes").unlink()
    restored(place, tmp_path / "copy", Runner())


def test_task_that_ends_after_the_sweep_leaves_no_file_in_the_store(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Story: an attempt ended between the sweep of attempts and the end of the restore. It saw that the restore was
    under way, and its file stayed in the new store.
    """
    last: list[RestoreTask] = []
    real = Restore.compare

    def compare(restore: Restore, rows: Any) -> int:
        # It needs no split file any more: it has read all of them.
        late = [part | {"sections": []} for part in last[-1].work]
        restore_fragment(RestoreTask(**{**last[-1].__dict__, "work": late}))
        assert attempts(tmp_path / "copy")
        return real(restore, rows)

    monkeypatch.setattr(Restore, "compare", compare)
    restored(place, tmp_path / "copy", Runner(last.append))
