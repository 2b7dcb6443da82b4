"""Answers from an index alone: the same values a scan of the rows gives, for every type, and ranges counted."""

from __future__ import annotations

import random as plain_random
from typing import Any

import numpy as np
import pytest

import tidemark as tm
from tests.index.stage import numpy_random, order_of
from tests.index.values import KINDS, row_of
from tests.index.whole import entries_of
from tests.seeds import fresh_seeds
from tests.store.support import open_memory
from tidemark.engine import types as t
from tidemark.engine.index import index_layout as ix
from tidemark.engine.memory.arena_layout import PAGE_HEADER_WORDS, PAGE_WORDS
from tidemark.engine.queries import index_only
from tidemark.engine.queries.index_only import CALL_KEYS

NAME = "test.t"
SEEDS = [*range(10), *fresh_seeds(4)]
FIXED = [kind for kind in KINDS if not kind.is_var and not isinstance(kind, t.Floating)]


def made(random: np.random.Generator, kinds: list[Any], rows: int = 300) -> tuple[Any, list[Any], list[dict[str, Any]]]:
    columns = [
        tm.Column("id", [t.Int64, t.Int16, t.Decimal(7, 2)][random.integers(3)]),
        *[tm.Column(f"k{i}", kind, nullable=bool(random.random() < 0.5)) for i, kind in enumerate(kinds)],
        tm.Column("other", tm.Int8, nullable=True),
        tm.Column("text", tm.VarChar(20), nullable=bool(random.random() < 0.5)),
    ]
    del columns[-1 if random.random() < 0.5 else len(columns) :]
    db = open_memory(data_memory="32 MiB")
    db.create_table(NAME, columns, "id", partition=tm.HashPartition(int(random.integers(1, 4))))
    found = [{**row_of(number - 150, columns[1:], random), "id": number - 150} for number in range(rows)]
    db[NAME].insert_many(found)
    return db, columns, found


def alone(table: Any, names: list[str]) -> bool:
    return bool(table.explain(names, index="by_k")["access"] == "index only")


def stored(columns: list[Any], row: Any, names: list[str]) -> list[Any]:
    """Values by their column's order, which distinguishes all values that differ in more than padding."""
    kinds = {column.name: column for column in columns}
    return [order_of(kinds[name], row[name] if isinstance(row, dict) else getattr(row, name)) for name in names]


@pytest.mark.parametrize("seed", SEEDS)
def test_entries_of_random_columns_are_what_their_rows_are(seed: int) -> None:
    random = numpy_random(seed)
    while True:
        kinds = [FIXED[random.integers(len(FIXED))] for _ in range(random.integers(1, 4))]
        db, columns, rows = made(random, kinds)
        table = db[NAME]
        names = [f"k{i}" for i in range(len(kinds))]
        if random.random() < 0.6:
            names.insert(int(random.integers(len(names) + 1)), "id")
        db.create_index(NAME, "by_k", names)
        if alone(table, names):
            break
        db.close()
    asked = [str(name) for name in random.permutation(names)][: random.integers(1, len(names) + 1)]
    by_rows = table.scan([*asked, "other"], index="by_k")
    assert by_rows.explain()["access"] == "index"
    mine, theirs = table.scan(asked, index="by_k").to_arrow(), by_rows.to_arrow().drop_columns(["other"])
    assert mine.schema == theirs.schema and mine.equals(theirs)
    sides = [
        sorted(stored(columns, row, asked) for row in some) for some in (list(table.scan(asked, index="by_k")), rows)
    ]
    assert sides[0] == sides[1]
    for reverse in (False, True):
        hidden = [*asked, tm.ROWID, tm.FRAGMENT]
        found = table.scan(hidden, index="by_k", reverse=reverse)
        assert found.explain()["access"] == "index only"
        more = table.scan([*hidden, tm.EPOCH], index="by_k", reverse=reverse)
        assert more.explain()["access"] == "index"
        assert found.to_arrow().equals(more.to_arrow().drop_columns([tm.EPOCH]))
        assert min(more.to_arrow().column(tm.EPOCH).to_pylist()) > 0


@pytest.mark.parametrize("kind", FIXED, ids=repr)
def test_entries_of_each_type_are_what_their_rows_are(kind: Any) -> None:
    random = numpy_random(5)
    db, columns, rows = made(random, [kind])
    db.create_index(NAME, "by_k", ["k0"])
    is_short = kind.width * 16 + 16 <= 256 or not isinstance(kind, (t.Char, t.Binary, t.Uuid))
    assert alone(db[NAME], ["k0"]) == is_short
    found = [stored(columns, row, ["k0"]) for row in db[NAME].scan(["k0"], index="by_k")]
    assert found == sorted(stored(columns, row, ["k0"]) for row in rows)


def test_floats_and_columns_outside_the_fixed_image_are_read_from_their_rows() -> None:
    db = open_memory()
    columns = [tm.Column("id", tm.VarChar(3)), tm.Column("f", tm.Float64), tm.Column("s", tm.VarChar(2))]
    table = db.create_table(NAME, [*columns, tm.Column("n", tm.Int32)], "id")
    table.insert_many([("a", -0.0, "x", 1), ("b", 0.0, "", -5)])
    for name, names in (("by_f", ["n", "f"]), ("by_s", ["n", "s"]), ("by_id", ["n", "id"]), ("by_n", ["n"])):
        db.create_index(NAME, name, names)
        assert table.explain(names, index=name)["access"] == ("index only" if name == "by_n" else "index")
        expected = [tuple(getattr(row, each) for each in names) for row in table.scan(index=name)]
        assert repr([tuple(row) for row in table.scan(names, index=name)]) == repr(expected)
    assert table.explain(["n"], index="by_f")["access"] == "index only"
    assert [row.n for row in table.scan(["n"], index="by_f")] == [-5, 1]


