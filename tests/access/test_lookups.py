"""Conditions that name whole keys are lookups: what they find, in which order, and how little they read."""

from __future__ import annotations

import random
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest

import tidemark as tm
from tests.seeds import fresh_seeds
from tests.shares import few
from tests.store.support import open_memory
from tidemark.engine.access import batch_operations, snapshot_reads, unique_reads
from tidemark.engine.queries import index_choice as choice
from tidemark.engine.queries import program_scans

NAME = "test.t"
SEEDS = fresh_seeds(few(3, 40))
NAMES = ("id", "part", "email", "code", "n", "note")
Row = tuple[Any, ...]
Test = Callable[[Row], bool]


def price(r: random.Random) -> Decimal:
    return Decimal(r.randrange(-5_000, 15_000, 25)).scaleb(-2)


class Stage:
    """A table with a key of two columns and two unique indexes; `rows` has its content as the reader must see it."""

    def __init__(self, seed: int, is_on_disk: bool) -> None:
        print("seed", seed)
        self.r = random.Random(seed)
        self.db = open_memory(page_buffer="1 MiB", data_memory="32 MiB", redo_log="32 MiB")
        storage = "memory"
        if is_on_disk:
            storage = "disk"
            self.db.create_tablespace("main", size="1 MiB", page_size="4 KiB", extent="64 KiB")
        columns = [
            tm.Column("id", tm.Int32),
            tm.Column("part", tm.VarChar(4)),
            tm.Column("email", tm.VarChar(20), nullable=True),
            tm.Column("code", tm.Decimal(6, 2)),
            tm.Column("n", tm.Int64, nullable=True),
            tm.Column("note", tm.VarChar(900), nullable=True, storage=storage),
        ]
        partition = tm.RangePartition("id", [("low", 60), ("middle", 120), ("high", tm.MAXVALUE)])
        self.db.create_table(NAME, columns, ("id", "part"), partition)
        self.rows: dict[Any, Row] = {}
        with self.db.transaction() as txn:
            for _ in range(160):
                self.write(txn, self.rows)
        self.db.create_index(NAME, "by_email", "email", unique=True, ordered=self.r.random() < 0.5)
        self.db.create_index(NAME, "by_code", ("code", "n"), unique=True)
        self.db.create_index(NAME, "by_id", ("id", "n"))

    def key(self) -> tuple[int, str]:
        return self.r.randrange(180), self.r.choice(["a", "b", "ä"])

    def write(self, txn: Any, rows: dict[Any, Row]) -> None:
        """Write a row whose unique keys are free."""
        key = self.key()
        others = [row for each, row in rows.items() if each != key]
        email = self.r.choice([None, f"m{self.r.randrange(200)}", ""])
        code, n = price(self.r), self.r.choice([None, *range(4)])
        if email is not None and any(row[2] == email for row in others):
            return
        if n is not None and any(row[3:5] == (code, n) for row in others):
            return
        rows[key] = (*key, email, code, n, self.r.choice([None, "x" * self.r.randrange(900)]))
        txn.write(NAME, rows[key])

    def change(self, txn: Any, rows: dict[Any, Row], count: int) -> None:
        for _ in range(count):
            if rows and self.r.random() < 0.4:
                key = self.r.choice(list(rows))
                txn.delete(NAME, key)
                del rows[key]
            else:
                self.write(txn, rows)

    # --- conditions ------------------------------------------------------------------------------
    def drawn(self, at: int, rows: dict[Any, Row]) -> Any:
        """A value of a column that some row has, or had, or none can have, or in another type."""
        r = self.r
        value = r.choice(list(rows.values()))[at] if rows and r.random() < 0.7 else None
        if at == 0:
            value = r.randrange(-5, 185) if value is None else value
            return r.choice([value, value, value, float(value), Decimal(value), value + 0.5, 2**40, -(2**70)])
        if at == 1:
            return r.choice(["a", "b", "ä", "", "too long"]) if value is None else value
        if at == 2:
            return r.choice(["", f"m{r.randrange(200)}", "m" * 30]) if value is None else value
        if at == 3:
            value = price(r) if value is None else value
            return r.choice([value, value, value.normalize(), float(value), value + Decimal("0.001"), Decimal("1e9")])
        value = r.randrange(5) if value is None else value
        return r.choice([value, value, float(value), value + 0.25])

    def leaf(self, at: int, rows: dict[Any, Row]) -> tuple[Any, Test]:
        column = tm.col(NAMES[at])
        if self.r.random() < 0.5:
            value = self.drawn(at, rows)
            return column == value, lambda row: row[at] is not None and row[at] == value
        values = [self.drawn(at, rows) for _ in range(self.r.randrange(1, 6))]
        given = [*values, self.r.choice(values)] + [None] * (self.r.random() < 0.2)
        return column.isin(given), lambda row: row[at] is not None and row[at] in values

    def condition(self, rows: dict[Any, Row]) -> tuple[Any, Test]:
        """Values of all columns of a key, often with more conditions."""
        r = self.r
        places = list(r.choice([(0, 1), (0, 1), (2,), (2,), (3, 4), (3, 4), (0,), (3,)]))
        r.shuffle(places)
        parts = [self.leaf(at, rows) for at in places]
        if r.random() < 0.4:
            more = r.randrange(5)
            bound = r.randrange(200)
            extra: list[tuple[Any, Test]] = [
                (tm.col("n") >= 2, lambda row: row[4] is not None and row[4] >= 2),
                (tm.col("id") < bound, lambda row: row[0] < bound),
                (tm.col("note").is_null(), lambda row: row[5] is None),
                (tm.col("n").is_null(), lambda row: row[4] is None),
                (~(tm.col("part") == "a"), lambda row: row[1] != "a"),
            ]
            parts.append(extra[more])
        where, tests = parts[0][0], [test for _, test in parts]
        for other, _ in parts[1:]:
            where = where & other
        return where, lambda row: all(test(row) for test in tests)


