"""Random work over every structure of the arena, walked from end to end after each part."""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest

import tidemark as tm
from tests.engine.arena_check import check_arena
from tests.store.support import open_memory, rows_of
from tidemark.engine.disk import cache_layout as d
from tidemark.engine.memory import arena_layout as a
from tidemark.engine.memory.arena import address_of
from tidemark.recovery.crash_harness.disks.faults import FaultFiles, Rule
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles

OPTIONS: dict[str, Any] = {
    "data_memory": "48 MiB",
    "redo_log": "64 MiB",
    "transaction_memory": "16 MiB",
    "undo_log": "64 MiB",
    "page_buffer": "1 MiB",
}
SHAPES: dict[str, tuple[list[tm.Column], Any]] = {
    "fixed": ([tm.Column("id", tm.Int64), tm.Column("value", tm.Int64)], lambda n: n),
    "var": ([tm.Column("id", tm.Int64), tm.Column("value", tm.Text, nullable=True)], lambda n: n),
    "text key": (
        [tm.Column("id", tm.VarChar(60)), tm.Column("value", tm.Text, nullable=True)],
        lambda n: "k" * (n % 50) + str(n),
    ),
}
DISK_SHAPES: dict[str, tuple[list[tm.Column], Any]] = {
    "disk fixed": ([tm.Column("id", tm.Int64), tm.Column("value", tm.Int64, storage="disk")], lambda n: n),
    "disk var": (
        [tm.Column("id", tm.Int64), tm.Column("value", tm.Text, nullable=True, storage="disk")],
        lambda n: n,
    ),
}


class World:
    """One table and a dict that says what it must hold."""

    def __init__(self, shape: str, seed: int, files: Any = None) -> None:
        self.rng = random.Random(seed)
        columns, self.key = {**SHAPES, **DISK_SHAPES}[shape]
        self.has_text = "fixed" not in shape
        self.files = files or MemoryFiles()
        self.db: Any = open_memory(self.files, **OPTIONS)
        self.name = "test.t"
        space = None
        if shape in DISK_SHAPES:
            self.db.create_tablespace(space := "pages", page_size="4 KiB", extent="64 KiB", size="256 KiB")
        self.db.create_table(self.name, columns, primary_key="id", partition=tm.HashPartition(3), tablespace=space)
        self.model: dict[Any, Any] = {}

    def value(self) -> Any:
        if not self.has_text:
            return self.rng.randrange(1 << 40)
        size = self.rng.choice([0, 1, 20, 300, 3_000, 40_000])
        return None if size == 1 else "v" * self.rng.randrange(size + 1)

    def step(self, txn: Any, model: dict[Any, Any]) -> None:
        key = self.key(self.rng.randrange(900))
        choice = self.rng.random()
        if choice < 0.35:
            batch = {self.key(self.rng.randrange(900)): self.value() for _ in range(self.rng.randrange(40))}
            txn.write_many(self.name, list(batch.items()))
            model.update(batch)
        elif choice < 0.55:
            value = self.value()
            txn.write(self.name, (key, value))
            model[key] = value
        elif key not in model:
            txn.insert(self.name, (key, None if self.has_text else 1))
            model[key] = None if self.has_text else 1
        elif choice < 0.65:
            txn.update(self.name, key, {"value": (value := self.value())})
            model[key] = value
        elif choice < 0.75:
            gone = self.rng.sample(sorted(model, key=str), min(len(model), 30))
            txn.delete_many(self.name, gone)
            for each in gone:
                del model[each]
        elif choice < 0.85:
            txn.delete(self.name, key)
            del model[key]
        else:
            txn.get(self.name, key, lock=self.rng.choice(["shared", "exclusive"]))

    def transaction(self) -> None:
        """Some steps, some undone by a savepoint, some by a rollback; the walk is made before the end, too."""
        model = dict(self.model)
        txn = self.db.transaction()
        for _ in range(self.rng.randrange(1, 7)):
            if self.rng.random() < 0.3:
                with pytest.raises(ZeroDivisionError), txn.savepoint():
                    undone = dict(model)
                    for _ in range(3):
                        self.step(txn, undone)
                    raise ZeroDivisionError
            else:
                self.step(txn, model)
        if self.rng.random() < 0.2:
            check_arena(self.db)
        if self.rng.random() < 0.7:
            txn.commit(True)
            self.model = model
        else:
            txn.rollback()

    def agrees(self) -> None:
        check_arena(self.db)
        assert {key: row[1] for key, row in rows_of(self.db, self.name).items()} == self.model


