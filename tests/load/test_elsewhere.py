"""Loads in a directory outside the store: files that are linked, lists of what is left, secrets, and Parquet."""

from __future__ import annotations

import os
import random
import shutil
import stat
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tidemark as tm
from tests.load.support import NAME, batch, by_key, found, new_store, rows
from tests.store.support import open_memory
from tidemark.engine.files.directory import PosixFiles
from tidemark.recovery import load
from tidemark.recovery.crash_harness.disks.faults import FaultFiles, Rule
from tidemark.recovery.crash_harness.disks.memory import CRASH_POLICIES, MemoryFiles
from tidemark.recovery.crash_harness.disks.order import OrderMonitor
from tidemark.recovery.crash_harness.program import PowerOff, power_off
from tidemark.recovery.load.adopt import Adopter
from tidemark.recovery.load.commit import FILES_MAX, begin
from tidemark.recovery.load.directory import Directory
from tidemark.recovery.load.parquet import PART_ROWS_MIN, RowGroups, batches_in, cut, row_groups

SMALL: dict[str, Any] = {"data_memory": "32 MiB", "redo_log": "8 MiB", "undo_log": "2 MiB", "background": False}


def written(job: load.LoadJob, first: int = 0, count: int = 1_000, part: int = 0) -> list[Any]:
    return load.write_parts(job, 0, [pa.record_batch({"id": pa.array(range(first, first + count))})], part)


@pytest.fixture
def db(tmp_path: Path) -> Any:
    with tm.open(tmp_path / "store", **SMALL) as opened:
        opened.create_table("t", [tm.Column("id", tm.Int64)], "id", tm.HashPartition(2))
        yield opened


# --- links ----------------------------------------------------------------------------------------
def inodes(folder: Path) -> set[int]:
    return {path.stat().st_ino for path in folder.glob("*.load")}


def test_files_on_the_stores_file_system_are_linked_and_outlive_their_directory(db: Any, tmp_path: Path) -> None:
    job = db.plan_load("t", tmp_path / "jobs")
    load.publish(job, written(job))
    for path in (tmp_path / "jobs").glob("*.load"):
        path.chmod(0o666)
    made = inodes(tmp_path / "jobs")
    assert db.adopt(job).rows == 1_000
    own = tmp_path / "store" / "load"
    assert inodes(own) == made and {stat.S_IMODE(path.stat().st_mode) for path in own.iterdir()} == {0o600}
    assert list((tmp_path / "jobs").iterdir()) == []
    shutil.rmtree(tmp_path / "jobs")
    db.close()
    with tm.open(tmp_path / "store", create=False, **SMALL) as again:
        assert len(again["t"]) == 1_000 and again.check()["problems"] == []