@pytest.fixture(params=[False, True], ids=["memory", "disk"])
def storage(request: Any) -> bool:
    return bool(request.param)


def compare(source: Any, stage: Stage, rows: dict[Any, Row], full: Any = None) -> str:
    """Ask a table, or a snapshot's, in one way; return how it found the rows."""
    r = stage.r
    where, accepts = stage.condition(rows)
    some = r.choice([None, None, ["low"], ["high", "middle"]])
    bounds = {"low": (-1, 60), "middle": (60, 120), "high": (120, 10**9)}
    within = [row for row in rows.values() if some is None or any(bounds[p][0] <= row[0] < bounds[p][1] for p in some)]
    expected = sorted((row for row in within if accepts(row)), key=repr)
    found = [tuple(row) for row in source.scan(where=where, partitions=some)]
    assert sorted(found, key=repr) == expected, where
    places = [tuple(row) for row in source.scan([tm.FRAGMENT, tm.ROWID], where=where, partitions=some)]
    way = str(source.scan(where=where, partitions=some).explain()["access"])
    if way in ("primary key", "unique index", "full scan"):
        assert places == sorted(places), "the order is that of a full scan"
        limit = r.randrange(4)
        assert [tuple(row) for row in source.scan(where=where, partitions=some, limit=limit)] == found[:limit]
    names = r.sample(NAMES, r.randrange(1, 6))
    arrow = source.scan(names, where=where, partitions=some).to_arrow().to_pylist()
    wanted = [{name: row[NAMES.index(name)] for name in names} for row in expected]
    assert sorted(map(repr, arrow)) == sorted(map(repr, wanted))
    scan = source.scan(where=where, partitions=some)
    numbers = [row[4] for row in expected if row[4] is not None]
    total = scan.aggregate(n=("count",), total=("sum", "n"), least=("min", "code"))
    least = min((row[3] for row in expected), default=None)
    assert tuple(total) == (len(expected), sum(numbers) if numbers else None, least), where
    return way


@pytest.mark.parametrize("seed", SEEDS)
def test_lookups_find_what_a_dictionary_has(seed: int, storage: bool) -> None:
    stage = Stage(seed, storage)
    ways: dict[str, int] = {}
    with stage.db as db:
        table = db[NAME]
        for _ in range(40):
            way = compare(table, stage, stage.rows)
            ways[way] = ways.get(way, 0) + 1
        before = dict(stage.rows)
        with db.snapshot() as snapshot:
            for _ in range(5):
                with db.transaction() as txn:
                    stage.change(txn, stage.rows, 25)
                for _ in range(6):
                    compare(table, stage, stage.rows)
                    compare(snapshot[NAME], stage, before)
        for _ in range(8):
            own = dict(stage.rows)
            with db.transaction() as txn:
                for _ in range(3):
                    stage.change(txn, own, 15)
                    for _ in range(5):
                        compare(_Of(txn), stage, own)
                txn.rollback() if stage.r.random() < 0.5 else None
                if not txn.is_ended:
                    stage.rows = own
        assert {"primary key", "unique index"} <= set(ways), ways
        assert {row[:2]: tuple(row) for row in table.scan()} == stage.rows
        assert db.check()["problems"] == []


