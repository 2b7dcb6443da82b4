"""`check` compares what is stored with what it says: indexes and partitions with rows, values with their types."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tidemark as tm
from tests.schema.column_model import GROUPS, drawn_row
from tests.seeds import fresh_seeds
from tests.storage import on_disk
from tests.store.support import open_memory
from tidemark.database import check_store
from tidemark.engine.index import index_layout as ix
from tidemark.engine.memory import arena_layout as a
from tidemark.engine.schema.definition import TableDefinition
from tidemark.engine.schema.partition import HashPartition
from tidemark.engine.types import Boolean, Enum, Integer, TimeOfDay, VarChar
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles

TABLESPACE: dict[str, Any] = {"size": "1 MiB", "page_size": "8 KiB", "extent": "64 KiB"}
COLUMNS = [
    tm.Column("id", tm.Int32),
    tm.Column("k", tm.Int32, nullable=True),
    tm.Column("u", tm.VarChar(20)),
    tm.Column("t", tm.Time),
    tm.Column("e", tm.Enum("a", "b")),
    tm.Column("s", tm.VarChar(4), nullable=True),
]


def row(number: int) -> tuple[Any, ...]:
    return number, number % 7 or None, f"u{number}", datetime.time(number % 24), "ab"[number % 2], "é" * (number % 5)


def filled(storage: str = "memory", files: MemoryFiles | None = None, partition: Any = None) -> tm.Database:
    db = open_memory(files, page_buffer="512 KiB")
    columns = COLUMNS
    if storage == "disk":
        db.create_tablespace("main", **TABLESPACE)
        indexed = ("id", "k", "u")
        columns = on_disk(COLUMNS, indexed)
    db.create_table("t", columns, "id", partition or tm.HashPartition(2))
    db["t"].insert_many([row(number) for number in range(60)])
    db.create_index("t", "by_k", ["k", "id"])
    db.create_index("t", "by_u", ["u"], unique=True)
    assert db.check()["problems"] == []
    return db


def problems_of(db: tm.Database, files: MemoryFiles) -> list[list[str]]:
    """Return what `check` says of the open store, and of the same store opened again."""
    live = db.check()["problems"]
    db.checkpoint()
    db.close()
    with open_memory(MemoryFiles(files.disk), page_buffer="512 KiB") as again:
        return [live, again.check()["problems"]]


# --- indexes --------------------------------------------------------------------------------------
def leaf_of(db: tm.Database) -> tuple[Any, int, int]:
    """Return memory, descriptor and first leaf of the ordered index."""
    mem = db.parts.store.mem
    handle = db.parts.store.tables.by_name["main.t"].indexes["by_k"].tree.handle
    # Descriptors that are in use have their handle's index as address; a leaf names its descriptor.
    page = next(at for at in range(0, mem.size, a.BLOCK_WORDS) if is_tree(mem, at, handle))
    return mem, page, int(mem[page + ix.I_FIRST_LEAF])


def is_tree(mem: Any, at: int, handle: int) -> bool:
    first = int(mem[at + ix.I_FIRST_LEAF])
    is_node = 0 < first < mem.size - a.BLOCK_WORDS and int(mem[first + ix.N_INDEX]) == at
    return is_node and int(mem[at + ix.I_COUNT]) == 60 and int(mem[at + ix.I_HEIGHT]) >= 1 and handle > 0


def test_changed_entry_of_an_ordered_index_is_found_with_the_key_of_its_row() -> None:
    db = filled()
    mem, _, leaf = leaf_of(db)
    mem[leaf + ix.NODE_HEADER_WORDS + 3] ^= 1 << 20
    (problem,) = db.check()["problems"]
    assert problem.startswith("main.t, index by_k: an entry has a different key than its row (row ")
    assert "with key" in problem


def test_row_that_changed_behind_its_indexes_is_found() -> None:
    """Planted: a column changes in the row alone, as a commit that forgets the indexes would leave it."""
    db = open_memory()
    marker = 0x5EED_1234_5678
    db.create_table("t", [tm.Column(name, tm.Int64) for name in ("id", "k", "u")], "id")
    db["t"].insert_many([(number, marker + number, marker - number) for number in range(1, 50)])
    db.create_index("t", "by_k", ["k"])
    db.create_index("t", "by_u", ["u"], unique=True)
    mem = db.parts.store.mem
    before = db["t"][33]
    for value in (marker + 33, marker - 33):
        for at in np.flatnonzero(mem == value).tolist():  # in the row, and in buffers that had it
            mem[at] += 1_000
            if db["t"][33] != before:
                break
            mem[at] -= 1_000
        assert db["t"][33] != before
        before = db["t"][33]
    said = db.check()["problems"]
    for each, index in zip(said, ("by_k", "by_u"), strict=True):
        assert each.startswith(f"main.t, index {index}: an entry has a different key than its row (row ")
        assert each.endswith(" with key 33)")


@pytest.mark.parametrize("seed", fresh_seeds(1))
def test_index_made_for_another_layout_is_found(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """A user dropped a column, its neighbour read the dropped bytes, and index scans found other rows than full scans;
    `check` said "sound", because it read rows as the index does, not as the table's definition says.
    """
    db = open_memory()
    db.create_table("t", [tm.Column(name, tm.Int64) for name in ("id", "a", "b")], "id")
    db["t"].insert((1, seed, seed + 1))
    db.create_index("t", "by_b", ["b"])
    db.create_index("t", "one_b", ["b"], unique=True)
    moving_layout(monkeypatch)
    db.drop_column("t", "a")
    problems = db.check()["problems"]
    wanted = "its entries were made from other places in rows than those where b is now"
    assert [each for each in problems if wanted in each] == [
        f"main.t, index {name}: {wanted}" for name in ("by_b", "one_b")
    ]


def moving_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plant the fault: dropped columns come after all others in the order of places."""

    def physical(definition: TableDefinition) -> tuple[Any, ...]:
        live = len(definition.columns)
        gone = [(live + number, column) for number, (_, column) in enumerate(definition.dropped)]
        return (*enumerate(definition.columns), *gone)

    monkeypatch.setattr(TableDefinition, "physical", property(physical))