@pytest.mark.parametrize("shape", [*SHAPES, *DISK_SHAPES])
def test_random_transactions_leave_every_word_owned_once_and_rows_as_the_model(shape: str) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    world = World(shape, seed)
    for part in range(60):
        world.transaction()
        if part % 12 == 11:
            world.agrees()
        if part % 30 == 20:
            world.db.checkpoint()
        if part % 30 == 28:
            world.db = open_memory(world.db.parts.files.kill(), **OPTIONS)
            world.agrees()


@pytest.mark.parametrize("shape", SHAPES)
def test_index_grown_by_splits_and_shrunk_by_deletes_holds_each_key_once(shape: str) -> None:
    world = World(shape, 5)
    small = 1 if shape == "fixed" else "x"
    world.model = {world.key(number): small for number in range(14_000)}
    rows = list(world.model.items())
    for first in range(0, len(rows), 100):  # by and by, so that segments grow and split one at a time
        world.db[world.name].insert_many(rows[first : first + 100])
    world.agrees()
    world.db.checkpoint()
    gone = [key for key, _ in rows[::3]]
    world.db[world.name].delete_many(gone)
    for key in gone:
        del world.model[key]
    world.agrees()
    world.db = open_memory(world.db.parts.files.kill(), **OPTIONS)
    world.agrees()
    at_once = open_memory(**OPTIONS)
    table = at_once.create_table(world.name, SHAPES[shape][0], primary_key="id", partition=tm.HashPartition(1))
    table.insert_many(rows)
    check_arena(at_once)
    segments = at_once.parts.store.arena.word(at_once.parts.store.tables.by_name[world.name].fragments[0], a.F_SEGMENTS)
    assert segments > 2


def test_dropped_tables_and_refused_ones_give_all_their_memory_back() -> None:
    db = open_memory(**OPTIONS)
    for number in range(4):
        for shape, (columns, key) in SHAPES.items():
            table = db.create_table(
                "test.gone", columns, primary_key="id", partition=tm.HashPartition(1 + 600 * (number == 3))
            )
            table.insert_many([(key(n), n if shape == "fixed" else "t" * (n * 7)) for n in range(700)])
            check_arena(db)
            db.drop_table("test.gone")
            check_arena(db)
    assert db.parts.store.arena.used_pages() < 1_300


def test_memory_used_after_a_restart_counts_pages_of_both_loaders() -> None:
    """Story: a restart with two loaders takes pages from both ends of the arena. Only those of the lower end were
    counted, and with enough of the others free again the number became negative.
    """
    world = World("var", 1)
    world.db[world.name].insert_many([(number, "x" * 900) for number in range(6_000)])
    world.db.checkpoint()
    before = world.db.parts.store.arena.used_pages()
    world.db = open_memory(world.db.parts.files.kill(), **OPTIONS)
    after = world.db.parts.store.arena.used_pages()
    assert 0.8 * before < after < 1.2 * before
    world.db.drop_table(world.name)
    assert 0 <= world.db.parts.store.arena.used_pages() < 60
    check_arena(world.db)


