"""Conditions that choose an index: which, when and with which bounds; the choice may change only the order of rows."""

from __future__ import annotations

import contextlib
import datetime
import decimal
import random
from typing import Any

import pytest

import tidemark as tm
from tests.interpreter.generate import value_of
from tidemark.engine.programs import compiled
from tidemark.engine.programs.condition_ranges import starts_of
from tidemark.engine.queries import index_choice as choice
from tidemark.engine.queries.conditions import Condition
from tidemark.engine.queries.index_choice import choose

NAME = "test.t"
COLUMNS = [
    tm.Column("id", tm.Int64),
    tm.Column("owner", tm.VarChar(30), nullable=True),
    tm.Column("seen", tm.DateTime, nullable=True),
    tm.Column("n", tm.Int32),
    tm.Column("m", tm.Int64),
]
ROWS = 20_000


def filled(db: tm.Database, rows: int = ROWS) -> tm.TableHandle:
    begin = datetime.datetime(2025, 1, 1)
    table = db.create_table(NAME, COLUMNS, "id", tm.RangePartition("id", [("a", rows // 2), ("b", tm.MAXVALUE)]))
    table.insert_many(
        [
            (key, f"o{key % 1_000}", None if key % 10 == 0 else begin + datetime.timedelta(hours=key), key % 200, 0)
            for key in range(rows)
        ]
    )
    db.create_index(NAME, "by_owner", ["owner", "seen"])
    db.create_index(NAME, "by_n", ["n", "id"])
    return table


def test_explain_says_which_index_a_condition_takes_and_its_bounds(db: tm.Database) -> None:
    table, col, t = filled(db), tm.col, datetime.datetime(2025, 1, 2)
    both = table.explain(where=(col("owner") == "o7") & (col("seen") > t))
    rows = both.pop("rows")
    assert both == {
        "access": "index",
        "index": "by_owner",
        "bounds": [{"owner": "o7", "seen": {"above": t}}],
        "partitions": ["a", "b"],
    }
    assert rows == table.scan(where=(col("owner") == "o7") & (col("seen") > t)).count() > 0
    assert table.explain(["id"], where=col("n") == 3)["access"] == "index only"
    assert table.explain(["id", "m"], where=col("n") == 3)["access"] == "index"
    assert table.explain(["id", tm.EPOCH], where=col("n") == 3)["access"] == "index"
    assert table.explain(where=col("n").isin([3, 5, 3]))["bounds"] == [{"n": 3}, {"n": 5}]
    assert table.explain(where=col("n").isin([]))["bounds"] == []
    one = table.explain(where=col("n").isin([3, 5]) & (col("id") >= 100) & (col("id") < 9_000))
    assert one["bounds"] == [{"n": n, "id": {"from": 100, "below": 9_000}} for n in (3, 5)]
    assert one["partitions"] == ["a"]
    assert table.explain(where=col("owner").like("o99%"))["bounds"] == [{"owner": {"prefix": b"o99"}}]
    assert table.explain(where=(col("owner") == "o1") & col("seen").is_null())["bounds"] == [
        {"owner": "o1", "seen": None}
    ]
    assert table.explain(where=(col("owner") == "o1") & col("seen").is_not_null())["bounds"] == [
        {"owner": "o1", "seen": {"above": None}}
    ]
    named = table.explain(["n"], index="by_n", lower=3, upper=(5, 9), partitions=["b"])
    assert named.pop("rows") == pytest.approx(200, rel=0.2)
    assert named == {
        "access": "index only",
        "index": "by_n",
        "bounds": [{"lower": 3, "upper": (5, 9)}],
        "partitions": ["b"],
    }


def test_full_scan_is_taken_when_no_index_is_bounded_or_much_of_the_table_is(db: tm.Database) -> None:
    table, col = filled(db), tm.col
    asm = tm.Assembler(table.definition)
    asm.branch_column("eq", "n", 3, "ok")
    asm.exit_refuse()
    asm.label("ok")
    asm.exit_ok()
    wide: list[Any] = [
        None,
        asm.finish(),
        col("m") == 5,
        col("n") >= 5,
        (col("n") == 5) | (col("m") == 5),
        ~(col("n") == 5),
        col("n") + 1 == 5,
        col("n").isin(range(100)),
        col("owner").like("%9"),
        col("seen").is_not_null(),
    ]
    for where in wide:
        found = table.explain(["m"], where=where)
        assert (found["access"], found["index"], found["bounds"]) == ("full scan", None, []), where
    for never in (col("n") == 2**40, col("n") == 2.5, col("owner") == "x" * 31, col("id").isin([2**70, 1.5])):
        found = table.explain(["m"], where=never)
        assert found["access"] != "full scan" and found["bounds"] == [] and found["rows"] == 0, never
        assert list(table.scan(where=never)) == []
    assert table.explain(["m"], where=col("n") >= 5)["rows"] == ROWS
    assert table.explain(["m"], where=(col("n") >= 5) & (col("id") < 10))["rows"] == ROWS // 2
    small = db.create_table("test.s", COLUMNS, "id")
    small.insert_many([(key, None, None, key, 0) for key in range(50)])
    db.create_index("test.s", "by_n", "n")
    assert small.explain(where=col("n") == 3)["access"] == "full scan"


def forced(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANGE_COST", "INDEXED_ROW_COST", "ONLY_ROW_COST", "DISK_ROW_COST"):
        monkeypatch.setattr(choice, name, 0)


KINDS = [
    *(tm.Int8, tm.UInt16, tm.Int64, tm.UInt64, tm.Float32, tm.Float64, tm.Bool, tm.Date, tm.Time, tm.DateTime),
    *(tm.Timestamp, tm.Decimal(9, 2), tm.Decimal(38, 10), tm.Char(7), tm.Binary(8), tm.Enum("a", "b", "ü")),
    *(tm.VarChar(12), tm.VarBinary(20)),
]


@pytest.mark.parametrize("kind", KINDS, ids=repr)
def test_rows_by_a_chosen_index_are_those_of_the_full_scan_for_any_constant(
    db: tm.Database, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They include constants that the column cannot hold, or holds changed (padding, rounding)."""
    forced(monkeypatch)
    r = random.Random(str(kind))
    columns = [tm.Column("id", tm.Int32), tm.Column("k", kind, nullable=True), tm.Column("l", kind)]
    table = db.create_table(NAME, columns, "id", tm.HashPartition(2))
    odd: list[Any] = {
        str: ["", "a\0", "a", "\0", "b" * 40, "a\0b"],
        bytes: [b"", b"a\0", b"a", b"\0" * 9, b"b" * 40],
    }.get(type(value_of(kind, r)), [0.1, -0.0, 1e39, 16_777_217, 2.5, 2**64, -1, float("nan"), None])
    table.insert_many([(i, r.choice([None, value_of(kind, r)]), value_of(kind, r)) for i in range(400)])
    for i, value in enumerate(odd):
        with contextlib.suppress(tm.Rejected):
            table.insert((400 + i, value, value))
    chosen = 0
    conditions = []
    for _ in range(150):
        leaves = []
        for name in ("k", "l"):
            column, value = tm.col(name), r.choice([value_of(kind, r), value_of(kind, r), r.choice(odd)])
            shapes = [
                lambda column=column, value=value: column == value,
                lambda column=column, value=value: column < value,
                lambda column=column, value=value: column <= value,
                lambda column=column, value=value: column > value,
                lambda column=column, value=value: column >= value,
                lambda column=column, value=value: column.isin([value, value_of(kind, r), value]),
                lambda column=column, value=value: column.between(value, value_of(kind, r)),
                lambda column=column, value=value: column.is_null(),
            ]
            # A comparison with None is refused; within isin() and between() it is NULL.
            leaves.append(r.choice(shapes[5:] if value is None else shapes)())
        where = leaves[0] & leaves[1] if r.random() < 0.6 else leaves[r.randint(0, 1)]
        try:
            expected = sorted(row.id for row in table.scan(["id"], where=where))
        except tm.Rejected:
            continue
        conditions.append((where, expected))
    db.create_index(NAME, "by_k", ["k", "l"])
    db.create_index(NAME, "by_l", ["l", "id"])
    in_order = {name: [row.id for row in table.scan(["id"], index=name)] for name in ("by_k", "by_l")}
    for where, expected in conditions:
        for name, order in in_order.items():
            kept = [key for key in order if key in expected]
            assert [row.id for row in table.scan(["id"], where=where, index=name)] == kept, where
            assert [row.id for row in table.scan(["id"], where=where, index=name, reverse=True)] == kept[::-1], where
        assert sorted(row.id for row in table.scan(["id"], where=where)) == expected, where
        assert table.scan(where=where).count() == len(expected), where
        chosen += table.explain(["id"], where=where)["access"] != "full scan"
    assert chosen > 15, (chosen, len(conditions))


def test_bounds_that_cannot_be_compared_are_no_error(db: tm.Database) -> None:
    """Story: a Decimal and NaN as bounds of one column ended a scan with decimal.InvalidOperation."""
    table = db.create_table("test.f", [tm.Column("id", tm.Int64), tm.Column("f", tm.Float64)], "id")
    table.insert_many([(1, 1.0), (2, 2.0), (3, float("nan"))])
    f, bound = tm.col("f"), decimal.Decimal("1.5")
    assert list(table.scan(where=(f > bound) & (f > float("nan")))) == []
    assert list(table.scan(where=(f > float("nan")) & (f < bound))) == []


def test_condition_narrows_what_is_read_of_a_named_index(db: tm.Database) -> None:
    """Story: with `index=` for the order, a condition over the columns of that index was tested on every entry of it.
    The best orders of one side of a book, five of ten thousand, took as long as all.
    """
    table, col = filled(db), tm.col
    where = (col("n") == 3) & (col("id") < 10_000)
    plan = table.explain(where=where, index="by_n")
    assert (plan["access"], plan["index"], plan["bounds"]) == ("index", "by_n", [{}])
    assert 0 < plan["rows"] < 200
    assert table.explain(where=col("n") == 2.5, index="by_n")["rows"] == 0


def test_updates_and_deletes_by_a_chosen_index_change_each_row_once(
    db: tm.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row that an update moves forward in the index, into another range of the same condition, is not met again."""
    forced(monkeypatch)
    table, col = filled(db, 2_000), tm.col
    rows = {row.id: row for row in table.scan()}
    where = col("n").isin(list(range(40)))
    assert table.explain(["id"], where=where)["index"] == "by_n"
    moved = table.update_where({"n": col("n") + 1, "m": col("m") + 1}, where)
    expected = {key: row._replace(n=row.n + 1, m=1) if row.n < 40 else row for key, row in rows.items()}
    assert moved == sum(row.n < 40 for row in rows.values())
    assert {row.id: row for row in table.scan()} == expected
    with db.transaction() as txn:
        txn.insert(NAME, (9_000, None, None, 7, 0))
        assert txn.update_where(NAME, {"n": col("n") * 2}, (col("n") >= 5) & (col("n") < 20)) > 0
        assert {row.m for row in txn.scan(NAME, where=col("n") == 14)} == {0, 1}
        gone = txn.delete_where(NAME, col("n").isin([14, 16]) & (col("id") < 1_000))
        assert gone == len([row for row in expected.values() if row.n in (7, 8) and row.id < 1_000])
        assert txn.scan(NAME, where=col("n").isin([14, 16]) & (col("id") < 1_000)).count() == 0
    assert db.check()["problems"] == []


def test_index_dropped_between_choice_and_scan_is_done_without(
    db: tm.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, col = filled(db), tm.col
    expected = sorted(row.id for row in table.scan(["id"], where=col("n") == 3))
    condition = Condition(table.definition, col("n") == 3)
    found = choose(table.table, condition, ["id"], [0, 1])
    assert found is not None and found.index.name == "by_n"
    begun = iter(table.scan(["id"], where=col("n").between(3, 6)))
    next(begun)
    db.drop_index(NAME, "by_n")
    monkeypatch.setattr("tidemark.engine.queries.program_scans.way_of", lambda *_: (found, [0, 1]))
    assert sorted(row.id for row in table.scan(["id"], where=col("n") == 3)) == expected
    assert table.scan(where=col("n") == 3).count() == len(expected)
    assert table.update_where({"m": 1}, col("n") == 3) == len(expected)
    with pytest.raises(tm.NoSuchIndex, match="by_n"):
        list(begun)


def test_kept_programs_are_bounded_and_large_expressions_are_not_kept(db: tm.Database) -> None:
    table = filled(db, 10)
    n = tm.col("n")
    for number in range(compiled.KEPT_MAX + 50):  # of as many shapes
        compiled.compile_filter(table.definition, (n == 1) & n.isin(range(number % 20)) & n.isin(range(number // 20)))
    for number in range(200):  # of as many structures
        of_ten = [number >> bit & 1 for bit in range(8)]
        compiled.compile_filter(
            table.definition, n.isin([bit + (0 if is_new else 0.5) for bit, is_new in enumerate(of_ten)])
        )
    shapes, programs, words = compiled.kept_programs()
    assert shapes == compiled.KEPT_MAX <= programs < compiled.KEPT_MAX + 2 * compiled.STRUCTURES_MAX
    assert words < compiled.WORDS_MAX
    big = n.isin(range(1_000))
    one, other = (compiled.compile_filter(table.definition, big) for _ in range(2))
    assert one.facts is not other.facts
    assert compiled.kept_programs() == (shapes, programs, words)
    assert table.scan(where=tm.col("n").isin(range(1_000))).count() == 10


def test_what_patterns_begin_with_is_what_stands_before_their_first_wildcard() -> None:
    col = tm.col("a")
    assert starts_of(col.like(r"a\%b_c")) == {"a": b"a%b"}
    assert starts_of(col.like("abc")) == {"a": b"abc"}
    assert starts_of(col.starts_with("50%_\\")) == {"a": b"50%_\\"}
    assert starts_of(col.like("%a") | col.like("b%")) == starts_of(~col.like("b%")) == starts_of(col.like("_")) == {}
    assert starts_of(col.like("ab%") & (tm.col("b").like("ü%") & col.like("abc%"))) == {"a": b"abc", "b": "ü".encode()}
    assert starts_of(col.like("a\\")) == {"a": b"a\\"}


def test_condition_over_a_snapshot_chooses_an_index_and_finds_its_rows(
    db: tm.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows change and go after the snapshot was opened, within the ranges of the index and across them."""
    forced(monkeypatch)
    table, col = filled(db, 2_000), tm.col
    rows = {row.id: row for row in table.scan()}
    with db.snapshot() as snapshot:
        table.update_where({"n": col("n") + 1}, col("n") < 40)
        table.delete_where(col("n") == 5)
        table.insert_many([(9_000 + key, "o7", None, key % 200, 0) for key in range(300)])
        shown = snapshot[NAME]
        for where, accepts in (
            (col("n").isin([3, 4, 5, 199]), lambda row: row.n in (3, 4, 5, 199)),
            ((col("n") >= 35) & (col("n") < 45) & (col("id") > 100), lambda row: 35 <= row.n < 45 and row.id > 100),
            ((col("owner") == "o7") & col("seen").is_not_null(), lambda row: row.owner == "o7" and row.seen),
        ):
            expected = sorted(row for row in rows.values() if accepts(row))
            assert shown.explain(where=where)["access"] == "index"
            assert sorted(shown.scan(where=where)) == expected
            assert shown.scan(where=where).count() == len(expected)
            assert len(list(shown.scan(where=where, limit=3))) == min(3, len(expected))
            some = [row for row in expected if row.id < 1_000]
            assert shown.explain(where=where, partitions=["a"])["access"] == "index"
            assert sorted(shown.scan(where=where, partitions=["a"])) == some
            assert sorted(shown.scan(where=where, partitions=["a"], index="by_n")) == some


def test_index_dropped_between_choice_and_scan_of_a_snapshot_is_done_without(
    db: tm.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, where = filled(db), tm.col("n") == 3
    expected = sorted(table.scan(where=where))
    with db.snapshot() as snapshot:
        found = choose(table.table, Condition(table.definition, where), ["id"], [0, 1], 0)
        assert found is not None
        db.drop_index(NAME, "by_n")
        monkeypatch.setattr("tidemark.snapshot.way_of", lambda *_: (found, [0, 1]))
        assert sorted(snapshot[NAME].scan(where=where)) == expected
