"""Chains of backups over the whole life of a store: each is restored and compared with a model.

The steps of a chain are drawn by a seed: rows come, ranges of rows go, tables, partitions and columns come and go, the
store makes a local checkpoint, is closed and opened, or its process is killed; between them a backup is made,
incremental on top of the one before. The model is a dictionary for each table.
"""

from __future__ import annotations

import base64
import json
import random
import shutil
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import tidemark as tm
from tests.backup.support import restored, take
from tests.seeds import fresh_seeds
from tests.spark.support import rows_in
from tests.store.support import open_memory, rows_of
from tidemark.backup import prune, restore, verify
from tidemark.recovery.backup import writer as writer_room
from tidemark.recovery.backup.roaring import pack
from tidemark.recovery.backup.rows_file import RowsWriter
from tidemark.recovery.backup.verify import verify as verify_place
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles

ROOM: dict[str, Any] = {"data_memory": "64 MiB", "redo_log": "16 MiB", "undo_log": "16 MiB", "page_buffer": "1 MiB"}
COLUMNS = [tm.Column("id", tm.Int64), tm.Column("v", tm.Int64)]
ON_DISK = [tm.Column("id", tm.Int64), tm.Column("v", tm.Int64, storage="disk")]
KEYS = 6_000  # several pages of each fragment
PARTITION_KEYS = 1_000
BUSY = ["main.again", "main.d", "main.m", "main.r"]
Model = dict[str, dict[int, tuple[Any, ...]]]


def json_of(path: Path) -> Any:
    """The JSON of a manifest or level file, after its header."""
    return json.loads(path.read_bytes()[128:].rstrip(b"\0"))


def positions_of(data: bytes) -> set[int]:
    """The positions in a bitmap of dead rows, by the description of Delta's deletion vectors and of roaring bitmaps."""
    found = set()
    magic, count = struct.unpack_from("<iq", data)
    assert magic == 1_681_511_377
    at = 12
    for _ in range(count):
        high, cookie, containers = struct.unpack_from("<III", data, at)
        assert cookie == 12_346
        start = at + 4
        for number in range(containers):
            key, less = struct.unpack_from("<HH", data, start + 8 + 4 * number)
            (offset,) = struct.unpack_from("<I", data, start + 8 + 4 * containers + 4 * number)
            if less < 4_096:
                lows = struct.unpack_from(f"<{less + 1}H", data, start + offset)
                at = start + offset + 2 * (less + 1)
            else:
                bits = int.from_bytes(data[start + offset : start + offset + 8_192], "little")
                lows = tuple(low for low in range(1 << 16) if bits >> low & 1)
                at = start + offset + 8_192
            assert len(lows) == less + 1
            found |= {high << 32 | key << 16 | low for low in lows}
    assert at == len(data)
    return found


def plain_rows(place: Path, number: int) -> tuple[Model, int]:
    """The rows of a backup by pyarrow, without those that level files name as dead, and how many levels a fragment has
    at most. Nothing of the program is used.
    """
    manifest = json_of(place / f"{number}/manifest")
    names = {each["table_id"]: each["name"] for each in manifest["tables"]}
    model: Model = {name: {} for name in names.values()}
    for levels in manifest["levels"]:
        backup, table, _, fragment, newest, *_ = levels[0]
        about = json_of(place / f"{backup}/{table}-{fragment}-{newest:x}.level")
        dead = {epoch: positions_of(base64.b64decode(text)) for epoch, text in about["dead"]}
        for backup, table, name, fragment, epoch, *_ in levels:
            held = pq.read_table(place / f"{table}-{name}/{backup}/{fragment}-{epoch:x}.parquet")
            columns = [held[key].to_pylist() for key in held.column_names if key[0] != "$"]
            for at, row in enumerate(zip(*columns, strict=True)):
                if at not in dead.get(epoch, ()):
                    assert row[0] not in model[names[table]]
                    model[names[table]][row[0]] = row
    return model, max(map(len, manifest["levels"]))


