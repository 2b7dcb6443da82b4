"""Every reader of an adopted load: binlog and replica, archive and points in time, `log`, `check`, files of users."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tidemark as tm
from tests.backup.support import Tables, archived, content, content_of, restored, take
from tests.cli.support import flip
from tests.load.support import NAME, ROOM, columns, found, leaves, new_store, published, rows
from tests.recovery.support import flipped
from tests.replication.site import epochs_in, open_site, replayed
from tests.store.support import open_memory
from tidemark.database import check_store
from tidemark.engine.files.directory import PosixFiles
from tidemark.recovery.backup.verify import verify
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles
from tidemark.recovery.verification.log_listing import StoreListing


@pytest.mark.parametrize("on_disk", [False, True], ids=["memory", "disk"])
def test_archived_load_is_restored_at_every_epoch(on_disk: bool) -> None:
    db, place = new_store(on_disk=on_disk), MemoryFiles()
    archive = archived(db, place)
    take(db, place)
    history: dict[int, Tables] = {db.sync(): content(db)}
    db[NAME].insert_many(rows(0, 50))
    history[db.sync()] = content(db)
    db.adopt(published(db, rows(1_000, 400), parts=2))
    history[db.sync()] = content(db)
    for _ in range(3):
        db.checkpoint()  # cuts the log: load files go, but not before they are archived
    assert leaves(db) == []
    db[NAME].delete_many(list(range(1_100, 1_200)))
    db[NAME].update(1_050, {"text": "after the load"})
    history[db.sync()] = content(db)
    archive.copy()
    assert verify(place).problems == []
    for epoch, want in history.items():
        assert content_of(restored(place, until=epoch, **ROOM), **ROOM) == want, f"epoch {epoch}"
    assert any(name.endswith(".load") for name in place.snapshot())


def test_damaged_load_file_in_an_archive_is_found() -> None:
    db, place = new_store(), MemoryFiles()
    archive = archived(db, place)
    take(db, place)
    db.adopt(published(db, rows(0, 100)))
    db.sync()
    archive.copy()
    contents = place.snapshot()
    name = next(name for name in contents if name.endswith(".load"))
    harmed = flipped(contents[name], len(contents[name]) // 2)
    assert verify(MemoryFiles.from_snapshot({**contents, name: harmed})).problems
    del contents[name]
    assert verify(MemoryFiles.from_snapshot(contents)).problems


def test_log_lists_the_rows_and_a_closed_store_is_checked_with_its_load_files(tmp_path: Path) -> None:
    with tm.open(tmp_path, background=False, data_memory="32 MiB") as db:
        db.create_table("t", [tm.Column("id", tm.Int64)], "id", tm.HashPartition(2))
        db.load("t", pa.table({"id": pa.array(range(60_000))}))
        assert len(db["t"]) == 60_000
    files = PosixFiles(tmp_path)
    entries = list(StoreListing(files).redo())
    files.close_all()
    named = [entry for entry in entries if entry["kind"] == "files"]
    assert len(named) == 1 and named[0]["files"] >= 2 and named[0]["file"].endswith(".load")
    listed = [entry for entry in entries if entry["kind"] == "insert"]
    assert sum(entry.get("rows", 1) for entry in listed) >= 60_000
    report = check_store(tmp_path, data_memory="32 MiB")
    assert report["problems"] == [] and report["notes"] == []
    name = next(path for path in (tmp_path / "load").iterdir() if path.suffix == ".load")
    flip(name, 5_000, 8)
    assert check_store(tmp_path, data_memory="32 MiB")["problems"]


def test_binlog_of_a_load_brings_its_rows_to_a_replica() -> None:
    whole: dict[str, Any] = {"log_updated_only": False, "log_update_as_write": False}
    a = open_site(MemoryFiles(), server_id=1, **ROOM, **whole)
    b = open_site(MemoryFiles(), server_id=2, **ROOM, **whole)
    a.create_table(NAME, columns(), "id", tm.HashPartition(2))
    a[NAME].insert_many(rows(0, 20))
    a.sync()
    a.adopt(published(a, rows(1_000, 700), parts=2))
    a[NAME].update(1_007, {"text": "changed"})
    a[NAME].delete(1_008)
    a.sync()
    assert replayed(a.parts.files)[NAME].keys() == found(a).keys()
    loaded = [each for each in epochs_in(a.parts.files) if len(each.rows) >= 700]
    assert len(loaded) == 1, "all rows of a load are in one epoch transaction"
    with tm.Channel(a, b) as channel:
        channel.apply_all()
    assert found(b) == found(a) and len(found(b)) == 719
    # The binlog that a crash cut off is completed from the log and the load files.
    a.adopt(published(a, rows(5_000, 300)))
    a = open_site(a.parts.files.kill(), server_id=1, **ROOM, **whole)
    assert replayed(a.parts.files)[NAME].keys() == found(a).keys() and len(found(a)) == 1_019
    with tm.Channel(a, b) as channel:
        channel.apply_all()
    assert found(b) == found(a)


SOURCES = ["table", "reader", "pandas", "rows", "parquet", "csv", "arrow", "list of files"]


@pytest.mark.parametrize("kind", SOURCES)
@pytest.mark.parametrize("count", [0, 10, 70_000])
def test_load_takes_any_source_small_and_large(kind: str, count: int, tmp_path: Path) -> None:
    made = pa.table({"id": pa.array(range(count), pa.int64()), "n": pa.array([f"n{key}" for key in range(count)])})
    with tm.open(tmp_path / "s", background=False, data_memory="64 MiB") as db:
        db.create_table("t", [tm.Column("id", tm.Int64), tm.Column("n", tm.VarChar(20), nullable=True)], "id")
        reported: list[tuple[int, int, str]] = []
        assert db.load("t", source_of(kind, made, tmp_path), progress=lambda *each: reported.append(each)) == count
        assert db["t"].scan().to_arrow().num_rows == count
        if count:
            assert db["t"].get(count - 1).n == f"n{count - 1}"
        if count > 50_000:
            assert reported[-1] == (count, count, "rows")
            assert max(each[0] for each in reported if each[2] == "rows written") == count
            assert db.status()["spool"]["committed"] == 1
        with pytest.raises(tm.Rejected):
            db.load("t", source_of(kind, pa.table({"nope": ["x"]}), tmp_path))


def source_of(kind: str, made: pa.Table, folder: Path) -> Any:
    from pyarrow import csv, feather, parquet

    if kind == "reader":
        return pa.RecordBatchReader.from_batches(made.schema, made.to_batches(10_000))
    if kind == "pandas":
        return made.to_pandas()
    if kind == "rows":
        return iter(made.to_pylist())
    if kind == "parquet":
        parquet.write_table(made, folder / "a.parquet")
        return folder / "a.parquet"
    if kind == "csv":
        csv.write_csv(made, folder / "a.csv")
        return str(folder / "a.csv")
    if kind == "arrow":
        feather.write_feather(made, str(folder / "a.arrow"))
        return folder / "a.arrow"
    if kind == "list of files":
        half = made.num_rows // 2
        parquet.write_table(made.slice(0, half), folder / "1.parquet")
        parquet.write_table(made.slice(half), folder / "2.parquet")
        return [folder / "1.parquet", folder / "2.parquet"]
    return made


def test_refused_load_leaves_no_file_and_names_rows_of_the_input(tmp_path: Path) -> None:
    with tm.open(tmp_path / "s", background=False, data_memory="64 MiB") as db:
        db.create_table("t", [tm.Column("id", tm.Int64), tm.Column("n", tm.Int8, nullable=True)], "id")
        numbers = [1] * 80_000
        numbers[66_000] = 300
        with pytest.raises(tm.LoadRefused) as refused:
            db.load("t", pa.table({"id": range(80_000), "n": numbers}))
        assert [each["row"] for each in refused.value.examples] == [66_000]
        keys = [*range(60_000), 5]
        with pytest.raises(tm.LoadRefused) as refused:
            db.load("t", pa.table({"id": keys}))
        assert refused.value.duplicates == 1
        assert len(db["t"]) == 0 and list((tmp_path / "s" / "load").iterdir()) == []
        with pytest.raises(tm.Rejected):
            db.load("t", tmp_path / "none.parquet")
        with pytest.raises(tm.Rejected):
            db.load("t", tmp_path / "none.xml")
        with pytest.raises(tm.Rejected):
            db.load("t", [], workers=0)


def test_fault_of_the_store_in_the_middle_of_a_load_is_the_store_s(tmp_path: Path) -> None:
    db = new_store()
    job = published(db, rows(0, 60))
    db.close()
    with pytest.raises(tm.StoreFailed):
        db.adopt(job)
    again = open_memory(db.parts.files.kill(), **ROOM)
    assert found(again) == {} and leaves(again) == []
