"""One set of generated queries, each answered by Tidemark, SQLite and DuckDB: points, ranges and prefixes of indexes in
both directions, conditions that choose an index or none, limits, aggregates, partitions, locks; every type at its
extremes; of what is committed, and of transactions that have changed rows.
"""

from __future__ import annotations

import contextlib
import datetime
import random
import sqlite3
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

import tidemark as tm
from tests.access.queries import Leaf, Maker
from tests.interpreter.generate import value_of
from tests.shares import few
from tests.store.support import open_memory
from tidemark.engine import types as t
from tidemark.engine.queries import index_choice as choice

duckdb = pytest.importorskip("duckdb")

ROWS = 700
QUERIES = few(740, 1_740)  # on each storage
TRANSACTIONS = few(8, 30)
SEED = 20_261_121
SPLIT = 300  # keys below are in the first partition
ENUM = t.Enum("red", "green", "blue")
# Name, type, whether NULL is allowed, and DuckDB's type.
TABLE: list[tuple[str, Any, bool, str]] = [
    ("id", t.Int64, False, "bigint"),
    ("i8", t.Int8, True, "tinyint"),
    ("i16", t.Int16, False, "smallint"),
    ("i32", t.Int32, True, "integer"),
    ("i64", t.Int64, True, "bigint"),
    ("u8", t.UInt8, False, "utinyint"),
    ("u16", t.UInt16, True, "usmallint"),
    ("u32", t.UInt32, True, "uinteger"),
    ("u64", t.UInt64, True, "ubigint"),
    ("f32", t.Float32, True, "float"),
    ("f64", t.Float64, True, "double"),
    ("flag", t.Bool, True, "boolean"),
    ("kind", ENUM, True, "utinyint"),
    ("small", t.Decimal(9, 2), True, "decimal(9, 2)"),
    ("large", t.Decimal(38, 10), True, "decimal(38, 10)"),
    ("day", t.Date, True, "date"),
    ("clock", t.Time, True, "time"),
    ("moment", t.DateTime, True, "timestamp"),
    ("stamp", t.Timestamp, True, "timestamp"),
    ("ch", t.Char(7), True, "varchar"),
    ("fixed", t.Binary(8), True, "blob"),
    ("name", t.VarChar(12), True, "varchar"),
    ("octets", t.VarBinary(20), True, "blob"),
    ("uuid", t.UUID, True, "uuid"),
    ("text", t.Text, True, "varchar"),
    ("blob", t.Blob, True, "blob"),
]
KINDS = {name: kind for name, kind, _, _ in TABLE}
NAMES = list(KINDS)
INSERT = f"insert into t values ({', '.join('?' * len(NAMES))})"
NUMBERS = ["i8", "i16", "i32", "u8", "u16"]
# The columns on disk; no index is possible there.
STORAGES: dict[str, list[str]] = {"memory": [], "disk": ["text", "blob"], "all on disk": NAMES[1:]}
INDEXES = {
    **{f"by_{name}": (name,) for name in NAMES[1:-2]},
    "by_small_numbers": ("i8", "u8", "id"),
    "by_name": ("name", "i16"),
    "by_flag": ("flag", "kind", "day"),
    "by_times": ("clock", "moment", "stamp", "id"),
    "by_wide": ("large", "i8"),
    "by_unsigned": ("u64", "id"),
}


class Bound:
    """A parameter of a query, which each database takes in its own form."""

    def __init__(self, name: str, value: Any) -> None:
        self.name = name
        self.value = value

    def __repr__(self) -> str:
        return repr(self.value)


class ThreeMaker(Maker):
    """Parameters that know their column."""

    def bound(self, name: str, value: Any) -> Any:
        return Bound(name, value)


