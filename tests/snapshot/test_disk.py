"""Disk parts in snapshots: kept ones that follow the row, chained ones that are copied or lost."""

from __future__ import annotations

import gc
from typing import Any

import pytest

import tidemark as tm
from tests.snapshot import walk
from tests.store.support import open_memory
from tidemark.engine.txn import versions_layout as v

COLUMNS = [
    tm.Column("id", tm.Int64),
    tm.Column("n", tm.Int64),
    tm.Column("cold", tm.VarBinary(1_000), storage="disk"),
    tm.Column("blob", tm.Blob, nullable=True, storage="disk"),
]


def opened(**options: Any) -> tuple[Any, Any]:
    gc.collect()
    db = open_memory(**{"redo_log": "32 MiB", "undo_log": "32 MiB", "transaction_memory": "16 MiB", **options})
    table = db.create_table("test.d", COLUMNS, "id")
    table.insert_many([(i, 0, bytes([i]) * (i * 9), None) for i in range(100)])
    return db, table


def kinds(db: Any) -> list[int]:
    return [each.disk for each in walk.versions(db.parts.store.mem)]


def test_kept_disk_part_is_found_wherever_it_has_gone_since() -> None:
    db, table = opened()
    first = db.snapshot()
    table.update(5, {"n": 1})
    assert kinds(db) == [v.DISK_KEPT]
    assert tuple(first["test.d"].get(5)) == (5, 0, b"\5" * 45, None)
    second = db.snapshot()
    table.update(5, {"n": 2})
    table.update(5, {"n": 3})
    assert kinds(db) == [v.DISK_KEPT] * 2
    assert tuple(second["test.d"].get(5)) == (5, 1, b"\5" * 45, None)
    table.update(5, {"cold": b"other"})
    assert kinds(db) == [v.DISK_KEPT, v.DISK_KEPT, v.DISK_WHOLE], "later than both, but it has what they lack"
    table.update(5, {"cold": b"third"})
    assert len(kinds(db)) == 3
    third = db.snapshot()
    table.update(5, {"n": 4})
    table.delete(5)
    assert kinds(db)[3:] == [v.DISK_KEPT, v.DISK_WHOLE]
    table.insert((5, 9, b"new", b"b" * 20_000))
    for snapshot, wanted in ((first, (0, b"\5" * 45)), (second, (1, b"\5" * 45)), (third, (3, b"third"))):
        shown = snapshot["test.d"]
        assert tuple(shown.get(5)) == (5, *wanted, None)
        rows = {row.id: tuple(row) for row in shown.scan()}
        assert rows == {i: (i, 0, bytes([i]) * (i * 9), None) for i in range(100)} | {5: (5, *wanted, None)}
        assert shown.get_many([5, 6], ["n", "cold"]).to_pylist()[0] == {"n": wanted[0], "cold": wanted[1]}
    first.close()
    third.close()
    assert tuple(second["test.d"].get(5)) == (5, 1, b"\5" * 45, None)
    second.close()
    assert kinds(db) == []
    db.close()


def test_large_values_of_cold_pages_are_read_and_kept_whole() -> None:
    db, table = opened(page_buffer="1 MiB")
    blobs = {i: bytes([i]) * (20_000 + 3_000 * i) for i in range(12)}
    for i, blob in blobs.items():
        table.update(i, {"blob": blob})
    snapshot = db.snapshot()
    for i in range(0, 12, 2):
        with db.transaction() as txn:  # other pages push the old ones out
            txn.write_many("test.d", [(1_000 + i, 0, b"", b"x" * 200_000), (1_100 + i, 0, b"", b"y" * 200_000)])
        table.update(i, {"blob": b"short"})
        table.delete(i + 1)
    assert v.DISK_LOST not in kinds(db)
    shown = snapshot["test.d"]
    for i, blob in blobs.items():
        assert shown.get(i).blob == blob
    assert {row.id: row.blob for row in shown.scan() if row.id < 12} == blobs
    assert [row["blob"] for row in shown.get_many(list(blobs)).to_pylist()] == list(blobs.values())
    db.close()


def test_value_too_large_to_keep_is_lost_and_nothing_else_is() -> None:
    db, table = opened(page_buffer="4 MiB")
    table.update(7, {"blob": b"z" * 400_000})
    snapshot = db.snapshot()
    shown = snapshot["test.d"]
    assert shown.get(7).blob == b"z" * 400_000
    table.update(7, {"n": 5})
    assert shown.get(7).blob == b"z" * 400_000, "it is where it was"
    table.update(7, {"blob": b"gone"})
    assert kinds(db) == [v.DISK_KEPT, v.DISK_LOST]
    for call in (lambda: shown.get(7), lambda: list(shown.scan()), lambda: shown.get_many([7])):
        with pytest.raises(tm.SnapshotTooOld, match="lost the disk part"):
            call()
    assert shown.get(8).cold == b"\x08" * 72
    assert shown.get_many([7], ["id", "n"]).to_pydict() == {"id": [7], "n": [0]}
    assert len(shown) == 100 and shown.sum("n") == 0
    assert db.status()["snapshots"]["open"] == 1, "the snapshot is not dropped for it"
    with db.snapshot() as later:
        assert later["test.d"].get(7).blob == b"gone"
    db.close()
