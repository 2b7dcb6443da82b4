"""Chains of backups over the whole life of a store: each is restored and compared with a model.

The steps of a chain are drawn by a seed: rows come, ranges of rows go, tables and partitions come and go, the store
makes a local checkpoint, is closed and opened, or its process is killed; between them a backup is made, incremental on
top of the one before. The model is a dictionary for each table.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

import tidemark as tm
from tests.backup.support import restored, take
from tests.seeds import fresh_seeds
from tests.spark.support import rows_in
from tests.store.support import open_memory, rows_of
from tidemark.backup import restore, verify
from tidemark.recovery.backup import writer as writer_room
from tidemark.recovery.backup.retention import prune
from tidemark.recovery.backup.rows_file import RowsWriter
from tidemark.recovery.backup.verify import verify as verify_place
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles

ROOM: dict[str, Any] = {"data_memory": "64 MiB", "redo_log": "16 MiB", "undo_log": "16 MiB", "page_buffer": "1 MiB"}
COLUMNS = [tm.Column("id", tm.Int64), tm.Column("v", tm.Int64)]
ON_DISK = [tm.Column("id", tm.Int64), tm.Column("v", tm.Int64, storage="disk")]
KEYS = 6_000  # several pages of each fragment
PARTITION_KEYS = 1_000
Model = dict[str, dict[int, tuple[Any, ...]]]


class Chain:
    """A store with its model, and a place of backups with the model of each."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.files = MemoryFiles()
        self.place = MemoryFiles()
        self.db = open_memory(self.files, **ROOM)
        self.model: Model = {}
        self.wanted: dict[int, Model] = {}
        self.first_partition, self.next_partition = 0, 3
        self.create("main.m", COLUMNS, tm.HashPartition(2))
        self.create("main.d", ON_DISK, tm.HashPartition(1))
        self.create("main.again", COLUMNS, tm.HashPartition(1))
        bounds = [(f"p{number}", (number + 1) * PARTITION_KEYS) for number in range(3)]
        self.create("main.r", COLUMNS, tm.RangePartition("id", bounds))

    def create(self, name: str, columns: list[tm.Column], partition: Any) -> None:
        self.db.create_table(name, columns, "id", partition)
        self.model[name] = {}

    def keys_of(self, name: str) -> range:
        return range(self.next_partition * PARTITION_KEYS if name == "main.r" else KEYS)

    # --- steps -----------------------------------------------------------------------------------
    def write(self) -> None:
        """Write a run of rows, inserted or updated."""
        name = self.rng.choice(sorted(self.model))
        keys = self.keys_of(name)
        first = self.rng.choice(keys)
        last = min(first + self.rng.choice([1, 40, 3_000]), keys.stop)
        rows = [(key, self.rng.randrange(1 << 40), *([f"text {key}"] * self.extra(name))) for key in range(first, last)]
        self.db[name].write_many(rows)
        self.model[name].update((row[0], row) for row in rows)

    def extra(self, name: str) -> int:
        return len(self.db[name].definition.columns) - 2

    def delete(self) -> None:
        """Delete a range of keys, often all from one key on, or up to one, or all."""
        name = self.rng.choice(sorted(self.model))
        keys = self.keys_of(name)
        first, last = sorted(self.rng.sample(range(keys.stop + 1), 2))
        first, last = self.rng.choice([(first, last), (first, keys.stop), (0, last), (0, keys.stop)])
        self.db[name].delete_where((tm.col("id") >= first) & (tm.col("id") < last))
        self.model[name] = {key: row for key, row in self.model[name].items() if not first <= key < last}

    def partitions(self) -> None:
        """Add a partition, or drop the first one."""
        if self.rng.random() < 0.5:
            number, self.next_partition = self.next_partition, self.next_partition + 1
            self.db.add_partition("main.r", f"p{number}", self.next_partition * PARTITION_KEYS)
            return
        if self.first_partition < self.next_partition - 1:
            self.db.drop_partition("main.r", f"p{self.first_partition}")
            self.first_partition += 1
            stop = self.first_partition * PARTITION_KEYS
            self.model["main.r"] = {key: row for key, row in self.model["main.r"].items() if key >= stop}

    def table_again(self) -> None:
        """Drop a table and create it again."""
        self.db.drop_table("main.again")
        self.create("main.again", COLUMNS, tm.HashPartition(1))

    def column(self) -> None:
        """Give a table its first column of variable size."""
        if not self.extra("main.m"):
            self.db.add_column("main.m", tm.Column("s", tm.Text, default="old"))
            self.model["main.m"] = {key: (*row, "old") for key, row in self.model["main.m"].items()}

    def checkpoint(self) -> None:
        self.db.checkpoint()

    def reopen(self) -> None:
        self.db.close()
        self.files = self.files.kill()
        self.db = open_memory(self.files, **ROOM)

    def kill(self) -> None:
        self.db.sync()
        self.files = self.files.kill()
        self.db = open_memory(self.files, **ROOM)

    def backup(self, incremental: bool = True) -> None:
        report = take(self.db, self.place, incremental)
        self.wanted[report["number"]] = {name: dict(rows) for name, rows in self.model.items()}

    def prune(self) -> None:
        prune(self.place, 3)
        self.wanted = {number: self.wanted[number] for number in sorted(self.wanted)[-3:]}

    def run(self, steps: int) -> None:
        ways = [self.write] * 5 + [self.delete] * 4 + [self.checkpoint] * 3 + [self.reopen, self.kill] * 2
        ways += [self.backup] * 4 + [self.prune, self.partitions, self.table_again, self.column]
        self.backup(incremental=False)
        for _ in range(steps):
            self.rng.choice(ways)()
        self.backup()


