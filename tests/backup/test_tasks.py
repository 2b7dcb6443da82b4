"""A restore by tasks equals the restore by one thread; tasks done twice, late or elsewhere leave no file."""

from __future__ import annotations

import errno
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tidemark as tm
from tests.backup.support import SMALL, Tables, archived, content, content_of, restored, take
from tests.snapshot.watched import Watched
from tests.store.support import open_memory
from tidemark.backup import plan, restore, verify
from tidemark.engine.base.clock import ManualClock
from tidemark.engine.base.options import Options
from tidemark.recovery.backup import split as split_room
from tidemark.recovery.backup.plan import make_plan
from tidemark.recovery.backup.restore import Restore, RestoreSettings
from tidemark.recovery.backup.restore_task import FRAGMENTS, SPLIT, RestoreTask, TaskReport
from tidemark.recovery.backup.tasks import restore_fragment, run_task
from tidemark.recovery.crash_harness.disks.faults import FaultFiles, Rule
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles
from tidemark.recovery.local_checkpoint.control import control_ids, read_controls

ROOM: dict[str, Any] = {
    "data_memory": "64 MiB",
    "redo_log": "16 MiB",
    "undo_log": "16 MiB",
    "page_buffer": "1 MiB",
}
SHAPES = {
    "hash": tm.HashPartition(3),
    "ranges": tm.RangePartition("id", [("low", 70), ("middle", 140), ("rest", tm.MAXVALUE)]),
}


def indexed(files: MemoryFiles) -> dict[str, list[Any]]:
    """The entries of each index of a store, in its order; and the numbers the next tables get."""
    db = open_memory(MemoryFiles.from_snapshot(files.snapshot()), **ROOM)
    try:
        found: dict[str, list[Any]] = {"numbers": [db.parts.store.tables.next_id]}
        for name in db.tables():
            for each in db.indexes(name):
                found[f"{name}.{each['name']}"] = [tuple(row) for row in db[name].scan(index=each["name"])]
        return found
    finally:
        db.close()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("seed", [31, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(32, 40))])
