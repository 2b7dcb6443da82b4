"""Values of columns: kernels take what fits exactly, and store and show what the general path does."""

from __future__ import annotations

import datetime
import decimal
import random
from collections.abc import Iterator
from typing import Any

import pytest

import tidemark as tm
from tests.point.support import EVERY, PRECISE, World, edge, on_both_paths, value
from tests.seeds import fresh_seeds
from tests.shares import few
from tests.store.support import open_memory
from tidemark.engine import types as t
from tidemark.engine.memory.arena_layout import MODE_INSERT, MODE_UPDATE, MODE_WRITE
from tidemark.engine.point import plan as plans
from tidemark.engine.point.changes import CommittedChanges
from tidemark.engine.point.plan import plan_of

FORMS = [(1, 0), (1, 1), (9, 2), (18, 0), (18, 18), (19, 0), (19, 19), (20, 3), (37, 19), (38, 0), (38, 10), (38, 38)]
NAMED = "{0!r:.20}".format
COEFFICIENT_DIGITS = 38  # kernels leave longer ones


@pytest.fixture(scope="module")
def store() -> Iterator[Any]:
    db = open_memory(durability="epoch", redo_log="64 MiB", data_memory="32 MiB")
    yield db
    assert db.check()["problems"] == []
    db.close()


@pytest.fixture
def db(store: Any) -> Iterator[Any]:
    """A store without tables."""
    yield store
    store.drop_table("t")
    store.checkpoint()


def some_decimal(rng: random.Random, kind: Any) -> decimal.Decimal:
    """A Decimal that a column has, or nearly."""
    digits = rng.choice([kind.precision, kind.precision + 1, rng.randint(1, 45)])
    number = rng.choice([0, 1, 10**digits - 1, 10 ** (digits - 1), rng.randrange(10**digits)])
    number *= 10 ** rng.choice([0, 0, rng.randrange(40)])
    exponent = rng.choice([-kind.scale, -kind.scale, -kind.scale + rng.randint(-40, 40), 0])
    return decimal.Decimal((rng.randrange(2), tuple(map(int, str(number))), exponent))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("seed", [0, *fresh_seeds(1)])
def test_kernels_take_exactly_the_decimals_that_fit(db: Any, form: tuple[int, int], seed: int) -> None:
    print(f"seed {seed}")
    rng = random.Random(seed)
    kind = t.Decimal(*form)
    table = db.create_table("t", [tm.Column("id", kind), tm.Column("d", kind)], "id")
    make = CommittedChanges(db.parts.store.resources).make
    taken = 0
    for _ in range(few(500, 5_000)):
        given = some_decimal(rng, kind)
        try:
            wanted = kind.loaded(kind.stored(given))
        except tm.Rejected:
            wanted = None
        plan = plan_of(table.table)
        is_made = make(table.table, MODE_WRITE, (given, given))
        assert is_made == (wanted is not None and len(given.as_tuple().digits) <= COEFFICIENT_DIGITS), given
        if is_made:
            taken += 1
            found = plan.get(plan.mem, plan.words, given)
            assert found.d.as_tuple() == found.id.as_tuple() == wanted.as_tuple(), given
            assert hash(found.d) == hash(wanted) and repr(found.d) == repr(wanted)
            assert (found.d * 2).as_tuple() == (wanted * 2).as_tuple()
            on_general = on_both_paths(table.table.newest, lambda given=given: table.get(given))
            assert on_general[0] == on_general[1]
    assert taken > 20


def test_decimals_are_those_of_the_general_path_in_any_context(db: Any) -> None:
    table = db.create_table("t", [tm.Column("id", tm.Int64), tm.Column("d", t.Decimal(38, 10))], "id")
    number = PRECISE.create_decimal("-1234567890123456789012345678.9012345678")
    with decimal.localcontext(decimal.Context(prec=1, traps=[decimal.Inexact, decimal.Rounded])):
        table.insert((1, number))
        table.insert((2, decimal.Decimal("1.50")))
        for _ in range(2):
            assert table.get(1).d.as_tuple() == number.as_tuple()
            assert str(table.get(2).d) == "1.5000000000"


@pytest.mark.parametrize("kind", EVERY, ids=NAMED)
def test_kernels_make_rows_of_every_type(db: Any, kind: Any) -> None:
    """As a column of its own, as one of the key, and as one that was added later, in the var part."""
    rng = random.Random(7)
    key = kind if kind.keyable else t.Int64
    db.create_table("t", [tm.Column("k", key), tm.Column("c", kind, nullable=True)], "k")
    db.create_index("t", "u", "k", unique=True)
    db.add_column("t", tm.Column("late", kind, nullable=True))
    plan = plan_of(db["t"].table)
    make = CommittedChanges(db.parts.store.resources).make

    def loaded(given: Any) -> Any:
        return None if given is None else kind.loaded(kind.stored(given))

    for number in range(30):
        row = (value(rng, key), *(rng.choice([None, value(rng, kind)]) for _ in range(2)))
        if kind.is_lob and any(len(repr(each)) > 9_000 for each in row[1:]):
            continue
        is_made = make(db["t"].table, MODE_WRITE, row)
        if kind == t.JSON and not is_made:  # whose values kernels do not read
            db["t"].write(row)
        else:
            assert is_made, row
        found = plan.get(plan.mem, plan.words, row[0])
        wanted = (key.loaded(key.stored_key(row[0])), *map(loaded, row[1:]))
        assert repr(tuple(found)) == repr(tuple(plan.unique(row[0], "u"))) == repr(wanted)
        if not kind.is_var:
            assert make(db["t"].table, MODE_UPDATE, row[0], {"c": row[2]})
            assert repr(plan.get(plan.mem, plan.words, row[0])[1:]) == repr((wanted[2], wanted[2]))
        assert not make(db["t"].table, MODE_INSERT, row), number
    assert db.check()["problems"] == []