SEEDS = [11, 12, *fresh_seeds(2)]


@pytest.mark.parametrize("seed", [*SEEDS, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(100, 120))])
def test_each_backup_of_a_random_life_restores_to_its_rows(seed: int) -> None:
    print(f"seed {seed}")
    chain = Chain(seed)
    chain.run(60)
    chain.db.close()
    report = verify_place(chain.place)
    assert report.problems == []
    for number, wanted in chain.wanted.items():
        copy = open_memory(restored(chain.place, number=number, **ROOM), **ROOM)
        assert copy.check()["problems"] == []
        assert {name: rows_of(copy, name) for name in wanted} == wanted, number
        copy.close()


@pytest.mark.parametrize("kept", ["first", "last", "none"])
def test_rows_that_were_gone_when_the_store_was_opened_are_gone_in_an_incremental_backup(
    kept: str, tmp_path: Path
) -> None:
    """Story: a user made a full backup, deleted old rows, made a local checkpoint, opened the store again, and made an
    incremental backup, which was verified, and `tidemark backup verify` found nothing. Months later the restore
    ended with BackupDamaged: the store had no pages any more where the rows had been, so the map of live rows ended
    before them, and a restore took "not in the map" for damage, or a map of no words for "all rows".
    """
    where = {"first": tm.col("id") >= 1_000, "last": tm.col("id") < 9_000, "none": tm.col("id") >= 0}[kept]
    store, place = tmp_path / "store", tmp_path / "place"
    with tm.open(store, **ROOM) as db:
        table = db.create_table("t", COLUMNS, "id")
        table.insert_many([(key, key) for key in range(10_000)])
        db.backup(place)
        table.delete_where(where)
        db.checkpoint()
    with tm.open(store, **ROOM) as db:
        db["t"].insert((20_000, 1))
        want = sorted(tuple(row) for row in db["t"].scan())
        db.backup(place, incremental=True, verify=True)
        assert tm.diff(db, place)["is_equal"]
    assert verify(place)["is_sound"]
    restore(place, tmp_path / "copy")
    with tm.open(tmp_path / "copy", **ROOM) as copy:
        assert sorted(tuple(row) for row in copy["t"].scan()) == want
    assert rows_in(place, table="t") == want


def test_load_between_backups_is_in_the_incremental_one(tmp_path: Path) -> None:
    with tm.open(tmp_path / "store", **ROOM) as db:
        table = db.create_table("t", COLUMNS, "id")
        table.insert_many([(key, key) for key in range(500)])
        db.backup(tmp_path / "place")
        table.delete_where(tm.col("id") >= 0)
        assert db.load("t", [(key, -key) for key in range(60_000)]) == 60_000
        db.backup(tmp_path / "place", incremental=True)
        table.delete_where(tm.col("id") >= 100)
        db.backup(tmp_path / "place", incremental=True)
    for number, rows in ((1, 500), (2, 60_000), (3, 100)):
        restore(tmp_path / "place", tmp_path / f"copy {number}", number=number)
        with tm.open(tmp_path / f"copy {number}", **ROOM) as copy:
            assert len(copy["t"]) == rows