# --- partitions -----------------------------------------------------------------------------------
@pytest.mark.parametrize("storage", ["memory", "disk"])
def test_rows_in_the_wrong_partition_are_found(storage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: rows are put where the remainder of the key says, the definition says where its hash does."""
    files = MemoryFiles()
    with monkeypatch.context() as patch:
        bound_to = HashPartition.bound_to
        patch.setattr(HashPartition, "bound_to", lambda partition, definition: bound_to(by_remainder, definition))
        by_remainder = HashPartition(2, modulo="id")
        to_json = HashPartition.to_json
        patch.setattr(HashPartition, "to_json", lambda partition, types: to_json(HashPartition(2), types))
        db = filled(storage, files)
        db.close()
    with open_memory(MemoryFiles(files.disk), page_buffer="512 KiB") as db:
        problems = db.check()["problems"]
    shown = [problem for problem in problems if problem.endswith("belongs to another partition")]
    assert shown[0].startswith("main.t, fragment 0: row ") and " with key " in shown[0]
    assert len(shown) == 20, "ten of each fragment"
    assert all(problem.endswith("with such faults") for problem in problems if problem not in shown)


# --- values ---------------------------------------------------------------------------------------


STORED = VarChar.stored
# A type, what its encoder writes, and what the check says.
PLANTS: dict[str, tuple[type, Callable[[Any, Any], Any], str]] = {
    "time": (TimeOfDay, lambda kind, value: 86_400 * 10**6, "column t, Time, has a value that its type does not have"),
    "enum": (Enum, lambda kind, value: 2, "column e, Enum('a', 'b'), has a value that its type does not have"),
    "text": (
        VarChar,
        lambda kind, value: b"\xc3" if kind.length == 4 else STORED(kind, value),
        "column s, VarChar(4), has bytes that are not UTF-8",
    ),
    "long text": (
        VarChar,
        lambda kind, value: b"12345" if kind.length == 4 else STORED(kind, value),
        "column s, VarChar(4), has a value that its type does not have",
    ),
}


@pytest.mark.parametrize("storage", ["memory", "disk"])
@pytest.mark.parametrize("what", PLANTS)
def test_value_that_its_type_does_not_have_is_found(what: str, storage: str) -> None:
    """Planted: an encoder writes what the type refuses. Each row with it is named by key, open and closed."""
    kind, stored, expected = PLANTS[what]
    files = MemoryFiles()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kind, "stored", stored)
        db = filled(storage, files)  # a batch: Arrow's values are not converted by the planted function
        db["t"].write(row(33))
    for problems in problems_of(db, files):
        (problem,) = problems
        assert problem.endswith(expected) and " with key 33: " in problem


@pytest.mark.parametrize("storage", ["memory", "disk"])
@pytest.mark.parametrize("group", ["1", "2", "4", "8", "16"])
@pytest.mark.parametrize("seed", fresh_seeds(1))
def test_rows_read_under_a_wrong_layout_are_found(
    group: str, storage: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As above, without an index: bytes of a dropped column that its neighbour's type does not have are found, before
    and after the store is closed. Where every byte is a value of the neighbour's type, nothing can tell.
    """
    print("seed", seed)
    strict = [pair for pair in GROUPS[group] if not is_any(pair[0])]
    loose = [pair for pair in GROUPS[group] if is_any(pair[0])]
    pairs = [(first, second) for first in loose[:2] for second in strict]
    moving = [(first, second) for first, second in pairs if first[0].width == second[0].width]
    assert moving
    files = MemoryFiles()
    db = open_memory(files, page_buffer="512 KiB")
    place = "disk" if storage == "disk" else "memory"
    if place == "disk":
        db.create_tablespace("main", **TABLESPACE)
    for number, (first, second) in enumerate(moving):
        columns = [tm.Column("id", tm.Int64), tm.Column("a", first[0], storage=place)]
        db.create_table(f"t{number}", [*columns, tm.Column("b", second[0], storage=place)], "id")
        db[f"t{number}"].insert_many([drawn_row(seed + key, key, [first, second]) for key in range(8)])
    assert db.check()["problems"] == []
    moving_layout(monkeypatch)
    for number in range(len(moving)):
        db.drop_column(f"t{number}", "a")
    for problems in problems_of(db, files):
        for number, (first, second) in enumerate(moving):
            found = [each for each in problems if each.startswith(f"main.t{number},")]
            assert any("column b, " in each or "dropped column a, " in each for each in found), (first, second)
        problems.clear()


def is_any(kind: Any) -> bool:
    """Whether all bytes are values of the type."""
    return isinstance(kind, Integer) or repr(kind).startswith(("Binary", "Float", "UUID"))


def test_command_names_table_key_and_column(tmp_path: Path) -> None:
    """The closed store's check, as `tidemark check` prints it."""
    with tm.open(tmp_path / "s", data_memory="16 MiB", redo_log="4 MiB", background=False) as db:
        db.create_table("t", [tm.Column("id", tm.Int64), tm.Column("b", tm.Bool)], "id")
        db["t"].insert((7, True))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Boolean, "code", "B")
            patch.setattr(Boolean, "object_kind", "")
            patch.setattr(Boolean, "direct", None)
            patch.setattr(Boolean, "stored", lambda kind, value: 9)
            db.create_table("p", [tm.Column("id", tm.Int64), tm.Column("b", tm.Bool, nullable=True)], "id")
            db["p"].insert((8, True))
    report = check_store(tmp_path / "s", data_memory="16 MiB")
    wanted = "row 0 with key 8: column b, Bool, has a value that its type does not have"
    assert [problem.split(": ", 1)[1] for problem in report["problems"]] == [wanted]
