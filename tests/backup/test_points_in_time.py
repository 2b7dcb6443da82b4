"""Backup and archived log to each epoch of a history; what cuts the log waits for the archive."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

import tidemark as tm
from tests.backup.support import Tables, archived, content, content_of, restored, take
from tests.snapshot.watched import Watched
from tests.store.support import open_memory
from tidemark.backup import plan, restore
from tidemark.recovery.backup.plan import make_plan
from tidemark.recovery.backup.segments import Until, segment_names
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles

ROOM: dict[str, Any] = {
    "data_memory": "64 MiB",
    "redo_log": "64 MiB",
    "undo_log": "64 MiB",
    "page_buffer": "1 MiB",
}


@pytest.mark.parametrize("on_disk", [False, True], ids=["memory", "disk"])
@pytest.mark.parametrize("seed", [21, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(22, 26))])
def test_any_epoch_of_a_random_history_is_restored(seed: int, on_disk: bool) -> None:
    print(f"seed {seed}")
    store, place, rng = Watched(seed, on_disk), MemoryFiles(), random.Random(seed)
    archive = archived(store.db, place)
    take(store.db, place)
    history: dict[int, Tables] = {}
    for step in range(12):
        for _ in range(3):
            store.transaction()
        if step == 3:
            store.index("by_owner")
        if step == 5:
            take(store.db, place, incremental=True)
        if step in (2, 7, 9):
            store.db.checkpoint()
        history[store.db.sync()] = content(store.db)
    archive.copy()
    epochs = sorted(history)
    for epoch in {epochs[0], epochs[-1], *rng.sample(epochs, 3)}:
        assert content_of(restored(place, until=epoch, **ROOM), **ROOM) == history[epoch], f"epoch {epoch}"
    store.db.close()


def test_columns_that_get_wider_with_their_indexes_come_back_at_each_time() -> None:
    db, place = open_memory(None, **ROOM), MemoryFiles()
    columns = [tm.Column("id", tm.Int64), tm.Column("n", tm.Int32), tm.Column("s", tm.Char(5))]
    table = db.create_table("test.a", columns, "id")
    table.insert_many([(key, -key, f"s{key}") for key in range(300)])
    db.create_index("test.a", "by_n", "n", unique=True, ordered=True)
    db.create_index("test.a", "by_s", ["s", "n"])
    archive = archived(db, place)
    take(db, place)
    history: dict[int, Tables] = {db.sync(): content(db)}
    for number, change in enumerate(
        (
            lambda: db.widen_column("test.a", "n", tm.Int64),
            lambda: table.update_many([{"id": key, "n": key + (1 << 40)} for key in range(0, 300, 3)]),
            lambda: db.widen_column("test.a", "s", tm.VarChar(20), nullable=True),
            lambda: table.update(7, {"s": "longer than before", "n": 1 << 60}),
            lambda: db.widen_column("test.a", "s", tm.VarChar(30)),
            lambda: table.delete(8),
        )
    ):
        change()
        if number in (1, 4):
            take(db, place, incremental=True)
        history[db.sync()] = content(db)
    archive.copy()
    for epoch, want in history.items():
        assert content_of(restored(place, until=epoch, **ROOM), **ROOM) == want, f"epoch {epoch}"
    copy = open_memory(restored(place, **ROOM), **ROOM)
    assert copy["test.a"].get(1 << 60, index="by_n").s == "longer than before"
    assert [row.id for row in copy["test.a"].scan(index="by_s", prefix="longer")] == [7]
    assert copy.check()["is_sound"] and len(copy["test.a"]) == 299
    copy.close()
    db.close()


def test_tables_made_changed_and_dropped_after_the_backup_are_there_at_their_time() -> None:
    db, place = open_memory(None, **ROOM), MemoryFiles()
    db.create_table("test.a", [tm.Column("id", tm.Int64), tm.Column("n", tm.Int64)], "id")
    db["test.a"].insert_many([(key, key) for key in range(50)])
    archive = archived(db, place)
    take(db, place)
    history: dict[int, Tables] = {}

    def note() -> None:
        history[db.sync()] = content(db)

    db.create_table("test.b", [tm.Column("id", tm.Int64), tm.Column("t", tm.Text, nullable=True, storage="disk")], "id")
    db["test.b"].insert_many([(key, "x" * key * 40) for key in range(100)])
    note()
    db.add_column("test.a", tm.Column("extra", tm.VarChar(9), default="d"))
    db["test.a"].update(3, {"extra": "e"})
    db.create_index("test.a", "by_n", ["n"])
    note()
    with db.transaction() as txn:  # one that spools
        txn.insert_many("test.a", [(key, key, "y" * 9) for key in range(1_000, 30_000)])
    note()
    assert db.status()["spool"]["committed"] == 1
    db["test.a"].delete_many(list(range(1_000, 29_990)))
    db.drop_table("test.b")
    note()
    archive.copy()
    for epoch, want in history.items():
        assert content_of(restored(place, until=epoch, **ROOM), **ROOM) == want
    db.close()


def test_log_is_cut_only_after_what_is_archived() -> None:
    db, place = open_memory(None, redo_log="1 MiB", data_memory="64 MiB"), MemoryFiles()
    db.create_table("test.t", [tm.Column("id", tm.Int64), tm.Column("n", tm.Binary(200))], "id")
    archive = archived(db, place)
    take(db, place)
    for turn in range(40):  # several laps of the ring
        db["test.t"].write_many([(key, bytes([turn]) * 200) for key in range(turn, turn + 300)])
        if turn % 3 == 2:
            db.checkpoint()
            assert archive.status()["lsn"] >= db.status()["log"]["tail_lsn"]
    assert db.status()["log"]["head_lsn"] > 2 * db.status()["log"]["capacity_bytes"]
    want = content(db)
    db.sync()
    archive.copy()
    planned = make_plan(place)
    assert planned.notes == [] and len(planned.segments) == len(segment_names(place))
    assert content_of(restored(place, data_memory="64 MiB"), data_memory="64 MiB") == want
    db.close()


def test_archive_continues_where_the_last_opening_ended(tmp_path: Path) -> None:
    wanted: dict[int, Tables] = {}
    for turn in range(3):
        with tm.open(tmp_path / "store", background=False) as db:
            if not turn:
                db.create_table("test.t", [tm.Column("id", tm.Int64), tm.Column("n", tm.Int64)], "id")
            db.archive(tmp_path / "place")
            if not turn:
                db.backup(tmp_path / "place")
            db["test.t"].write_many([(key, turn) for key in range(turn, 40, 3)])
            wanted[db.sync()] = content(db)
            db.archive()
    assert plan(tmp_path / "place")["notes"] == []
    for number, (epoch, want) in enumerate(wanted.items()):
        restore(tmp_path / "place", tmp_path / f"copy{number}", epoch)
        with tm.open(tmp_path / f"copy{number}", background=False) as copy:
            assert content(copy) == want


def test_log_that_was_not_archived_is_a_gap_in_the_plan(tmp_path: Path) -> None:
    with tm.open(tmp_path / "store", background=False) as db:
        db.create_table("test.t", [tm.Column("id", tm.Int64)], "id")
        db.backup(tmp_path / "place")
        db["test.t"].insert((1,))
        db.archive(tmp_path / "place")
        reached = db.sync()
        db["test.t"].insert((2,))
        late = db.sync()
    with tm.open(tmp_path / "store", background=False) as db:  # no thread archives
        for _ in range(3):
            db.checkpoint()
            db["test.t"].insert((10 + _,))
        db.archive(tmp_path / "place")
    planned = plan(tmp_path / "place")
    assert planned["reach"] == reached and "gap" in planned["notes"][-1]
    with pytest.raises(tm.ValueOutOfRange, match="gap"):
        restore(tmp_path / "place", tmp_path / "copy", late)
    assert not (tmp_path / "copy").exists()
    restore(tmp_path / "place", tmp_path / "copy", reached)
    with tm.open(tmp_path / "copy", background=False) as copy:
        assert [row.id for row in copy["test.t"]] == [1]


def test_time_takes_the_last_epoch_sealed_by_then() -> None:
    db, place = open_memory(), MemoryFiles()
    clock: Any = db.parts.store.clock
    db.create_table("test.t", [tm.Column("id", tm.Int64)], "id")
    archive = archived(db, place)
    take(db, place)
    sealed = []
    for key in range(5):
        clock.advance(10)
        db["test.t"].insert((key,))
        sealed.append((clock.wall_us(), db.sync()))
    archive.copy()
    for wall_us, epoch in sealed:
        assert make_plan(place, Until(wall_us=wall_us)).epoch == epoch
        assert make_plan(place, Until(wall_us=wall_us + 9_000_000)).epoch == epoch
    with pytest.raises(tm.ValueOutOfRange, match="oldest"):
        make_plan(place, Until(wall_us=sealed[0][0] - 60_000_000))
    db.close()


def test_place_that_takes_no_more_makes_the_log_wait() -> None:
    db, place = open_memory(), MemoryFiles()
    db.create_table("test.t", [tm.Column("id", tm.Int64)], "id")
    archive = archived(db, place)
    db["test.t"].insert((1,))
    completed = db.status()["lcp"]["completed"]
    place.close_all()
    with pytest.raises(tm.StorageFull, match="archive"):
        db.checkpoint()
    assert db.status()["lcp"]["completed"] == completed
    db["test.t"].insert((2,))
    assert len(db["test.t"]) == 2
    del db.parts.store.room.followers["archive"]
    archive.close()
    db.checkpoint()
    db.close()


def test_undo_log_smaller_than_all_that_is_restored_is_emptied_on_the_way() -> None:
    options: dict[str, Any] = {**ROOM, "transaction_memory": "16 MiB"}
    db, place = open_memory(None, **options), MemoryFiles()
    columns = [tm.Column("id", tm.Int64), tm.Column("n", tm.Binary(100), storage="disk")]
    db.create_table("test.t", columns, "id", tm.HashPartition(2))
    archive = archived(db, place)
    db["test.t"].insert_many([(key, b"a" * 100) for key in range(40_000)])
    take(db, place)
    for first in range(0, 40_000, 2_000):
        db["test.t"].delete_many(list(range(first, first + 2_000)))
        db["test.t"].insert_many([(key, b"b" * 100) for key in range(first, first + 2_000)])
    db.checkpoint()
    want = content(db)
    db.sync()
    archive.copy()
    small = {**options, "undo_log": "4 MiB"}
    assert db.status()["disk"]["undo"]["bytes_made"] > 2 * (4 << 20)
    assert content_of(restored(place, **small), **small) == want
    db.close()


def test_numbers_go_on_after_what_was_restored() -> None:
    """A sequence is a row like any other; a number that came after the point in time may come again, as its row may."""
    db, place = open_memory(None, **ROOM), MemoryFiles()
    columns = [tm.Column("id", tm.Int64, default=tm.autoincrement), tm.Column("at", tm.Timestamp, default=tm.now)]
    db.create_table("test.t", columns, "id")
    db["test.t"].insert_many({"id": [None] * 130})
    archive = archived(db, place)
    take(db, place)
    db["test.t"].insert_many({"id": [None] * 200})
    given = db.sequence("s").take(7)
    db["test.t"].delete(330)
    rows, epoch = sorted(db["test.t"]), db.sync()
    db["test.t"].insert_many({"id": [None] * 300})
    db.sync()
    archive.copy()
    with open_memory(restored(place, until=epoch, **ROOM), **ROOM) as again:
        assert sorted(again["test.t"]) == rows
        assert again["test.t"].insert({}) > 330 and again.sequence("s").next() >= given.stop
