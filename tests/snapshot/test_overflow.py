"""What a full version store does: the oldest snapshot is dropped, writers and the other snapshots continue."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

import tidemark as tm
from tests.snapshot import walk
from tests.snapshot.watched import HIDDEN, small_steps
from tests.store.support import open_memory

__all__ = ["small_steps"]
COLUMNS = [tm.Column("id", tm.Int64), tm.Column("n", tm.Int64), tm.Column("text", tm.VarChar(8_000), nullable=True)]


def opened(**options: Any) -> tuple[Any, Any]:
    db = open_memory(snapshot_memory="64 KiB", redo_log="16 MiB", **options)
    table = db.create_table("test.t", COLUMNS, "id")
    db.create_index("test.t", "by_n", ["n"])
    table.insert_many([(i, i, "a") for i in range(400)])
    return db, table


def calls(snapshot: Any) -> list[Callable[[], Any]]:
    table = snapshot["test.t"]
    return [
        lambda: table.get(1),
        lambda: table.get_many([1, 2]),
        lambda: list(table.scan()),
        lambda: list(table.scan(where=tm.col("n") > 3)),
        lambda: list(table.scan(index="by_n")),
        lambda: list(table.scan(columns=HIDDEN)),
        lambda: len(table),
        lambda: table.sum("n"),
        lambda: table.to_arrow(),
        lambda: table.to_numpy(),
        lambda: 1 in table,
        lambda: table[1],
        lambda: snapshot["test.t"],
        lambda: snapshot.tables(),
    ]


def test_oldest_snapshot_is_dropped_and_every_call_of_it_says_so() -> None:
    db, table = opened()
    first = db.snapshot()
    before = calls(first)[:-2]
    table.update_many([{"id": i, "n": -i} for i in range(100)])
    second = db.snapshot()
    used = db.status()["snapshots"]["used_bytes"]
    assert used > 0
    turn = 0
    while db.status()["snapshots"]["dropped"] == 0:
        turn += 1
        table.update_many([{"id": i, "n": 1_000 * turn + i} for i in range(100, 150)])
        second.close()
        second = db.snapshot()
    for call in [*before, *(lambda: first["test.t"], first.tables)]:
        with pytest.raises(tm.SnapshotTooOld, match="was dropped.*snapshot_memory"):
            call()
    status = db.status()["snapshots"]
    assert (status["open"], status["oldest_epoch"], status["dropped"]) == (1, second.epoch, 1)
    assert [row.n for row in second["test.t"].scan(index="by_n", limit=2)] == [-99, -98]
    assert second["test.t"].get(120).n == 1_000 * turn + 120
    first.close()
    second.close()
    assert db.status()["snapshots"]["used_bytes"] == 0


def test_scan_under_way_notices_that_its_snapshot_was_dropped(small_steps: None) -> None:
    for by in ({}, {"index": "by_n"}, {"where": tm.col("n") >= 0}):
        db, table = opened()
        scan = iter(db.snapshot()["test.t"].scan(**by))
        shown = [next(scan) for _ in range(10)]
        assert all(row.n == row.id for row in shown)
        with db.transaction() as txn:
            txn.update_many("test.t", [{"id": i, "n": -1, "text": "b" * 500} for i in range(400)])
        db.snapshot()
        with db.transaction() as txn:
            txn.delete_many("test.t", list(range(400)))
        assert db.status()["snapshots"]["dropped"] >= 1
        rest = []
        with pytest.raises(tm.SnapshotTooOld):
            rest += list(scan)
        assert all(row.n == row.id for row in rest)


def test_row_larger_than_the_ring_drops_every_snapshot_that_needs_it_and_is_changed() -> None:
    db, table = opened()
    table.insert_many([(1_000 + i, i, "x" * 8_000) for i in range(10)])
    snapshots = [db.snapshot() for _ in range(3)]
    table.delete_many([1_000 + i for i in range(10)])
    assert db.status()["snapshots"]["dropped"] == 3
    assert db.status()["snapshots"]["used_bytes"] == 0
    for snapshot in snapshots:
        with pytest.raises(tm.SnapshotTooOld):
            snapshot["test.t"]
    assert len(table) == 400
    later = db.snapshot()
    table.delete(3)
    assert later["test.t"].get(3).n == 3 and later["test.t"].count() == 400


def test_random_changes_of_a_store_with_little_room_never_show_wrong_rows(small_steps: None) -> None:
    rng = random.Random(11)
    print("seed 11")
    db, table = opened()
    rows = {i: (i, i, "a") for i in range(400)}
    taken: list[tuple[Any, dict[int, tuple[int, int, str]]]] = []
    seen_whole = 0
    for step in range(160):
        keys = rng.sample(range(400), rng.randint(1, 25))
        fresh = {key: (key, rng.randrange(50), "b" * rng.choice([0, 3, 90, 700])) for key in keys}
        gone = [key for key in rng.sample(range(400), rng.randint(0, 12)) if key in rows and key not in fresh]
        with db.transaction() as txn:
            txn.write_many("test.t", list(fresh.values()))
            txn.delete_many("test.t", gone)
        rows = {key: row for key, row in {**rows, **fresh}.items() if key not in gone}
        if rng.random() < 0.5 and len(taken) < 6:
            taken.append((db.snapshot(), dict(rows)))
        if rng.random() < 0.15 and taken:
            taken.pop(rng.randrange(len(taken)))[0].close()
        open_now = walk.open_epochs(db.parts.store.mem)
        for snapshot, copy in taken:
            try:
                shown = snapshot["test.t"]
                by = sorted(tuple(row) for row in shown.scan(index="by_n"))
                assert by == sorted(copy.values())
                assert {row[0]: tuple(row) for row in shown.scan()} == copy
                assert len(shown) == len(copy)
                key = rng.randrange(400)
                row = shown.get(key)
                assert (None if row is None else tuple(row)) == copy.get(key)
                seen_whole += 1
                assert snapshot.epoch in open_now
            except tm.SnapshotTooOld:
                assert snapshot.epoch not in open_now
        if step % 20 == 0:
            assert db.check()["problems"] == []
            assert sum(1 for _ in walk.versions(db.parts.store.mem)) > 0 or not open_now
    status = db.status()["snapshots"]
    assert status["dropped"] > 3 and seen_whole > 100
    ring = db.parts.store.mem
    assert status["versions_kept"] * 120 > 2 * status["size_bytes"], "the ring was gone round more than once"
    for snapshot, _ in taken:
        snapshot.close()
    assert list(walk.versions(ring)) == []
    assert {row[0]: tuple(row) for row in table.scan()} == rows
