"""Columns are dropped from tables with rows; all other values stay, whatever lies beside them in a row."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.schema.column_model import Life
from tests.seeds import fresh_seeds
from tests.store.support import open_memory
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles

SEEDS = [*range(6), *fresh_seeds(2)]
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
    for step in range(25):
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
        if rng.random() < 0.2:
            again = files.kill()
            db.close()
            files = again if rng.random() < 0.5 else MemoryFiles(files.disk)
            db = open_memory(files, page_buffer="1 MiB")
            assert life.differences(db["t"]) == [], (step, what, "opened again")
            assert life.index_differences(db["t"]) == [], (step, what, "opened again")
        assert db.check()["problems"] == [], (step, what)
    db.close()