def for_duckdb(name: str, value: Any) -> Any:
    """DuckDB has all types but members, which are numbers here, and moments by UTC; bytes are padded as they are."""
    if value is None:
        return None
    if name == "kind":
        return ENUM.members.index(value)
    if name == "stamp":
        return value.astimezone(datetime.UTC).replace(tzinfo=None)
    return value.ljust(8, b"\0") if name == "fixed" else value


def for_sqlite(name: str, value: Any) -> Any:
    """Values so that SQLite's order is that of the type: decimals and large numbers as digits, calendar as text."""
    value = for_duckdb(name, value)
    if value is None:
        return None
    if name == "large":
        return f"{int(value.scaleb(10)) + 10**38:040d}"
    if name == "u64":
        return f"{value:020d}"
    if name == "small":
        return int(value.scaleb(2))
    if isinstance(value, uuid.UUID):
        return value.bytes
    if isinstance(value, datetime.datetime):
        return value.isoformat(" ", "microseconds")
    if isinstance(value, datetime.time):
        return value.isoformat("microseconds")
    return value.isoformat() if isinstance(value, datetime.date) else value


class Stage:
    """The same rows in three databases, and how many queries they have answered."""

    def __init__(self, storage: str) -> None:
        print(f"seed {SEED}")
        self.r = random.Random(SEED + list(STORAGES).index(storage))
        self.indexes = {} if storage == "all on disk" else INDEXES
        self.rows = {key: self.row(key) for key in range(ROWS)}
        room = {"data_memory": "64 MiB", "redo_log": "16 MiB", "undo_log": "16 MiB", "transaction_memory": "4 MiB"}
        self.db = open_memory(page_buffer="1 MiB", **room)
        if STORAGES[storage]:
            self.db.create_tablespace("main", size="4 MiB", page_size="4 KiB", extent="64 KiB")
        columns = [
            tm.Column(name, kind, nullable, storage="disk" if name in STORAGES[storage] else "memory")
            for name, kind, nullable, _ in TABLE
        ]
        partition = tm.RangePartition("id", [("low", SPLIT), ("high", tm.MAXVALUE)])
        self.table = self.db.create_table("test.t", columns, "id", partition=partition)
        self.table.insert_many(list(self.rows.values()))
        self.scan: Callable[..., Any] = self.table.scan
        self.is_in_transaction = False
        for name, names in self.indexes.items():
            self.db.create_index("test.t", name, names)
        self.maker = ThreeMaker(self.r, list(self.rows.values()), NAMES, KINDS)
        self.lite = sqlite3.connect(":memory:")
        self.lite.execute("pragma case_sensitive_like = 1")
        self.lite.execute(f"create table t ({', '.join(NAMES)}, primary key (id))")
        self.duck = duckdb.connect()
        self.duck.execute(f"create table t ({', '.join(f'{name} {kind}' for name, _, _, kind in TABLE)})")
        self.both_others = ((self.lite, for_sqlite), (self.duck, for_duckdb))
        for connection, form in self.both_others:
            connection.execute("begin")
            connection.executemany(INSERT, [self.other(form, row) for row in self.rows.values()])
            connection.execute("commit")

    def row(self, key: int) -> tuple[Any, ...]:
        values = [key]
        for name, kind, nullable, _ in TABLE[1:]:
            value = value_of(kind, self.r)
            while value != value:  # SQLite takes NaN for NULL
                value = value_of(kind, self.r)
            if name in NUMBERS and self.r.random() < 0.5:
                value = self.r.randint(0, 12)
            if name == "ch":
                value = value.rstrip("\0")
            values.append(None if nullable and self.r.random() < 0.15 else value)
        return tuple(values)

    # --- transactions -----------------------------------------------------------------------------
    @contextlib.contextmanager
    def transaction(self, is_kept: bool) -> Iterator[Any]:
        """A transaction in all three, of which questions are asked."""
        before = dict(self.rows)
        for connection, _ in self.both_others:
            connection.execute("begin")
        with self.db.transaction() as txn:
            self.scan, self.is_in_transaction = partial(txn.scan, "test.t"), True
            yield txn
            self.scan, self.is_in_transaction = self.table.scan, False
            if not is_kept:
                txn.rollback()
        for connection, _ in self.both_others:
            connection.execute("commit" if is_kept else "rollback")
        self.rows = self.rows if is_kept else before

    def change(self, txn: Any) -> None:
        """Change rows in all three. What a savepoint takes back is changed in Tidemark alone."""
        for _ in range(self.r.randint(1, 30)):
            key = self.r.randrange(ROWS + 50)
            made: tuple[Any, ...] | None = self.row(key)
            old, place = self.rows.pop(key, None), self.r.randrange(1, len(NAMES))
            if old is not None and self.r.random() < 0.3:
                txn.delete("test.t", key)
                made = None
            elif old is not None and self.r.random() < 0.6:
                made = (*old[:place], self.row(key)[place], *old[place + 1 :])
                txn.update("test.t", key, {NAMES[place]: made[place]})
            else:
                txn.write("test.t", made)
            for connection, form in self.both_others:
                connection.execute("delete from t where id = ?", [key])
                if made is not None:
                    connection.execute(INSERT, self.other(form, made))
            if made is not None:
                self.rows[key] = made
        with contextlib.suppress(ZeroDivisionError), txn.savepoint():
            txn.delete_where("test.t", tm.col("i16") < 5)
            txn.update_where("test.t", {"u8": 7, "text": "gone"})
            raise ZeroDivisionError

    @staticmethod
    def other(form: Any, row: tuple[Any, ...]) -> list[Any]:
        return [form(name, value) for name, value in zip(NAMES, row, strict=True)]

    # --- asking -----------------------------------------------------------------------------------
    def both(self, what: str, sql: str, values: list[Any], more: str = "") -> list[Any]:
        """What SQLite and DuckDB answer, the same."""
        query = f"select {what} from t where {sql} {more}"
        answers = []
        for connection, form in self.both_others:
            bound = [form(each.name, each.value) if isinstance(each, Bound) else each for each in values]
            answers.append([tuple(row) for row in connection.execute(query, bound).fetchall()])
        lite, duck = answers
        if not more:
            lite, duck = sorted(lite), sorted(duck)
        assert lite == duck, f"{query} {values}"
        return lite

    def close(self) -> None:
        self.db.close()
        self.lite.close()
        self.duck.close()


