"""The delete log of a live node must agree with the DELETE records of its REDO log."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tidemark as tm
from tests.naive import delete_log as naive
from tests.node_group.pair import Pair
from tests.node_group.support import Stream, Writers, open_node
from tests.seeds import fresh_seeds
from tests.store.support import open_memory
from tidemark.engine.base.errors import SchemaInvalid
from tidemark.engine.base.options import Options
from tidemark.engine.log.redo_layout import FRAGMENT_SHIFT, TABLE_MASK
from tidemark.engine.memory import arena_layout as a
from tidemark.engine.txn import delete_log_layout as dl
from tidemark.engine.txn.delete_log import DeleteLog
from tidemark.engine.txn.delete_log_kernels import note_deletes_of, setup_delete_log
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles
from tidemark.recovery.system_restart.spool import Spooled

COLUMNS = [tm.Column("id", tm.Int64), tm.Column("n", tm.Int64)]


def noted(log: DeleteLog, first: int | None = None) -> list[naive.Deleted]:
    """Return the rows in a delete log, oldest first."""
    found = []
    for place, rows, epoch in log.entries(log.tail if first is None else first, log.head).tolist():
        for number in range(rows >> a.COUNT_SHIFT):
            rowid = (rows & a.ROWID_MASK) + number
            found.append((place & TABLE_MASK, place >> FRAGMENT_SHIFT, rowid, epoch))
    return found


def logged(files: Any, db: Any, groups: list[Any]) -> list[naive.Deleted]:
    """Return the rows that groups of the REDO log delete, including those in files the groups name."""
    found = []
    spooled = Spooled(files, db.parts.opened.identity[0], groups)
    for group in groups:
        for some in spooled.records(group):
            found += naive.deletes_of(some.words.tolist(), some.start, some.stop, group.epoch)
    return found


@pytest.mark.parametrize("has_disk", [False, True])
@pytest.mark.parametrize("seed", fresh_seeds(2))
def test_delete_log_has_every_delete_of_the_redo_log_and_no_other(seed: int, has_disk: bool) -> None:
    files = MemoryFiles()
    db = open_node(files)
    writers = Writers(db, random.Random(seed), has_disk=has_disk)
    stream = Stream(db, files)
    writers.fill(400)
    for _ in range(40):
        writers.step()
    with db.transaction() as txn:  # in slices
        for key in [row[0] for row in db["test.wide"].scan()][:1_800]:
            txn.delete("test.wide", key)
    found = noted(db.parts.store.deletes)
    assert len(found) > 300 and sorted(found) == sorted(logged(files, db, stream.groups())), f"seed {seed}"
    assert [row[3] for row in found] == sorted(row[3] for row in found), "epochs ascend"
    assert db.check()["is_sound"]
    db.close()


def test_rows_of_a_spooled_transaction_are_noted_too() -> None:
    files = MemoryFiles()
    db = open_memory(files, delete_log="256 KiB", transaction_memory="64 KiB", data_memory="32 MiB", redo_log="8 MiB")
    db.create_table("test.t", COLUMNS, "id", partition=tm.HashPartition(2))
    db["test.t"].insert_many([(key, 0) for key in range(6_000)])
    stream = Stream(db, files)
    with db.transaction() as txn:
        for key in range(0, 6_000, 2):
            txn.delete("test.t", key)
    groups = stream.groups()
    expected = logged(files, db, groups)
    assert len(expected) == 3_000 and len(Spooled(files, db.parts.opened.identity[0], groups)) == 1
    assert sorted(noted(db.parts.store.deletes)) == sorted(expected)
    db.close()


def test_rows_rolled_back_are_none() -> None:
    db = open_node()
    db.create_table("test.t", COLUMNS, "id", partition=tm.HashPartition(1))
    db["test.t"].insert_many([(key, 0) for key in range(10)])
    with db.transaction() as txn:
        txn.delete("test.t", 3)
        txn.insert("test.t", (3, 1))  # together an update
        with pytest.raises(ZeroDivisionError), txn.savepoint():
            txn.delete("test.t", 4)
            raise ZeroDivisionError
    txn = db.transaction()
    txn.delete("test.t", 5)
    txn.rollback()
    assert noted(db.parts.store.deletes) == []
    db["test.t"].delete(6)
    assert [row[2] for row in noted(db.parts.store.deletes)] == [6]
    db.close()


def test_neighbours_deleted_together_are_one_entry() -> None:
    db = open_node()
    db.create_table("test.t", COLUMNS, "id", partition=tm.HashPartition(1))
    db["test.t"].insert_many([(key, 0) for key in range(4_000)])
    with db.transaction() as txn:
        for key in range(3_000):
            txn.delete("test.t", key)
    log = db.parts.store.deletes
    assert len(noted(log)) == 3_000 and log.head < 10
    db.close()


@pytest.mark.parametrize("seed", fresh_seeds(2))
def test_full_log_loses_its_oldest_and_says_from_which_epoch_on(seed: int) -> None:
    rng = np.random.default_rng(seed)
    words = int(rng.integers(40, 100))
    capacity = (words - dl.DL_WORDS) // dl.DELETE_ENTRY_WORDS
    mem = np.zeros(a.PAGE_WORDS + words, dtype=np.int64)
    assert setup_delete_log(mem, a.PAGE_WORDS, dl.DL_WORDS + 2) == a.ST_SPACE
    assert setup_delete_log(mem, a.PAGE_WORDS, words) == a.OK
    log = DeleteLog.__new__(DeleteLog)
    log.mem, log.region, log.capacity = mem, a.PAGE_WORDS, capacity
    twin, epoch = naive.Ring(capacity), 3
    for _ in range(200):
        epoch += int(rng.integers(0, 2))
        rowid = int(rng.integers(0, 1_000))
        records: list[int] = []
        for number in range(int(rng.integers(1, 4))):
            place = 5 | int(rng.integers(0, 2)) << 32
            records += [4 | 4 << 16, place | 7 << 44, rowid + number | 1 << 48, 9 << 32]
        assert note_deletes_of(mem, np.array(records, dtype=np.int64), 0, len(records), epoch) == a.OK
        for row in naive.deletes_of(records, 0, len(records), epoch):
            twin.note(row)
        assert noted(log) == twin.rows() and log.cut_epoch == twin.cut_epoch, f"seed {seed}"
        after = int(rng.integers(log.cut_epoch, epoch + 1))
        assert noted(log, log.position_after(after)) == [row for row in twin.rows() if row[3] > after]
    assert log.cut_epoch > 3
    before = mem.copy()
    assert note_deletes_of(mem, np.array([4 | 9 << 16, 5, 1, 0], dtype=np.int64), 0, 4, epoch) == a.ST_INVARIANT
    assert np.array_equal(mem, before)


def test_member_notes_what_the_primary_does() -> None:
    pair = Pair(delete_log="64 KiB")
    pair.primary.create_table("test.t", COLUMNS, "id", tm.HashPartition(2))
    pair.primary["test.t"].insert_many([(key, 0) for key in range(100)])
    for key in range(0, 100, 3):
        pair.primary["test.t"].delete(key)
        if key % 4 == 0:
            pair.close_epoch()
    pair.verify()
    found = noted(pair.primary.parts.store.deletes)
    assert len(found) == 34 and noted(pair.member.parts.store.deletes) == found
    pair.close()


def test_restart_begins_it_again_with_what_the_redo_log_has() -> None:
    files = MemoryFiles()
    db = open_node(files)
    db.create_table("test.t", COLUMNS, "id", tm.HashPartition(1))
    db["test.t"].insert_many([(key, 0) for key in range(1_000)])
    db["test.t"].delete(1)
    db.parts.clockwork.advance_epoch()
    assert db.parts.store.deletes.cut_epoch == 0
    lcp_epoch = db.checkpoint()["epoch"]
    db["test.t"].delete(2)
    db.parts.clockwork.advance_epoch()
    db["test.t"].delete(3)
    expected = noted(db.parts.store.deletes)[-2:]
    db.sync()
    again = open_node(files.kill())
    log = again.parts.store.deletes
    assert log.cut_epoch == lcp_epoch and noted(log, log.position_after(lcp_epoch)) == expected
    again["test.t"].delete(4)
    assert [row[2] for row in noted(log)][-3:] == [2, 3, 4] and noted(log)[-1][3] > expected[-1][3]
    assert again.status()["delete_log"]["cut_epoch"] == lcp_epoch
    again.close()


def test_store_without_the_option_keeps_none() -> None:
    db = open_memory()
    assert db.parts.store.deletes is None and int(db.parts.store.mem[a.S_DELETE_LOG]) == 0
    assert db.status()["delete_log"] is None
    db.create_table("test.t", COLUMNS, "id")
    db["test.t"].insert((1, 1))
    db["test.t"].delete(1)
    db.close()


def test_option_is_a_size_or_nothing() -> None:
    assert Options().delete_log_bytes == Options(delete_log="0 B").delete_log_bytes == 0
    assert Options(delete_log="16 MiB").delete_log_bytes == 16 << 20
    assert replace(Options(), redo_log="8 MiB").delete_log_bytes == 0
    for wrong in (1, "1 KiB", -1, None, "much", False):
        with pytest.raises(SchemaInvalid, match="option delete_log"):
            Options(delete_log=wrong)  # type: ignore[arg-type]
