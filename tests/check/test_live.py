"""`db.check()`: sound stores are found sound while others write; each kind of damage in memory is found and placed."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tidemark as tm
from tests.elsewhere import beside
from tests.engine.arena_check import check_arena
from tests.store.support import ACCOUNT, open_memory
from tidemark.engine.index.ordered import OrderedIndex
from tidemark.engine.memory import arena_layout as a
from tidemark.engine.store import row_check
from tidemark.recovery.verification.check import check_indexes

LONG_KEY = [tm.Column("name", tm.VarChar(60)), tm.Column("note", tm.Text, nullable=True)]


def filled(**options: Any) -> tm.Database:
    db = open_memory(data_memory="16 MiB", transaction_memory="4 MiB", redo_log="8 MiB", **options)
    account = db.create_table("test.account", ACCOUNT, primary_key="id", partition=tm.HashPartition(2))
    account.insert_many([(n, f"owner {n}", float(n), "n" * (n * 37 % 9_000)) for n in range(300)])
    named = db.create_table("test.named", LONG_KEY, primary_key="name")
    named.insert_many([(f"name {n}", None if n % 3 else "n" * (n * 911 % 50_000)) for n in range(100)])
    account.delete_many(list(range(0, 300, 7)))
    return db


def test_sound_store_is_found_sound() -> None:
    db = filled()
    db.checkpoint()
    db["test.account"].insert((1_000, "late", 1.0, None))
    report = db.check()
    assert report["problems"] == [] and report["notes"] == [] and report["is_sound"]
    assert report["rows"] == len(db["test.account"]) + len(db["test.named"])
    assert report["groups"] > 3 and report["files"] > 6
    check_arena(db)


def test_open_transaction_with_every_kind_of_change_is_sound() -> None:
    db = filled()
    txn = db.transaction()
    txn.insert("test.account", (5_000, "new", 0.0, "n" * 9_000))
    txn.insert_many("test.named", [(f"fresh {n}", None) for n in range(50)])
    txn.update("test.account", 1, {"note": "m" * 5_000})
    txn.delete("test.account", 2)
    txn.get("test.account", 3, lock="shared")
    txn.get("test.account", 4, lock="exclusive")
    assert db.check()["problems"] == []
    txn.rollback()
    assert db.check()["problems"] == []


def test_epoch_that_closes_while_rows_are_looked_at_is_no_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Story: `check` looked at the open epoch, and then at a slice of rows. Between the two the epoch closed and a row
    was committed in the next one: "its epoch is in the future", said `check` of a sound store.
    """
    db = filled()
    check_rows = row_check.check_rows
    beside: list[threading.Thread] = []

    def work() -> None:
        db.parts.clockwork.advance_epoch()
        db["test.account"].update(1, {"balance": 2.0})

    def looked_at(*arguments: Any) -> int:
        if not beside:
            beside.append(threading.Thread(target=work))
            beside[0].start()
            beside[0].join(0.1)
        return int(check_rows(*arguments))

    monkeypatch.setattr(row_check, "check_rows", looked_at)
    report = db.check()
    beside[0].join()
    assert report["problems"] == []
    assert db["test.account"][1].balance == 2.0