def test_files_of_another_user_are_copied(db: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = db.plan_load("t", tmp_path / "jobs")
    load.publish(job, written(job))
    made = inodes(tmp_path / "jobs")
    monkeypatch.setattr(os, "geteuid", lambda: -1)
    db.adopt(job)
    assert not inodes(tmp_path / "store" / "load") & made and len(db["t"]) == 1_000


def test_refused_load_leaves_no_link_in_the_store(db: Any, tmp_path: Path) -> None:
    db["t"].insert((5,))
    job = db.plan_load("t", tmp_path / "jobs")
    load.publish(job, written(job))
    with pytest.raises(tm.LoadRefused):
        db.adopt(job)
    assert inodes(tmp_path / "store" / "load") == set() and len(inodes(tmp_path / "jobs")) == 2
    db["t"].delete(5)
    assert db.adopt(job).rows == 1_000


def beside(files: Any) -> tuple[Any, load.LoadJob, Directory]:
    """A store, and a published load in another folder of its disk."""
    db = new_store(files, page_buffer="256 KiB", undo_log="2 MiB", redo_log="2 MiB")
    if not files.exists("jobs"):
        files.make_directory("jobs")
        files.sync_directory("")
    place = Directory(files, "jobs")
    job = load.LoadJob(7 << 40, *db.parts.opened.identity, db[NAME].definition.to_json(), "elsewhere")
    begin(job, place)
    load.publish(job, load.write_parts(job, 0, [batch(rows(0, 80))], 0, place), place)
    return db, job, place


def test_power_lost_at_any_call_of_an_adoption_by_links_leaves_all_rows_or_none() -> None:
    files = FaultFiles(OrderMonitor(MemoryFiles()))
    db, job, place = beside(files)
    before = files.calls
    Adopter(db.parts.store, files, db.parts.opened.identity).adopt(job, place)
    calls = files.calls - before
    outcomes: Counter[bool] = Counter()
    for call in range(1, calls + 1):
        disk = MemoryFiles()
        files = FaultFiles(OrderMonitor(disk))
        db, job, place = beside(files)
        files.faults.add(Rule("*", nth=call, once=False, stall=power_off))
        files.faults.add(Rule("link", stall=lambda: outcomes.update([True])))
        with pytest.raises(PowerOff):
            Adopter(db.parts.store, files, db.parts.opened.identity).adopt(job, place)
        policy = CRASH_POLICIES[call % len(CRASH_POLICIES)]
        left = disk.crash(random.Random(call), policy)
        db = open_memory(left, data_memory="32 MiB", redo_log="2 MiB")
        assert found(db) in ({}, by_key(rows(0, 80))), f"call {call}, {policy}"
        place, adopter = Directory(left, "jobs"), Adopter(db.parts.store, left, db.parts.opened.identity)
        try:
            outcomes["repeated"] += adopter.adopt(job, place).is_repeated  # type: ignore[index]
        except tm.FileMissing:
            adopter.sweep(place)  # it was adopted, and its end had begun to be removed
        assert found(db) == by_key(rows(0, 80)), f"call {call}, {policy}"
        assert place.leaves("") == [] and db.check()["problems"] == []
        assert len(found(open_memory(left.kill(), data_memory="32 MiB", redo_log="2 MiB"))) == 80
    assert outcomes[True] > 10 and outcomes["repeated"] > 3  # type: ignore[index]


# --- what is left ---------------------------------------------------------------------------------
def test_loads_of_a_directory_are_listed_and_swept(db: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = tmp_path / "jobs"
    states = {}
    for state in ("open", "published", "adopting", "adopted", "unknown", "ended"):
        job = db.plan_load("t", jobs)
        reports = written(job, len(states) * 1_000)
        if state not in ("open", "ended"):
            load.publish(job, reports)
        states[job.name] = state
        if state == "adopting":
            with db.transaction() as txn:
                (jobs / f"{job.name}.adopting").write_bytes(load_mark(job, txn.txid))
                txn.rollback()
        elif state == "adopted":
            with monkeypatch.context() as patch, pytest.raises(PowerOff):
                patch.setattr("tidemark.recovery.load.adopt.sweep", lambda *_: power_off())
                db.adopt(job)
        elif state == "unknown":
            (jobs / f"{job.name}.adopting").write_bytes(b"7 7 damaged")
        elif state == "ended":
            (jobs / f"{job.name}.open").unlink()
            (jobs / job.name / "_temporary").mkdir(parents=True)
            (jobs / job.name / "_temporary" / ".part.crc").write_bytes(b"x")
    with tm.open(tmp_path / "other", **SMALL) as other:
        other.create_table("t", [tm.Column("id", tm.Int64)], "id")
        foreign = other.plan_load("t", jobs).name
    listed = {each.name: each for each in db.loads(jobs)}
    assert {each.state for each in listed.values()} == {"open", "published", "adopting", "ended"}
    assert set(listed) == {*states, foreign}
    for name, state in states.items():
        assert listed[name].table == (None if state == "ended" else "main.t")
        assert listed[name].files > 2 and listed[name].size_bytes > 5_000
    removed = {each.name for each in db.sweep_loads(jobs)}
    unknown = next(name for name, state in states.items() if state == "unknown")
    assert removed == set(states) - {unknown}
    assert {each.name for each in db.loads(jobs)} == {unknown, foreign}
    assert len(db["t"]) == 1_000 and db.check()["problems"] == []


def load_mark(job: load.LoadJob, txid: int) -> bytes:
    from tidemark.recovery.load.adopt import mark_of

    return mark_of(job.name, txid, 1_000)


def test_store_s_own_folder_is_never_swept(db: Any, tmp_path: Path) -> None:
    job = db.plan_load("t")
    load.publish(job, written(job))
    db.adopt(job)
    (tmp_path / "link").symlink_to(tmp_path / "store" / "load")
    for place in (tmp_path / "store" / "load", tmp_path / "link"):
        for call in (db.loads, db.sweep_loads):
            with pytest.raises(tm.Rejected, match="part of the store"):
                call(place)
    with pytest.raises(tm.FileMissing, match="there is no load in"):
        db.loads(tmp_path / "nothing")


def test_rows_that_waited_for_a_load_are_removed_by_the_next_opening(tmp_path: Path) -> None:
    with tm.open(tmp_path / "store", **SMALL) as db:
        db.create_table("t", [tm.Column("id", tm.Int64)], "id")
        job = db.plan_load("t")
    scratch = tmp_path / "store" / "load" / job.name
    (scratch / "_temporary" / "0").mkdir(parents=True)
    (scratch / "_temporary" / "0" / ".part-0 of.parquet.crc").write_bytes(b"x")
    with tm.open(tmp_path / "store", create=False, **SMALL) as db:
        assert list((tmp_path / "store" / "load").iterdir()) == []
        job = db.plan_load("t")
        scratch = tmp_path / "store" / "load" / job.name
        (scratch / "more").mkdir(parents=True)
        assert load.abort(job) and not scratch.exists()


# --- secrets --------------------------------------------------------------------------------------
def test_secrets_of_a_directory_are_in_no_text_and_no_file(db: Any) -> None:
    fsspec = pytest.importorskip("fsspec")
    uri = "memory://jobs/secret?secret_key=TOPSECRET"
    job = db.plan_load("t", uri)
    assert job.directory == uri
    texts = [repr(job), job.to_json(), str(db.loads(uri))]
    assert load.LoadJob.from_json(job.to_json(), uri) == job
    manifest = load.publish(job, written(load.LoadJob.from_json(job.to_json(), uri)))
    texts += [repr(manifest), manifest.to_json()]
    memory = fsspec.filesystem("memory")
    held = [path for path in memory.find("/") if job.name in path]
    texts += [memory.cat(path).decode("latin-1") for path in held]
    assert len(held) == 4 and not any("TOPSECRET" in text for text in texts)
    assert sum("secret_key=…" in text or "secret_key=â" in text or "secret_key=\\u2026" in text for text in texts) > 2
    assert db.adopt(job).rows == 1_000


# --- Parquet --------------------------------------------------------------------------------------
@pytest.mark.parametrize("seed", range(20))
def test_tasks_are_large_enough_and_few_enough_and_have_each_row_group_once(seed: int) -> None:
    rng = random.Random(seed)
    fragments = rng.choice((1, 2, 16, 500, 4_096))
    size = rng.choice((1, 100, 70_000))
    groups = [
        RowGroups("/p", f"{number}", [0], rng.randint(1, 40_000), rng.randint(1, 2_000) * size)
        for number in range(rng.choice((1, 7, 3_000)))
    ]
    tasks = cut(groups, fragments, 1 << 26)
    assert [group for task in tasks for group in task] == groups
    assert len(tasks) * fragments < FILES_MAX
    for task in tasks:
        assert len(tasks) == 1 or sum(group.rows for group in task) >= PART_ROWS_MIN * fragments
    for task in tasks[:-1]:
        assert sum(group.size_bytes for group in task) >= 1 << 26
        assert len(tasks) * fragments > FILES_MAX // 4 or sum(group.size_bytes for group in task[:-1]) < 1 << 31


def test_row_groups_of_files_and_folders_are_found_as_spark_finds_them(db: Any, tmp_path: Path) -> None:
    folder, definition = tmp_path / "a folder", db["t"].definition
    folder.mkdir()
    for number in range(3):
        table = pa.table({"id": pa.array(range(number * 100, number * 100 + 100))})
        pq.write_table(table, folder / f"part-{number}.parquet", row_group_size=30)
    for name in ("_SUCCESS", ".part-0.parquet.crc"):
        (folder / name).write_bytes(b"")
    schemas, groups = row_groups(str(folder), definition)
    assert len(schemas) == 3 and [group.rows for group in groups] == [30, 30, 30, 10] * 3
    read = [row for group in groups[2:9] for each in batches_in(group, definition) for row in each["id"].to_pylist()]
    assert read == list(range(60, 230))
    place = str(folder / "part-1.parquet")
    assert row_groups(place, definition)[1] == [replace(group, place=place) for group in groups[4:8]]
    (folder / "part-3.parquet").write_bytes(b"no Parquet")
    with pytest.raises(tm.Rejected, match=r"part-3\.parquet cannot be read"):
        row_groups(str(folder), definition)
    (folder / "part-3.parquet").unlink()
    (folder / "day=1").mkdir()
    with pytest.raises(tm.Rejected, match="has folders, the first 'day=1'"):
        row_groups(str(folder), definition)
    with pytest.raises(tm.FileMissing, match="nothing"):
        row_groups(str(tmp_path / "nothing"), definition)
    with pytest.raises(tm.FileMissing, match="no Parquet file in"):
        row_groups(str(folder / "day=1"), definition)
    spoiled = bytearray((folder / "part-0.parquet").read_bytes())
    spoiled[40] ^= 1
    (folder / "part-0.parquet").write_bytes(spoiled)


def test_link_of_what_is_missing_or_taken_is_an_answer(tmp_path: Path) -> None:
    for kind in (lambda: PosixFiles(tmp_path), MemoryFiles):
        files: Any = kind()
        files.close(files.create("a"))
        assert files.link("b", "a", files)
        with pytest.raises(tm.Rejected):
            files.link("b", "a", files)
        with pytest.raises(tm.FileMissing):
            files.link("c", "missing", files)
        files.make_directory("d")
        files.close(files.create("d/e"))
        files.remove_tree("d")
        assert set(files.list()) == {"a", "b"} and files.failure.first is None
        assert not files.link("c", "a", MemoryFiles() if isinstance(files, PosixFiles) else PosixFiles(tmp_path))
        files.close_all()
