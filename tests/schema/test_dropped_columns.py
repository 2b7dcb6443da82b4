"""Columns are dropped from tables with rows; all other values stay, whatever lies beside them in a row."""

from __future__ import annotations

import copy
from typing import Any

import pytest

import tidemark as tm
from tests.backup.support import restored, take
from tests.replication.test_channel_stores import site
from tests.schema.column_model import Life
from tests.seeds import fresh_seeds
from tests.store.support import open_memory
from tidemark.engine.base.clock import ManualClock
from tidemark.engine.base.options import Options
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles

SEEDS = [*range(3), *fresh_seeds(1)]
STEPS = 16
TABLESPACE: dict[str, Any] = {"size": "2 MiB", "page_size": "16 KiB", "extent": "128 KiB"}


@pytest.mark.parametrize("is_disk", [False, True], ids=["memory", "disk"])
@pytest.mark.parametrize("seed", SEEDS)
def test_rows_of_random_histories_of_columns_are_those_of_a_dictionary(seed: int, is_disk: bool) -> None:
    """A user dropped one of three Int64 columns, and its neighbour had its values from then on: in every row that was
    there, in memory and on disk, NULLs included. Each value stays what it was.
    """
    print("seed", seed)
    life = Life(seed, is_disk, has_partitions=bool(seed % 2))
    rng = life.rng
    files = MemoryFiles()
    db = open_memory(files, page_buffer="1 MiB")
    if is_disk:
        db.create_tablespace("main", **TABLESPACE)
    life.create(db)
    for step in range(STEPS):
        life.write_rows(db["t"])
        with db.snapshot() as snap:
            before = copy.deepcopy(life.model)
            what = life.change_schema(db)
            assert life.differences(db["t"]) == [], (step, what)
            life.write_rows(db["t"])
            assert life.differences(snap["t"], before) == [], (step, what, "in a snapshot from before")
        assert life.differences(db["t"]) == [], (step, what)
        assert life.index_differences(db["t"]) == [], (step, what)
        if rng.random() < 0.2:
            db.checkpoint()
            if not is_disk:
                with tm.ReadOnlyDatabase(MemoryFiles(files.disk), Options(data_memory="16 MiB"), ManualClock()) as view:
                    assert life.differences(view["t"]) == [], (step, what, "in a view")
        if rng.random() < 0.2:
            again = files.kill()
            db.close()
            files = again if rng.random() < 0.5 else MemoryFiles(files.disk)
            db = open_memory(files, page_buffer="1 MiB")
            assert life.differences(db["t"]) == [], (step, what, "opened again")
            assert life.index_differences(db["t"]) == [], (step, what, "opened again")
        assert db.check()["problems"] == [], (step, what)
    db.close()


@pytest.mark.parametrize("is_disk", [False, True], ids=["memory", "disk"])
@pytest.mark.parametrize("seed", SEEDS)
def test_backups_of_a_history_of_columns_restore_to_what_the_dictionary_was(seed: int, is_disk: bool) -> None:
    """A user restored a backup of a table with dropped columns: its rows had the values of their neighbours."""
    print("seed", seed)
    life = Life(seed, is_disk, has_partitions=bool(seed % 2))
    db, place = open_memory(page_buffer="1 MiB"), MemoryFiles()
    if is_disk:
        db.create_tablespace("main", **TABLESPACE)
    life.create(db)
    models = []
    for number in range(1, 5):
        for _ in range(3):
            life.write_rows(db["t"])
            life.change_schema(db)
            life.write_rows(db["t"])
        take(db, place, incremental=number > 1)
        models.append(copy.deepcopy(life.model))
    db.close()
    for number, model in enumerate(models, 1):
        with open_memory(restored(place, number=number, page_buffer="1 MiB"), page_buffer="1 MiB") as again:
            assert life.differences(again["t"], model) == [], number
            assert life.index_differences(again["t"], model) == [], number
            assert again.check()["problems"] == [], number


@pytest.mark.parametrize("is_disk", [False, True], ids=["memory", "disk"])
@pytest.mark.parametrize("seed", SEEDS)
def test_replica_of_a_history_of_columns_has_the_rows_of_the_dictionary(seed: int, is_disk: bool) -> None:
    """A user dropped a column at the source: from then on the replica, and every first copy, had wrong values too."""
    print("seed", seed)
    life = Life(seed, is_disk, has_partitions=bool(seed % 2))
    source, replica, late = site(1), site(2), site(3)
    for db in (source, replica, late) if is_disk else ():
        db.create_tablespace("main", **TABLESPACE)
    life.create(source)
    with tm.Channel(source, replica) as channel:
        for step in range(STEPS // 2):
            life.write_rows(source["t"])
            what = life.change_schema(source)
            life.write_rows(source["t"])
            source.parts.clockwork.advance_epoch()
            channel.apply_all()
            assert life.differences(replica["t"]) == [], (step, what)
            assert life.index_differences(replica["t"]) == [], (step, what)
    with tm.Channel(source, late, copy=True) as channel:
        channel.apply_all()
        assert life.differences(late["t"]) == []
    assert source.check_binlog()["problems"] == []
    for db in (source, replica, late):
        assert db.check()["problems"] == []
        db.close()


def test_program_for_a_table_with_other_dropped_columns_is_refused() -> None:
    """A program that was built for a table with the same columns, one of them dropped, read the wrong bytes here."""
    with open_memory(MemoryFiles()) as db:
        columns = [tm.Column("id", tm.Int64), tm.Column("a", tm.Int64), tm.Column("b", tm.Int64)]
        one = db.create_table("one", columns, "id")
        db.create_table("other", [*columns, tm.Column("c", tm.Int64)], "id")
        db.drop_column("other", "a")
        db.create_table("third", [columns[0], columns[2], tm.Column("c", tm.Int64)], "id")
        asm = tm.Assembler(db["other"].definition)
        asm.branch_column("eq", "c", 4, "yes")
        asm.exit_refuse()
        asm.label("yes")
        asm.exit_ok()
        program = asm.finish()
        db["other"].insert((1, 3, 4))
        assert [row.c for row in db["other"].scan(where=program)] == [4]
        for name in ("one", "third"):
            with pytest.raises(tm.ProgramInvalid, match="built for another definition"):
                list(db[name].scan(where=program))
        assert len(one) == 0
