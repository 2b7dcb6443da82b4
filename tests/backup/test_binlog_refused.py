"""Why a binlog cannot be applied to a backup is reported before anything is written; restores that break off."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tidemark as tm
from tests.backup.binlog_support import (
    ROOM,
    Tables,
    backed_up,
    content,
    content_of,
    files_of,
    new_site,
    noted,
    planned,
    restored,
    run,
)
from tests.store.support import open_memory
from tidemark.engine.log.load_files import FOLDER as LOAD_FOLDER
from tidemark.recovery import load
from tidemark.recovery.backup.later_changes import RestoredState
from tidemark.recovery.backup.manifest import find_backups
from tidemark.recovery.crash_harness.disks.faults import FaultFiles, Rule
from tidemark.recovery.crash_harness.disks.memory import CRASH_POLICIES, MemoryFiles
from tidemark.recovery.crash_harness.program import PowerOff, power_off
from tidemark.recovery.load.directory import Directory
from tidemark.replication.applier import replay
from tidemark.replication.applier.transactions import LogFolder
from tidemark.replication.binlog.concurrent_reader import ConcurrentReader
from tidemark.replication.binlog.position import Position
from tidemark.replication.injector.binlog_images import ImageCheck
from tidemark.replication.injector.binlog_restore import RestoreBinlog

COLUMNS = [tm.Column("id", tm.Int64), tm.Column("n", tm.Int64, nullable=True)]


def filled(place: Any, **options: Any) -> Any:
    """A store with a table, backed up, and three epochs after that."""
    db = new_site(**options)
    db.create_table("test.t", COLUMNS, "id")
    db["test.t"].insert_many([(key, key) for key in range(20)])
    backed_up(db, place)
    return db


def worked(db: Any, history: dict[int, Tables] | None = None) -> None:
    """Three epochs more."""
    for key in range(3):
        db["test.t"].update(key, {"n": -1 - key})
        db["test.t"].insert((100 + len(db["test.t"]), key))
        noted(db, {} if history is None else history)


def reopened(db: Any, **options: Any) -> Any:
    files = db.parts.files
    db.close()
    return new_site(MemoryFiles.from_snapshot(files.snapshot()), **options)


# --- gaps -----------------------------------------------------------------------------------------
def test_binlog_that_begins_after_the_backup_is_refused() -> None:
    place = MemoryFiles()
    db = filled(place)
    worked(db)
    db.binlog.rotate()
    worked(db)
    db.binlog.purge(db.binlog.writer.index.names[-1])
    with pytest.raises(tm.PositionLost, match="does not go back to epoch"):
        planned(place, db)
    db.close()


def test_binlog_begun_when_the_store_was_there_has_nothing_from_before() -> None:
    """Make its first file look as if the store had begun with it."""
    place = MemoryFiles()
    db = filled(place, log_bin=None)
    db["test.t"].insert((50, 1))
    db = reopened(db)
    worked(db)
    with pytest.raises(tm.PositionLost):
        planned(place, db)
    backed_up(db, place)
    history: dict[int, Tables] = {}
    worked(db, history)
    assert content_of(restored(place, db))["test.t"] == history[max(history)]["test.t"]
    db.close()


def test_incident_ends_the_reach_and_is_refused_without_until() -> None:
    place = MemoryFiles()
    db = filled(place)
    history: dict[int, Tables] = {}
    worked(db, history)
    last = max(history)
    db = reopened(db, log_bin=None)
    db["test.t"].insert((60, 1))
    db = reopened(db)
    worked(db)
    wall_us = db.parts.store.clock.wall_us()
    with pytest.raises(tm.EpochGap, match="gap after epoch"):
        planned(place, db)
    with pytest.raises(tm.EpochGap):
        planned(place, db, wall_us=wall_us + 10_000_000)
    with pytest.raises(tm.ValueOutOfRange, match="gap"):
        planned(place, db, until=last + 1)
    assert content_of(restored(place, db, until=last)) == history[last]
    log = RestoreBinlog(files_of(db), "binlog").to_dict()
    assert len(log["gaps"]) == 1 and f"epoch {last}" in log["gaps"][0] and log["last_epoch"] > last
    db.close()


def test_rows_of_a_load_that_was_not_logged_are_a_gap() -> None:
    place = MemoryFiles()
    db = filled(place, log_load_rows=False)
    worked(db)
    job = db.plan_load("test.t")
    directory = Directory(db.parts.files, LOAD_FOLDER)
    batch = pa.record_batch({"id": pa.array([900, 901]), "n": pa.array([1, 2])})
    load.publish(job, load.write_parts(job, 0, [batch], 0, directory), directory)
    db.adopt(job)
    db.sync()
    with pytest.raises(tm.EpochGap, match="a load of 2 rows into test.t in epoch"):
        planned(place, db)
    db.close()


# --- another store's ------------------------------------------------------------------------------
def test_binlog_of_another_server_is_refused() -> None:
    place, other = MemoryFiles(), MemoryFiles()
    db, stranger = filled(place), filled(other, server_id=2)
    worked(stranger)
    with pytest.raises(tm.ForeignFile, match="server 2, and the backup of server 1"):
        planned(place, stranger)
    db.close()
    stranger.close()


def test_binlog_of_another_store_with_the_same_server_id_is_recognized_by_the_places_of_epochs() -> None:
    place = MemoryFiles()
    db = filled(place)
    stranger = new_site()
    for key in range(9):
        stranger.create_table(f"test.t{key}", COLUMNS, "id")
    stranger.create_table("test.t", COLUMNS, "id")
    stranger["test.t"].insert_many([(key, 0) for key in range(3)])
    worked(stranger)
    with pytest.raises(tm.ForeignFile, match="the backup says that epoch"):
        planned(place, stranger)
    db.close()
    stranger.close()


@pytest.mark.parametrize("name", ["test.u", "test.t"], ids=["nothing", "other columns"])
def test_rows_of_tables_that_differ_are_refused(name: str) -> None:
    """As a binlog without its statements has them."""
    place = MemoryFiles()
    filled(place).close()
    stranger = new_site()
    stranger.create_table(name, [*COLUMNS, tm.Column("more", tm.Int64, default=0)], "id")
    stranger[name].insert((1, 2, 3))
    stranger.sync()
    files = files_of(stranger)
    stranger.close()
    *_, (file, last) = ConcurrentReader(files, "binlog", "binlog").boundaries(Position("binlog.000001", 4))
    manifest = find_backups(place).manifests[0]
    check = ImageCheck(LogFolder(files), RestoredState(manifest, place, manifest.epoch, True))
    with pytest.raises(tm.NoSuchTable if name == "test.u" else tm.SchemaInvalid, match="another store's"):
        check.run(Position(file, last.start), Position(file, last.end))


def test_table_in_a_tablespace_made_after_the_backup_is_refused() -> None:
    place = MemoryFiles()
    db = filled(place)
    db.create_tablespace("later", size="2 MiB", page_size="8 KiB", extent="64 KiB")
    disk = [tm.Column("id", tm.Int64), tm.Column("d", tm.Int64, storage="disk")]
    db.create_table("test.d", disk, "id", tablespace="later")
    db["test.d"].insert((1, 1))
    db.sync()
    with pytest.raises(tm.NoSuchTablespace, match="restore a later backup"):
        planned(place, db)
    db.close()


def test_images_without_a_key_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    place = MemoryFiles()
    db = filled(place)
    worked(db)
    files = files_of(db)
    db.close()
    monkeypatch.setattr("tidemark.replication.injector.binlog_images.present", lambda rows: ((1,), (1,)))
    with pytest.raises(tm.Unsupported, match="no image with the primary key"):
        planned(place, files)


# --- damage ---------------------------------------------------------------------------------------
def test_no_changed_byte_of_the_binlog_makes_another_store() -> None:
    place, rng = MemoryFiles(), random.Random(23)
    print("seed 23")
    db = filled(place)
    worked(db)
    want = content(db)
    contents = files_of(db).snapshot()
    span = planned(place, db).later.where
    db.close()
    name = f"binlog/{span.start.file}"
    refused = 0
    for at in sorted(rng.sample(range(span.start.position, span.end.position), 25)):
        changed = bytearray(contents[name])
        changed[at] ^= 1 << rng.randrange(8)
        try:
            planned(place, MemoryFiles.from_snapshot({**contents, name: bytes(changed)}))
        except (tm.Damaged, tm.Rejected, tm.PeerError):
            refused += 1
    assert refused == 25
    assert content_of(restored(place, MemoryFiles.from_snapshot(contents))) == want


def test_torn_end_of_the_newest_file_ends_the_reach() -> None:
    place = MemoryFiles()
    db = filled(place)
    history: dict[int, Tables] = {}
    worked(db, history)
    contents = files_of(db).snapshot()
    span = planned(place, db).later.where
    db.close()
    name = f"binlog/{span.start.file}"
    *_, before, _ = sorted(history)
    cut = MemoryFiles.from_snapshot({**contents, name: contents[name][: span.end.position - 5]})
    assert planned(place, cut).end_epoch == before
    assert content_of(restored(place, cut)) == history[before]


# --- breaking off ---------------------------------------------------------------------------------
def test_rows_that_were_not_logged_are_missed_by_what_follows(tmp_path: Path) -> None:
    """A reader does not notice `log_rows` off; a later change of a row inserted meanwhile fails."""
    options: dict[str, Any] = {"server_id": 1, "log_bin": "binlog", "background": False, **ROOM}
    options["log_update_as_write"] = False
    with tm.open(tmp_path / "store", **options) as db:
        db.create_table("test.t", COLUMNS, "id")
        db.backup(tmp_path / "place")
        db.binlog.set_option("log_rows", False)
        db["test.t"].insert((1, 1))
        db.sync()
        db.binlog.set_option("log_rows", True)
        db["test.t"].update(1, {"n": 2})
        db.sync()
    with pytest.raises(tm.BinlogDamaged, match="key 1, finds no row"):
        tm.restore(tmp_path / "place", tmp_path / "copy", binlog=tmp_path / "store", **ROOM)
    assert not [each for each in (tmp_path / "copy").rglob("*") if each.is_file() and each.name != "LOCK"]


def test_directory_of_another_store_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    options: dict[str, Any] = {"server_id": 1, "log_bin": "binlog", "background": False, **ROOM}
    (tmp_path / "place").mkdir()
    for name in ("one", "two"):
        with tm.open(tmp_path / name, **options) as db:
            db.create_table("test.t", COLUMNS, "id")
            db.backup(tmp_path / "place" / name)
            db["test.t"].insert((1, 1))
    for place in (tmp_path / "two", tmp_path / "two" / "binlog"):
        with pytest.raises(tm.ForeignFile, match="not the one backed up"):
            tm.restore(tmp_path / "place" / "one", tmp_path / "copy", binlog=place)
    with pytest.raises(tm.FileMissing, match="no binlog"):
        tm.restore(tmp_path / "place" / "one", tmp_path / "copy", binlog=tmp_path / "place")
    assert not (tmp_path / "copy").exists()


def test_transaction_that_finds_no_room_is_done_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Events of a committed part of the epoch are not applied twice: a second delete of a row would find none."""
    place = MemoryFiles()
    db, source = filled(place, log_replica_updates=True, log_apply_status=True), new_site(server_id=2)
    source.create_table("test.s", COLUMNS, "id")
    source["test.s"].insert_many([(key, key) for key in range(9)])
    source.sync()
    with tm.Channel(source, db) as channel:
        channel.apply_all()
        source["test.s"].delete_many([1, 2])
        source.sync()
        channel.apply_all()
    db["test.t"].delete(3)
    db.sync()
    want = content(db)
    calls = {"n": 0}
    change = replay.AuthoredTransaction.change

    def sometimes(self: Any, batch: Any) -> None:
        calls["n"] += 1
        if calls["n"] in (1, 4):
            raise tm.RedoOverloaded("full")
        change(self, batch)

    monkeypatch.setattr(replay.AuthoredTransaction, "change", sometimes)
    found = content_of(restored(place, db))
    assert calls["n"] == 6  # the first one once refused; what followed it, of another author, begun again
    assert {name: [row[:-3] for row in rows] for name, rows in found.items()} == {
        name: [row[:-3] for row in rows] for name, rows in want.items()
    }
    db.close()
    source.close()