@pytest.mark.parametrize("kind", [each for each in EVERY if each.keyable], ids=NAMED)
def test_keys_of_every_type_are_read_alike(db: Any, kind: Any) -> None:
    rng = random.Random(repr(kind))
    table = db.create_table("t", [tm.Column("k", kind), tm.Column("u", kind, nullable=True)], "k")
    db.create_index("t", "u", "u", unique=True)
    for _ in range(20):
        each = value(rng, kind)
        try:
            table.insert((each, each))
        except tm.DuplicateKey:
            continue
    for _ in range(few(150, 2_000)):
        key = rng.choice([edge, edge, value])(rng, kind)
        for options in ({}, {"index": "u"}):
            quick, general = on_both_paths(
                table.table.newest, lambda key=key, options=options: table.get(key, **options)
            )
            assert quick == general, key


@pytest.mark.parametrize("kind", [t.VarChar(9), t.Binary(5), t.Decimal(30, 2), t.Date, t.Enum("a", "b")], ids=NAMED)
def test_a_type_that_kernels_do_not_know_is_left_to_the_general_path(
    db: Any, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Next to columns that they know, in a key, in an index and in conditions."""
    monkeypatch.setitem(kind.__dict__, "object_kind", "")
    rng = random.Random(repr(kind))
    columns = [tm.Column("k", kind), tm.Column("n", tm.Int64), tm.Column("u", kind, nullable=True)]
    table = db.create_table("t", columns, ["n", "k"])
    db.create_index("t", "by_u", "u", unique=True)
    db.create_index("t", "by_n", "n")
    one, other = (kind.loaded(kind.stored(each)) for each in (value(rng, kind), value(rng, kind)))
    plan = plan_of(table.table)
    assert plan.rows is None and plan.get(plan.mem, plan.words, (1, one)) is ...
    for _ in range(2):
        table.insert((one, 1, one))
        assert tuple(table.get((1, one))) == tuple(table.get(one, index="by_u")) == (one, 1, one)
        for where in (tm.col("u") == one, tm.col("n") == 1, (tm.col("k") == one) & (tm.col("n") == 1)):
            assert [tuple(row) for row in table.scan(where=where)] == [(one, 1, one)]
            assert [tuple(row) for row in table.scan(["n"], where=where)] == [(1,)]
            added = table.scan(["n", "u"], where=where).aggregate(c=("count", "u"), s=("sum", "n"))
            assert tuple(added) == (1, 1)
        assert table.update((1, one), {"u": other}, where=tm.col("u") == one)
        with db.transaction() as txn:
            txn.update("t", (1, one), {"u": None})
            assert tuple(txn.get("t", (1, one), "exclusive")) == (one, 1, None)
        table.delete((1, one))
    assert db.check()["problems"] == []


@pytest.mark.parametrize("kind", EVERY, ids=NAMED)
def test_programs_hold_values_that_are_loaded_again(kind: Any) -> None:
    rng = random.Random(repr(kind))
    for _ in range(20):
        stored = kind.stored(value(rng, kind))
        held, loaded = kind.operand(stored), kind.loaded(stored)
        assert repr(kind.of_operand(held)) == repr(loaded) and kind.python in (type(loaded), object)
        assert type(held) in (int, float, bytes) and not (kind.is_padded and held.endswith(b"\0"))
        assert repr(kind.equal_value(loaded)) == repr(loaded)


@pytest.mark.parametrize("seed", [*range(few(6, 60)), *fresh_seeds(few(3, 60))])
def test_rows_of_lists_are_those_of_the_general_path(db: Any, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    print(f"seed {seed}")
    world = World(db, random.Random(seed))
    world.change_columns()
    world.insert(db["t"], 20)
    quick = [repr(tuple(row)) for row in db["t"]]
    row_format = db["t"].table.newest.format
    row_format.plans.clear()
    monkeypatch.setattr(plans, "CLASSES", None)
    assert quick == [repr(tuple(row)) for row in db["t"]] and quick
    assert row_format.plans == {row_format.names: None}


def test_a_time_zone_of_another_class_is_left_to_the_general_path(db: Any) -> None:
    table = db.create_table("t", [tm.Column("id", tm.Int64), tm.Column("at", tm.Timestamp)], "id")
    moment = datetime.datetime(2020, 2, 29, 12, tzinfo=datetime.timezone(datetime.timedelta(hours=1)))
    for _ in range(2):
        table.write((1, moment))
        assert repr(table.get(1).at) == repr(moment.astimezone(datetime.UTC))
