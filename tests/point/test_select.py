"""Scans that kernels answer by a key are those of the general path: rows, their order, types of values, errors."""

from __future__ import annotations

import datetime
import decimal
import random
from collections.abc import Callable, Iterator
from functools import partial
from operator import eq, ge, gt, le, lt
from typing import Any

import pytest

import tidemark as tm
from tests.point.support import EVERY, FIXED, VARIABLE, value, wrong
from tests.seeds import fresh_seeds
from tests.shares import few
from tests.store.support import open_memory
from tidemark.engine import types as t
from tidemark.engine.memory.arena_layout import S_TICK, S_UNFINISHED
from tidemark.engine.point.selects import FEW_ROWS, select

DAY = datetime.date(2020, 2, 29)
MONEY = tm.Decimal(9, 2)
OPERATORS = [eq, eq, eq, ge, gt, le, lt]
MEMBERS = t.Enum("a", "b", "ü")
INTEGERS: list[Any] = [t.Int8, t.Int64, t.UInt16, t.UInt64, t.Bool]
STORED: list[Any] = [t.Date, t.Time, t.DateTime, t.Timestamp, t.Decimal(9, 2), t.Decimal(18, 0), t.Decimal(38, 10)]


@pytest.fixture
def db() -> Iterator[Any]:
    db = open_memory(data_memory="32 MiB", redo_log="16 MiB")
    yield db
    db.close()


def general(monkeypatch: pytest.MonkeyPatch, call: Callable[[], Any]) -> Any:
    """What a call gives if kernels answer no scan."""
    with monkeypatch.context() as patched:
        for name in ("select", "select_range"):
            patched.setattr(f"tidemark.scans.{name}", lambda *_: None)
        return outcome(call)


def outcome(call: Callable[[], list[Any]]) -> Any:
    try:
        rows = call()
    except tm.Error as error:
        return type(error), str(error)
    return [(type(row), row._fields, repr(tuple(row)), [type(each) for each in row]) for row in rows]


def by_kernels(
    handle: Any, where: Any, columns: Any = None, index: Any = None, reverse: bool = False, limit: Any = None
) -> Any:
    """What kernels answer; ... for what they leave to the general path."""
    table = handle.table.newest
    found = select(table, where, columns or list(table.format.names), index)
    return ... if found is None else found.rows(table, reverse, limit)