def test_power_lost_at_any_call_leaves_no_store_or_the_whole_one() -> None:
    place, rng = MemoryFiles(), random.Random(29)
    print("seed 29")
    db = filled(place)
    db.create_table("test.d", [tm.Column("id", tm.Int64), tm.Column("d", tm.Text, storage="disk")], "id")
    db["test.d"].insert_many([(key, "x" * key) for key in range(30)])
    worked(db)
    want, files = content(db), files_of(db)
    db.close()

    def carry_out(target: Any) -> None:
        run(target, place, files)

    counted = FaultFiles(MemoryFiles())
    carry_out(counted)
    calls, whole, refused = counted.calls, 0, 0
    for call in sorted({*rng.sample(range(20, calls - 12), 9), *range(calls - 6, calls + 2)}):
        inner = MemoryFiles()
        try:
            carry_out(FaultFiles(inner, [Rule("*", nth=call, stall=power_off)]))
        except PowerOff:
            pass
        left = inner.crash(rng, CRASH_POLICIES[call % len(CRASH_POLICIES)])
        try:
            copy = open_memory(left, **ROOM, create=False)
        except (tm.RestoreUnfinished, tm.FileMissing):
            refused += 1
            continue
        assert content(copy) == want, f"call {call}"
        assert copy.check()["problems"] == []
        whole += 1
        copy.close()
    assert whole and refused