def test_row_that_goes_as_rows_are_counted_is_no_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Story: `check` first looked whether anything had been committed since it began, then read the counter of a
    fragment. A row deleted between the two gave "120 rows were found, 119 are counted" (scheduled lives, seed 20002).
    """
    db = filled()
    db["test.account"].insert_many([(n, "owner", 0.0, None) for n in range(1_000, 1_100)])
    word = db.parts.store.arena.word
    gone: list[int] = []

    def read(*place: int) -> int:
        if place[1] == a.F_ROWS:
            gone.append(1_000 + len(gone))
            db["test.account"].delete(gone[-1])
        return word(*place)

    monkeypatch.setattr(db.parts.store.arena, "word", read)
    assert db.check()["problems"] == []
    assert len(gone) >= 3, "the counters of three fragments are read"


def row_of(db: tm.Database, key: Any, name: str = "test.account") -> tuple[int, int, int]:
    """(fragment, ROWID, address) of a row."""
    with db.transaction() as txn:
        txn.get(name, key, lock="exclusive")
        mem, desc = db.parts.store.mem, txn.desc
        operation = int(mem[desc + a.X_LAST])
        fragment, rowid = int(mem[operation + a.O_FRAGMENT]), int(mem[operation + a.O_ROWID])
    middle = int(mem[fragment + a.F_MAP + (rowid >> 34)])
    leaf = int(mem[middle + (rowid >> 25 & 511)])
    base = int(mem[leaf + (rowid >> 16 & 511)]) << a.PAGE_SHIFT
    return fragment, rowid, base + a.PAGE_HEADER_WORDS + (rowid & 0xFFFF) * int(mem[fragment + a.F_ROW_WORDS])


def reference_address(mem: Any, fragment: int, row: int) -> int:
    return row + int(mem[fragment + a.F_ROW_WORDS]) - 1


def key_address(mem: Any, fragment: int, row: int) -> int:
    return row + a.ROW_HEADER_WORDS


def page_address(mem: Any, fragment: int, row: int) -> int:
    return (row >> a.PAGE_SHIFT << a.PAGE_SHIFT) + a.PG_USED


def var_address(mem: Any, fragment: int, row: int) -> int:
    reference = int(mem[reference_address(mem, fragment, row)])
    base = (reference >> 16) << a.PAGE_SHIFT
    return base + (int(mem[base + a.PAGE_WORDS - 1 - (reference & 0xFFFF)]) & 0xFFFF)


def index_word(mem: Any, fragment: int, row: int) -> int:
    """Address of the first entry of the primary index."""
    segment = int(mem[int(mem[fragment + a.F_DIRECTORY])])
    block = int(mem[segment + a.SEG_BLOCK])
    return next(at for at in range(block, block + a.BLOCK_WORDS) if mem[at])


# Where a word is, what becomes of it, and what the check says.
HARMS: dict[str, tuple[Callable[[Any, int, int], int], Callable[[int], int], str]] = {
    "state": (lambda mem, fragment, row: row, lambda word: 7 << a.STATE_SHIFT, "no state a row can have"),
    "lock": (lambda mem, fragment, row: row, lambda word: word | 12_345, "lock refers to no operation"),
    "epoch": (lambda mem, fragment, row: row + 1, lambda word: 1 << 60, "epoch is in the future"),
    "reference": (reference_address, lambda word: 1 << 50, "variable part is incomplete"),
    "var length": (var_address, lambda word: word + 1, "variable part is incomplete"),
    "var end": (lambda *place: var_address(*place) + 1, lambda word: word ^ 1 << 29, "variable part is incomplete"),
    "key": (key_address, lambda word: word + 1, "primary index does not refer to it"),
    "index": (index_word, lambda word: 0, "counts its entries wrong"),
    "row count": (lambda mem, fragment, row: fragment + a.F_ROWS, lambda word: word + 1, "the fragment counts"),
    "page": (page_address, lambda word: word + 1, "counts its rows wrong"),
}


@pytest.mark.parametrize("what", HARMS)
def test_damage_in_memory_is_found(what: str) -> None:
    place, harm, expected = HARMS[what]
    db = filled()
    fragment, _, row = row_of(db, 33)
    mem = db.parts.store.mem
    at = place(mem, fragment, row)
    mem[at] = harm(int(mem[at]))
    report = db.check()
    assert not report["is_sound"]
    assert any(expected in problem and "test.account" in problem for problem in report["problems"]), report["problems"]


def test_flipped_bits_anywhere_in_a_row_never_crash_the_check() -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    db = filled()
    fragment, _, row = row_of(db, 40)
    mem = db.parts.store.mem
    words = int(mem[fragment + a.F_ROW_WORDS])
    for _ in range(400):
        at = rng.choice([row + rng.randrange(words), var_address(mem, fragment, row) + rng.randrange(3)])
        before = int(mem[at])
        mem[at] = before ^ (1 << rng.randrange(63))
        db.check()
        mem[at] = before
    assert db.check()["is_sound"]


def test_store_under_writers_and_checkpoints_is_found_sound(tmp_path: Path) -> None:
    """Story: a full log was waited for only five seconds, in which a busy machine may make no local checkpoint."""
    options: dict[str, Any] = {"data_memory": "64 MiB", "redo_log": "16 MiB", "lock_timeout_ms": 200_000}
    with tm.open(tmp_path / "store", durability="epoch", **options) as db:
        account = db.create_table("test.account", ACCOUNT, primary_key="id", partition=tm.HashPartition(2))
        account.insert_many([(n, "a", 0.0, "n" * (n % 700)) for n in range(3_000)])
        stop = threading.Event()

        def write(number: int) -> None:
            rng = random.Random(number)
            while not stop.is_set():
                key = rng.randrange(3_000) * 2 + number
                account.write((key, "b", rng.random(), "m" * rng.randrange(3_000)))
                if rng.random() < 0.3 and account.get(key) is not None:
                    account.delete(key)

        with beside(stop, write, range(2)):
            for turn in range(12):
                if turn % 3 == 0:
                    db.checkpoint()
                assert db.check()["problems"] == []
        assert db.check()["problems"] == []


@pytest.mark.parametrize("is_unique", [False, True], ids=["ordered", "unique"])
def test_commit_at_any_look_at_the_words_of_an_index_is_no_damage(is_unique: bool) -> None:
    """Story: `check` read an index's version first and its counter after. A commit between the two gave "a counter is
    wrong" in a sound store.
    """
    db = open_memory(data_memory="16 MiB")
    handle = db.create_table("t", [tm.Column("id", tm.Int64), tm.Column("k", tm.Int64)], primary_key="id")
    handle.insert_many([(number, number) for number in range(100)])
    db.create_index("t", "by_k", ("k",), unique=is_unique)
    looks = [0, 0]  # seen so far; before which one a row is committed

    class Seen(np.ndarray):
        def __getitem__(self, at: Any) -> Any:
            looks[0] += 1
            if looks[0] == looks[1]:
                handle.insert((1_000 + looks[1], -looks[1]))
            return super().__getitem__(at)

    table = db.parts.store.tables.named("t")
    index = next(iter((table.uniques if is_unique else table.indexes).values()))
    index.tree.mem = index.tree.mem.view(Seen)
    while looks[0] >= looks[1]:
        looks[:] = [0, looks[1] + 1]
        assert db.check()["problems"] == [], f"a row was committed before look {looks[1]}"


def test_partition_whose_drop_waits_for_the_disk_is_no_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Story: a drop is visible when it is in the log, but its fragment counts as kept only after the sync. `check`
    looked between the two: more entries than rows, "a counter is wrong" (scheduled lives, seed 18).
    """
    db = open_memory(data_memory="16 MiB")
    columns = [tm.Column("id", tm.Int64), tm.Column("k", tm.Int64)]
    ranges = tm.RangePartition("id", [("a", 100), ("b", 200)])
    db.create_table("t", columns, primary_key="id", partition=ranges).insert_many([(n, n) for n in range(200)])
    db.create_index("t", "by_k", ("k",))
    store, checker = db.parts.store, threading.get_ident()
    pin, problems = object(), list[str]()
    waits, resume = threading.Event(), threading.Event()
    real_check, real_wait, real_latch = OrderedIndex.check, store.log.wait, store.schema.latch

    class Latch:
        """The drop waits for the disk and holds the latch; it continues as soon as `check` asks for the latch."""

        def __enter__(self) -> None:
            if threading.get_ident() == checker and waits.is_set():
                resume.set()
            real_latch.__enter__()

        def __exit__(self, *error: Any) -> None:
            real_latch.__exit__(*error)

        def __getattr__(self, name: str) -> Any:
            return getattr(real_latch, name)

    def check_beside_a_drop(index: OrderedIndex, *arguments: Any) -> Any:
        if dropper.ident is None:
            dropper.start()
            waits.wait()
        return real_check(index, *arguments)

    def wait_for_disk(ticket: int) -> None:
        waits.set()
        resume.wait()
        real_wait(ticket)

    dropper = threading.Thread(target=lambda: db.drop_partition("t", "a"))
    monkeypatch.setattr(store.schema, "latch", Latch())
    monkeypatch.setattr(store.log, "wait", wait_for_disk)
    monkeypatch.setattr(OrderedIndex, "check", check_beside_a_drop)
    store.users.pin(pin)
    check_indexes(store, store.tables.named("t"), problems.append)
    resume.set()
    dropper.join()
    store.users.unpin(pin)
    assert problems == []