def lose_changed_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on incremental levels have no rows, though they say how many the fragment has."""
    add = RowsWriter.add

    def lacking(writer: RowsWriter, batch: Any) -> None:
        if not writer.level.since:
            add(writer, batch)

    monkeypatch.setattr(RowsWriter, "add", lacking)


def lacking_chain(monkeypatch: pytest.MonkeyPatch) -> tuple[MemoryFiles, dict[str, Any], Model]:
    """A full backup, then an incremental one that a defect of the writer left without its rows."""
    db, place = open_memory(None, **ROOM), MemoryFiles()
    db.create_table("main.t", COLUMNS, "id", tm.HashPartition(1))
    db["main.t"].insert_many([(key, key) for key in range(1_000)])
    take(db, place)
    lose_changed_rows(monkeypatch)
    db["main.t"].insert_many([(key, key) for key in range(1_000, 1_010)])
    report = take(db, place, incremental=True)
    want = {"main.t": rows_of(db, "main.t")}
    db.close()
    return place, report, want


def test_verification_proves_that_the_levels_have_the_rows_of_the_fragment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_room.BackupWriter, "check_complete", lambda *_: None)
    place, _, _ = lacking_chain(monkeypatch)
    problems = verify_place(place).problems
    assert len(problems) == 1
    assert "have 1000 rows where 1010 were backed up" in problems[0]
    assert verify_place(place, number=1).problems == []
    with pytest.raises(tm.BackupDamaged):
        restored(place, **ROOM)


def test_level_that_the_levels_below_cannot_complete_is_written_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    place, report, want = lacking_chain(monkeypatch)
    assert report["written_rows"] == 1_010
    assert "written whole again" in report["notes"][0]
    assert verify_place(place).problems == []
    copy = open_memory(restored(place, **ROOM), **ROOM)
    assert {"main.t": rows_of(copy, "main.t")} == want
    copy.close()


@pytest.mark.parametrize("harm", ["cut", "gone", "changed"])
def test_level_on_top_of_a_damaged_one_is_written_whole(harm: str) -> None:
    """An incremental backup reads the places of the rows below, against their digests."""
    db, place = open_memory(None, **ROOM), MemoryFiles()
    db.create_table("main.t", COLUMNS, "id", tm.HashPartition(1))
    db["main.t"].insert_many([(key, key) for key in range(1_000)])
    take(db, place)
    contents = dict(place.snapshot())
    (name,) = (each for each in contents if each.endswith(".parquet") and "-main.t/" in each)
    text = contents.pop(name)
    if harm != "gone":
        contents[name] = text[:-9] if harm == "cut" else text[:50] + bytes([text[50] ^ 1]) + text[51:]
    place = MemoryFiles.from_snapshot(contents)
    db["main.t"].delete_many(range(10))
    report = take(db, place, incremental=True)
    assert report["written_rows"] == 990 and "written whole again" in report["notes"][0]
    copy = open_memory(restored(place, **ROOM), **ROOM)
    assert rows_of(copy, "main.t") == rows_of(db, "main.t")
    copy.close()
    db.close()


def test_fragment_with_many_dead_rows_is_written_whole() -> None:
    db, place = open_memory(None, **ROOM), MemoryFiles()
    db.create_table("main.t", COLUMNS, "id", tm.HashPartition(1))
    db["main.t"].insert_many([(key, key) for key in range(30_000)])
    take(db, place)
    written = []
    for first in range(0, 3_600, 600):
        db["main.t"].delete_many(range(first, first + 600))
        written.append(take(db, place, incremental=True)["written_rows"])
    assert written == [0, 0, 28_200, 0, 0, 26_400]  # at 1,200 dead rows of 30,000 it goes on, not at 1,800
    copy = open_memory(restored(place, **ROOM), **ROOM)
    assert rows_of(copy, "main.t") == rows_of(db, "main.t")
    copy.close()
    db.close()
