"""Indexes over the life of a store: restart, views, verification with planted faults, the command line."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

import tidemark as tm
from tests.index.stored import INDEXES, NAME, Indexed
from tests.index.whole import tree_delete_run
from tidemark.engine.index import index_layout as ix
from tidemark.engine.memory.arena import address_of

KEYS = 190


def filled(**options: Any) -> Indexed:
    gc.collect()
    store = Indexed(3, **options)
    store.rows = {key: store.row(key) for key in range(KEYS)}
    store.table.insert_many(list(store.rows.values()))
    return store


def test_restart_builds_every_index_and_its_timeline_shows_it() -> None:
    store = filled(partition=tm.HashPartition(5))
    store.index()
    store.db.checkpoint()
    for _ in range(10):
        store.transaction()
    store.crash()
    phases = {each["name"]: each for each in store.db.restart_report["phases"]}
    assert phases["build indexes"]["rows"] == len(store.rows) * len(INDEXES)
    store.verify()
    for name in INDEXES:
        store.db.drop_index(NAME, name)
    store.crash()
    assert "build indexes" not in {each["name"] for each in store.db.restart_report["phases"]}
    assert store.db.indexes(NAME) == []
    store.verify()
    store.db.close()


@pytest.mark.parametrize(
    ("plant", "said"),
    [
        ("missing", "a row has no entry"),
        ("key", "an entry has a different key than its row"),
        ("count", "a counter is wrong"),
    ],
)
def test_fault_planted_in_a_tree_is_reported_by_check(plant: str, said: str) -> None:
    store = filled()
    store.index("by_n")
    tree = store.db.parts.store.tables.named(NAME).indexes["by_n"].tree
    leaf = int(tree.mem[address_of(tree.handle) + ix.I_FIRST_LEAF])
    capacity = int(tree.mem[address_of(tree.handle) + ix.I_LEAF_CAPACITY])
    words = int(tree.mem[address_of(tree.handle) + ix.I_WORDS])
    if plant == "missing":
        place = tree.mem[leaf + ix.NODE_HEADER_WORDS + words * capacity : :][:1].copy()
        assert tree_delete_run(tree.mem, tree.handle, np.ascontiguousarray(place), 0, 1) == 1
    elif plant == "key":
        tree.mem[leaf + ix.NODE_HEADER_WORDS] ^= 1
    else:
        tree.mem[address_of(tree.handle) + ix.I_COUNT] += 1
    report = store.db.check()
    assert not report["is_sound"]
    assert any("index by_n" in problem and said in problem for problem in report["problems"]), report["problems"]
    store.db.close()


def test_scan_sees_what_its_transaction_did_before_and_not_what_it_does_meanwhile() -> None:
    store = filled()
    store.index("by_flag")
    with store.db.transaction() as txn:
        for key in range(0, KEYS, 3):
            txn.update(NAME, key, {"flag": 5})
        before = [(row.flag, row.id) for row in txn.scan(NAME) if row.flag == 5]
        seen = []
        for row in txn.scan(NAME, index="by_flag", lower=5):
            seen.append((row.flag, row.id))
            txn.update(NAME, row.id, {"flag": 6})  # ahead of the scan, which does not meet it again
        assert seen == sorted(before)
        with pytest.raises(ZeroDivisionError), txn.savepoint():
            txn.delete(NAME, 0)
            assert (6, 0) not in [(row.flag, row.id) for row in txn.scan(NAME, index="by_flag", lower=6)]
            raise ZeroDivisionError
        assert (6, 0) in [(row.flag, row.id) for row in txn.scan(NAME, index="by_flag", lower=6)]
        for row in txn.scan(NAME, index="by_flag", prefix=6, lock="exclusive", limit=5):
            assert row.flag == 6
        txn.rollback()
    store.verify()
    store.db.close()


def test_arrow_pandas_and_hidden_columns_come_in_the_order_of_the_index() -> None:
    store = filled(partition=tm.HashPartition(3))
    store.index("by_flag")
    scan = store.table.scan(["flag", "id", "$FRAGMENT", "$ROWID"], index="by_flag", reverse=True)
    table = scan.to_arrow()
    keys = list(zip(table["flag"].to_pylist(), table["id"].to_pylist(), strict=True))
    assert keys == sorted(((row[3], row[0]) for row in store.rows.values()), reverse=True)
    by_id = {row[0]: tuple(row) for row in store.table.scan(["id", "$FRAGMENT", "$ROWID"])}
    found = zip(*(table[name].to_pylist() for name in ("id", "$FRAGMENT", "$ROWID")), strict=True)
    assert {row[0]: row for row in found} == by_id
    assert len(store.table.scan(index="by_flag", limit=7).to_pandas()) == 7
    store.db.close()
