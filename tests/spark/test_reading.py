"""The rows that the tasks of a read give, without Spark: every file of backups and local checkpoints, verified on the
way.
"""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tidemark as tm
import tidemark.spark
from tests.spark.support import SMALL, every_column, every_row, rows_in, rows_of
from tidemark.engine.base.errors import Damaged
from tidemark.engine.files.directory import PosixFiles
from tidemark.recovery.local_checkpoint.control import control_ids
from tidemark.recovery.spark.plan import Part, make_plan, packed
from tidemark.recovery.spark.rows import read_task

NUMBERS = [tm.Column("id", tm.Int64), tm.Column("n", tm.VarChar(20)), tm.Column("k", tm.Int64, nullable=True)]


@pytest.fixture
def db(tmp_path: Path) -> Iterator[tm.Database]:
    with tm.open(tmp_path / "store", **SMALL) as opened:
        yield opened


def filled(db: tm.Database, count: int = 5_000) -> None:
    db.create_table("numbers", NUMBERS, "id", partition=tm.HashPartition(4))
    db["numbers"].insert_many([(key, f"n{key}", key % 7 or None) for key in range(count)])


@pytest.mark.parametrize("storage", ["memory", "disk"])
def test_rows_of_every_type_come_out_of_a_backup_as_they_are(db: tm.Database, tmp_path: Path, storage: str) -> None:
    if storage == "disk":
        db.create_tablespace("main", size="1 MiB", page_size="32 KiB")
    db.create_table("every", every_column(storage), "id", partition=tm.HashPartition(3))
    db["every"].insert_many(every_row(200))
    db.backup(tmp_path / "place")
    assert rows_in(tmp_path / "place") == rows_of(db, "every")
    hidden = ["id", tm.ROWID, tm.EPOCH, tm.AUTHOR, tm.FRAGMENT]
    assert rows_in(tmp_path / "place", columns=",".join(hidden)) == rows_of(db, "every", hidden)


def test_rows_of_every_type_come_out_of_a_local_checkpoint(db: tm.Database, tmp_path: Path) -> None:
    db.create_table("every", every_column(), "id", partition=tm.HashPartition(3))
    db["every"].insert_many(every_row(200))
    db.checkpoint()
    db["every"].delete_many(range(100))
    assert rows_in(tmp_path / "store") == sorted(every_row(200))


def test_random_chain_of_backups_gives_each_state(db: tm.Database, tmp_path: Path) -> None:
    """Levels on top of each other; a column added on the way gives older rows a var part they never had."""
    rng = random.Random(3)
    columns = [tm.Column("id", tm.Int64), tm.Column("v", tm.Int64)]
    db.create_table("chain", columns, "id", partition=tm.HashPartition(3))
    states = []
    for turn in range(6):
        keys = rng.sample(range(1_000), 150)
        db["chain"].delete_many([key for key in keys[:60] if key in db["chain"]])
        width = len(db["chain"].definition.columns) - 2
        db["chain"].write_many([(key, turn, *[f"t{turn}"] * width) for key in keys[60:]])
        if turn in (2, 4):
            db.add_column("chain", tm.Column(f"added{turn}", tm.VarChar(10), default=f"old{turn}"))
        db.backup(tmp_path / "place", incremental=True)
        states.append(rows_of(db, "chain"))
    for number, state in enumerate(states, 1):
        assert rows_in(tmp_path / "place", backup=number) == state, number
    assert {row[2:] for row in states[-1]} >= {("old2", "old4"), ("t3", "old4")}


@pytest.mark.parametrize("storage", ["memory", "disk"])
def test_rows_older_than_the_var_part_of_their_table_have_the_defaults(
    db: tm.Database, tmp_path: Path, storage: str
) -> None:
    db.create_tablespace("main", size="256 KiB", page_size="4 KiB", extent="64 KiB")
    columns = [tm.Column("id", tm.Int64), tm.Column("v", tm.Int64), tm.Column("t", tm.Text, storage=storage)]
    columns = columns if storage == "disk" else columns[:2]
    db.create_table("old", columns, "id", partition=tm.HashPartition(1))
    db["old"].insert_many([(key, key, f"text {key}")[: len(columns)] for key in range(50)])
    db.backup(tmp_path / "place")
    db.add_column("old", tm.Column("late", tm.Int32, default=7))
    db["old"].update(3, {"late": 8})
    db["old"].delete(4)
    db.backup(tmp_path / "place", incremental=True)
    assert rows_in(tmp_path / "place") == rows_of(db, "old")