def test_fragments_by_tasks_equal_tables_made_by_one_hand_at_every_epoch(
    seed: int, shape: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    print(f"seed {seed}")
    # Sections consist of many pieces, from many split files.
    monkeypatch.setattr(split_room, "POOL_WORDS", 3_000)
    store, place, rng = Watched(seed, False, SHAPES[shape]), MemoryFiles(), random.Random(seed)
    archive = archived(store.db, place)
    for _ in range(10):
        store.transaction()
    take(store.db, place)
    history: dict[int, Tables] = {}
    for step in range(8):
        for _ in range(rng.randrange(1, 5)):
            store.transaction()
        if step in (0, 3):
            take(store.db, place, incremental=True)
        history[store.db.sync()] = content(store.db)
        archive.copy()
    # Rows of backup and log from before and after a change of the table's columns.
    name = store.db.tables()[0]
    store.db.add_column(name, tm.Column("extra", tm.VarChar(9), default="d"))
    keys = [row[0] for row in store.db[name].scan(columns=["id"])]
    store.db[name].update_many([{"id": key, "extra": "e"} for key in keys[::3]])
    store.db[name].delete_many(keys[1::3])
    last = store.db.sync()
    history[last] = content(store.db)
    archive.copy()
    for epoch in {last, *rng.sample(sorted(history), 2)}:
        by_tasks = restored(place, until=epoch, **ROOM)
        by_hand = restored(place, until=epoch, how=RestoreSettings(native=frozenset(store.db.tables())), **ROOM)
        assert content_of(by_tasks, **ROOM) == content_of(by_hand, **ROOM) == history[epoch], f"epoch {epoch}"
        assert indexed(by_tasks) == indexed(by_hand)
    store.db.close()


def history_of(db: Any, place: MemoryFiles) -> None:
    """A chain of two backups, archived log after it, all in several fragments of two tables."""
    for name, count in (("a", 3), ("b", 1)):
        columns = [tm.Column("id", tm.Int64), tm.Column("n", tm.VarChar(30))]
        db.create_table(f"test.{name}", columns, "id", tm.HashPartition(count))
        db[f"test.{name}"].insert_many([(key, f"n{key}") for key in range(200)])
    archive = archived(db, place)
    take(db, place)
    db["test.a"].delete_many(list(range(0, 200, 7)))
    db["test.a"].update_many([(key, "changed") for key in range(1, 200, 7)])
    take(db, place, incremental=True)
    db["test.a"].write_many([(key, "late") for key in range(0, 300, 5)])
    db["test.b"].delete_many(list(range(100)))
    db.sync()
    archive.copy()


@pytest.fixture(scope="module")
def backed_up() -> tuple[dict[str, bytes], Tables]:
    db, place = open_memory(None, **ROOM), MemoryFiles()
    history_of(db, place)
    want = content(db)
    db.close()
    return place.snapshot(), want


def prepared(contents: dict[str, bytes], runner: Any, files: MemoryFiles) -> Restore:
    place = MemoryFiles.from_snapshot(contents)
    merged = Options.from_keywords({**SMALL, **ROOM})
    how = RestoreSettings(runner=lambda tasks: runner(tasks, place, files), parallel=4)
    return Restore(place, make_plan(place), files, merged, ManualClock(), how)


def leaves(files: MemoryFiles) -> list[str]:
    return [name for name in files.snapshot() if name.startswith("lcp/") and not name.endswith("/")]


def test_tasks_done_twice_and_aborted_leave_one_file_of_each_fragment(
    backed_up: tuple[dict[str, bytes], Tables],
) -> None:
    files = MemoryFiles()
    kinds = []

    def runner(tasks: list[RestoreTask], place: Any, target: Any) -> Iterator[TaskReport]:
        for number, task in enumerate(reversed(tasks)):
            kinds.append(task.kind)
            again = RestoreTask.from_json(task.to_json())
            assert again == task
            # Random names differ between attempts.
            late = run_task(again, place, target, ManualClock(100 + number))
            first = run_task(task, place, target, ManualClock(200 + number))
            assert late.rows == first.rows and late != first
            yield TaskReport.from_json(first.to_json())
            yield late  # a straggler: the first attempt counts

    prepared(backed_up[0], runner, files).run()
    assert set(kinds) == {SPLIT, FRAGMENTS}
    assert len(leaves(files)) == 4 + 2  # a data file of each fragment, copies and control file
    assert content_of(MemoryFiles.from_snapshot(files.snapshot()), **ROOM) == backed_up[1]


def test_task_that_comes_late_is_refused_and_writes_nothing(backed_up: tuple[dict[str, bytes], Tables]) -> None:
    files, kept = MemoryFiles(), []

    def runner(tasks: list[RestoreTask], place: Any, target: Any) -> Iterator[TaskReport]:
        for task in tasks:
            kept.append(task)
            yield run_task(task, place, target, ManualClock(len(kept)))

    prepared(backed_up[0], runner, files).run()
    after = MemoryFiles.from_snapshot(files.snapshot())
    before = after.snapshot()
    other = prepared(backed_up[0], runner, again := MemoryFiles())
    for task in list(kept):
        with pytest.raises(tm.Rejected, match="has ended or was abandoned"):
            run_task(task, MemoryFiles.from_snapshot(backed_up[0]), after, ManualClock(99))
    assert after.snapshot() == before
    # Into a directory that was emptied and is restored into again: another store, another restore.
    earlier = list(kept)
    other.run()
    unfinished = MemoryFiles.from_snapshot({**again.snapshot(), "restoring": b""})
    changed = [task for task in earlier if task.store != kept[-1].store]
    for task in changed or [RestoreTask(**{**kept[0].__dict__, "store": "00" * 16})]:
        with pytest.raises(tm.Rejected, match="has ended or was abandoned"):
            run_task(task, MemoryFiles.from_snapshot(backed_up[0]), unfinished, ManualClock(98))


def test_runner_that_loses_a_report_makes_no_store(backed_up: tuple[dict[str, bytes], Tables]) -> None:
    files = MemoryFiles()

    def runner(tasks: list[RestoreTask], place: Any, target: Any) -> Iterator[TaskReport]:
        for task in tasks[:-1] if tasks[0].kind == FRAGMENTS else tasks:
            yield run_task(task, place, target, ManualClock(task.number))

    with pytest.raises(tm.Error, match="tasks of a restore"):
        prepared(backed_up[0], runner, files).run()
    with pytest.raises(tm.RestoreUnfinished):
        open_memory(MemoryFiles.from_snapshot(files.snapshot()), **ROOM)


def test_checkpoints_that_lack_rows_are_not_fallen_back_to() -> None:
    """Story: when the UNDO records of a restore of disk columns fill the log, the restore empties it with local
    checkpoints on the way. They were kept next to the last one, and an opening fell back to them when a data file of
    the last one was damaged: rows were missing, without an error.
    """
    options: dict[str, Any] = {**ROOM, "transaction_memory": "16 MiB"}
    db, place = open_memory(None, **options), MemoryFiles()
    columns = [tm.Column("id", tm.Int64), tm.Column("n", tm.Binary(100), storage="disk")]
    db.create_table("test.t", columns, "id", tm.HashPartition(1))
    db["test.t"].insert_many([(key, b"a" * 100) for key in range(40_000)])
    take(db, place)
    db.close()
    small = {**options, "undo_log": "4 MiB"}
    files = restored(place, **small)
    (number,) = control_ids(files)
    assert number > 2  # some were made on the way
    (control,) = read_controls(files, next(iter(find_store(files))))
    assert control.fragments[next(iter(control.fragments))][0] == 40_000
    contents = files.snapshot()
    name = next(each for each in contents if each.startswith(f"lcp/{number}-") and "copies" not in each)
    harmed = bytearray(contents[name])
    harmed[len(harmed) // 2] ^= 1
    with pytest.raises(tm.Damaged):
        open_memory(MemoryFiles.from_snapshot({**contents, name: bytes(harmed)}), **small)


def find_store(files: MemoryFiles) -> list[bytes]:
    """UUID of a store, from its sysfile."""
    from tidemark.recovery.system_restart.sysfile import read_sysfile

    found = read_sysfile(files)
    assert found is not None
    return [found.store]


def test_two_rows_of_one_key_in_the_log_are_found_by_the_verification(
    backed_up: tuple[dict[str, bytes], Tables], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks place no row in an index: a duplicate key is reported when the store is brought back."""
    from tidemark.recovery.backup import fragment as room

    real = room.put_new_rows

    def spoiled(folded: Any, changes: Any, shape: Any, out: Any, used: Any, state: Any) -> int:
        status = int(real(folded, changes, shape, out, used, state))
        before = int(used[0])
        if status == 0 and before > 40:
            first = 16
            size = 3 + int(shape[0]) + int(out[first + 3 + int(shape[0])] & 0xFFFFFFFF)
            out[before : before + size] = out[first : first + size]
            out[before] = int(out[before]) + (50 << 16)  # another ROWID, the same key
            used[0] += size
            used[1] += 1
        return status

    monkeypatch.setattr(room, "put_new_rows", spoiled)
    with pytest.raises(tm.BackupDamaged, match="restored store is damaged"):
        restored(MemoryFiles.from_snapshot(backed_up[0]), **ROOM)


def test_tasks_planned_are_those_carried_out(tmp_path: Path) -> None:
    with tm.open(tmp_path / "store", background=False, **ROOM) as db:
        db.create_table("test.a", [tm.Column("id", tm.Int64)], "id", tm.HashPartition(4))
        disk = [tm.Column("id", tm.Int64), tm.Column("n", tm.Int64, storage="disk")]
        db.create_table("test.d", disk, "id", tm.HashPartition(1))
        db["test.a"].insert_many([(key,) for key in range(1_000)])
        db.archive(tmp_path / "place")
        db.backup(tmp_path / "place")
        db["test.a"].insert((5_000,))
        db["test.d"].insert((1, 2))
        db.archive()
        want = content(db)
    planned = plan(tmp_path / "place", processes=2)
    kinds = [each["task"] for each in planned["tasks"]]
    assert kinds == ["split the log", "disk columns", "fragments"]
    assert sorted(planned["tasks"][2]["of"]) == [f"test.a/{number}" for number in range(4)]
    assert sum(each["rows"] for each in planned["tasks"]) == 1_000
    tasks: list[tuple[int, int, str]] = []
    report = restore(
        tmp_path / "place", tmp_path / "copy", processes=1, progress=lambda *said: tasks.append(said), **ROOM
    )
    assert report["tasks"] == 2 and report["groups"] > 0 and tasks[-1][0] == 1_000
    with tm.open(tmp_path / "copy", background=False, **ROOM) as copy:
        assert content(copy) == want and copy.check()["problems"] == []
    with pytest.raises(tm.Rejected, match="processes"):
        restore(tmp_path / "place", tmp_path / "other", processes=0, **ROOM)
    assert verify(tmp_path / "place")["is_sound"]


def test_tasks_are_carried_out_with_nothing_but_themselves(
    backed_up: tuple[dict[str, bytes], Tables], tmp_path: Path
) -> None:
    """As an executor does it: from text, by the names in it."""
    for name, text in backed_up[0].items():
        path = tmp_path / "place" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not name.endswith("/"):
            path.write_bytes(text)

    def runner(tasks: list[RestoreTask]) -> list[TaskReport]:
        texts = [task.to_json() for task in tasks]
        return [restore_fragment(RestoreTask.from_json(text)) for text in texts]

    report = restore(f"file://{tmp_path}/place", tmp_path / "copy", processes=2, runner=runner, **ROOM)
    assert report["is_verified"] and report["tasks"] >= 2
    with tm.open(tmp_path / "copy", background=False, **ROOM) as copy:
        assert content(copy) == backed_up[1]


def test_place_of_another_filesystem_is_restored_by_threads_and_refused_to_processes(tmp_path: Path) -> None:
    from pyarrow import fs

    with tm.open(tmp_path / "store", background=False, **ROOM) as db:
        db.create_table("test.a", [tm.Column("id", tm.Int64)], "id", tm.HashPartition(4))
        db["test.a"].insert_many([(key,) for key in range(500)])
        place = (fs.LocalFileSystem(), str(tmp_path / "place"))
        db.archive(place)
        db.backup(place)
        db["test.a"].delete_many(list(range(100)))
        db.archive()
        want = content(db)
    with pytest.raises(tm.Rejected, match="processes=1"):
        restore(place, tmp_path / "copy", processes=2, **ROOM)
    assert not (tmp_path / "copy").exists()
    restore(place, tmp_path / "copy", **ROOM)
    with tm.open(tmp_path / "copy", background=False, **ROOM) as copy:
        assert content(copy) == want


def test_rows_larger_than_a_block_come_back_from_level_and_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split_room, "POOL_WORDS", 1_000)
    options: dict[str, Any] = {**ROOM, "transaction_memory": "16 MiB", "redo_log": "64 MiB"}
    db, place = open_memory(None, **options), MemoryFiles()
    columns = [tm.Column("id", tm.Int64), tm.Column("n", tm.Int64), tm.Column("b", tm.Blob)]
    db.create_table("test.t", columns, "id", tm.HashPartition(1))
    archive = archived(db, place)
    large = [bytes([key]) * (1_300_000 + key) for key in range(6)]
    db["test.t"].insert_many([(key, 0, large[key]) for key in range(3)])
    take(db, place)
    db["test.t"].update(1, {"n": 1})  # its large value stays where it is
    db["test.t"].update(2, {"b": large[4]})
    db["test.t"].insert((3, 3, large[3]))
    db.sync()
    archive.copy()
    want = content(db)
    db.close()
    assert content_of(restored(place, **options), **options) == want


def left(path: Path) -> list[str]:
    """Files in a directory and its folders."""
    return [each.name for each in path.rglob("*") if each.is_file() and each.name != "LOCK"]


def test_restore_that_ends_with_an_error_leaves_an_empty_directory(tmp_path: Path) -> None:
    with tm.open(tmp_path / "store", background=False, **ROOM) as db:
        db.create_tablespace("pages", page_size="4 KiB", extent="64 KiB", size="256 KiB")
        columns = [tm.Column("id", tm.Int64), tm.Column("n", tm.VarChar(30)), tm.Column("d", tm.Int64, storage="disk")]
        db.create_table("test.d", columns, "id", tablespace="pages")
        db.create_table("test.m", columns[:2], "id", tm.HashPartition(3))
        db.archive(tmp_path / "place")
        db["test.m"].insert_many([(key, f"n{key}") for key in range(300)])
        db["test.d"].insert_many([(key, f"n{key}", key) for key in range(300)])
        db.backup(tmp_path / "place")
        db["test.m"].delete(7)
        db.sync()
        db.archive()
    path, begun, late = tmp_path / "copy", [0], []
    failing = 1  # the disk is full after this task

    def runner(tasks: list[RestoreTask]) -> Iterator[TaskReport]:
        for task in tasks:
            yield restore_fragment(task)
            begun[0] += 1
            late.append(task)
            if begun[0] == failing:
                raise tm.StorageFull("no room", file="x")

    while True:
        begun[0] = 0
        try:
            restore(tmp_path / "place", path, runner=runner, processes=3, **ROOM)
            break
        except tm.StorageFull as error:
            assert error.evidence["place"] == str(path) and str(path) in str(error)
        assert left(path) == []
        # A straggler finds no work.
        with pytest.raises(tm.Rejected, match="does not run in that directory"):
            restore_fragment(late[-1])
        assert left(path) == []
        failing += 1
    assert failing > 2
    # A restore never empties a directory it did not begin with empty, and a complete store stays.
    before = sorted(left(path))
    with pytest.raises(tm.Rejected, match="not empty"):
        restore(tmp_path / "place", path, **ROOM)
    assert sorted(left(path)) == before
    with tm.open(path, create=False, background=False, **ROOM) as copy:
        assert len(copy["test.m"]) == 299 and len(copy["test.d"]) == 300


def test_attempt_that_ends_after_its_restore_takes_its_files_back(backed_up: tuple[dict[str, bytes], Tables]) -> None:
    """It was under way when the restore was aborted, so only the attempt itself knows of its file."""
    files = MemoryFiles()
    ended: list[str] = []

    def runner(tasks: list[RestoreTask], place: Any, target: Any) -> Iterator[TaskReport]:
        def over(rows: int) -> None:
            if target.exists("restoring"):
                target.unlink("restoring")

        for task in tasks:
            if task.kind == SPLIT:
                yield run_task(task, place, target, ManualClock(task.number))
                continue
            before = target.list("lcp")
            with pytest.raises(tm.Rejected, match="has ended or was abandoned"):
                run_task(task, place, target, ManualClock(task.number), over)
            assert target.list("lcp") == before
            ended.append(task.kind)
        if ended:
            raise tm.Rejected("over")

    with pytest.raises(tm.Rejected, match="^over"):
        prepared(backed_up[0], runner, files).run()
    assert ended


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_restore_on_a_disk_that_is_full_or_broken_leaves_nothing_or_the_mark(
    backed_up: tuple[dict[str, bytes], Tables], code: int
) -> None:
    place = MemoryFiles.from_snapshot(backed_up[0])
    merged = Options.from_keywords({**SMALL, **ROOM})
    counted = FaultFiles(MemoryFiles())
    Restore(place, make_plan(place), counted, merged, ManualClock()).run()
    full = 0
    for nth in range(1, counted.calls, 3):
        inner = MemoryFiles()
        files = FaultFiles(inner, [Rule("space", nth=nth, once=False, error=code)])
        restoring = Restore(place, make_plan(place), files, merged, ManualClock())
        try:
            restoring.run()
            break
        except (tm.StorageFull, tm.IoFailed):
            full += 1
        restoring.abandon()
        names = [name for name in inner.snapshot() if not name.endswith("/") and name != "LOCK"]
        if code == errno.ENOSPC:
            assert names == [], nth
        elif names:
            assert "restoring" in names, nth
    assert full > 5


@pytest.mark.parametrize("is_gone", [False, True], ids=["mark there", "mark gone"])
def test_restore_that_ends_as_it_takes_its_mark_away_leaves_nothing_or_the_whole_store(
    backed_up: tuple[dict[str, bytes], Tables], is_gone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Story: a restore that had no memory for the removal of its mark took itself for finished. The files stayed, with
    the mark, and could neither be opened nor restored over.
    """
    place, files = MemoryFiles.from_snapshot(backed_up[0]), MemoryFiles()
    restoring = Restore(place, make_plan(place), files, Options.from_keywords({**SMALL, **ROOM}), ManualClock())
    unlink = files.unlink

    def refused(name: str) -> None:
        if is_gone:
            unlink(name)
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(restoring, "compare", lambda rows: patch.setattr(files, "unlink", refused) or 0)
        with pytest.raises(MemoryError):
            restoring.run()
        patch.setattr(files, "unlink", unlink)
        restoring.abandon()
    left = [name for name in files.snapshot() if not name.endswith("/") and name != "LOCK"]
    if is_gone:
        assert content_of(MemoryFiles.from_snapshot(files.snapshot()), **ROOM) == backed_up[1]
    else:
        assert left == []