def test_the_walk_begins_after_read_ahead_has_made_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Story: a scan had asked for pages, and the thread that reads ahead copied 16 dirty pages out to make room for
    them. Their cells went to the free list after the walk had followed it: "128 words have no owner".
    """
    is_waited_for = threading.Event()

    def stall() -> None:
        assert is_waited_for.wait(100)

    world = World("disk var", 3, FaultFiles(MemoryFiles(), [Rule("pread", "space/*", stall=stall)]))
    world.db[world.name].insert_many([(n, "x" * 3_000) for n in range(700)])
    (cache,) = world.db.parts.store.disk.caches.values()
    drain = cache.ahead.drain
    monkeypatch.setattr(cache.ahead, "drain", lambda: (is_waited_for.set(), drain()))
    before = cache.reader.pages_read
    cache.read_ahead(1 << d.FILE_SHIFT | number for number in range(d.FIRST_DATA_PAGE, 200))
    try:
        check_arena(world.db)
        assert is_waited_for.is_set(), "the walk began while pages were being read"
    finally:
        is_waited_for.set()
    assert cache.reader.pages_read > before


def test_planted_loss_of_a_block_and_a_double_owner_are_seen() -> None:
    db = open_memory()
    db.create_table("test.t", SHAPES["var"][0], primary_key="id").insert_many([(n, "x" * n) for n in range(100)])
    mem = db.parts.store.mem
    check_arena(db)
    first = int(mem[a.S_POOL + a.P_FREE_BLOCKS])
    counted = int(mem[a.S_BLOCK_COUNTS]) + (first >> a.PAGE_SHIFT)
    mem[a.S_POOL + a.P_FREE_BLOCKS] = mem[first]
    mem[mem[first] + 1] = 0
    mem[a.S_POOL + a.P_FREE_BLOCK_COUNT] -= 1
    mem[counted] -= 1
    with pytest.raises(AssertionError, match="have no owner"):
        check_arena(db)
    with pytest.raises(AssertionError, match="leads back"):
        mem[mem[first] + 1] = 1
        check_arena(db)
    mem[mem[first] + 1] = first
    mem[a.S_POOL + a.P_FREE_BLOCKS] = first
    mem[a.S_POOL + a.P_FREE_BLOCK_COUNT] += 1
    mem[counted] += 1
    fragment = db.parts.store.tables.by_name["test.t"].fragments[0]
    mem[address_of(fragment) + a.F_ROWS] += 1
    with pytest.raises(AssertionError, match="F_ROWS"):
        check_arena(db)


def test_planted_loss_in_what_disk_columns_hold_is_seen() -> None:
    world = World("disk var", 3)
    world.db[world.name].insert_many([(n, "x" * (n * 9)) for n in range(700)])
    store = world.db.parts.store
    mem, fragment = store.mem, store.tables.by_name[world.name].fragments[0]
    check_arena(world.db)
    txn = world.db.transaction()
    txn.write(world.name, (5_000, "y" * 9_000))
    check_arena(world.db)
    extent = int(mem[address_of(fragment) + a.F_DISK_EXTENTS])
    tablespace = int(mem[address_of(fragment) + a.F_TABLESPACE])
    undo, cache = int(mem[a.S_UNDO]), int(mem[tablespace + d.TS_CACHE])
    plants: dict[int, str] = {
        address_of(fragment) + a.F_DISK_EXTENT_COUNT: "",
        extent + d.EX_FREE: "EX_FREE",
        extent + d.EX_CLASSES + 3: "by class",
        tablespace + d.TS_FREE_COUNT: "",
        undo + d.U_RESERVED: "reserved for no transaction",
        cache + d.C_DIRTY: "counts its pages wrong",
        cache + d.C_FREE_FRAMES: "neither free",
        mem.size - 1: "used untaken",
        int(mem[a.S_FILE_DIRECTORY]) + 5: "",
    }
    for at, what in plants.items():
        mem[at] += 1
        with pytest.raises((AssertionError, KeyError, IndexError), match=what or None):
            check_arena(world.db)
        mem[at] -= 1
    check_arena(world.db)
    txn.rollback()
    check_arena(world.db)
    world.db.drop_table(world.name)
    check_arena(world.db)
