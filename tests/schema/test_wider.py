"""Columns that get a wider type: every value is kept, in memory, on disk and for readers from before the change."""

from __future__ import annotations

import random
import threading
import uuid
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from typing import Any

import pytest

import tidemark as tm
from tests.engine.arena_check import check_arena
from tests.schema.test_changes import open_memory, reopened
from tests.seeds import fresh_seeds
from tidemark.engine.store import column_move
from tidemark.engine.store.index_renewal import IndexRenewals
from tidemark.engine.types import ColumnType

# Type, wider type, values.
WIDER: list[tuple[ColumnType, ColumnType, list[Any]]] = [
    (tm.Int8, tm.Int16, [-128, 0, 127]),
    (tm.Int16, tm.Int64, [-(1 << 15), (1 << 15) - 1]),
    (tm.Int32, tm.Int64, [-(1 << 31), -1, (1 << 31) - 1]),
    (tm.UInt8, tm.Int16, [0, 255]),
    (tm.UInt16, tm.UInt64, [0, 65_535]),
    (tm.UInt32, tm.Int64, [0, (1 << 32) - 1]),
    (tm.UInt32, tm.UInt64, [0, (1 << 32) - 1]),
    (tm.Float32, tm.Float64, [0.5, -0.0, 0.0, float("inf"), 1.100000023841858, 3.4028234663852886e38]),
    (tm.Decimal(10, 2), tm.Decimal(20, 2), [Decimal("-99999999.99"), Decimal("0.01")]),
    (tm.Decimal(10, 2), tm.Decimal(12, 4), [Decimal("-99999999.99"), Decimal("0.01")]),
    (tm.Decimal(18, 0), tm.Decimal(38, 20), [Decimal(10**18 - 1), Decimal(-(10**18) + 1)]),
    (tm.Char(5), tm.Char(20), ["", "ü", "abcde", "ab   "]),
    (tm.Char(5), tm.VarChar(20), ["", "ü", "abcde", "ab   "]),
    (tm.Char(5), tm.Text, ["", "abcde"]),
]
NULLABLE: list[tuple[ColumnType, Any]] = [
    (tm.Int32, -5),
    (tm.Bool, True),
    (tm.VarChar(9), "abc"),
    (tm.Text, "abc"),
    (tm.Blob, b"\0abc"),
    (tm.Binary(4), b"abcd"),
    (tm.Enum("a", "b"), "b"),
    (tm.Date, date(2026, 11, 30)),
    (tm.UUID, uuid.UUID(int=7)),
    (tm.JSON, {"a": [1, None]}),
    (tm.Decimal(30, 2), Decimal("-7.25")),
]
WRITES_MAX = 400  # of a thread: the log has room for all
NEIGHBOURS = [tm.Column("before", tm.Int16), tm.Column("after", tm.Int8, nullable=True), tm.Column("s", tm.VarChar(9))]


def sorted_rows(table: Any) -> list[tuple[Any, ...]]:
    return sorted((tuple(row) for row in table), key=lambda row: row[0])


def table_of(db: Any, kind: ColumnType, nullable: bool, **options: Any) -> Any:
    columns = [tm.Column("id", tm.Int32), NEIGHBOURS[0], tm.Column("c", kind, nullable=nullable), *NEIGHBOURS[1:]]
    return db.create_table("t", columns, "id", **options)