class _Of:
    """The table of a transaction, with the calls of a handle."""

    def __init__(self, txn: Any) -> None:
        self._txn = txn

    def scan(self, *given: Any, **named: Any) -> Any:
        return self._txn.scan(NAME, *given, **named)


@pytest.mark.parametrize("seed", SEEDS)
def test_changes_and_locks_by_whole_keys_are_those_of_a_dictionary(seed: int, storage: bool) -> None:
    stage = Stage(seed, storage)
    with stage.db as db:
        for _ in range(60):
            where, accepts = stage.condition(stage.rows)
            hit = [key for key, row in stage.rows.items() if accepts(row)]
            kind = stage.r.randrange(4)
            if kind == 0:
                assert db[NAME].update_where({"note": "new"}, where) == len(hit)
                for key in hit:
                    stage.rows[key] = (*stage.rows[key][:5], "new")
            elif kind == 1:
                assert db[NAME].delete_where(where) == len(hit)
                for key in hit:
                    del stage.rows[key]
                with db.transaction() as txn:
                    stage.change(txn, stage.rows, 4)
            else:
                lock = stage.r.choice(["shared", "exclusive"])
                with db.transaction() as txn:
                    found = [tuple(row) for row in txn.scan(NAME, where=where, lock=lock)]
                    assert sorted(found, key=repr) == sorted((stage.rows[key] for key in hit), key=repr)
                    for row in found:
                        stage.rows[row[:2]] = (*row[:5], "seen")
                        if lock == "exclusive":
                            txn.update(NAME, row[:2], {"note": "seen"})
                    if lock == "shared":
                        for row in found:
                            stage.rows[row[:2]] = row
        assert {tuple(row)[:2]: tuple(row) for row in db[NAME].scan()} == stage.rows


# --- how it reads ---------------------------------------------------------------------------------
def filled(db: tm.Database, rows: int, name: str = NAME) -> tm.TableHandle:
    columns = [tm.Column("id", tm.Int64), tm.Column("u", tm.VarChar(20), nullable=True), tm.Column("n", tm.Int64)]
    table = db.create_table(name, columns, "id")
    table.insert_many([(key, f"u{key}" if key % 3 else None, key % 100) for key in range(rows)])
    db.create_index(name, "by_u", "u", unique=True)
    return table