def compared(name: str, operator: str, value: Any) -> Leaf:
    """A comparison in the order of an index, in which NULL comes first."""
    if operator == "=":
        return None, (f"{name} is null", []) if value is None else (f"{name} = ?", [Bound(name, value)])
    if value is None:
        return None, (f"{name} is not null" if operator == ">" else "1 = 0", [])
    sql = f"{name} {operator} ?"
    return None, (f"({name} is null or {sql})" if operator == "<" else sql, [Bound(name, value)])


def side(names: tuple[str, ...], values: list[Any], operator: str, with_equal: bool) -> tuple[str, list[Any]]:
    """Keys that lie on one side of given values of leading columns."""
    parts, bound = [], []
    for last in range(len(values)):
        leaves = [compared(name, "=", value) for name, value in zip(names[:last], values, strict=False)]
        leaves.append(compared(names[last], operator, values[last]))
        parts.append(" and ".join(sql for _, (sql, _) in leaves))
        bound += [each for _, (_, given) in leaves for each in given]
    if with_equal:
        leaves = [compared(name, "=", value) for name, value in zip(names, values, strict=False)]
        parts.append(" and ".join(sql for _, (sql, _) in leaves))
        bound += [each for _, (_, given) in leaves for each in given]
    return "(" + " or ".join(f"({part})" for part in parts) + ")", bound


