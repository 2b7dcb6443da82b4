"""References are counted right on every path of every kernel: rows found, rows missing, and each refusal."""

from __future__ import annotations

import datetime
import decimal
import gc
import sys
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import tidemark as tm
from tests.point.support import EVERY
from tests.store.support import open_memory
from tidemark.engine import types as t
from tidemark.engine.memory.arena_layout import ENTRY_WORDS, MODE_DELETE, MODE_INSERT, MODE_UPDATE, MODE_WRITE
from tidemark.engine.point import plan_layout as u
from tidemark.engine.point.change_kernels import DONE, LEFT, REFUSED
from tidemark.engine.point.changes import CommittedChanges, change, change_if, locked
from tidemark.engine.point.plan import plan_of, row_plan
from tidemark.engine.point.selects import select_range

CALLS = 3_000
VALUES: dict[type, Any] = {
    t.Integer: 100,
    t.Floating: 1.5,
    t.Boolean: True,
    t.Decimal: decimal.Decimal("-1"),
}
BY_NAME = {
    "Date": datetime.date(1999, 12, 31),
    "Time": datetime.time(23, 59, 59, 999_999),
    "DateTime": datetime.datetime(1, 1, 1),
    "Timestamp": datetime.datetime(9999, 12, 31, 23, 59, 59, 999_999, datetime.UTC),
    "Blob": b"blob",
    "UUID": uuid.UUID(int=1 << 64),
    "JSON": {"a": [1.5, None, "ä"]},
}


def value_of(kind: Any) -> Any:
    if isinstance(kind, t.Enum):
        return kind.members[-1]
    found = VALUES.get(type(kind), BY_NAME.get(repr(kind)))
    return found if found is not None else (b"b" if "Binary" in repr(kind) else "ä"[: getattr(kind, "length", 1)])


@pytest.fixture(scope="module")
def db() -> Iterator[Any]:
    db = open_memory()
    columns = [tm.Column("id", tm.Int64), tm.Column("text", tm.VarChar(900)), tm.Column("n", tm.Int64, nullable=True)]
    columns += [tm.Column(f"c{number}", kind) for number, kind in enumerate(EVERY)]
    db.create_table("every", columns, "id").insert((1, "one", None, *map(value_of, EVERY)))
    db.create_index("every", "u", "text", unique=True)
    db.create_index("every", "by_text", ["text", "n"])
    db.add_column("every", tm.Column("late", tm.Enum("x", "y"), default="y"))
    db.add_column("every", tm.Column("padded", tm.Binary(5), default=b"abc"))
    db["every"].insert((2, "two", 7, *map(value_of, EVERY), "x", b"ab"))
    key = [
        tm.Column("a", tm.VarChar(4)),
        tm.Column("b", tm.Float64),
        tm.Column("c", tm.Char(3)),
        tm.Column("d", tm.Bool),
    ]
    key += [tm.Column("e", tm.Binary(3)), tm.Column("f", tm.VarBinary(9)), tm.Column("g", tm.Int8)]
    db.create_table("keys", key, [each.name for each in key]).insert(("a", 0.5, "c", True, b"e", b"f", 7))
    yield db
    db.close()


