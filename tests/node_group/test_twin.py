"""The kernels of node groups beside twins that keep rows in a dict."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

import tidemark as tm
from engine.kernels.slot_scan import changed_slots
from engine.layout import arena as a
from engine.layout.group_apply import SLOT_WORDS
from tests.naive import group_apply as naive
from tests.node_group.pair import Pair, page_of, slots_of
from tests.seeds import fresh_seeds
from tests.store.history import ROOM, History
from tests.store.support import open_memory

NAME = "test.t"


def shapes(db: Any) -> dict[int, naive.Shape]:
    return {
        each.table_id: naive.Shape(each.format.fixed_words, each.format.has_var, each.format.has_disk)
        for each in db._store.tables.values()
    }


@pytest.mark.parametrize("storage", ["memory", "disk"])
@pytest.mark.parametrize("seed", fresh_seeds(1))
def test_random_groups_leave_the_rows_that_the_twin_has(storage: str, seed: int) -> None:
    history = History(seed)
    pair = Pair(**ROOM)
    if storage == "disk":
        pair.primary.create_tablespace("main", "1 MiB", page_size="8 KiB", extent="256 KiB")
    pair.primary.create_table(NAME, history.columns if storage == "memory" else history.placed(), "id")
    pair.pump()
    first = len(pair.stream.words)
    txn: Any = None
    for step in history.steps(80):
        if step.call.endswith(("insert", "write", "delete", "many")) and step.call != "get_many":
            txn = txn or pair.primary.transaction()
            try:
                getattr(txn, step.call)(NAME, step.data)
            except tm.Rejected:
                continue
        elif txn is not None and step.call in ("commit", "begin", "get"):
            txn.commit(False)
            txn = None
            if step.call == "get":
                pair.primary.advance_epoch()
    if txn is not None:
        txn.rollback()
    pair.pump()
    rows: dict[naive.Slot, naive.Row] = {}
    for words in pair.stream.words[first:]:
        naive.apply(words.tolist(), shapes(pair.primary), rows)
    found, _ = slots_of(pair.member)
    assert found == {
        place: (epoch, author, np.array(image, dtype=np.int64).tobytes())
        for place, (epoch, author, image) in rows.items()
    }, f"seed {seed}"
    pair.close()


def pages_of(db: Any, fragment: int) -> list[naive.Page | None]:
    mem = db._store.mem
    words = int(mem[fragment + a.F_ROW_WORDS])
    pages: list[naive.Page | None] = []
    for logical in range(int(mem[fragment + a.F_PAGES])):
        page = page_of(mem, fragment, logical)
        if page <= 0:
            pages.append(None)
            continue
        base = page << a.PAGE_SHIFT
        slots = []
        for slot in range(int(mem[base + a.PG_FRESH])):
            at = base + a.PAGE_HEADER_WORDS + slot * words
            head = int(mem[at])
            state = head >> a.STATE_SHIFT & a.STATE_MASK
            slots.append((state != a.FREE, int(mem[at + 1]), bool(head & a.LOCK_OP_MASK)))
        pages.append(naive.Page(slots, int(mem[base + a.PG_EMPTIED])))
    return pages


@pytest.mark.parametrize("seed", fresh_seeds(2))
def test_changed_slots_equal_twin_however_the_scan_is_cut(seed: int) -> None:
    rng = random.Random(seed)
    db = open_memory(data_memory="32 MiB")
    columns = [tm.Column("id", tm.Int64), tm.Column("fill", tm.Char(rng.choice([8, 100, 255])))]
    table = db.create_table(NAME, columns, "id", tm.HashPartition(1))
    fragment = db._store.tables[NAME].fragments[0]
    epochs = [0]
    for _ in range(12):
        keys = rng.sample(range(400), 60)
        with db.transaction() as txn:
            txn.write_many(NAME, [(key, "x") for key in keys])
        with db.transaction() as txn:
            gone = range(rng.randrange(400), 400) if rng.random() < 0.3 else rng.sample(range(400), 40)
            txn.delete_many(NAME, [key for key in gone if table.get(key) is not None])
        epochs.append(db.sync())
    txn = db.transaction()
    txn.update(NAME, next(iter(table)).id, {"fill": "locked"})
    txn.insert(NAME, (1_000, "reserved"))
    pages = pages_of(db, fragment)
    slots = int(db._store.mem[fragment + a.F_SLOTS])
    for since in (*epochs, 1 << 60):
        found: list[tuple[int, int]] = []
        state = np.zeros(2, dtype=np.int64)
        while int(state[0]) >> 16 < len(pages):
            out = np.zeros(SLOT_WORDS * rng.choice([1, 3, 1_000]), dtype=np.int64)
            count = int(changed_slots(db._store.mem, fragment, since, rng.choice([1, 7, 1 << 40]), out, state))
            found += [(int(out[i * SLOT_WORDS]), int(out[i * SLOT_WORDS + 1])) for i in range(count)]
        assert found == naive.changed(pages, slots, since), f"seed {seed}, since {since}"
    txn.rollback()
    db.close()