class World:
    """A table with an ordered index over several columns, unique or not, and a few values in each column."""

    def __init__(self, db: Any, rng: random.Random) -> None:
        self.db = db
        self.rng = rng
        key = [tm.Column("k0", rng.choice(INTEGERS[1:4])), tm.Column("k1", rng.choice([*INTEGERS, t.VarChar(12)]))]
        self.key = ["k0", "k1"][: rng.choice([1, 2])]
        columns = key[: len(self.key)]
        for number in range(rng.randint(2, 5)):
            kind = rng.choice([*INTEGERS, *INTEGERS, *STORED, MEMBERS, *VARIABLE, *rng.sample(FIXED, 2)])
            columns.append(tm.Column(f"c{number}", kind, nullable=rng.random() < 0.4))
        columns.append(tm.Column("large", rng.choice(EVERY), nullable=True))
        self.columns = rng.sample(columns, len(columns))
        self.few = {each.name: [value(rng, each.type) for _ in range(4)] for each in columns}
        options: dict[str, Any] = {}
        if rng.random() < 0.3:
            options["partition"] = tm.HashPartition(3)
        self.table = db.create_table("t", self.columns, self.key, **options)
        keyable = [each.name for each in columns if each.type.keyable and each.name != "large"]
        self.index = rng.sample(keyable, rng.randint(1, min(3, len(keyable))))
        db.create_index("t", "by", self.index, unique=rng.random() < 0.4, ordered=True)
        if rng.random() < 0.5:
            db.create_index("t", "other", rng.sample(keyable, 1))
        self.insert(db["t"], rng.choice([0, 30, 300]))

    def insert(self, into: Any, count: int, *name: str) -> None:
        for _ in range(count):
            row = {}
            for each in self.columns:
                is_null = each.nullable and self.rng.random() < 0.2
                is_few = each.name not in self.key
                some = self.rng.choice(self.few[each.name]) if is_few else value(self.rng, each.type)
                row[each.name] = None if is_null else some
            try:
                into.insert(*name, row)
            except tm.DuplicateKey:
                pass

    def where(self) -> Any:
        """A condition, most often over leading columns of the index or over the key."""
        if len(self.key) == 1 and self.rng.random() < 0.15:
            kind = next(each.type for each in self.columns if each.name == self.key[0])
            rows = list(self.db["t"].scan())
            given = [getattr(row, self.key[0]) for row in self.rng.sample(rows, min(2, len(rows)))]
            return tm.col(self.key[0]).isin([*given, *(value(self.rng, kind) for _ in range(self.rng.randint(0, 6)))])
        names = self.rng.choice([self.index, self.index[: self.rng.randint(1, len(self.index))], self.key])
        where = None
        for number, name in enumerate(names):
            operators = OPERATORS[:3] if number < len(names) - 1 and self.rng.random() < 0.9 else OPERATORS
            for _ in range(self.rng.choice([1, 1, 1, 2])):
                constant = self.rng.choice(self.few[name])
                if self.rng.random() < 0.08:
                    constant = wrong(self.rng)
                try:
                    each = self.rng.choice(operators)(tm.col(name), constant)
                except tm.Error:
                    continue
                if isinstance(each, bool):
                    continue
                where = each if where is None else where & each
        return where

    def bounds(self) -> dict[str, Any]:
        """Bounds of the index, most often values of its leading columns."""

        def some() -> Any:
            names = self.index[: self.rng.randint(1, len(self.index))]
            values = [
                wrong(self.rng) if self.rng.random() < 0.05 else self.rng.choice(self.few[name]) for name in names
            ]
            return values[0] if len(values) == 1 and self.rng.random() < 0.5 else tuple(values)

        kind = self.rng.choice(["lower", "upper", "both", "prefix", "none"])
        if kind == "both":
            return {"lower": some(), "upper": some()}
        return {} if kind == "none" else {kind: some()}

    def options(self) -> dict[str, Any]:
        found: dict[str, Any] = {"limit": self.rng.choice([None, None, 0, 1, 5, FEW_ROWS, FEW_ROWS + 1])}
        if self.rng.random() < 0.4:
            found |= {"index": "by", "reverse": self.rng.random() < 0.5}
        if self.rng.random() < 0.4:
            names = [each.name for each in self.columns]
            found["columns"] = self.rng.sample(names, self.rng.randint(1, len(names)))
        return found

    def aggregates(self) -> dict[str, Any]:
        """One aggregate, or several, of columns that may not have them."""
        functions = [("count",), ("count", "no such"), ("sum",), ("median", self.columns[0].name)]
        found = {"a": self.rng.choice(functions) if self.rng.random() < 0.05 else ("count",)}
        for number in range(self.rng.choice([0, 1, 1, 2])):
            column = self.rng.choice(self.columns).name
            function = self.rng.choice(["count", "sum", "min", "max", "min", "max", "mean"])
            found[f"b{number}"] = (function, self.rng.choice([column, column, column, tm.col(column)]))
        return found