class Chain:
    """A store with its model, and a place of backups with the model of each."""

    def __init__(self, seed: int, path: Path) -> None:
        self.rng = random.Random(seed)
        self.path = path
        self.place = path / "place"
        self.lives = 0
        self.db = self.opened()
        self.model: Model = {}
        self.wanted: dict[int, Model] = {}
        self.depths: list[int] = []
        self.extras: dict[str, list[str]] = {}
        self.first_partition, self.next_partition = 0, 3
        self.create("main.m", COLUMNS, tm.HashPartition(2))
        self.create("main.d", ON_DISK, tm.HashPartition(1))
        self.create("main.again", COLUMNS, tm.HashPartition(1))
        self.create("main.quiet", COLUMNS, tm.HashPartition(1))
        bounds = [(f"p{number}", (number + 1) * PARTITION_KEYS) for number in range(3)]
        self.create("main.r", COLUMNS, tm.RangePartition("id", bounds))

    def opened(self) -> tm.Database:
        return tm.open(self.path / f"store {self.lives}", background=False, **ROOM)

    def create(self, name: str, columns: list[tm.Column], partition: Any) -> None:
        self.db.create_table(name, columns, "id", partition)
        self.model[name], self.extras[name] = {}, []

    def keys_of(self, name: str) -> range:
        return range(self.next_partition * PARTITION_KEYS if name == "main.r" else KEYS)

    # --- steps -----------------------------------------------------------------------------------
    def write(self) -> None:
        """Write a run of rows, inserted or updated."""
        name = self.rng.choice(BUSY)
        keys = self.keys_of(name)
        first = self.rng.choice(keys)
        last = min(first + self.rng.choice([1, 40, 3_000]), keys.stop)
        more = len(self.extras[name])
        rows = [(key, self.rng.randrange(1 << 40), *([f"text {key}"] * more)) for key in range(first, last)]
        self.db[name].write_many(rows)
        self.model[name].update((row[0], row) for row in rows)

    def load(self) -> None:
        """Load rows into a table that has none."""
        name = self.rng.choice(["main.again", "main.m"])
        more = ["loaded"] * len(self.extras[name])
        rows = [(key, -key, *more) for key in range(self.rng.choice([1, KEYS]))]
        self.db[name].delete_where(tm.col("id") >= 0)
        assert self.db.load(name, rows) == len(rows)
        self.model[name] = {row[0]: row for row in rows}

    def delete(self) -> None:
        """Delete a range of keys, often all from one key on, or up to one, or all."""
        name = self.rng.choice(BUSY)
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
        """Add, rename or drop a column."""
        name = self.rng.choice(["main.m", "main.d"])
        extras, new = self.extras[name], f"c{self.rng.randrange(1 << 20)}"
        how = self.rng.choice(["add", "rename", "drop"]) if extras else "add"
        if how == "add":
            self.db.add_column(name, tm.Column(new, tm.VarChar(40), default="old"))
            extras.append(new)
            self.model[name] = {key: (*row, "old") for key, row in self.model[name].items()}
            return
        at = self.rng.randrange(len(extras))
        if how == "rename":
            self.db.rename_column(name, extras[at], new)
            extras[at] = new
            return
        self.db.drop_column(name, extras.pop(at))
        self.model[name] = {key: (*row[: 2 + at], *row[3 + at :]) for key, row in self.model[name].items()}

    def checkpoint(self) -> None:
        self.db.checkpoint()

    def reopen(self) -> None:
        self.db.close()
        self.db = self.opened()

    def kill(self) -> None:
        """Continue with a copy of the files, which is what a kill leaves: no thread serves the store."""
        self.db.sync()
        killed, self.lives = self.db, self.lives + 1
        shutil.copytree(self.path / f"store {self.lives - 1}", self.path / f"store {self.lives}")
        killed.close()
        self.db = self.opened()

    def backup(self, incremental: bool = True) -> None:
        """Change little in one table, so that it gets a level each time; then make a backup and compare it."""
        key = self.rng.randrange(20)
        self.db["main.quiet"].write_many([(key, self.rng.randrange(9)), (100 + len(self.depths), 0)])
        self.model["main.quiet"] = {row[0]: tuple(row) for row in self.db["main.quiet"].scan()}
        report = self.db.backup(self.place, incremental=incremental)
        number = report["number"]
        assert report["kind"] == ("incremental" if incremental else "full")
        self.wanted[number] = {name: dict(rows) for name, rows in self.model.items()}
        assert tm.diff(self.db, self.place)["is_equal"]
        rows, depth = plain_rows(self.place, number)
        assert rows == self.model, number
        self.depths.append(depth)

    def prune(self) -> None:
        prune(self.place, 3)
        self.wanted = {number: self.wanted[number] for number in sorted(self.wanted)[-3:]}

    def run(self, backups: int) -> None:
        ways = [self.write] * 5 + [self.delete] * 4 + [self.checkpoint] * 3 + [self.reopen, self.kill]
        ways += [self.prune, self.partitions, self.table_again, self.load, self.column, self.column]
        for number in range(backups):
            self.backup(incremental=number > 0)
            for _ in range(self.rng.randrange(5)):
                self.rng.choice(ways)()
        self.db.close()


SEEDS = [11, *fresh_seeds(1)]


@pytest.mark.parametrize("seed", [*SEEDS, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(100, 120))])
def test_each_backup_of_a_random_life_restores_to_its_rows(seed: int, tmp_path: Path) -> None:
    print(f"seed {seed}")
    chain = Chain(seed, tmp_path)
    chain.run(20)
    assert max(chain.depths) == 16  # then the fragment is written whole again
    assert verify(chain.place, rows=True)["is_sound"]
    newest = max(chain.wanted)
    for number in {newest, *chain.rng.sample(sorted(chain.wanted), 2)}:
        wanted, copy = chain.wanted[number], tmp_path / f"copy {number}"
        restore(chain.place, copy, number=number, **ROOM)
        with tm.open(copy, background=False, **ROOM) as db:
            assert db.check()["problems"] == []
            assert {name: rows_of(db, name) for name in wanted} == wanted, number
    for name, rows in chain.wanted[newest].items():
        assert rows_in(chain.place, name) == sorted(rows.values())


def test_dead_rows_are_a_bitmap_as_deltas_deletion_vectors_are() -> None:
    rng = random.Random(5)
    for count in (1, 4_096, 4_097, 60_000):
        some = {rng.randrange(1 << 16) + base for base in (0, 3 << 16, 7 << 32) for _ in range(count)}
        assert positions_of(pack(np.array(sorted(some), dtype=np.int64))) == some


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
