"""Partitions of open stores: rows in and out, partitions that come and go, and the store after a restart."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

import tidemark as tm
from tests.engine.arena_check import check_arena
from tests.engine.pool_words import free_blocks
from tests.store.support import open_memory
from tidemark.engine.table.table import Table
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles

COLUMNS = [tm.Column("id", tm.Int64), tm.Column("note", tm.VarChar(40)), tm.Column("n", tm.Int32)]
DISK = [
    *COLUMNS[:2],
    tm.Column("n", tm.Int32, storage="disk"),
    tm.Column("body", tm.Text, nullable=True, storage="disk"),
]
ROOM = {"redo_log": "16 MiB", "undo_log": "16 MiB"}
TENS = [("p0", 10), ("p1", 20), ("p2", 30)]
STORAGE = pytest.mark.parametrize("columns", [COLUMNS, DISK], ids=["memory", "disk"])


def row(columns: list[tm.Column], key: int) -> tuple[Any, ...]:
    return (key, "x" * (key % 40), key) if columns is COLUMNS else (key, "x" * (key % 40), key, "b" * (key * 50))


def made(columns: list[tm.Column] = COLUMNS, partition: Any = None) -> Any:
    db = open_memory(MemoryFiles(), **ROOM)
    if columns is DISK:
        db.create_tablespace("main", "1 MiB", page_size="4 KiB", extent="64 KiB")
    db.create_table("t", columns, "id", partition or tm.RangePartition("id", TENS))
    db["t"].insert_many([row(columns, key) for key in range(30)])
    return db


def again(db: Any) -> Any:
    return open_memory(db.parts.files.kill(), **ROOM)


def names(db: Any) -> list[str]:
    return [each["name"] for each in db.partitions("t")]


def keys(db: Any) -> list[int]:
    assert db.check()["problems"] == []
    return sorted(each.id for each in db["t"].scan())


# --- rows ----------------------------------------------------------------------------------------
def test_row_that_no_range_takes_is_refused_and_leaves_no_trace() -> None:
    db = made()
    before = db.status()["log"]
    with db.transaction() as txn:
        for call in (txn.insert, txn.write):
            with pytest.raises(tm.NoPartition, match="id=30") as found:
                call("t", row(COLUMNS, 30))
            assert found.value.values == {"id": 30} and found.value.key == 30
        for many in (txn.insert_many, txn.write_many):
            with pytest.raises(tm.NoPartition, match="row 1") as found:
                many("t", [row(COLUMNS, -1), row(COLUMNS, 31), row(COLUMNS, -2)])
            assert found.value.row == 1
    assert keys(db) == list(range(30))
    assert db.status()["log"] == before
    check_arena(db)


@STORAGE
def test_scan_of_some_partitions_has_their_rows_only(columns: list[tm.Column]) -> None:
    db = made(columns)
    assert sorted(each.id for each in db["t"].scan(partitions=["p2", "p0"])) == [*range(10), *range(20, 30)]
    assert db["t"].scan(["id"], partitions=["p1"]).to_arrow().num_rows == 10
    assert list(db["t"].scan(partitions=[])) == []
    with db.transaction() as txn:
        txn.insert("t", row(columns, -5))
        assert sorted(each.id for each in txn.scan("t", ["id"], partitions=["p0"])) == [-5, *range(10)]
        assert len(list(txn.scan("t", ["id"], lock="exclusive", partitions=["p1"]))) == 10
        with pytest.raises(tm.NoSuchPartition, match="known: p0, p1, p2"):
            txn.scan("t", partitions=["p3"])
    assert list(db["t"].scan(partitions="p0")) == list(db["t"].scan(partitions=["p0"]))
    for wrong in (["p0", "x"], "x", [7]):
        with pytest.raises(tm.NoSuchPartition):
            db["t"].scan(partitions=wrong)  # type: ignore[arg-type]


def test_partitions_of_a_hash_have_names_too() -> None:
    db = made(partition=tm.HashPartition(3))
    assert names(db) == ["p0", "p1", "p2"]
    parts = [{each.id for each in db["t"].scan(partitions=[name])} for name in names(db)]
    assert set.union(*parts) == set(range(30)) and sum(map(len, parts)) == 30
    assert [each["rows"] for each in db.partitions("t")] == [len(part) for part in parts]


# --- add and drop --------------------------------------------------------------------------------
@STORAGE
def test_added_partition_takes_rows_and_a_dropped_one_is_gone_after_every_restart(columns: list[tm.Column]) -> None:
    db = made(columns)
    db.checkpoint()
    db.add_partition("t", "p3", 40)
    db["t"].insert(row(columns, 35))
    db.drop_partition("t", "p1")
    db["t"].insert(row(columns, 12))  # its range has fallen to p2
    wanted = [*range(10), 12, *range(20, 30), 35]
    for turn in range(3):
        assert names(db) == ["p0", "p2", "p3"] and keys(db) == wanted
        assert [each["fragment"] for each in db.partitions("t")] == [0, 2, 3]
        assert db.partitions("t")[1] == {"name": "p2", "fragment": 2, "upper": 30, "rows": 11}
        assert db["t"].definition.version == 3
        check_arena(db)
        db = again(db)
        if turn == 1:
            db.checkpoint()
    db.add_partition("t", "p1", 50)
    assert db.partitions("t")[-1]["fragment"] == 4, "fragment numbers are never used again"


def test_lists_come_and_go() -> None:
    db = made(partition=tm.ListPartition("id", {"low": range(20), "high": range(20, 30)}))
    with pytest.raises(tm.SchemaInvalid, match="again in 'more'"):
        db.add_partition("t", "more", [30, 29])
    db.add_partition("t", "more", [40, 30])
    db["t"].insert(row(COLUMNS, 40))
    db.drop_partition("t", "low")
    with pytest.raises(tm.NoPartition):
        db["t"].insert(row(COLUMNS, 3))
    db.add_partition("t", "low", [3])
    db["t"].insert(row(COLUMNS, 3))
    db = again(db)
    assert keys(db) == [3, *range(20, 30), 40]
    assert db.partitions("t")[1] == {"name": "more", "fragment": 2, "values": [30, 40], "rows": 1}


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda db: db.add_partition("t", "p3", 30), tm.SchemaInvalid, "must ascend"),
        (lambda db: db.add_partition("t", "p0", 40), tm.SchemaInvalid, "appears twice"),
        (lambda db: db.add_partition("t", "p3", "x"), tm.SchemaInvalid, "needs an int"),
        (lambda db: db.add_partition("t", "a/b", 40), tm.InvalidName, "name"),
        (lambda db: db.add_partition("x", "p3", 40), tm.NoSuchTable, "x"),
        (lambda db: db.add_partition("h", "p3", 40), tm.SchemaInvalid, "range and list"),
        (lambda db: db.drop_partition("t", "p7"), tm.NoSuchPartition, "main.t"),
        (lambda db: db.drop_partition("h", "p0"), tm.SchemaInvalid, "range and list"),
    ],
)
def test_change_that_cannot_be_is_refused_without_a_trace(call: Any, error: Any, message: str) -> None:
    db = made()
    db.create_table("h", COLUMNS, "id")
    before = db.status()["log"], db["t"].definition
    with pytest.raises(error, match=message):
        call(db)
    assert (db.status()["log"], db["t"].definition) == before
    check_arena(db)


def test_last_partition_stays_and_numbers_run_out() -> None:
    db = made()
    db.drop_partition("t", "p0")
    db.drop_partition("t", "p2")
    with pytest.raises(tm.SchemaInvalid, match="drop the table"):
        db.drop_partition("t", "p1")
    db = open_memory(data_memory="64 MiB")
    db.create_table("full", COLUMNS, "id", tm.ListPartition("id", {f"p{number}": [number] for number in range(4_096)}))
    db.drop_partition("full", "p7")
    with pytest.raises(tm.LimitExceeded, match="never used again"):
        db.add_partition("full", "p7", [7])
    check_arena(db)


def test_memory_that_does_not_suffice_for_a_partition_leaves_no_trace() -> None:
    """Story: a restart makes the objects of schema records in the lower half of the arena alone. A store whose tables
    filled more than that could not be opened again with the data_memory it had.
    """
    db = made()
    with pytest.raises(tm.MemoryExhausted):
        for number in range(4_000):
            db.create_table(f"filler{number}", COLUMNS, "id", tm.HashPartition(60))
    while True:
        before = names(db)
        try:
            db.add_partition("t", f"q{len(before)}", 1_000 + len(before))
        except tm.MemoryExhausted:
            assert names(db) == before
            break
    check_arena(db)
    assert len(keys(again(db))) == 30


@STORAGE
@pytest.mark.parametrize("where", ["before the log", "before it is seen", "once it is seen"])
def test_interrupted_change_has_happened_or_not_at_all(
    columns: list[tm.Column], where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    db = made(columns)
    apply = Table.apply
    interrupted: list[str] = []

    def interrupt(*arguments: Any) -> None:
        is_first = not interrupted
        interrupted.append(where)
        if is_first and where != "once it is seen":
            raise KeyboardInterrupt
        apply(*arguments)
        if is_first:
            raise KeyboardInterrupt

    for call in (lambda: db.drop_partition("t", "p1"), lambda: db.add_partition("t", "p3", 40)):
        interrupted.clear()
        with monkeypatch.context() as patch:
            if where == "before the log":
                patch.setattr(db.parts.store.schema, "log", interrupt)
            else:
                patch.setattr(Table, "apply", interrupt)
            with pytest.raises(KeyboardInterrupt):
                call()
        check_arena(db)
    db.sync()
    for _ in range(2):
        assert names(db) == (["p0", "p1", "p2"] if where == "before the log" else ["p0", "p2", "p3"])
        assert db["t"].get(12) is None or where == "before the log"
        check_arena(db)
        db = again(db)


@STORAGE
def test_transaction_on_a_partition_dropped_under_it_commits_what_is_left(columns: list[tm.Column]) -> None:
    db = made(columns)
    txn = db.transaction()
    txn.update("t", 12, {"n": 7})
    txn.delete("t", 13)
    txn.insert("t", row(columns, -1))
    txn.update("t", 5, {"n": 8})
    db.drop_partition("t", "p1")
    check_arena(db)
    assert txn.get("t", 12) is None
    txn.insert("t", row(columns, 14))
    txn.commit(True)
    assert db["t"].get(5).n == 8
    for _ in range(2):
        assert keys(db) == [-1, *range(10), 14, *range(20, 30)]
        check_arena(db)
        db = again(db)


@STORAGE
def test_rolled_back_transaction_gives_a_dropped_partition_free(columns: list[tm.Column]) -> None:
    db = made(columns)
    db.drop_partition("t", "p2")
    used = db.parts.store.arena.used_pages() * 8 - free_blocks(db.parts.store.arena)
    db.add_partition("t", "p2", 30)
    db["t"].insert_many([row(columns, key) for key in range(20, 30)])
    txn = db.transaction()
    txn.write_many("t", [row(columns, key) for key in range(20, 30)])
    db.drop_partition("t", "p2")
    txn.rollback()
    assert keys(db) == list(range(20))
    check_arena(db)
    assert db.parts.store.arena.used_pages() * 8 - free_blocks(db.parts.store.arena) <= used + 8


@STORAGE
def test_scan_ends_quietly_where_its_partition_was_dropped(columns: list[tm.Column]) -> None:
    db = made(columns)
    scan = iter(db["t"].scan())
    assert next(scan).id == 0
    db.drop_partition("t", "p1")
    db.add_partition("t", "p3", 40)
    assert sorted(each.id for each in scan) == [*range(1, 10), *range(20, 30)]


@STORAGE
def test_partitions_changed_during_a_local_checkpoint_are_right_after_a_restart(columns: list[tm.Column]) -> None:
    db = made(columns)
    done: list[int] = []

    def beside(*_: Any) -> None:
        if not done:
            db.drop_partition("t", "p2")  # not scanned yet
            db.add_partition("t", "p3", 40)
            db["t"].insert(row(columns, 25))
            db["t"].update(25, {"n": 1})
            db["t"].delete(3)
        done.append(1)

    db.checkpoint(beside)
    assert len(done) == 3, "the fragments there were when it began"
    for _ in range(3):
        assert keys(db) == [0, 1, 2, *range(4, 20), 25] and names(db) == ["p0", "p1", "p3"]
        check_arena(db)
        db = again(db)
    db.checkpoint()
    assert db["t"].get(25).n == 1


def test_restart_through_an_epoch_before_the_drop_brings_the_partition_back() -> None:
    db = made()
    db.checkpoint()
    epoch = db.sync()
    db.drop_partition("t", "p1")
    db["t"].insert(row(COLUMNS, 15))
    db.sync()
    db = open_memory(db.parts.files.kill(), through=epoch, **ROOM)
    assert names(db) == ["p0", "p1", "p2"] and keys(db) == list(range(30))
    db.add_partition("t", "p3", 40)
    assert names(again(db)) == ["p0", "p1", "p2", "p3"]


def test_damaged_data_file_of_a_partition_falls_back_to_the_checkpoint_before() -> None:
    db = made()
    db.checkpoint()
    db.add_partition("t", "p3", 40)
    db["t"].insert_many([row(COLUMNS, key) for key in range(30, 40)])
    db.drop_partition("t", "p0")
    db.checkpoint()
    db.drop_partition("t", "p2")
    table_id = db["t"].definition.table_id
    for number in (1, 3):
        files = db.parts.files.kill()
        file = files.open(f"lcp/2-{table_id}-{number}.data", True)
        files.pwrite(file, 100, b"damage!")
        files.fdatasync(file)
        files.close(file)
        back = open_memory(files, **ROOM)
        assert back.restart_report["fallbacks"] == 1
        assert sorted(each.id for each in back["t"].scan()) == [*range(10, 20), *range(30, 40)]


def test_extents_of_a_dropped_partition_come_back_when_no_checkpoint_has_them() -> None:
    db = made(DISK)
    db["t"].write_many([(*row(DISK, key)[:3], "b" * 20_000) for key in range(10, 20)])
    free = []

    def note() -> None:
        free.append(db.status()["tablespaces"]["main"]["free_extents"])

    db.checkpoint()
    note()
    db.drop_partition("t", "p1")
    note()
    db = again(db)
    note()
    db.checkpoint()
    note()
    db.checkpoint()
    note()
    assert free[0] == free[1] == free[2] == free[3] < free[4]
    db = again(db)
    note()
    assert free[5] == free[4]
    check_arena(db)
    assert keys(db) == [*range(10), *range(20, 30)]


def test_attached_reader_sees_partitions_of_its_checkpoint(tmp_path: Path) -> None:
    with tm.open(tmp_path, background=False, redo_log="2 MiB", data_memory="16 MiB") as db:
        db.create_table("t", COLUMNS, "id", tm.RangePartition("id", TENS))
        db["t"].insert_many([row(COLUMNS, key) for key in range(30)])
        db.drop_partition("t", "p1")
        db.checkpoint()
        with tm.open(tmp_path, read_only=True, data_memory="16 MiB") as view:
            db.add_partition("t", "p3", 40)
            db["t"].insert(row(COLUMNS, 35))
            assert [each["name"] for each in view.partitions("t")] == ["p0", "p2"]
            assert sorted(each.id for each in view["t"].scan(partitions=["p2"])) == list(range(20, 30))
            with view.transaction() as txn:
                assert len(list(txn.scan("t", partitions=["p0"]))) == 10
            for call in (view.add_partition, view.drop_partition):
                with pytest.raises(tm.ReadOnly):
                    call("t", "p4", 50)
            db.checkpoint()
            view.refresh()
            assert [each["rows"] for each in view.partitions("t")] == [10, 10, 1]
            assert view["t"].get(35) is not None


# --- everything at random ------------------------------------------------------------------------
@STORAGE
def test_partitions_that_come_and_go_leave_every_word_owned_once(columns: list[tm.Column]) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    db = made(columns)
    bounds, model, count = dict(TENS), set(range(30)), 3
    for step in range(60):
        draw = rng.random()
        if draw < 0.2 and len(bounds) < 150:  # each with rows takes a page of memory or two
            for _ in range(rng.choice([1, 1, 1, 60])):
                bounds[f"p{count}"] = max(bounds.values()) + rng.randint(1, 5)
                db.add_partition("t", f"p{count}", bounds[f"p{count}"])
                count += 1
        elif draw < 0.35 and len(bounds) > 1:
            name = rng.choice(sorted(bounds))
            low = max([bound for bound in bounds.values() if bound < bounds[name]], default=-(10**9))
            model -= {key for key in model if low <= key < bounds[name]}
            db.drop_partition("t", name)
            del bounds[name]
        elif draw < 0.45:
            db.checkpoint()
        elif draw < 0.55:
            db = again(db)
        else:
            wanted = {rng.randint(-5, max(bounds.values()) + 2) for _ in range(20)}
            taken = {key for key in wanted if key < max(bounds.values())}
            db["t"].write_many([row(columns, key % 100)[:0] + (key, *row(columns, key % 100)[1:]) for key in taken])
            model |= taken
        if step % 6 == 5:
            check_arena(db)
            assert keys(db) == sorted(model) and names(db) == sorted(bounds, key=bounds.__getitem__)
    assert db["t"].table.fragments_of(sorted(model)).min() >= 0