@pytest.mark.parametrize("nullable", [True, False])
@pytest.mark.parametrize(("kind", "wider", "values"), WIDER, ids=[f"{a!r} to {b!r}" for a, b, _ in WIDER])
def test_every_value_is_kept_by_a_wider_type(
    kind: ColumnType, wider: ColumnType, values: list[Any], nullable: bool
) -> None:
    """Story: INT to BIGINT, FLOAT to DOUBLE and CHAR to VARCHAR at the source stopped the ingest, because
    `widen_column` took no type of other bytes.
    """
    db = open_memory()
    table = table_of(db, kind, nullable)
    given = [*values, *[None] * nullable]
    rows = [(number, -number, value, number % 7, f"r{number}") for number, value in enumerate(given)]
    table.insert_many(rows)
    snapshot = db.snapshot()
    db.widen_column("t", "c", wider)
    column = table.definition.columns[2]
    assert (column.name, column.type, column.nullable) == ("c", wider, nullable)
    assert sorted_rows(table) == rows == sorted_rows(snapshot["t"])
    if not isinstance(wider, type(tm.Decimal(1))):
        assert [repr(row[2]) for row in sorted_rows(table)] == [repr(row[2]) for row in rows]
    last = {"Integer": getattr(wider, "maximum", 0), "Floating": 1e300, "Decimal": Decimal(10) ** 7}
    more = last.get(type(wider).__name__, "longer than five"[:20])
    table.update(0, {"c": more})
    table.insert((99, 1, more, None, "z"))
    assert table[0].c == table[99].c == more and snapshot["t"][0].c == given[0]
    assert table.count(where=tm.col("c") == more) == 2
    table.update(1, {"before": 5, "after": None})
    table.delete(99)
    snapshot.close()
    db = reopened(db)
    found = {row.id: tuple(row) for row in db["t"]}
    assert found[0] == (0, 0, more, 0, "r0") and found[1] == (1, 5, given[1], None, "r1")
    assert [found[number] for number in range(2, len(rows))] == rows[2:]
    assert db.check()["is_sound"]


@pytest.mark.parametrize(("kind", "value"), NULLABLE, ids=[repr(kind) for kind, _ in NULLABLE])
def test_column_begins_to_take_null(kind: ColumnType, value: Any) -> None:
    db = open_memory()
    table = table_of(db, kind, False)
    table.insert((1, 1, value, 1, "a"))
    with pytest.raises(tm.NotNullViolation):
        table.insert((2, 2, None, 2, "b"))
    db.widen_column("t", "c", kind, nullable=True)
    table.insert((2, 2, None, 2, "b"))
    table.insert({"id": 3, "before": 3, "s": "c"})
    db = reopened(db)
    assert [row[2] for row in sorted_rows(db["t"])] == [value, None, None] and db.check()["is_sound"]
    db["t"].update(1, {"c": None})
    assert db["t"].count("c") == 0


def test_column_is_widened_again_and_again() -> None:
    db = open_memory()
    table = table_of(db, tm.Int8, False)
    table.insert_many([(n, n, n - 100, n % 5, "x") for n in range(200)])
    for kind in (tm.Int16, tm.Int32, tm.Int64):
        db.widen_column("t", "c", kind)
        db.add_column("t", tm.Column(f"extra{kind.bits}", tm.Int8, default=kind.bits))
        db = reopened(db)
    db.rename_column("t", "c", "d")
    db.drop_column("t", "before")
    db.widen_column("t", "extra16", tm.Int64, nullable=True)
    db["t"].update(3, {"extra16": None, "d": 1 << 60})
    db.create_index("t", "by_d", "d")
    db = reopened(db)
    names = [column.name for column in db["t"].definition.columns]
    assert names == ["id", "d", "after", "s", "extra16", "extra32", "extra64"]
    assert [(row.d, row.extra16) for row in db["t"].scan(index="by_d")][-1] == (1 << 60, None)
    assert sum(row.d for row in db["t"]) == sum(n - 100 for n in range(200) if n != 3) + (1 << 60)
    assert db.check()["is_sound"]