def test_rows_changed_while_a_local_checkpoint_is_made_are_those_of_its_epoch(db: tm.Database, tmp_path: Path) -> None:
    """Old rows are in the copies file, one for all tables: it is a task of its own."""
    filled(db)
    db.create_table("other", NUMBERS, "id", partition=tm.HashPartition(2))
    db["other"].insert_many([(key, "o", None) for key in range(500)])
    before = rows_of(db, "numbers"), rows_of(db, "other")

    def meddle(done: int, _: int, __: str) -> None:
        if 0 < done < 2_000:
            db["numbers"].write_many([(key, "changed", 1) for key in range(1, 5_000, 3)])
            db["other"].delete_many([key for key in range(0, 500, 3) if key in db["other"]])

    db.checkpoint(progress=meddle)
    plan = make_plan({"path": str(tmp_path / "store"), "table": "numbers"})
    assert any(part.fragment < 0 for part in plan.parts), "nothing was copied: the test tests nothing"
    assert rows_in(tmp_path / "store", table="numbers") == before[0] != rows_of(db, "numbers")
    assert rows_in(tmp_path / "store", table="other") == before[1]


def test_pinned_local_checkpoint_stays_until_it_is_released(db: tm.Database, tmp_path: Path) -> None:
    filled(db, 100)
    db.checkpoint()
    with tidemark.spark.pinned(tmp_path / "store") as pin:
        for turn in range(4):
            db["numbers"].insert((1_000 + turn, "later", None))
            db.checkpoint()
        kept = control_ids(PosixFiles(tmp_path / "store"))
        assert pin.lcp_id in kept and len(kept) == 3
        assert len(rows_in(place=tmp_path / "store", lcp=pin.lcp_id)) == 100
        db.close()
        with tm.open(tmp_path / "store", **SMALL) as again:
            assert len(again["numbers"]) == 104
            again.checkpoint()
            assert pin.lcp_id in control_ids(PosixFiles(tmp_path / "store"))
    with tm.open(tmp_path / "store", **SMALL) as again:
        again.checkpoint()
        assert len(control_ids(PosixFiles(tmp_path / "store"))) == 2
    with pytest.raises(tm.SnapshotTooOld, match="pinned"):
        rows_in(tmp_path / "store", lcp=pin.lcp_id)


def test_local_checkpoint_that_goes_before_its_task_begins_is_reported(db: tm.Database, tmp_path: Path) -> None:
    filled(db, 100)
    db.checkpoint()
    (task,) = make_plan({"path": str(tmp_path / "store")}).split_into_tasks()
    first = next(read_task(task))  # begun: it stays until the task ends
    for turn in range(3):
        db["numbers"].insert((1_000 + turn, "later", None))
        db.checkpoint()
    assert first.num_rows
    with pytest.raises(tm.SnapshotTooOld):
        list(read_task(task))