@pytest.mark.parametrize("seed", [*range(few(40, 400)), *fresh_seeds(few(10, 200))])
def test_both_paths_find_the_same_rows(db: Any, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    print(f"seed {seed}")
    rng = random.Random(seed)
    world = World(db, rng)
    for _ in range(3):
        for _ in range(20):
            where, options = world.where(), world.options()
            if where is None:
                continue
            compare(
                monkeypatch, lambda where=where, options=options: list(db["t"].scan(where=where, **options)), options
            )
            add_up = world.aggregates()
            wanted, found = (
                call(lambda where=where, add_up=add_up: [db["t"].scan(where=where).aggregate(**add_up)])
                for call in (partial(general, monkeypatch), outcome)
            )
            assert found == wanted, (where, add_up)
            bounds = {**options, "index": "by", "reverse": rng.random() < 0.5, **world.bounds()}
            compare(monkeypatch, lambda bounds=bounds: list(db["t"].scan(**bounds)), bounds)
            with db.transaction() as txn:
                if rng.random() < 0.3:
                    world.insert(txn, 2, "t")
                scan = partial(txn.scan, "t", where=where, **options)
                compare(monkeypatch, lambda scan=scan: list(scan()), options)
                txn.rollback()
        kind = rng.choice(EVERY)
        db.add_column("t", tm.Column(f"a{rng.randrange(10**9)}", kind, nullable=True))
        if rng.random() < 0.5:
            keys = [tuple(row[name] for name in world.key) for row in db["t"].scan()]
            for key in rng.sample(keys, len(keys) // 2):
                db["t"].delete(key if len(key) > 1 else key[0])
        world.columns = list(db["t"].definition.columns)
        world.few |= {each.name: [value(rng, each.type)] for each in world.columns if each.name not in world.few}
        world.insert(db["t"], 20)


def compare(monkeypatch: pytest.MonkeyPatch, call: Callable[[], Any], options: dict[str, Any]) -> None:
    wanted, found = general(monkeypatch, call), outcome(call)
    if isinstance(wanted, list) and isinstance(found, list) and "index" not in options:
        if options["limit"] is not None:  # any rows
            assert len(found) == len(wanted)
            return
        wanted, found = sorted(wanted, key=repr), sorted(found, key=repr)
    assert found == wanted, options


def test_common_conditions_are_answered_by_kernels(db: Any) -> None:
    columns = [
        tm.Column("id", tm.Int64),
        tm.Column("s", tm.VarChar(20)),
        tm.Column("n", tm.Int32),
        tm.Column("u", tm.Int8),
    ]
    table = db.create_table("t", columns, "id")
    table.insert_many([(key, f"s{key % 50}", key % 7, key) for key in range(100)])
    db.create_index("t", "by", ["s", "n"])
    db.create_index("t", "one", "u", unique=True)
    col = tm.col
    rows = sorted(table)

    def answered(where: Any, **options: Any) -> Any:
        return by_kernels(table, where, **options)

    assert answered(col("id") == 7) == [rows[7]]
    assert answered(col("id") == 700) == []
    assert answered(col("u") == 7, columns=["n", "s"]) == [(0, "s7")]
    assert answered(7 == col("u")) == [rows[7]]
    assert sorted(answered(col("s") == "s7")) == [rows[7], rows[57]]
    assert answered((col("n") >= 1) & (col("s") == "s7")) == [rows[57]]
    assert answered((col("n") > 0) & (col("s") == "s7") & (col("n") < 1)) == []
    assert answered(col("s") == "s7", index="by") == [rows[7], rows[57]]
    assert answered(col("s") == "s7", index="by", reverse=True, limit=1) == [rows[57]]
    db.create_index("t", "later", ["s", "id"])
    expected = sorted([rows[7], rows[57]], key=lambda row: row.id, reverse=True)
    assert answered(col("s") == "s7", index="later", reverse=True) == expected
    later = db.create_table("later", [tm.Column("id", tm.Int64), tm.Column("d", tm.Date), tm.Column("x", MONEY)], "id")
    later.insert_many([(key, DAY + datetime.timedelta(key // 10), decimal.Decimal(key) / 4) for key in range(100)])
    db.create_index("later", "by", ["d", "x"])
    d, x, four = col("d"), col("x"), DAY + datetime.timedelta(4)
    assert [row.id for row in by_kernels(later, d == four, index="by")] == list(range(40, 50))
    assert [row.id for row in by_kernels(later, (d == four) & (x > decimal.Decimal("12.000")))] == [49]
    assert [row.id for row in by_kernels(later, d < DAY, index="by")] == []
    assert by_kernels(later, (d == four) & (x > decimal.Decimal("12.001"))) is ...
    kinds = [tm.Column("id", tm.Int64), tm.Column("e", tm.Enum("open", "paid")), tm.Column("w", tm.Decimal(30, 2))]
    orders = db.create_table("orders", kinds, "id")
    orders.insert_many([(key, ("open", "paid")[key % 2], decimal.Decimal(key)) for key in range(50)])
    db.create_index("orders", "by", ["e", "w"])
    assert by_kernels(orders, (col("e") == "paid") & (col("w") <= decimal.Decimal("3.00"))) == [orders[1], orders[3]]
    assert by_kernels(orders, col("e") == "lost") is ...
    for where in (col("n") == 1, (col("s") == "s7") & (col("u") == 1), (col("s") == "s7") | (col("s") == "s8")):
        assert answered(where) is ...
    assert sorted(answered(col("id").isin([9, 7, 700, 9]))) == [rows[7], rows[9]]
    assert answered(col("id").isin([])) == []
    for where in (col("s") >= "s7", col("id") == 7.0, ~(col("id") == 7), col("id").isin([7, 8.0]), col("u").isin([7])):
        assert answered(where) is ...
    table.insert_many([(1_000 + key, "s90", key % 7, -key - 1) for key in range(FEW_ROWS)])
    assert len(answered(col("s") == "s90")) == FEW_ROWS
    table.insert((2_000, "s90", 1, 120))
    assert answered(col("s") == "s90") is ...
    assert len(list(table.scan(where=col("s") == "s90"))) == FEW_ROWS + 1
    assert len(answered(col("s") == "s90", limit=FEW_ROWS)) == FEW_ROWS


@pytest.mark.parametrize("seed", [*range(few(4, 100)), *fresh_seeds(few(1, 20))])
def test_rows_of_several_keys_come_in_the_order_of_a_full_scan(
    db: Any, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    print(f"seed {seed}")
    rng = random.Random(seed)
    kind = rng.choice([t.Int64, t.Int16, t.VarChar(12)])
    columns = [tm.Column("id", kind), tm.Column("text", t.VarChar(40), nullable=True), tm.Column("n", t.Int32)]
    table = db.create_table("t", columns, "id", partition=tm.HashPartition(rng.choice([1, 3])))
    keys = [str(each) if kind == t.VarChar(12) else each for each in rng.sample(range(10_000), 900)]
    for each in keys:
        table.insert((each, rng.choice([None, "x" * rng.randint(0, 40)]), rng.randrange(100)))
    table.delete_many(rng.sample(keys, 200))
    for each in range(100):
        table.insert((str(20_000 + each) if kind == t.VarChar(12) else 20_000 + each, None, each))
    for _ in range(20):
        given = rng.choices(keys, k=rng.choice([0, 1, 5, FEW_ROWS, FEW_ROWS + 1]))
        where = tm.col("id").isin(given)
        wanted = general(monkeypatch, lambda where=where: list(table.scan(where=where)))
        assert outcome(lambda where=where: list(table.scan(where=where))) == wanted
        found = by_kernels(table, where)
        assert found is ... if len(given) > FEW_ROWS else len(found) == len(wanted)
        limit = rng.randint(0, 6)
        assert by_kernels(table, where, ["n"], limit=limit) is ... or len(given) <= FEW_ROWS
        with db.transaction() as txn:
            txn.update("t", given[0], {"n": 777}) if given and table.get(given[0]) else None
            changed = general(monkeypatch, lambda where=where, txn=txn: list(txn.scan("t", where=where)))
            assert outcome(lambda where=where, txn=txn: list(txn.scan("t", where=where))) == changed
            txn.rollback()


def test_a_range_that_stops_before_all_keys_is_empty(db: Any) -> None:
    """`upper=()` stops before every key that begins with no value. Kernels read to the end of the index."""
    table = db.create_table("t", [tm.Column("id", tm.Int64), tm.Column("n", tm.Int64)], "id")
    table.insert_many([(number, number) for number in range(9)])
    db.create_index("t", "by_n", ("n", "id"))
    for ends, ids in [({"upper": ()}, []), ({"lower": 5, "upper": ()}, []), ({"lower": (), "upper": 2}, [0, 1])]:
        for limit in (None, 5):
            assert [row.id for row in table.scan(index="by_n", limit=limit, **ends)] == ids
            assert table.scan(index="by_n", limit=limit, **ends).count() == len(ids)
    assert len(list(table.scan(index="by_n", prefix=()))) == 9


@pytest.mark.parametrize(("gone", "ids"), [(10, [10, 11]), (11, [50, 11])])
def test_a_scan_that_locks_goes_on_beyond_rows_that_are_gone(db: Any, gone: int, ids: list[int]) -> None:
    """With a limit it finds few keys ahead, here 0 to 10. If too many are gone when they are locked, it looks for those
    beyond, in the order of the index: a row that has come before the last one of them meanwhile is left out.
    """
    table = db.create_table("t", [tm.Column("id", tm.Int64), tm.Column("n", tm.Int64)], "id")
    table.insert_many([(number, number) for number in range(40)])
    db.create_index("t", "by_n", ("n", "id"))
    with db.transaction() as txn:
        rows = iter(txn.scan("t", where=tm.col("n") >= 0, index="by_n", limit=3, lock="exclusive"))
        assert next(rows).id == 0
        table.delete_many(list(range(1, gone)))
        table.insert((50, 5))
        assert [row.id for row in rows] == ids
        txn.rollback()


def test_a_prefix_that_is_no_text_is_refused(db: Any) -> None:
    """A lone surrogate ended with UnicodeEncodeError."""
    table = db.create_table("t", [tm.Column("id", tm.Int64), tm.Column("s", tm.VarChar(9))], "id")
    db.create_index("t", "by_s", "s")
    for ends in ({"prefix": "\ud800"}, {"prefix": ("\ud800",)}, {"lower": "\ud800"}, {"upper": "a\ud800"}):
        with pytest.raises(tm.ValueOutOfRange, match="surrogate"):
            list(table.scan(index="by_s", **ends))


def test_what_is_wrong_is_said_when_the_scan_is_made(db: Any) -> None:
    columns = [tm.Column("id", tm.Int8), tm.Column("s", tm.VarChar(3)), tm.Column("b", tm.VarBinary(3))]
    table = db.create_table("t", columns, "id")
    for name in ("id", "s", "b"):
        db.create_index("t", name, name)
    refused: list[tuple[str, Any]] = [
        ("id", 128),
        ("id", "1"),
        ("s", "\ud800"),
        ("s", "long"),
        ("s", 1),
        ("b", "a"),
        ("b", b"long"),
    ]
    for name, bound in refused:
        with pytest.raises(tm.Rejected):
            table.scan(index=name, lower=bound, limit=5)
        with pytest.raises(tm.Rejected):
            table.scan(index=name, prefix=(bound,))
    for name, constant in (("id", "1"), ("s", "\ud800"), ("s", 1), ("b", 1)):
        with pytest.raises(tm.Rejected):
            table.scan(where=tm.col(name) == constant)


def test_nothing_is_answered_while_a_large_commit_is_applied(db: Any) -> None:
    """Its rows have their entries already, and those it changed have lost theirs."""
    table = db.create_table("t", [tm.Column("id", tm.Int64), tm.Column("n", tm.Int64)], "id")
    table.insert((1, 1))
    db.create_index("t", "by", "n")
    rows = iter(table)
    assert next(rows) == (1, 1)  # a view is open, so the next commit is of another instant
    table.insert((2, 2))
    mem = table.table.mem
    assert by_kernels(table, tm.col("n") == 2) == [(2, 2)]
    try:
        mem[S_UNFINISHED] = int(mem[S_TICK])
        for n in (1, 2, 3):
            assert by_kernels(table, tm.col("n") == n) is ...
    finally:
        mem[S_UNFINISHED] = 0


def test_changes_of_its_own_transaction_are_seen(db: Any) -> None:
    table = db.create_table("t", [tm.Column("id", tm.Int64), tm.Column("n", tm.Int64)], "id")
    table.insert_many([(1, 1), (2, 1), (3, 2)])
    db.create_index("t", "by", "n")
    with db.transaction() as txn:
        scan = txn.scan("t", where=tm.col("n") == 1)
        txn.update("t", 3, {"n": 1})
        txn.delete("t", 1)
        assert sorted(scan) == [(2, 1), (3, 1)]
        txn.rollback()
    assert sorted(table.scan(where=tm.col("n") == 1)) == [(1, 1), (2, 1)]


def test_a_snapshot_is_read_by_its_own_names(db: Any) -> None:
    """Story: a condition over a snapshot ended with ValueError after a column of a unique index had been renamed."""
    columns = [tm.Column("id", tm.Int64), tm.Column("n", tm.Int64)]
    db.create_table("t", columns, "id").insert((1, 5))
    db.create_index("t", "u", "n", unique=True)
    with db.snapshot() as snapshot:
        db.rename_column("t", "n", "m")
        for where in (tm.col("n") == 5, tm.col("id") == 1):
            assert [tuple(row) for row in snapshot["t"].scan(where=where)] == [(1, 5)]
        assert snapshot["t"].get(1) == snapshot["t"].get(1) == (1, 5)
    assert list(db["t"].scan(where=tm.col("m") == 5)) == [(1, 5)]


def test_dropped_tables_indexes_partitions_and_closed_stores_are_noticed(db: Any) -> None:
    columns = [tm.Column("id", tm.Int64), tm.Column("n", tm.Int64)]
    parts = tm.RangePartition("id", [("a", 10), ("b", 20), ("c", tm.MAXVALUE)])
    table = db.create_table("t", columns, "id", parts)
    table.insert_many([(1, 5), (11, 5), (21, 5)])
    db.create_index("t", "by", "n")
    where = tm.col("n") == 5
    assert len(list(table.scan(where=where))) == 3
    with db.snapshot() as snapshot:  # keeps the rows of the partition, and their entries
        db.drop_partition("t", "b")
        assert sorted(table.scan(where=where)) == [(1, 5), (21, 5)]
        assert len(list(snapshot["t"].scan(where=where))) == 3
    begun = table.scan(where=where)
    named = table.scan(where=where, index="by")
    db.drop_index("t", "by")
    assert sorted(begun) == sorted(table.scan(where=where)) == [(1, 5), (21, 5)]
    with pytest.raises(tm.NoSuchIndex):
        list(named)
    begun = table.scan(where=tm.col("id") == 1)
    db.rename_column("t", "id", "key")
    assert [tuple(row) for row in begun] == [(1, 5)]
    begun = table.scan(where=tm.col("key") == 1)
    db.drop_table("t")
    with pytest.raises(tm.NoSuchTable):
        list(begun)
    db.create_table("t", columns, "id").insert((1, 2))
    begun = db["t"].scan(where=tm.col("id") == 1)
    db.close()
    with pytest.raises(tm.StoreClosed):
        list(begun)