@pytest.mark.parametrize("indexes", [(), ("by_n", "unique", "both")])
@pytest.mark.parametrize("seed", fresh_seeds(1))
def test_writers_of_all_kinds_lose_nothing_while_a_column_is_widened(seed: int, indexes: tuple[str, ...]) -> None:
    db = open_memory(redo_log="32 MiB")
    columns = [tm.Column("id", tm.Int32), tm.Column("n", tm.Int32), tm.Column("m", tm.Int32)]
    table = db.create_table("t", columns, "id")
    table.insert_many([(n, n, 0) for n in range(300)])
    for name in indexes:
        db.create_index("t", name, ["n", "m"] if name == "by_n" else "n", name != "by_n", ordered=name == "both")
    stop = threading.Event()
    errors: list[BaseException] = []
    made: list[dict[int, int]] = [{} for _ in range(3)]

    def work(number: int) -> None:
        rng = random.Random(seed + number)
        mine = made[number]
        for _ in range(WRITES_MAX):
            if stop.is_set():
                return
            key = rng.randrange(100) * 3 + number
            value = rng.randrange(1_000, 1 << 29) * 4 + number
            way = rng.randrange(8)
            try:
                if way == 0:
                    db["t"].update(key, {"n": value})
                elif way == 1:
                    db["t"].update_many([{"id": key, "n": value}])
                elif way == 2:
                    with db.transaction() as txn:
                        txn.delete("t", key)
                        txn.insert("t", (key, value, 0))
                elif way == 3:
                    db["t"].write((key, value, 0))
                elif way == 4:
                    db["t"].update_where({"n": value}, tm.col("id") == key)
                elif way == 5 and indexes:
                    db["t"].update(mine.get(key, key), {"n": value}, index="unique")
                elif way == 6 and indexes:
                    assert [row.id for row in db["t"].scan(index="both", lower=mine.get(key, key), limit=1)] == [key]
                    continue
                else:
                    other, last = rng.randrange(100) * 3 + number, mine.get(key, key)
                    if other == key:
                        continue
                    with db.transaction() as txn:  # two rows exchange a value
                        txn.update("t", key, {"n": value})
                        txn.update("t", other, {"n": last})
                    mine[other] = last
            except (tm.LockTimeout, tm.SnapshotTooOld):
                continue
            except (tm.Error, AssertionError) as error:
                errors.append(error)
                return
            mine[key] = value

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for kind, nullable in ((tm.Int64, False), (tm.Int64, True)):
        for _ in range(10):
            try:
                db.widen_column("t", "n", kind, nullable=nullable)
                break
            except tm.LockTimeout:
                continue
    stop.set()
    for thread in threads:
        thread.join()
    assert not errors, errors
    expected = {key: value for each in made for key, value in each.items()}
    column = db["t"].definition.columns[1]
    assert (column.type, column.nullable) == (tm.Int64, True), "no attempt has succeeded"
    assert expected and {row.id: row.n for row in db["t"]} == {n: expected.get(n, n) for n in range(300)}
    check_arena(db)
    assert db.check()["is_sound"]
    db = reopened(db)
    assert {row.id: row.n for row in db["t"]} == {n: expected.get(n, n) for n in range(300)}
    assert db.check()["is_sound"]


def test_transaction_with_a_view_of_its_own_is_waited_for() -> None:
    db = open_memory(lock_timeout_ms=50)
    table = table_of(db, tm.Int32, False)
    table.insert((1, 1, 7, 1, "a"))
    with db.transaction(isolation="snapshot") as txn:
        assert txn.get("t", 1).c == 7
        with pytest.raises(tm.LockTimeout):
            db.widen_column("t", "c", tm.Int64)
        assert txn.get("t", 1).c == 7
    table.update(1, {"c": 8})
    assert table.definition.columns[2].type == tm.Int32
    db.widen_column("t", "c", tm.Int64)
    assert len(table.definition.dropped) == 1, "the place of the first attempt is used again"
    assert tuple(table[1]) == (1, 1, 8, 1, "a")


def test_scan_made_before_the_change_does_not_read_the_old_place() -> None:
    db = open_memory()
    table = table_of(db, tm.Int32, False)
    table.insert((1, 1, 7, 1, "a"))
    scan = table.scan()
    db.widen_column("t", "c", tm.Int64)
    table.update(1, {"c": 1 << 40})
    try:
        assert [row.c for row in scan] == [1 << 40]
    except tm.SnapshotTooOld:
        pass