def test_rows_are_not_looked_at() -> None:
    """Overwrite the content of the rows without the index: a scan that read the rows would show it."""
    db = open_memory()
    table = db.create_table(NAME, [tm.Column("id", tm.Int64), tm.Column("n", tm.Int32)], "id")
    table.insert_many([(key, key % 7) for key in range(500)])
    db.create_index(NAME, "by_n", ["n", "id"])
    expected = sorted((key % 7, key) for key in range(500))
    tree = table.table.indexes["by_n"].tree
    pages = {int(place) >> ix.PLACE_SHIFT for places, _ in entries_of(tree) for place in places}
    mem = table.table.mem
    kept = {page: mem[page * PAGE_WORDS : (page + 1) * PAGE_WORDS].copy() for page in pages}
    for page in pages:
        mem[page * PAGE_WORDS + PAGE_HEADER_WORDS : (page + 1) * PAGE_WORDS] = -1
    assert [tuple(row) for row in table.scan(["n", "id"], index="by_n")] == expected
    assert table.scan(index="by_n", where=tm.col("n") < 3).sum("id") == sum(key for n, key in expected if n < 3)
    assert table.scan(index="by_n", lower=2, upper=4).count() == sum(2 <= n < 4 for n, _ in expected)
    for page in pages:
        mem[page * PAGE_WORDS : (page + 1) * PAGE_WORDS] = kept[page]
    assert db.check()["problems"] == []


def test_counts_of_ranges_are_what_scans_of_them_find(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_only, "CALL_LEAVES", 3)
    db = open_memory(data_memory="64 MiB", redo_log="32 MiB", transaction_memory="32 MiB")
    random = plain_random.Random(3)
    columns = [tm.Column("id", tm.Int64), tm.Column("n", tm.Int32, nullable=True), tm.Column("s", tm.VarChar(40))]
    table = db.create_table(NAME, columns, "id", partition=tm.RangePartition("id", [("a", 5_000), ("b", tm.MAXVALUE)]))
    rows = [(key, random.choice([None, *range(40)]), f"s{key % 90}" * 9) for key in range(3 * CALL_KEYS)]
    table.insert_many(rows)
    db.create_index(NAME, "by_n", "n")
    db.create_index(NAME, "by_s", ["s", "n"])
    for _ in range(40):
        low, high = random.choice([None, random.randint(-1, 41)]), random.choice([None, random.randint(-1, 41)])
        found = sum(
            (low is None or (n is not None and n >= low)) and (high is None or n is None or n < high)
            for _, n, _ in rows
        )
        scan = table.scan(index="by_n", lower=low, upper=high, reverse=random.random() < 0.5)
        assert scan.count() == found == sum(1 for _ in scan)
        limit = random.randint(0, len(rows))
        assert table.scan(limit=limit, index="by_n", lower=low, upper=high).count() == min(limit, found)
        start = f"s{random.randint(0, 99)}"
        begins = sum(row[2].startswith(start) for row in rows)
        assert table.scan(index="by_s", prefix=start).count() == begins
        assert table.scan(index="by_s", prefix=start, partitions=["a"]).count() == sum(
            row[2].startswith(start) and row[0] < 5_000 for row in rows
        )
    with db.transaction() as txn:
        txn.delete(NAME, 7)
        txn.update(NAME, 8, {"n": 39})
        assert txn.scan(NAME, index="by_n").count() == len(rows) - 1
        assert txn.scan(NAME, index="by_n", prefix=(39,)).count() == sum(
            1 for _ in txn.scan(NAME, index="by_n", prefix=(39,))
        )
        txn.rollback()
    with db.transaction() as txn:  # it keeps the dropped fragment, and the entries of its rows, where they are
        assert txn.get(NAME, 1, lock="shared") is not None
        db.drop_partition(NAME, "a")
        assert table.table.indexes["by_n"].tree.counters()["entries"] == len(rows)
        assert table.scan(index="by_n").count() == txn.scan(NAME, index="by_n").count() == len(rows) - 5_000
        assert len(list(table.scan(["n"], index="by_n"))) == len(rows) - 5_000
    assert table.scan(index="by_n").count() == len(rows) - 5_000
    assert table.scan(index="by_n").aggregate(a=("count",), b=("count", "id")) == (len(rows) - 5_000,) * 2


def test_errors_of_conditions_name_the_key_of_the_row_though_the_index_answers_alone() -> None:
    db = open_memory()
    table = db.create_table(NAME, [tm.Column("id", tm.Int32), tm.Column("n", tm.Int64)], "id")
    table.insert_many([(-key, key) for key in range(100)])
    table.update(-77, {"n": 2**63 - 1})
    db.create_index(NAME, "by_n", "n")
    db.create_index(NAME, "by_both", ["n", "id"])
    for name, access in (("by_n", "index"), ("by_both", "index only")):
        scan = table.scan(["n"], index=name, where=tm.col("n") + 1 > 50)
        assert scan.explain()["access"] == access
        with pytest.raises(tm.ValueOutOfRange, match="key -77") as caught:
            scan.to_arrow()
        assert caught.value.key == -77
        with pytest.raises(tm.ValueOutOfRange, match="key -77"):
            table.scan(index=name).sum(tm.col("n") + 1)