def range_of(stage: Stage, index: str) -> tuple[dict[str, Any], str, list[Any]]:
    """Bounds of a scan by an index, and the SQL for them."""
    r, names = stage.r, INDEXES[index]

    def values() -> list[Any]:
        row = r.choice(list(stage.rows.values()))
        found = [row[NAMES.index(name)] if r.random() < 0.7 else stage.maker.value(name) for name in names]
        return found[: r.randint(1, len(found))]

    shape, few = r.randint(0, 9), values()
    if shape == 0:
        return {}, "1 = 1", []
    if shape == 1 and isinstance(few[0], (str, bytes)) and KINDS[names[0]] != ENUM:
        start = few[0][: r.randint(0, 3)]
        if isinstance(start, str):
            pattern = start.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_") + "%"
            return {"prefix": start}, f"{names[0]} like ? escape '\\'", [pattern]
        if names[0] == "octets":
            top = start + b"\xff" * 30
            sql = f"{names[0]} >= ? and {names[0]} <= ?"
            return {"prefix": start}, sql, [Bound(names[0], start), Bound(names[0], top)]
    if shape < 4:
        leaves = [compared(name, "=", value) for name, value in zip(names, few, strict=False)]
        return (
            {"prefix": tuple(few)},
            " and ".join(sql for _, (sql, _) in leaves),
            [each for _, (_, given) in leaves for each in given],
        )
    by: dict[str, Any] = {}
    sql, bound = "1 = 1", []
    if shape != 4:
        by["lower"] = tuple(few)
        sql, bound = side(names, few, ">", True)
    if shape != 5:
        high = values()
        by["upper"] = tuple(high)
        more, others = side(names, high, "<", False)
        sql, bound = f"{sql} and {more}", bound + others
    return by, sql, bound


def ask(stage: Stage) -> None:
    """One query, of all three."""
    r, options = stage.r, {}
    sql, values, names = "1 = 1", [], ("id",)
    index = r.choice([None, *stage.indexes])
    if index is not None:
        names = INDEXES[index]
        by, sql, values = range_of(stage, index)
        options = {**by, "index": index, "reverse": r.random() < 0.5}
    if index is None or r.random() < 0.4:
        stage.maker.names = r.choice([NAMES, list(names), [*r.choice(list(INDEXES.values())), "id"]])
        expression, (more, others) = stage.maker.condition()
        options["where"] = expression
        sql, values = f"({sql}) and ({more})", values + others
    if r.random() < 0.15:
        partition = r.choice(["low", "high"])
        options["partitions"] = [partition]
        sql += f" and id {'<' if partition == 'low' else '>='} {SPLIT}"
    shape = r.randint(0, 5)
    if shape == 0:
        ask_sums(stage, options, sql, values)
        return
    if stage.is_in_transaction and r.random() < 0.3:
        options["lock"] = r.choice(["shared", "exclusive"])
    if index is not None and shape < 4:
        ask_in_order(stage, options, names, sql, values)
    else:
        ask_rows(stage, options, sql, values)


def ask_rows(stage: Stage, options: dict[str, Any], sql: str, values: list[Any]) -> None:
    expected = {key for (key,) in stage.both("id", sql, values)}
    shape = stage.r.randint(0, 3)
    if shape == 0:
        found = list(stage.scan(**options))
        assert {row.id: tuple(row) for row in found} == {key: padded(stage.rows[key]) for key in expected}, sql
        assert len(found) == len(expected), sql
        return
    if shape == 1:
        limit = stage.r.randint(0, len(expected) + 1)
        some = [row.id for row in stage.scan(["id"], limit=limit, **options)]
        assert len(some) == len(set(some)) == min(limit, len(expected)) and expected.issuperset(some), sql
        return
    if shape == 2:
        found = stage.scan(["id"], **options).to_arrow().column(0).to_pylist()
        assert sorted(found) == sorted(expected), f"{sql} {values}"
        return
    found = [row.id for row in stage.scan(["id"], **options)]
    assert sorted(found) == sorted(expected), f"{sql} {values}"


