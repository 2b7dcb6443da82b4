"""Images of rows come back byte for byte: every type, NULLs and extremes, on disk too, after changes of columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tidemark as tm
from tests.backup.support import restored, take
from tests.spark.support import EVERY, every_column, every_row
from tests.store.support import open_memory
from tidemark.engine.access.snapshot import Snapshot
from tidemark.engine.access.snapshot_reads import fragment_scan
from tidemark.engine.memory.arena_layout import ENTRY_WORDS
from tidemark.engine.rows.row_part import image_words
from tidemark.recovery.backup import rows_file
from tidemark.recovery.backup.verify import verify
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles

ROOM: dict[str, Any] = {"data_memory": "64 MiB", "redo_log": "16 MiB", "undo_log": "16 MiB", "page_buffer": "2 MiB"}
MORE = {
    "float32": [float("nan"), -0.0, float("-inf")],
    "float64": [float("nan"), -0.0, float("inf")],
    "char": ["a", "    "],
    "varchar": ["\0", " "],
    "binary": [b"\0\0a"],
}


def images_of(db: tm.Database, name: str) -> dict[tuple[int, int], bytes]:
    """By fragment and ROWID the entry of each row, without the place of its disk part."""
    store = db.parts.store
    snapshot = store.snapshots.begin(Snapshot)
    found = {}
    try:
        table = snapshot.by_name[name]
        for number, fragment in table.by_number.items():
            scan = fragment_scan(snapshot, table, fragment, table.format.has_disk)
            while not scan.is_end:
                batch = scan.next(1_000)
                for offset in batch.offsets[: batch.count].tolist():
                    view = batch.entries.data.cast("B")
                    size = image_words(table.format.layout, view, offset * 8, True, table.format.has_disk)
                    words = batch.entries[offset - ENTRY_WORDS : offset + size].copy()
                    if table.format.has_disk:
                        words[ENTRY_WORDS + table.format.fixed_words - 1] = 0
                    found[number, int(words[0])] = words.tobytes()
    finally:
        snapshot.close()
    return found


def check_restored(db: tm.Database, place: MemoryFiles, name: str) -> None:
    want = images_of(db, name)
    copy = open_memory(restored(place, **ROOM), **ROOM)
    try:
        assert images_of(copy, name) == want
        assert copy.check()["problems"] == []
    finally:
        copy.close()


def made(storage: str) -> tuple[tm.Database, MemoryFiles]:
    db = open_memory(None, **ROOM)
    db.create_tablespace("main", size="2 MiB", page_size="32 KiB", extent="128 KiB")
    db.create_table("main.every", every_column(storage), "id", tm.HashPartition(2))
    db["main.every"].insert_many(every_row(200))
    for at, (column, values) in enumerate(MORE.items()):
        for number, value in enumerate(values):
            db["main.every"].insert((1_000 + 10 * at + number, *(value if name == column else None for name in EVERY)))
    return db, MemoryFiles()


@pytest.mark.parametrize("storage", ["memory", "disk"])
def test_every_type_in_a_full_and_an_incremental_backup(storage: str) -> None:
    db, place = made(storage)
    take(db, place)
    check_restored(db, place, "main.every")
    db["main.every"].delete_many(range(0, 200, 9))
    db["main.every"].update_many([{"id": key, "text": "changed", "float64": float("nan")} for key in range(1, 50, 9)])
    db["main.every"].insert_many([(key, *[None] * len(EVERY)) for key in range(5_000, 5_010)])
    take(db, place, incremental=True)
    check_restored(db, place, "main.every")
    db.close()


@pytest.mark.parametrize("added", ["first values of variable size", "more values"])
def test_rows_written_before_a_change_of_columns_stay_as_short_as_they_were(added: str) -> None:
    """A column that is added later takes no memory in older rows, before the backup and after the restore."""
    db, place = open_memory(None, **ROOM), MemoryFiles()
    columns = [tm.Column("id", tm.Int64), tm.Column("n", tm.Int32, nullable=True)]
    if added != "first values of variable size":
        columns.append(tm.Column("s", tm.VarChar(30), nullable=True))
    db.create_table("main.t", columns, "id", tm.HashPartition(1))
    table = db["main.t"]
    table.insert_many([(key, key, f"old {key}")[: len(columns)] for key in range(100)])
    db.add_column("main.t", tm.Column("one", tm.VarChar(300), default="a long default " * 10))
    table.insert_many([{"id": key, "n": None, "one": f"{key}"} for key in range(100, 150)])
    db.add_column("main.t", tm.Column("two", tm.Int64, default=7))
    table.update_many([{"id": key, "two": -1} for key in range(0, 150, 10)])
    take(db, place)
    check_restored(db, place, "main.t")
    assert len({len(image) for image in images_of(db, "main.t").values()}) > 2
    table.update(3, {"n": -3})
    take(db, place, incremental=True)
    check_restored(db, place, "main.t")
    db.close()


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (tm.VarChar(20), ["", "a", "zwölf"]),
        (tm.VarBinary(9), [b"", b"\0", b"\xff" * 9]),
        (tm.Float64, [0.0, -1.5, float("inf")]),
        (tm.Binary(5), [b"12345", b"\0\0\0\0\1"]),
        (tm.UInt64, [0, 2**64 - 1]),
        (tm.Enum("b", "a"), ["a", "b"]),
    ],
)
def test_keys_of_each_kind(kind: Any, values: list[Any]) -> None:
    db, place = open_memory(None, **ROOM), MemoryFiles()
    columns = [tm.Column("v", tm.Text, nullable=True), tm.Column("k", kind), tm.Column("j", tm.Int16)]
    db.create_table("main.t", columns, ["k", "j"], tm.HashPartition(1))
    db["main.t"].insert_many([(None if at % 2 else "t" * at, value, at) for at, value in enumerate(values)])
    take(db, place)
    check_restored(db, place, "main.t")
    db.close()


def test_groups_are_cut_by_bytes_and_dictionaries_by_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several row groups in a file, and a batch that begins in one and ends in the next."""
    monkeypatch.setattr(rows_file, "GROUP_ROWS", 700)
    db, place = open_memory(None, **ROOM), MemoryFiles()
    columns = [tm.Column("id", tm.Int64), tm.Column("s", tm.Text), tm.Column("e", tm.Enum("x", "y"))]
    db.create_table("main.t", columns, "id", tm.HashPartition(1))
    rng = np.random.default_rng(1)
    rows = [(key, "x" * int(rng.integers(0, 3_000)), "xy"[key % 2]) for key in range(5_000)]
    db["main.t"].insert_many(rows)
    assert take(db, place)["written_rows"] == 5_000
    check_restored(db, place, "main.t")
    db["main.t"].delete_many(range(0, 5_000, 600))
    take(db, place, incremental=True)
    check_restored(db, place, "main.t")
    db.close()


def test_verification_with_rows_decodes_all_and_finds_what_digests_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    db, place = made("memory")
    take(db, place)
    db["main.every"].delete(3)
    take(db, place, incremental=True)
    assert verify(place, with_rows=True).problems == []
    # A defect of the writer: the places of rows are those of another fragment.
    monkeypatch.setattr(rows_file, "FRAGMENT_SHIFT", 49)
    take(db, place)
    assert verify(place).problems == []
    problems = verify(place, with_rows=True).problems
    assert problems and "a row of another fragment" in problems[0]
    db.close()