KERNELS = (
    (program_scans, "scan_program"),
    (program_scans, "scan_filter"),
    (batch_operations, "read_rows"),
    (snapshot_reads, "scan_rows"),
    (snapshot_reads, "find_keys"),
    (snapshot_reads, "read_places"),
    (unique_reads, "find_by_unique"),
)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kernels that were called to find rows."""
    called: list[str] = []
    for module, name in KERNELS:
        real = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *given, real=real, name=name: (called.append(name), real(*given))[1])
    return called


def test_lookups_read_as_much_of_a_large_table_as_of_a_small_one(db: tm.Database, calls: list[str]) -> None:
    """No kernel that examines slots is called, and each other one once, whatever the number of rows. Rows of few keys
    in a list come from the kernels of selects, which are not counted.
    """
    u, key = tm.col("u"), tm.col("id")
    for rows in (1_000, 40_000):
        name = f"test.t{rows}"
        table = filled(db, rows, name)
        for where, kernel in (
            (key == 7, "read_rows"),
            (u == "u8", "find_by_unique"),
            (key.isin([1, 2, 900]), "read_rows"),
        ):
            calls.clear()
            assert list(table.scan(where=where)) and list(table.scan(where=where, limit=1))
            assert calls == []
            for ask in (
                lambda table=table, where=where: list(table.scan(["n", tm.ROWID], where=where)),
                lambda table=table, where=where: table.scan(where=where & (tm.col("n") < 50)).count(),
                lambda table=table, where=where: table.scan(where=where).mean("n"),
                lambda table=table, where=where: list(table.scan([tm.ROWID], where=where, limit=1)),
                lambda table=table, where=where: table.to_arrow(where=where),
            ):
                calls.clear()
                ask()
                assert calls == [kernel], where
            calls.clear()
            assert table.scan(where=where).sum("n") is not None
            assert calls == [], where
        calls.clear()
        assert table.update_where({"n": 5}, key == 7) == table.delete_where(u == "u8") == 1
        assert table.update_where({"n": 5}, key.isin([11, 12])) == 2
        assert calls == []
        with db.snapshot() as snapshot:
            calls.clear()
            assert snapshot[name].scan(where=key == 7).count() == 1
            assert calls == ["find_keys", "read_places"]
            calls.clear()
            assert snapshot[name].scan(where=u == "u10").count() == 1
            assert calls == ["find_by_unique", "find_keys", "read_places"]
        with db.transaction() as txn:
            calls.clear()
            assert len(list(txn.scan(name, where=u == "u10", lock="exclusive", skip_locked=True))) == 1
            assert calls == ["read_rows"]


def test_explain_names_the_cheapest_way(db: tm.Database, monkeypatch: pytest.MonkeyPatch) -> None:
    table, u, key, n = filled(db, 30_000), tm.col("u"), tm.col("id"), tm.col("n")
    db.create_index(NAME, "by_n", ["n", "id"])
    db.create_index(NAME, "by_id", "id")

    def way(where: Any, **options: Any) -> tuple[Any, ...]:
        found = table.explain(["id", "u"], where, **options)
        return found["access"], found["index"], found["rows"]

    assert way(key == 7) == ("primary key", None, 1)
    assert way((7 == key) & (n > 3)) == ("primary key", None, 1)
    assert way(key.isin([7, 8, 7.0, 9.5])) == ("primary key", None, 2)
    assert way((key == 7) | (key == 9)) == ("primary key", None, 2)
    assert way(u == "u8") == ("unique index", "by_u", 1)
    assert way((u == "u8") & key.isin([1, 2, 3])) == ("unique index", "by_u", 1)
    assert way(u.isin(["u8", "u10", "u11"]) & (key == 1)) == ("primary key", None, 1)
    assert way(u.is_null()) == ("full scan", None, 30_000)
    assert way(key.between(100, 120))[:2] == ("index", "by_id")
    assert way((n == 3) & (key > 100) & (key < 1_000))[:2] == ("index", "by_n")
    assert way((n == 3) & (key == 103)) == ("primary key", None, 1)
    assert way(key.isin(range(7_000)))[0] == "full scan"
    assert way(key.isin(range(500, 700)))[0] == "primary key"
    assert way((key == 7) | (n == 3))[0] == "full scan"
    assert way(~(key == 7))[0] == "full scan"
    monkeypatch.setattr(choice, "KEYS_MAX", 100)
    assert way(key.isin(range(500, 700)))[0] != "primary key"
    plan = table.explain(where=(u == "u8") & (n < 9))
    assert plan == {
        "access": "unique index",
        "index": "by_u",
        "bounds": [{"u": "u8"}],
        "partitions": ["p0", "p1", "p2", "p3"],
        "rows": 1,
    }
    with db.transaction() as txn:
        assert txn.scan(NAME, where=key == 7).explain()["access"] == "primary key"
    with db.snapshot() as snapshot:
        assert snapshot[NAME].explain(where=u == "u8")["access"] == "unique index"


def test_many_keys_cost_no_comparison_of_each_row_with_each_key(db: tm.Database) -> None:
    table = filled(db, 30_000)
    keys = list(range(0, 30_000, 10))
    found = table.scan("id", where=tm.col("id").isin(keys)).to_arrow()["id"].to_pylist()
    assert table.explain(where=tm.col("id").isin(keys))["access"] in ("primary key", "full scan")
    assert sorted(found) == keys


# --- trouble --------------------------------------------------------------------------------------
def test_an_index_dropped_on_the_way_is_done_without(db: tm.Database, monkeypatch: pytest.MonkeyPatch) -> None:
    table, where = filled(db, 3_000), tm.col("u").isin(["u8"])
    real = program_scans.look_up

    def dropping(*given: Any) -> Any:
        if db.indexes(NAME):
            db.drop_index(NAME, "by_u")
        return real(*given)

    monkeypatch.setattr(program_scans, "look_up", dropping)
    assert [row.id for row in table.scan(where=where)] == [8]
    for ask in (
        lambda: table.scan(where=where).sum("id") == 8,
        lambda: table.update_where({"n": 1}, where) == 1,
        lambda: table.delete_where(where) == 1,
    ):
        db.create_index(NAME, "by_u", "u", unique=True)
        assert ask()


def test_rows_with_equal_values_of_other_types_are_found_once(db: tm.Database) -> None:
    columns = [
        *(tm.Column("f", tm.Float64), tm.Column("d", tm.Decimal(8, 3)), tm.Column("b", tm.Binary(4))),
        *(tm.Column("x", tm.Float32, nullable=True), tm.Column("c", tm.Char(3)), tm.Column("w", tm.UInt64)),
    ]
    table = db.create_table(NAME, columns, ("f", "d", "b"))
    table.insert((0.0, Decimal("1.5"), b"a", 0.1, "ab", 2**64 - 1))
    table.insert((2.0, Decimal("1.5"), b"a\0b", float("nan"), "", 0))
    for name in ("x", "c", "w"):
        db.create_index(NAME, f"by_{name}", name, unique=True)
    col = tm.col

    def count(where: Any) -> tuple[int, str]:
        found = list(table.scan(where=where))
        assert len(found) == table.scan(where=where).count()
        return len(found), table.explain(where=where)["access"]

    rest = (col("d") == Decimal("1.50000")) & (col("b") == b"a\0\0")
    for zero in (0, 0.0, -0.0):
        assert count((col("f") == zero) & rest) == (1, "primary key")
    assert count(
        col("f").isin([0, -0.0, 0.0]) & (col("d").isin([1.5, Decimal("1.5")])) & col("b").isin([b"a", b"a\0"])
    ) == (1, "primary key")
    assert count((col("f") == float("nan")) & rest)[0] == 0
    assert count((col("f") == 0) & (col("d") == Decimal("1.5001")) & (col("b") == b"a")) == (0, "primary key")
    assert count((col("f") == 0) & (col("d") == 1.5) & (col("b") == b"a\0\0\0\0\0")) == (1, "primary key")
    assert count(col("x") == 0.1) == (0, "unique index")
    assert count(col("x") == 0.10000000149011612) == (1, "unique index")
    assert count(col("x") == float("nan"))[0] == 1
    assert count(col("c") == "ab") == (1, "unique index")
    assert count(col("c") == "ab\0")[0] == table.scan(where=(col("c") == "ab\0") | (col("w") == 5)).count()
    assert count(col("c") == "abcd")[0] == 0
    assert count(col("w") == 2**64 - 1) == count(col("w") == Decimal(2**64 - 1)) == (1, "unique index")
    assert count(col("w").isin([-1, 2**64, 0.0])) == (1, "unique index")


def test_a_loop_that_updates_what_it_looks_up_ends(db: tm.Database) -> None:
    filled(db, 500)
    keys = list(range(0, 500, 2))
    with db.transaction() as txn:
        seen = 0
        for row in txn.scan(NAME, where=tm.col("id").isin(keys)):
            txn.update(NAME, row.id, {"n": row.n + 1})
            seen += 1
        assert seen == len(keys)


def test_lookups_of_a_spooled_transaction_see_its_changes() -> None:
    options = {"transaction_memory": "1 MiB", "transaction_limit": "64 MiB"}
    with open_memory(data_memory="64 MiB", redo_log="32 MiB", **options) as db:
        filled(db, 20_000)
        with db.transaction() as txn:
            txn.update_where(NAME, {"n": tm.col("n") + 1_000}, tm.col("id") >= 0)
            txn.update_where(NAME, {"u": None}, tm.col("id") >= 15_000)
            for key in (1, 5_000, 19_999):
                (row,) = txn.scan(NAME, where=tm.col("id") == key)
                assert (row.id, row.n) == (key, key % 100 + 1_000)
            (row,) = txn.scan(NAME, where=tm.col("u") == "u7")
            assert row.n == 1_007
            assert txn.scan(NAME, where=tm.col("u") == "u19999").count() == 0