def test_every_flipped_byte_of_what_is_read_is_found(db: tm.Database, tmp_path: Path) -> None:
    rng = random.Random(11)
    filled(db, 2_000)
    db.backup(tmp_path / "place")
    db["numbers"].delete_many(range(0, 2_000, 9))
    db.backup(tmp_path / "place", incremental=True)
    db.checkpoint()
    for folder, place, pattern in [("place", "place", "*/*"), ("store/lcp", "store", "*.data")]:
        tasks = make_plan({"path": str(tmp_path / place)}).split_into_tasks()
        files = [path for path in sorted((tmp_path / folder).glob(pattern)) if path.is_file()]
        read = [path for path in files if path.suffix in (".rows", ".data") and "copies" not in path.name]
        assert len(read) >= 4
        for path in read:
            sound = path.read_bytes()
            for at in rng.sample(range(len(sound)), 25):
                spoiled = bytearray(sound)
                spoiled[at] ^= 1 << rng.randrange(8)
                path.write_bytes(spoiled)
                with pytest.raises(Damaged):
                    [list(read_task(task)) for task in tasks]
            path.write_bytes(sound[: len(sound) // 2])
            with pytest.raises(Damaged):
                [list(read_task(task)) for task in tasks]
            path.write_bytes(sound)
        [list(read_task(task)) for task in tasks]


def test_parts_are_packed_by_bytes() -> None:
    rng = np.random.default_rng(2)
    sizes = [int(size) for size in rng.integers(1 << 10, 1 << 24, 200)]
    bins = packed([Part(number, size) for number, size in enumerate(sizes)], 7)
    assert sorted(part.fragment for each in bins for part in each) == list(range(200))
    totals = [sum(part.size_bytes for part in each) for each in bins]
    assert max(totals) - min(totals) <= max(sizes)


def test_tasks_travel_as_they_are(db: tm.Database, tmp_path: Path) -> None:
    filled(db, 100)
    db.backup(tmp_path / "place")
    plan = make_plan({"path": str(tmp_path / "place"), "tasks": "3", "columns": "n,id"})
    tasks = pickle.loads(pickle.dumps(plan.split_into_tasks()))
    assert len(tasks) == 3
    assert sum(batch.num_rows for task in tasks for batch in read_task(task)) == 100


REFUSED: list[tuple[dict[str, Any], type[tm.Error], str]] = [
    ({"tabel": "numbers"}, tm.SchemaInvalid, "there is no option 'tabel'"),
    ({"table": "nothing"}, tm.NoSuchTable, "known: main.disk, main.numbers"),
    ({}, tm.SchemaInvalid, "say which table"),
    ({"table": "numbers", "columns": "id,m"}, tm.NoSuchColumn, "it has id, n, k"),
    ({"table": "numbers", "columns": "id,id"}, tm.SchemaInvalid, "twice"),
    ({"table": "numbers", "tasks": "0"}, tm.SchemaInvalid, "whole number"),
    ({"table": "numbers", "lcp": "1"}, tm.SchemaInvalid, "not a store"),
    ({"table": "numbers", "backup": "9"}, tm.FileMissing, "no backup 9"),
    ({"path": "store", "table": "numbers", "backup": "1"}, tm.SchemaInvalid, "is a store"),
    ({"path": "store", "table": "disk"}, tm.Unsupported, "read a backup, or these columns: id, n$"),
    ({"path": "store", "table": "numbers", "lcp": "77"}, tm.SnapshotTooOld, "is gone"),
    ({"path": "nowhere"}, tm.FileMissing, "nowhere"),
    ({"path": "empty"}, tm.FileMissing, "no store or backup"),
]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("both")
    (root / "empty").mkdir()
    with tm.open(root / "store", **SMALL) as opened:
        filled(opened, 10)
        opened.create_tablespace("main", size="256 KiB", page_size="4 KiB", extent="64 KiB")
        columns = [*NUMBERS[:2], tm.Column("d", tm.Int64, storage="disk")]
        opened.create_table("disk", columns, "id", partition=tm.HashPartition(1))
        opened.backup(root / "place")
        opened.checkpoint()
    return root


@pytest.mark.parametrize(("options", "kind", "text"), REFUSED)
def test_options_that_cannot_be_are_refused(
    both: Path, options: dict[str, str], kind: type[tm.Error], text: str
) -> None:
    path = str(both / options.get("path", "place"))
    with pytest.raises(kind, match=text):
        make_plan({**options, "path": path})


def test_memory_columns_of_a_table_with_disk_columns_are_read(both: Path) -> None:
    assert rows_in(both / "store", table="disk", columns="id,n") == []
    assert rows_in(both / "place", table="disk") == []