WIDE = 1 << 40
OTHER = {"id": 2, "m": 9, "n": 4, "s": "c"}
# Calls of a transaction, and what n of row 1 is after them; None: the row is gone.
STALE_CALLS: dict[str, tuple[Callable[[Any], Any], int | None]] = {
    "update": (lambda txn: txn.update("t", 1, {"n": 5}), 5),
    "update of text": (lambda txn: txn.update("t", 1, {"n": 5, "s": "longer than before"}), 5),
    "update by an expression": (lambda txn: txn.update("t", 1, {"n": tm.col("n") + 1}), WIDE + 1),
    "update by an index": (lambda txn: txn.update("t", 7, {"n": tm.col("n") + 1}, index="by_m"), WIDE + 1),
    "update if": (lambda txn: txn.update("t", 1, {"n": 5}, where=tm.col("n") == WIDE), 5),
    "update_where": (lambda txn: txn.update_where("t", {"n": 5}, where=tm.col("n") == WIDE), 5),
    "update_where by an expression": (lambda txn: txn.update_where("t", {"n": tm.col("n") + 1}), WIDE + 1),
    "update_many": (lambda txn: txn.update_many("t", iter([{"id": 1, "n": 5}])), 5),
    "update_many of another": (lambda txn: txn.update_many("t", iter([{"id": 1, "s": "b"}])), WIDE),
    "update_many by an index": (lambda txn: txn.update_many("t", iter([{"m": 7, "n": 5}]), index="by_m"), 5),
    "write": (lambda txn: txn.write("t", {"id": 1, "m": 7, "n": 5, "s": "a"}), 5),
    "write_many": (lambda txn: txn.write_many("t", iter([{"id": 1, "m": 7, "n": 5, "s": "a"}])), 5),
    "upsert": (lambda txn: txn.upsert("t", {"id": 1, "m": 7, "n": 5, "s": "a"}, {"n": tm.col("n") + 1}), WIDE + 1),
    "upsert_many": (
        lambda txn: txn.upsert_many("t", iter([{"id": 1, "m": 7, "n": 5, "s": "a"}]), {"n": tm.col("n") + 1}),
        WIDE + 1,
    ),
    "delete if": (lambda txn: txn.delete("t", 1, where=tm.col("n") == WIDE), None),
    "delete_where": (lambda txn: txn.delete_where("t", tm.col("n") == WIDE), None),
    "delete": (lambda txn: txn.delete("t", 1), None),
    "delete by an index": (lambda txn: txn.delete("t", 7, index="by_m", where=tm.col("n") == WIDE), None),
    "delete_many": (lambda txn: txn.delete_many("t", iter([1])), None),
    # by the index of the column itself
    "update by n": (lambda txn: txn.update("t", WIDE, {"n": 5}, index="by_n"), 5),
    "update by n, an expression": (
        lambda txn: txn.update("t", WIDE, {"n": tm.col("n") + 1}, index="by_n"),
        WIDE + 1,
    ),
    "update_many by n": (
        lambda txn: (txn.insert("t", OTHER), txn.update_many("t", iter([{"n": 4, "s": "b"}]), index="by_n")),
        WIDE,
    ),
    "upsert by n": (lambda txn: (txn.insert("t", OTHER), txn.upsert("t", {**OTHER, "s": "b"}, index="by_n")), WIDE),
    "upsert_many by n": (
        lambda txn: (txn.insert("t", OTHER), txn.upsert_many("t", iter([{**OTHER, "s": "b"}]), index="by_n")),
        WIDE,
    ),
    "update_where by a range of n": (lambda txn: txn.update_where("t", {"n": 5}, where=tm.col("n") > 1 << 39), 5),
    "delete by n": (lambda txn: txn.delete("t", WIDE, index="by_n"), None),
    "delete_many by n": (lambda txn: txn.delete_many("t", iter([WIDE]), index="by_n"), None),
    "delete_where by n": (lambda txn: txn.delete_where("t", tm.col("n") > 1 << 39), None),
}
# And calls that read n of row 1; they may also say that the table has changed since they began.
STALE_READS: dict[str, Callable[[Any], Any]] = {
    "get": lambda txn: txn.get("t", 1).n,
    "get locked": lambda txn: txn.get("t", 1, lock="exclusive").n,
    "get by an index": lambda txn: txn.get("t", 7, index="by_m").n,
    "get_many": lambda txn: txn.get_many("t", [1])["n"].to_pylist()[0],
    "get_many of many": lambda txn: txn.get_many("t", list(range(5_000)))["n"].to_pylist()[0],
    "get_many by an index": lambda txn: txn.get_many("t", [7], index="by_m")["n"].to_pylist()[0],
    "scan": lambda txn: next(iter(txn.scan("t"))).n,
    "scan of a column": lambda txn: next(iter(txn.scan("t", ["n"]))).n,
    "scan by a condition": lambda txn: next(iter(txn.scan("t", where=tm.col("s") == "a"))).n,
    "scan by a key": lambda txn: next(iter(txn.scan("t", where=tm.col("id") == 1))).n,
    "scan by an index": lambda txn: next(iter(txn.scan("t", index="by_s", lower="a"))).n,
    "locked scan": lambda txn: next(iter(txn.scan("t", lock="exclusive"))).n,
    "Arrow": lambda txn: txn.scan("t").to_arrow()["n"].to_pylist()[0],
    "sum": lambda txn: txn.scan("t").sum("n"),
    "sum by an index": lambda txn: txn.scan("t", index="by_s").sum("n"),
    "get by n": lambda txn: txn.get("t", WIDE, index="by_n").n,
    "get locked by n": lambda txn: txn.get("t", WIDE, index="by_n", lock="exclusive").n,
    "get shared by n": lambda txn: txn.get("t", WIDE, index="by_n", lock="shared").n,
    "get_many by n": lambda txn: txn.get_many("t", [WIDE], index="by_n")["n"].to_pylist()[0],
    "scan by the index of n": lambda txn: next(iter(txn.scan("t", index="by_n"))).n,
    "scan by bounds of n": lambda txn: next(iter(txn.scan("t", index="by_n", lower=1 << 39))).n,
    "scan of n alone": lambda txn: next(iter(txn.scan("t", ["n"], index="by_n", reverse=True))).n,
    "scan by a condition on n": lambda txn: next(iter(txn.scan("t", where=tm.col("n") > 1 << 39))).n,
    "scan by a value of n": lambda txn: next(iter(txn.scan("t", where=tm.col("n") == WIDE))).n,
    "count by n": lambda txn: txn.scan("t", where=tm.col("n") == WIDE).count() * WIDE,
    "count by the index of n": lambda txn: txn.scan("t", index="by_n", lower=1 << 39).count() * WIDE,
    "groups": lambda txn: txn.scan("t").aggregate(by="s", n=("sum", "n"))[0].n,
}