def assert_flat(call: Callable[[], Any], *objects: Any) -> None:
    """Make a call many times: neither objects nor memory are left."""
    for _ in range(50):
        call()
    gc.collect()
    counts = [sys.getrefcount(each) for each in objects]
    blocks = sys.getallocatedblocks()
    for _ in range(CALLS):
        call()
    gc.collect()
    assert sys.getallocatedblocks() - blocks < CALLS // 20
    assert [sys.getrefcount(each) for each in objects] == pytest.approx(counts, abs=CALLS // 20)


def singles(plan: Any) -> list[Any]:
    classes = [datetime.date, datetime.datetime, datetime.time, decimal.Decimal, plan.rows.Row]
    return [None, ..., True, datetime.UTC, *classes, "ü", "y"]


@pytest.mark.parametrize("key", [1, 2, 3, True, 1.5, 2**63, -(2**70), "one", None, (1,)])
def test_get(db: Any, key: Any) -> None:
    plan = plan_of(db["every"].table)
    shown = np.zeros(1, dtype=np.int64)
    assert_flat(lambda: plan.get(plan.mem, plan.words, key), key, *singles(plan))
    with db.transaction() as txn:
        txn.update("every", 2, {"n": 8, "text": "zwei"})
        arguments = (plan.mem, plan.words, txn.desc, txn.buf, shown, key)
        assert_flat(lambda: plan.get_seen(*arguments), key, *singles(plan))
        txn.rollback()


@pytest.mark.parametrize("key", ["one", "nothing", "ä" * 900, "x" * 901, "\ud800", b"one", None, 5, ("one",)])
def test_get_by_a_unique_index(db: Any, key: Any) -> None:
    plan = plan_of(db["every"].table)
    assert_flat(lambda: plan.unique(key, "u"), key, *singles(plan))
    with db.transaction() as txn:
        txn.update("every", 2, {"text": "nothing"})
        assert_flat(lambda: plan.unique_seen(txn, key, "u"), key, *singles(plan))
        txn.rollback()


@pytest.mark.parametrize("key", ["one", "two", "nothing", "ä" * 900, "\ud800", b"one", None, 5])
def test_ranges_of_an_index(db: Any, key: Any) -> None:
    plan, table = plan_of(db["every"].table), db["every"].table.newest
    for lower, upper, limit in ((key, None, 1), (key, None, 2), (key, "u", None), (None, key, None)):
        found = select_range(table, list(table.format.names), "by_text", lower, upper, None)
        assert found is not None
        assert_flat(lambda found=found, limit=limit: found.rows(table, False, limit), key, *singles(plan))


@pytest.mark.parametrize(
    "key",
    [
        ("a", 0.5, "c", True, b"e", b"f", 7),
        ("a", -0.0, "c", True, b"e", b"f", 7),
        ("aaaaa", 0.5, "c", True, b"e", b"f", 7),
        ("a", float("nan"), "c", True, b"e", b"f", 7),
        ("a", 0.5, "c\0", True, b"e", b"f", 7),
        ("a", 0.5, "c", 1, b"e", b"f", 7),
        ("a", 0.5, "c", True, b"eeee", b"f", 7),
        ("a", 0.5, "c", True, b"e", "f", 7),
        ("a", 0.5, "c", True, b"e", b"f", 128),
        ("a", 0.5),
        ["a", 0.5, "c", True, b"e", b"f", 7],
    ],
)
def test_keys_of_several_columns(db: Any, key: Any) -> None:
    plan = plan_of(db["keys"].table)
    assert_flat(lambda: plan.get(plan.mem, plan.words, key), key, *key, plan.rows.Row, None, ...)


def test_stale_plans(db: Any) -> None:
    plan = plan_of(db["every"].table)
    words = plan.words.copy()
    words[u.U_VERSION] += 1
    assert_flat(lambda: plan.get(plan.mem, words, 1), *singles(plan))


def test_lists_of_rows_and_values_that_cannot_be_made(db: Any) -> None:
    row_format = db["every"].table.newest.format
    rows = row_plan(row_format, row_format.names)
    assert rows is not None
    images = [row_format.encode_row(row) for row in db["every"]]
    entries = np.concatenate([np.zeros(ENTRY_WORDS, dtype=np.int64), *images])
    offsets = np.array([ENTRY_WORDS, ENTRY_WORDS + images[0].size], dtype=np.int64)
    assert rows.rows(entries, offsets, 0, 2) == list(db["every"])
    plan = plan_of(db["every"].table)
    assert_flat(lambda: rows.rows(entries, offsets, 0, 2), *singles(plan))
    damaged = entries.copy()
    damaged[damaged == -719_162] = -719_163
    octets = damaged.view(np.uint8)
    octets[offsets[1] * 8 :] = np.where(octets[offsets[1] * 8 :] == 0xC3, 0xFF, octets[offsets[1] * 8 :])
    assert rows.rows(damaged, offsets, 0, 2) is ...
    assert_flat(lambda: rows.rows(damaged, offsets, 0, 2), *singles(plan))


def test_rows_are_not_visited_by_the_collector(db: Any) -> None:
    """Each value is a number, text, bytes, a date, a UUID or None, so no cycle goes through a row (rule 2 of ADR 0031),
    unless a program puts the row into a document of its own.
    """
    plan = plan_of(db["every"].table)
    for row in (db["every"].get(1), plan.get(plan.mem, plan.words, 2), plan.unique("one", "u")):
        assert not gc.is_tracked(row)
        # From Python 3.13 on a Decimal refers to its class.
        plain = [each for each in row if not isinstance(each, dict)]
        assert not any(gc.is_tracked(each) for each in plain if type(each) is not decimal.Decimal)
        known = [each for each in plain if not isinstance(each, uuid.UUID)]
        assert all(gc.get_referents(each) in ([], [datetime.UTC], [decimal.Decimal]) for each in known)


def test_lists_leave_the_collector_as_it_was(db: Any) -> None:
    row_format = db["every"].table.newest.format
    rows = row_plan(row_format, ["id"])
    assert rows is not None
    image = row_format.encode_row(db["every"][1])
    was_on = gc.isenabled()
    try:
        for turn, is_on in ((gc.enable, True), (gc.disable, False)):
            turn()
            assert rows.rows(image, np.zeros(1, dtype=np.int64), 0, 1) == [(1,)]
            assert gc.isenabled() is is_on
    finally:
        (gc.enable if was_on else gc.disable)()


# --- changes --------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def changed() -> Iterator[Any]:
    """A table whose rows kernels change, with an index that they maintain, and one that they do not touch."""
    db = open_memory(durability="epoch", redo_log="64 MiB", data_memory="32 MiB")
    columns = [
        tm.Column("id", tm.Int64),
        tm.Column("n", tm.Int32),
        tm.Column("f", tm.Float64, nullable=True),
        tm.Column("ok", tm.Bool),
        tm.Column("code", tm.Char(3)),
        tm.Column("raw", tm.Binary(5)),
        *(tm.Column(name, kind) for name, kind in TYPES.items()),
        tm.Column("text", tm.VarChar(900), nullable=True),
        tm.Column("u", tm.VarBinary(9)),
    ]
    table = db.create_table("c", columns, "id")
    db.create_index("c", "by_n", "n")
    db.create_index("c", "u", "u", unique=True)
    table.insert(ROW)
    table.insert((99, *ROW[1:-1], b"other"))
    yield db
    db.close()


TYPES: dict[str, Any] = {
    "d": tm.Decimal(9, 2),
    "w": tm.Decimal(38, 2),
    "e": tm.Enum("open", "to be paid"),
    "s": tm.Float32,
    "day": tm.Date,
    "time": tm.Time,
    "at": tm.DateTime,
    "when": tm.Timestamp,
    "large": tm.UInt64,
    "uid": tm.UUID,
}
MOMENT = datetime.datetime(2020, 2, 29, 1, 2, 3, 4)
ROW = (
    *(1, 1_000, 1.5, True, "ä", b"raw"),
    *(decimal.Decimal("12.3"), decimal.Decimal(10**30), "open", 0.5, MOMENT.date(), MOMENT.time(), MOMENT),
    *(MOMENT.replace(tzinfo=datetime.UTC), 2**64 - 1, uuid.UUID(int=(1 << 127) + 7), "text ä" * 9, b"u"),
)
NAMED = dict(zip(("id", "n", "f", "ok", "code", "raw", *TYPES, "text", "u"), ROW, strict=True))
NEW: dict[str, Any] = {"n": 2_000_000, "f": None, "ok": False, "code": "xyz", "raw": b"12345"}
NEW |= {"d": decimal.Decimal("-1E+3"), "w": 10**15, "e": " ".join(["to", "be", "paid"]), "s": 1.1, "large": 2**63}
NEW |= {"uid": uuid.UUID(int=9), "day": datetime.date.min, "time": datetime.time.max, "at": datetime.datetime.max}


def free_the_log(db: Any) -> None:
    """Make room for thousands of changes, so that nothing is written between them."""
    for _ in range(2):
        db.checkpoint()


# A change, and whether kernels make it.
OWN_KEY: list[tuple[int, Any, Any, bool]] = [
    (MODE_UPDATE, 1, NEW, True),
    (MODE_UPDATE, 1, {"".join(name): each for name, each in NEW.items()}, True),
    (MODE_UPDATE, 1, {}, True),
    (MODE_UPDATE, 2, NEW, False),
    (MODE_UPDATE, "1", NEW, False),
    (MODE_UPDATE, 1, [NEW], False),
    (MODE_UPDATE, 1, {**NEW, "text": "x"}, True),
    (MODE_UPDATE, 1, {"text": None}, True),
    (MODE_UPDATE, 1, {**NEW, "u": b"u"}, True),
    (MODE_UPDATE, 1, {"u": b"u", "text": "\ud800"}, False),
    (MODE_UPDATE, 1, {"u": b"other"}, False),  # another row has it
    (MODE_UPDATE, 1, {"text": "x" * 901}, False),
    (MODE_UPDATE, 1, {**NEW, "no such": 1}, False),
    (MODE_UPDATE, 1, {**NEW, "n": 2**31}, False),
    (MODE_UPDATE, 1, {**NEW, "n": 2**64}, False),
    (MODE_UPDATE, 1, {**NEW, "code": "\ud800"}, False),
    (MODE_UPDATE, 1, {**NEW, "d": decimal.Decimal("0.001")}, False),
    (MODE_UPDATE, 1, {**NEW, "d": decimal.Decimal("1E+7")}, False),
    (MODE_UPDATE, 1, {**NEW, "d": decimal.Decimal("1." + 50 * "0")}, False),
    (MODE_UPDATE, 1, {**NEW, "d": decimal.Decimal("sNaN")}, False),
    (MODE_UPDATE, 1, {**NEW, "d": 1.5}, False),
    (MODE_UPDATE, 1, {**NEW, "w": 10**36}, False),
    (MODE_UPDATE, 1, {**NEW, "e": "no such"}, False),
    (MODE_UPDATE, 1, {**NEW, "e": "\ud800"}, False),
    (MODE_UPDATE, 1, {**NEW, "s": 1e39}, False),
    (MODE_UPDATE, 1, {**NEW, "day": MOMENT}, False),
    (MODE_UPDATE, 1, {**NEW, "time": MOMENT.replace(tzinfo=datetime.UTC).timetz()}, False),
    (MODE_UPDATE, 1, {**NEW, "at": MOMENT.replace(tzinfo=datetime.UTC)}, False),
    (MODE_UPDATE, 1, {**NEW, "when": MOMENT}, False),
    (MODE_UPDATE, 1, {**NEW, "large": 2**64}, False),
    (MODE_UPDATE, 1, {**NEW, "large": -(2**70)}, False),
    (MODE_UPDATE, 1, {**NEW, "ok": None}, False),
    (MODE_WRITE, ROW, None, True),
    (MODE_WRITE, NAMED, None, True),
    (MODE_INSERT, ROW, None, False),
    (MODE_INSERT, ROW[1:], None, False),
    (MODE_INSERT, (*ROW[:-2], "\ud800", b"v"), None, False),
    (MODE_INSERT, (2, *ROW[1:]), None, False),  # the unique index has its key
    (MODE_INSERT, {**NAMED, "u": None}, None, False),
    (MODE_DELETE, 2, None, False),
    (MODE_DELETE, None, None, False),
]
BY_INDEX: list[tuple[int, Any, Any, Any, bool]] = [
    (MODE_UPDATE, b"u", NEW, "u", True),
    (MODE_UPDATE, b"u", {"u": b"u", "text": "y"}, "u", True),
    (MODE_UPDATE, b"u", {"u": b"other"}, "u", False),
    (MODE_UPDATE, b"none", NEW, "u", False),
    (MODE_UPDATE, b"longer than nine", NEW, "u", False),
    (MODE_UPDATE, "u", NEW, "u", False),
    (MODE_UPDATE, b"u", NEW, "by_n", False),
    (MODE_UPDATE, b"u", NEW, [], False),
    (MODE_DELETE, b"none", None, "u", False),
    (MODE_DELETE, (b"u", b"u"), None, "u", False),
]


@pytest.mark.parametrize(
    ("mode", "what", "changes", "index", "is_made"), [*((*each[:3], None, each[3]) for each in OWN_KEY), *BY_INDEX]
)
def test_changes(changed: Any, mode: int, what: Any, changes: Any, index: Any, is_made: bool) -> None:
    table = changed["c"]
    plan_of(table.table)
    objects = [what, index, *(changes if isinstance(changes, dict) else [changes])]
    objects += [*(changes.values() if isinstance(changes, dict) else []), None, ..., True, False, 0, 1]
    objects += what if isinstance(what, tuple) else [*what, *what.values()] if isinstance(what, dict) else []
    make = CommittedChanges(changed.parts.store.resources).make
    assert make(table.table, mode, what, changes, index) == is_made
    free_the_log(changed)
    assert_flat(lambda: make(table.table, mode, what, changes, index), *objects)
    with changed.transaction() as txn:
        assert change(txn, "c", mode, what, changes, index) == is_made
        if not is_made:
            assert_flat(lambda: change(txn, "c", mode, what, changes, index), *objects)
        txn.rollback()


@pytest.mark.parametrize(
    ("mode", "what", "changes", "where", "status"),
    [
        (MODE_UPDATE, 1, {"n": tm.col("n") * 1 + 0, "ok": False}, None, DONE),
        (MODE_UPDATE, 1, {"f": tm.col("f") + 0.5, "code": "xyz"}, tm.col("n") >= 0, DONE),
        (MODE_UPDATE, 1, NEW, tm.col("u") == b"u", DONE),
        (MODE_UPDATE, 1, NEW, tm.col("text") == "x", REFUSED),
        (MODE_UPDATE, 1, {**NEW, "n": 2**64}, tm.col("n") >= 0, LEFT),
        (MODE_UPDATE, 2, NEW, tm.col("n") >= 0, LEFT),
        (MODE_UPDATE, 1, {"n": tm.col("n") + 2**31}, None, LEFT),
        (MODE_UPDATE, 1, {"n": tm.col("no such") + 1}, None, LEFT),
        (MODE_UPDATE, 1, {"u": tm.col("n") + 1}, None, LEFT),
        (MODE_DELETE, 1, None, tm.col("n") < 0, REFUSED),
        (MODE_DELETE, 2, None, tm.col("n") < 0, LEFT),
    ],
)
def test_changes_by_programs(changed: Any, mode: int, what: Any, changes: Any, where: Any, status: int) -> None:
    table = changed["c"]
    plan_of(table.table)
    values = list(changes.values()) if isinstance(changes, dict) else []
    objects = [what, changes, where, *values, None, ..., True, False, 0, 1]
    judge = CommittedChanges(changed.parts.store.resources).make_if
    assert judge(table.table, mode, what, changes, where) == status
    free_the_log(changed)
    if status != LEFT:  # errors of the compiler keep frames
        assert_flat(lambda: judge(table.table, mode, what, changes, where), *objects)
    with changed.transaction() as txn:
        assert change_if(txn, "c", mode, what, changes, where) == status
        txn.rollback()


def test_rows_that_come_and_go(changed: Any) -> None:
    table = changed["c"]
    plan_of(table.table)
    row = (7, *ROW[1:-2], "short", b"seven")

    def come_and_go() -> None:
        assert CommittedChanges(changed.parts.store.resources).make(table.table, MODE_INSERT, row)
        assert CommittedChanges(changed.parts.store.resources).make(table.table, MODE_DELETE, 7)

    free_the_log(changed)
    assert_flat(come_and_go, *row, None, ...)


@pytest.mark.parametrize(
    ("key", "index"), [*((key, None) for key in (1, 2, "1", None)), *((key, "u") for key in (b"u", b"none", "u", None))]
)
def test_locked_rows(changed: Any, key: Any, index: str | None) -> None:
    plan = plan_of(changed["c"].table)
    with changed.transaction() as txn:
        assert_flat(lambda: locked(txn, "c", key, index), key, *singles(plan))