def padded(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """A row as it is read back: bytes of fixed length are padded."""
    at = NAMES.index("fixed")
    return row if row[at] is None else (*row[:at], row[at].ljust(8, b"\0"), *row[at + 1 :])


def ask_in_order(stage: Stage, options: dict[str, Any], names: tuple[str, ...], sql: str, values: list[Any]) -> None:
    down = "desc" if options["reverse"] else ""
    order = ", ".join(f"{name} is not null {down}, {name} {down}" for name in names)
    limit = stage.r.choice([None, stage.r.randint(0, 40)])
    more = f"order by {order}" + ("" if limit is None else f" limit {limit}")
    found = list(stage.scan(list(names), limit=limit, **options))
    # The order among equal keys is undefined, so the keys are compared, each as DuckDB has it.
    keys = [tuple(for_sqlite(name, value) for name, value in zip(names, row, strict=True)) for row in found]
    query = f"select {', '.join(names)} from t where {sql} {more}"
    for connection, form in stage.both_others:
        bound = [form(each.name, each.value) if isinstance(each, Bound) else each for each in values]
        rows = [tuple(row) for row in connection.execute(query, bound).fetchall()]
        if form is for_duckdb:
            rows = [tuple(from_duckdb(name, value) for name, value in zip(names, row, strict=True)) for row in rows]
        assert keys == rows, f"{query} {values}"


def from_duckdb(name: str, value: Any) -> Any:
    """A value of DuckDB's as SQLite has it."""
    if name == "kind" and value is not None:
        value = ENUM.members[value]
    if name == "stamp" and value is not None:
        value = value.replace(tzinfo=datetime.UTC)
    return for_sqlite(name, value)


def ask_sums(stage: Stage, options: dict[str, Any], sql: str, values: list[Any]) -> None:
    number, other = stage.r.choice(NUMBERS), stage.r.choice(["i64", "u32", "f64", "i32"])
    what = f"count(*), count({other}), sum({number}), min({number}), max({other})"
    expected = stage.both(what, sql, values)[0]
    found = stage.scan(**options).aggregate(
        a=("count",), b=("count", other), c=("sum", number), d=("min", number), e=("max", other)
    )
    assert tuple(found) == expected, f"{sql} {values}"
    assert stage.scan(**options).count() == expected[0], f"{sql} {values}"


@pytest.fixture(params=STORAGES)
def stage(request: Any) -> Iterator[Stage]:
    found = Stage(request.param)
    yield found
    found.close()


def test_generated_queries_by_every_index_are_answered_alike_by_three(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    ways: dict[str, int] = {}
    for number in range(QUERIES):
        if number == QUERIES // 4:  # three quarters take any index that their condition bounds, however small the table
            for name in ("RANGE_COST", "INDEXED_ROW_COST", "ONLY_ROW_COST", "DISK_ROW_COST"):
                monkeypatch.setattr(choice, name, 0)
        if number % 10 == 9:
            expression, (sql, values) = stage.maker.leaf()
            way = stage.table.explain(["id"], where=expression)["access"]
            ways[way] = ways.get(way, 0) + 1
            found = sorted(row.id for row in stage.table.scan(["id"], where=expression))
            assert found == [key for (key,) in stage.both("id", sql, values)], f"{sql} {values}"
        elif number % 10 == 8:
            key = stage.r.randint(-5, ROWS + 5)
            row = stage.table.get(key)
            assert [() if row is None else (row.id,)] == (stage.both("id", f"id = {key}", []) or [()])
        else:
            ask(stage)
    assert len(ways) > 1 or not stage.indexes, ways
    for _ in range(TRANSACTIONS):
        with stage.transaction(stage.r.random() < 0.5) as txn:
            for _ in range(3):
                stage.change(txn)
                for _ in range(8):
                    ask(stage)
    assert {row.id: tuple(row) for row in stage.table.scan()} == {key: padded(row) for key, row in stage.rows.items()}
    assert stage.db.check()["problems"] == []