def widened_with_old_version(monkeypatch: pytest.MonkeyPatch, disk: bool = False) -> tuple[Any, Callable[[], None]]:
    """Return a store whose column n has moved, and what makes its calls begin with the version from before."""
    db = open_memory()
    columns = [
        tm.Column("id", tm.Int32),
        tm.Column("m", tm.Int32),
        tm.Column("n", tm.Int32),
        tm.Column("s", tm.VarChar(40)),
    ]
    if disk:
        columns.append(tm.Column("d", tm.Int32, storage="disk", nullable=True))
    db.create_table("t", columns, "id")
    db.create_index("t", "by_m", "m", unique=True)
    db.create_index("t", "by_s", "s")
    db.create_index("t", "by_n", "n", unique=True, ordered=True)
    db["t"].insert({"id": 1, "m": 7, "n": 3, "s": "a"})
    assert db["t"][1].n == 3
    tables = db.parts.store.tables
    old, named = tables.named("t"), tables.named
    db.widen_column("t", "n", tm.Int64)
    db["t"].update(1, {"n": WIDE})

    def begin_late() -> None:
        monkeypatch.setattr(type(tables), "named", lambda self, name: old if name == "t" else named(name))

    return db, begin_late


@pytest.mark.parametrize("disk", [False, True])
@pytest.mark.parametrize("what", STALE_CALLS)
def test_change_that_found_the_table_before_it_was_widened_is_not_lost(
    what: str, disk: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread had looked up the table, and went on after the change had been published: its update patched the place
    that no call reads any more, and was lost.
    """
    db, begin_late = widened_with_old_version(monkeypatch, disk)
    call, expected = STALE_CALLS[what]
    with db.transaction() as txn:
        begin_late()
        call(txn)
        monkeypatch.undo()
    row = db["t"].get(1)
    assert (None if row is None else row.n) == expected
    assert db.check()["is_sound"]


@pytest.mark.parametrize("disk", [False, True])
@pytest.mark.parametrize("what", STALE_READS)
def test_read_that_found_the_table_before_it_was_widened_shows_no_old_value(
    what: str, disk: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    db, begin_late = widened_with_old_version(monkeypatch, disk)
    with db.transaction() as txn:
        begin_late()
        try:
            assert STALE_READS[what](txn) == WIDE
        except tm.SnapshotTooOld as error:
            assert "wider type" in str(error)
        monkeypatch.undo()


KEYS: list[tuple[ColumnType, ColumnType, list[Any], Any]] = [
    (tm.Int32, tm.Int64, [-(1 << 31), -1, 0, (1 << 31) - 1], 1 << 40),
    (tm.UInt32, tm.Int64, [0, (1 << 32) - 1], -1),
    (tm.UInt16, tm.UInt64, [0, 65_535], (1 << 64) - 1),
    (tm.VarChar(4), tm.VarChar(20), ["", "ü", "abcd"], "abcdefgh"),
    (tm.Decimal(5, 2), tm.Decimal(15, 2), [Decimal("-999.99"), Decimal("0.00")], Decimal("1234567890.12")),
]


@pytest.mark.parametrize("is_composite", [False, True])
@pytest.mark.parametrize(("kind", "wider", "values", "more"), KEYS, ids=[f"{a!r} to {b!r}" for a, b, *_ in KEYS])
def test_key_gets_wider(kind: ColumnType, wider: ColumnType, values: list[Any], more: Any, is_composite: bool) -> None:
    db = open_memory()
    columns = [tm.Column("k", kind), tm.Column("l", tm.VarChar(8)), tm.Column("v", tm.Int32)]
    key = ["k", "l"] if is_composite else ["k"]
    table = db.create_table("t", columns, key)
    table.insert_many([(value, "x", number) for number, value in enumerate(values)])
    snapshot = db.snapshot()
    db.widen_column("t", "k", wider)
    table.insert((more, "x", -1))
    table.update((more, "x") if is_composite else more, {"v": -2})
    key_of = (lambda value: (value, "x")) if is_composite else (lambda value: value)
    assert [table[key_of(value)].v for value in values] == list(range(len(values)))
    with pytest.raises(tm.DuplicateKey):
        table.insert((values[0], "x", 0))
    assert len(snapshot["t"]) == len(values)
    snapshot.close()
    db = reopened(db)
    assert db["t"][key_of(more)].v == -2 and db["t"].definition.columns[0].type == wider
    assert [db["t"][key_of(value)].k for value in values] == values and db.check()["is_sound"]


REFUSED: list[tuple[type[tm.Error], Any]] = [
    (tm.SchemaInvalid, lambda db: db.widen_column("t", "c", tm.Int16)),
    (tm.SchemaInvalid, lambda db: db.widen_column("t", "c", tm.UInt64)),
    (tm.SchemaInvalid, lambda db: db.widen_column("t", "c", tm.Float64)),
    (tm.SchemaInvalid, lambda db: db.widen_column("t", "i", tm.Text)),
    (tm.SchemaInvalid, lambda db: db.widen_column("t", "i", tm.VarChar(5_000))),
    (tm.SchemaInvalid, lambda db: db.widen_column("t", "id", tm.Int32, nullable=True)),
    (tm.Unsupported, lambda db: db.widen_column("t", "d", tm.Int64)),
    (tm.Unsupported, lambda db: db.widen_column("r", "id", tm.Int64)),
    (tm.Unsupported, lambda db: db.widen_column("k", "id", tm.Int64)),
    (tm.Unsupported, lambda db: db.widen_column("h", "id", tm.Int64)),
    (tm.Unsupported, lambda db: db.widen_column("f", "id", tm.Float64)),
]


def test_what_cannot_be_widened_is_refused_and_nothing_has_changed() -> None:
    db = open_memory()
    columns = [tm.Column("id", tm.Int32), tm.Column("c", tm.Int32), tm.Column("i", tm.VarChar(5))]
    db.create_table("t", [*columns, tm.Column("d", tm.Int32, storage="disk")], "id")
    db.create_index("t", "by_i", "i")
    db.create_table("r", [tm.Column("id", tm.Int32)], "id", tm.RangePartition("id", [("p", tm.MAXVALUE)]))
    db.create_table("k", [tm.Column("id", tm.Int32)], "id", tm.KeyPartition(3))
    db.create_table("h", [tm.Column("id", tm.Int32)], "id", tm.HashPartition(3, modulo="id"))
    db.create_table("f", [tm.Column("id", tm.Float32)], "id")
    before = {name: db[name].definition for name in db.tables()}
    for kind, call in REFUSED:
        with pytest.raises(kind):
            call(db)
    assert {name: db[name].definition for name in db.tables()} == before


INDEXED = [
    *[each for each in WIDER if each[1] is not tm.Text],
    (tm.VarChar(5), tm.VarChar(300), ["", "ü", "abcde", "a\0b"]),
    (tm.VarBinary(5), tm.VarBinary(6), [b"", b"\0", b"abcde"]),
    (tm.Enum("b", "a"), tm.Enum("b", "a", "c"), ["a", "b"]),
]


def found_by(table: Any, name: str) -> list[Any]:
    return [row.id for row in table.scan(index=name)]


@pytest.mark.parametrize("nullable", [True, False])
@pytest.mark.parametrize(("kind", "wider", "values"), INDEXED, ids=[f"{a!r} to {b!r}" for a, b, _ in INDEXED])
def test_indexes_of_a_column_that_gets_wider_find_all_rows(
    kind: ColumnType, wider: ColumnType, values: list[Any], nullable: bool
) -> None:
    """Story: `ALTER TABLE t MODIFY price BIGINT` stopped the ingest if `price` had a key; a user had to drop each index
    by hand, widen, and create it again, and meanwhile nothing kept its values unique.
    """
    db = open_memory()
    table = table_of(db, kind, nullable)
    values = [value for value in values if repr(value) != "-0.0"]  # equal to 0.0 in a unique index
    given = [*values, *[None, None] * nullable]
    table.insert_many([(number, number % 2, value, None, f"r{number}") for number, value in enumerate(given)])
    db.create_index("t", "tree", "c")
    db.create_index("t", "hash", "c", unique=True)
    db.create_index("t", "both", ["c", "s"], unique=True, ordered=True)
    db.create_index("t", "other", "s")
    before = {name: found_by(table, name) for name in ("tree", "both", "other")}
    snapshot = db.snapshot()
    db.widen_column("t", "c", wider)
    assert {name: found_by(table, name) for name in before} == before
    assert [table.get(value, index="hash").id for value in values] == list(range(len(values)))
    assert sorted(row[0] for row in snapshot["t"]) == list(range(len(given)))
    with pytest.raises(tm.SnapshotTooOld, match="made anew"):
        list(snapshot["t"].scan(index="tree"))
    with pytest.raises(tm.SnapshotTooOld, match="made anew"):
        snapshot["t"].get(values[0], index="hash")
    assert found_by(snapshot["t"], "other") == before["other"]
    assert snapshot["t"].count(where=tm.col("c") == values[1]) == 1
    snapshot.close()
    with pytest.raises(tm.DuplicateKey) as refused:
        table.insert((98, 0, values[0], None, "z"))
    assert refused.value.index == "hash"
    last = {"Integer": getattr(wider, "maximum", 0), "Floating": 1e300, "Decimal": Decimal(10) ** 7}
    last |= {"Enum": "c", "VarBinary": b"abcdef"}
    more = last.get(type(wider).__name__, "longer")
    table.update(0, {"c": more})
    assert table.get(more, index="hash").id == 0 and table.get(values[0], index="hash") is None
    table.insert((98, 0, values[0], None, "z"))
    table.delete(1)
    check_arena(db)
    assert db.check()["is_sound"]
    db = reopened(db)
    table = db["t"]
    assert table.get(more, index="hash").id == 0 and table.get(values[0], index="hash").id == 98
    assert sorted(found_by(table, "tree")) == [0, *range(2, len(given)), 98] and db.check()["is_sound"]
    assert {each["name"] for each in table.indexes()} == {"tree", "hash", "both", "other"}


@pytest.mark.parametrize(("kind", "wider", "values", "more"), KEYS, ids=[f"{a!r} to {b!r}" for a, b, *_ in KEYS])
def test_index_over_a_key_that_gets_wider(kind: ColumnType, wider: ColumnType, values: list[Any], more: Any) -> None:
    db = open_memory()
    table = db.create_table("t", [tm.Column("k", kind), tm.Column("v", tm.Int32)], "k")
    table.insert_many([(value, -number) for number, value in enumerate(values)])
    db.create_index("t", "tree", ["v", "k"])
    db.create_index("t", "hash", ["k", "v"], unique=True)
    db.widen_column("t", "k", wider)
    table.insert((more, 9))
    for _ in range(2):
        assert [row.k for row in db["t"].scan(index="tree")] == [*values[::-1], more]
        assert db["t"].get((more, 9), index="hash").k == more
        assert db["t"].get_many([(values[0], 0)], index="hash").num_rows == 1
        assert db.check()["is_sound"]
        db = reopened(db)


def test_failed_attempt_leaves_the_indexes_and_no_memory() -> None:
    db = open_memory(lock_timeout_ms=50)
    table = table_of(db, tm.Int32, False)
    table.insert_many([(n, 1, n, 1, "a") for n in range(500)])
    db.create_index("t", "both", "c", unique=True, ordered=True)
    before = table.definition.indexes
    with db.transaction(isolation="snapshot") as txn:
        assert txn.get("t", 1).c == 1
        with pytest.raises(tm.LockTimeout):
            db.widen_column("t", "c", tm.Int64)
        assert txn.get("t", 1, index="both") is not None
    check_arena(db)  # nothing is left of the new indexes
    assert table.definition.indexes == before
    table.update_many([{"id": n, "c": n + 1} for n in reversed(range(100, 500))])  # what was copied is of others now
    db.widen_column("t", "c", tm.Int64)
    assert [row.id for row in table.scan(index="both")] == list(range(500))
    assert table.get(500, index="both").id == 499 and table.get(100, index="both") is None
    assert len(table.definition.dropped) == 1 and db.check()["is_sound"]
    with pytest.raises(tm.DuplicateKey):
        table.insert((1_000, 1, 500, 1, "a"))


def test_change_of_an_index_meanwhile_ends_the_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    db = open_memory()
    table = table_of(db, tm.Int32, False)
    table.insert((1, 1, 7, 1, "a"))
    db.create_index("t", "tree", "c")
    fill = IndexRenewals.begin
    for change in (
        lambda: db.drop_index("t", "tree"),
        lambda: db.create_index("t", "another", ["c", "s"]),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(IndexRenewals, "begin", lambda self, change=change: (fill(self), change()))
            with pytest.raises(tm.SchemaInvalid, match="changed while"):
                db.widen_column("t", "c", tm.Int64)
    with monkeypatch.context() as patch:
        patch.setattr(
            IndexRenewals, "begin", lambda self: (fill(self), db.add_column("t", tm.Column("x", tm.Int8, True)))
        )
        db.widen_column("t", "c", tm.Int64)
    assert found_by(table, "another") == [1] and [each["name"] for each in table.indexes()] == ["another"]
    assert table[1].c == 7 and table[1].x is None and db.check()["is_sound"]


def test_column_added_meanwhile_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Story: a column that another thread added while rows were copied ended the call with an internal exception, or
    its values came where the wider ones belong.
    """
    db = open_memory()
    table = table_of(db, tm.Int32, False)
    table.insert((1, 1, 7, 1, "a"))
    lock, names = column_move.lock_keys, iter("xyz")

    def late(*given: Any) -> Any:
        if (name := next(names, None)) is not None:
            db.add_column("t", tm.Column(name, tm.Int8, default=7))
        return lock(*given)

    monkeypatch.setattr(column_move, "lock_keys", late)
    db.widen_column("t", "c", tm.Int64)
    assert tuple(table[1]) == (1, 1, 7, 1, "a", 7, 7, 7) and db.check()["is_sound"]


def test_a_wider_column_gets_a_unique_index_that_finds_many() -> None:
    """Story: lookups of many keys made a table of the index's columns, of version 1; one was wider since version 3."""
    with open_memory() as db:
        columns = [tm.Column("id", tm.Int64), tm.Column("n", tm.Int8, nullable=True)]
        table = db.create_table("t", columns, "id")
        table.insert_many([(1, 22), (2, None), (3, 4)])
        db.widen_column("t", "n", tm.Int16)
        db.create_index("t", "by_n", ["n"], unique=True)
        assert [row["id"] for row in table.get_many([4, 22], index="by_n").to_pylist()] == [3, 1]
        assert table.delete_many([22], index="by_n") == 1 and sorted(row.id for row in table) == [2, 3]


def test_the_type_that_a_column_has_changes_no_row() -> None:
    with open_memory() as db:
        table = db.create_table("t", [tm.Column("id", tm.Int64), tm.Column("n", tm.Int32)], "id")
        db.widen_column("t", "n", tm.Int32)
        assert not db["t"].definition.dropped and table.insert((1, 2)) is None
