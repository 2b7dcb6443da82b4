"""Aggregates by group: over rows of all types, as plain Python finds them."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from decimal import Context, Decimal
from typing import Any

import pytest

import tidemark as tm
from tests.access.queries import COLUMNS, KIND, row_of
from tests.seeds import fresh_seeds
from tests.storage import memory_only
from tidemark.engine.base import limits
from tidemark.engine.programs import group_memory
from tidemark.engine.types import Enum

pytestmark = pytest.mark.usefixtures("storage")

NAMES = list(KIND)
DIVISION = Context(prec=38)
EXACT = Context(prec=80)
FUNCTIONS = ("count", "sum", "min", "max", "mean")


# --- in plain Python ------------------------------------------------------------------------------
def key_of(value: Any) -> Any:
    """A value that is equal for values of one group, and sorts as the store does."""
    if value is None:
        return (0,)
    if isinstance(value, float):
        return (1, value != value, 0.0 if value != value else value + 0.0)
    return (1, value.encode() if isinstance(value, str) else value)


def computed(function: str, values: list[Any]) -> Any:
    """An aggregate of the values that are not NULL."""
    if function == "count":
        return len(values)
    if not values:
        return None
    if function in ("min", "max"):
        found = sorted(values, key=key_of)
        return found[0] if function == "min" else found[-1]
    if isinstance(values[0], float):
        total: Any = math.fsum(values) if all(map(math.isfinite, values)) else sum(values)
    elif isinstance(values[0], Decimal):
        total = values[0]
        for each in values[1:]:
            total = EXACT.add(total, each)
    else:
        total = sum(values)
    if function == "sum":
        return total
    return DIVISION.divide(total, len(values)) if isinstance(total, Decimal) else total / len(values)


def grouped(rows: Sequence[Sequence[Any]], by: list[str], functions: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Groups, sorted by their keys."""
    places = [NAMES.index(name) for name in by]
    groups: dict[Any, list[Sequence[Any]]] = {}
    for row in rows:
        groups.setdefault(tuple(key_of(row[place]) for place in places), []).append(row)
    found = []
    for key in sorted(groups):
        some = groups[key]
        results = []
        for given in functions.values():
            values = [1] * len(some) if len(given) == 1 else [row[NAMES.index(given[1])] for row in some]
            results.append(computed(given[0], [each for each in values if each is not None]))
        found.append((*(some[0][place] for place in places), *results))
    return found


def alike(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return (one != one and other != other) or math.isclose(one, other, rel_tol=1e-9) or one == other
    return type(one) is type(other) and one == other


def same(found: list[Any], wanted: list[tuple[Any, ...]]) -> None:
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        assert len(one) == len(other)
        assert all(map(alike, one, other)), (one, other)


def query_of(r: random.Random) -> tuple[list[str], dict[str, Any]]:
    """Columns to group by, and aggregates that their columns have."""
    by = r.sample(NAMES[1:], r.choice([1, 1, 2, 3]))
    functions: dict[str, Any] = {"n": ("count",)} if r.random() < 0.5 else {}
    for number in range(r.randint(0, 4)):
        name, function = r.choice(NAMES), r.choice(FUNCTIONS)
        kind = KIND[name]
        if function in ("sum", "mean") and not isinstance(kind, (tm.Decimal, *map(type, (tm.Int8, tm.Float64)))):
            continue
        if isinstance(kind, Enum) and function != "count":
            continue
        functions[f"a{number}"] = (function, name)
    return by, functions


def rows_for(r: random.Random, keys: Any) -> dict[int, tuple[Any, ...]]:
    """Rows with few different values, NaN and both zeros among them."""
    some = [row_of(r, 0) for _ in range(6)]
    found = {}
    for key in keys:
        row = [key, *(r.choice(some)[place] for place in range(1, len(NAMES)))]
        row[NAMES.index("f64")] = r.choice([0.0, -0.0, float("nan"), 1.5, None, 1e300])
        row[NAMES.index("f32")] = r.choice([0.0, -0.0, float("nan"), 0.5, None])
        found[key] = tuple(row)
    return found


PARTITIONS = [None, tm.HashPartition(3), tm.RangePartition(["id"], [("low", 150), ("high", tm.MAXVALUE)])]


@pytest.mark.parametrize("seed", [1, 2, 3, *fresh_seeds(1)])
def test_groups_of_random_rows_equal_those_of_plain_python_on_handles_in_transactions_and_in_snapshots(
    db: tm.Database, seed: int
) -> None:
    print("seed", seed)
    r = random.Random(seed)
    table = db.create_table("t", COLUMNS, "id", partition=PARTITIONS[seed % 3])
    if not table.definition.columns[3].is_disk:
        db.create_index("t", "by_u8", ["u8", "i16"])
    model = rows_for(r, range(400))
    table.insert_many(list(model.values()))
    for _ in range(4):
        with db.snapshot() as snapshot:
            before = dict(model)
            changed = rows_for(r, r.sample(range(500), 60))
            with db.transaction() as txn:
                own = dict(model)
                for key, row in changed.items():
                    if key in own and r.random() < 0.2:
                        txn.delete("t", key)
                        del own[key]
                    else:
                        txn.write("t", row)
                        own[key] = row
                for _ in range(5):
                    by, functions = query_of(r)
                    border = r.choice([None, 0, 3, 200])
                    where = None if border is None else tm.col("u8") >= border
                    rows = [
                        [row for row in each.values() if border is None or row[5] >= border] for each in (own, before)
                    ]
                    same(txn.aggregate("t", where, by=by, **functions), grouped(rows[0], by, functions))
                    same(table.aggregate(where, by=by, **functions), grouped(rows[1], by, functions))
            model = own
            for _ in range(5):
                by, functions = query_of(r)
                same(snapshot["t"].aggregate(by=by, **functions), grouped(list(before.values()), by, functions))
                same(table.aggregate(by=by, **functions), grouped(list(model.values()), by, functions))
                turn, limit = r.random() < 0.5, r.choice([0, 1, 3])
                wanted = grouped(list(model.values()), by, functions)[:: -1 if turn else 1]
                same(table.aggregate(by=by, order=by, reverse=turn, limit=limit, **functions), wanted[:limit])
                few = [row for row in model.values() if row[5] == 255]
                found = table.aggregate(tm.col("u8") == 255, by=by, **functions)
                same(found, grouped(few, by, functions))
    if seed % 3 == 2:
        by, functions = query_of(r)
        low = [row for row in model.values() if row[0] < 150]
        same(table.scan(partitions="low").aggregate(by=by, **functions), grouped(low, by, functions))


def test_every_type_is_a_key_and_is_returned_as_rows_have_it(db: tm.Database) -> None:
    r = random.Random(9)
    table = db.create_table("t", COLUMNS, "id")
    model = {key: row_of(r, key) for key in range(200)}
    table.insert_many(list(model.values()))
    for name in NAMES:
        found = table.aggregate(by=name, n=("count",), some=("count", name))
        same(found, grouped(list(model.values()), [name], {"n": ("count",), "some": ("count", name)}))
        if KIND[name] not in (tm.Float32, tm.Float64):
            values = {row[0] for row in table.scan([name])}
            assert {row[0] for row in found} == values and {type(row[0]) for row in found} == set(map(type, values))


def test_least_and_greatest_of_every_type_that_has_an_order(db: tm.Database) -> None:
    r = random.Random(4)
    table = db.create_table("t", [*COLUMNS, tm.Column("e", tm.Enum("b", "a"))], "id")
    rows = [row_of(r, key) for key in range(60)]
    table.insert_many([(*row, "a") for row in rows])
    for name in NAMES:
        values = [row[NAMES.index(name)] for row in rows if row[NAMES.index(name)] is not None]
        found = table.aggregate(low=("min", name), high=("max", name), n=("count",))
        assert tuple(found) == (computed("min", values), computed("max", values), 60)
        assert table.scan().min(name) == found.low and table.scan().max(name) == found.high
        assert table.aggregate(tm.col("id") < 0, low=("min", name)).low is None
    for function in ("min", "max", "sum", "mean"):
        with pytest.raises(tm.ProgramInvalid):
            table.aggregate(bad=(function, "e"))
    for name in ("day", "name", "octets", "flag"):
        with pytest.raises(tm.ProgramInvalid):
            table.aggregate(bad=("sum", name))


# --- order and limit, names, errors -----------------------------------------------------------------
def plain(db: tm.Database) -> tm.TableHandle:
    columns = [tm.Column("id", tm.Int64), tm.Column("s", tm.VarChar(9), nullable=True), tm.Column("n", tm.Int32)]
    table = db.create_table("p", columns, "id")
    table.insert_many([(1, "b", 5), (2, None, 5), (3, "a", 9), (4, "b", 4), (5, "c", 0)])
    return table


def test_order_reverse_and_limit_choose_the_groups(db: tm.Database) -> None:
    table = plain(db)

    def keys(**options: Any) -> list[Any]:
        return [row.s for row in table.aggregate(by="s", total=("sum", "n"), **options)]

    assert keys() == [None, "a", "b", "c"]
    assert keys(reverse=True) == ["c", "b", "a", None]
    assert keys(order="total") == ["c", None, "a", "b"]
    assert keys(order=["total"], reverse=[True], limit=3) == ["a", "b", None]
    assert keys(order=["total", "s"], reverse=[True, True]) == ["b", "a", None, "c"]
    assert keys(limit=0) == [] and keys(limit=9) == [None, "a", "b", "c"]
    found = table.aggregate(by=["n", "s"], order="n", reverse=True)
    assert [tuple(row) for row in found] == [(9, "a"), (5, None), (5, "b"), (4, "b"), (0, "c")]
    assert found[0]._fields == ("n", "s")


def test_expressions_are_keys_with_a_name(db: tm.Database) -> None:
    table = plain(db)
    found = table.aggregate(by={"half": tm.col("id") // 2, "s": "s"}, n=("count",), where=tm.col("id") > 1)
    assert list(map(tuple, found)) == [(1, None, 1), (1, "a", 1), (2, "b", 1), (2, "c", 1)]
    found = table.aggregate(by={"r": tm.col("n") / 0}, n=("count",))
    assert list(map(tuple, found)) == [(None, 5)]
    assert table.aggregate(by={"s": tm.col("s")}, limit=1) == [(None,)]


def test_no_row_is_no_group_and_a_limit_of_the_scan_counts_rows(db: tm.Database) -> None:
    table = plain(db)
    assert table.aggregate(tm.col("id") > 99, by="s", n=("count",)) == []
    assert sum(row.n for row in table.scan(limit=3).aggregate(by="s", n=("count",))) == 3


WRONG = [
    ({"by": []}, tm.SchemaInvalid, "by is empty"),
    ({"by": ["s", "s"]}, tm.SchemaInvalid, "different names"),
    ({"by": [tm.col("s")]}, tm.SchemaInvalid, "give expressions as a dict"),
    ({"by": {"x": 5}}, tm.SchemaInvalid, "name of a column or an expression"),
    ({"by": 5}, tm.SchemaInvalid, "by must be a name"),
    ({"by": {f"k{n}": "s" for n in range(33)}}, tm.SchemaInvalid, "33 columns; 32 are possible"),
    ({"by": "nothing"}, tm.NoSuchColumn, "nothing"),
    ({"by": "s", "s": ("count",)}, tm.SchemaInvalid, "different names, got s, s"),
    ({"by": "s", "order": "n"}, tm.SchemaInvalid, "there is no result str 'n'; the results are s"),
    ({"by": "s", "order": ["s", "s"]}, tm.SchemaInvalid, "names a result twice"),
    ({"by": "s", "reverse": [True, False]}, tm.SchemaInvalid, "reverse must be a bool, or 1 of them"),
    ({"by": "s", "reverse": 1}, tm.SchemaInvalid, "reverse must be a bool"),
    ({"by": "s", "limit": -1}, tm.SchemaInvalid, "limit must be a number of groups"),
    ({"by": "s", "limit": True}, tm.SchemaInvalid, "limit must be a number of groups"),
    ({"order": "s"}, tm.SchemaInvalid, "say by what they are made"),
    ({"limit": 5, "n": ("count",)}, tm.SchemaInvalid, "say by what they are made"),
    ({"by": "s", "x": ("sum", "s")}, tm.ProgramInvalid, "not a number"),
    ({"by": "s", "x": ("median", "n")}, tm.ProgramInvalid, "median"),
    ({"by": "s", "x": "n"}, tm.SchemaInvalid, "an aggregate is"),
    ({"by": {"x": tm.col("n") > 5}}, tm.ProgramInvalid, "where a number is needed"),
]


@pytest.mark.parametrize(("options", "error", "message"), WRONG)
def test_wrong_arguments_are_refused(db: tm.Database, options: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        plain(db).aggregate(**options)


@memory_only
def test_memory_that_the_system_refuses_ends_the_call_alone(db: tm.Database, monkeypatch: pytest.MonkeyPatch) -> None:
    table = db.create_table("t", [tm.Column("id", tm.Int64)], "id")
    table.insert_many([(key,) for key in range(9_000)])

    def refuse(*given: Any) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(group_memory, "grow_groups", refuse)
        for source in (table, table.scan()):
            with pytest.raises(tm.MemoryExhausted):
                source.aggregate(by="id")
    assert len(table.aggregate(by="id")) == 9_000


@memory_only
def test_more_groups_than_fit_are_refused_and_the_store_goes_on(
    db: tm.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = db.create_table("t", [tm.Column("id", tm.Int64)], "id")
    table.insert_many([(key,) for key in range(60_000)])
    monkeypatch.setattr(limits, "GROUPS_BYTES_MAX", 2 << 20)
    with pytest.raises(tm.LimitExceeded, match=r"main\.t: \d+ groups and their keys take all of 2 MiB") as caught:
        table.aggregate(by="id", n=("count",))
    assert 10_000 < int(str(caught.value.groups)) < 60_000
    with db.transaction() as txn:
        with pytest.raises(tm.LimitExceeded):
            txn.aggregate("t", by="id", n=("count",))
        txn.insert("t", (-1,))
    assert len(table.aggregate(by={"k": tm.col("id") // 10}, n=("count",), where=tm.col("id") < 1_000)) == 101


def test_a_scan_with_a_lock_has_no_groups(db: tm.Database) -> None:
    plain(db)
    with db.transaction() as txn, pytest.raises(tm.SchemaInvalid, match="cannot lock its rows"):
        txn.scan("p", lock="exclusive").aggregate(by="s")


def test_an_error_in_a_row_names_it(db: tm.Database) -> None:
    table = plain(db)
    with pytest.raises(tm.ValueOutOfRange, match="key 3"):
        table.aggregate(by="s", x=("sum", (tm.col("n") - 8) * 2**62 * 8), where=tm.col("id") == 3)


# --- rows where they lie --------------------------------------------------------------------------------
@memory_only
def test_var_parts_of_several_chunks_and_of_added_columns_are_read(db: tm.Database) -> None:
    columns = [tm.Column("id", tm.Int64), tm.Column("s", tm.VarChar(20), nullable=True), tm.Column("long", tm.Text)]
    table = db.create_table("t", columns, "id")
    rows = [(key, None if key % 5 == 0 else f"s{key % 3}", "x" * (100_000 if key % 4 == 0 else 3)) for key in range(60)]
    table.insert_many(rows)
    expected: dict[Any, list[Any]] = {}
    for _, s, long in rows:
        expected.setdefault(s, []).append(long)
    with db.transaction() as txn:
        for source in (table.aggregate, lambda *given, **named: txn.aggregate("t", *given, **named)):
            found = source(by="s", n=("count",), long=("max", "long"))
            assert {row.s: (row.n, row.long) for row in found} == {s: (len(v), max(v)) for s, v in expected.items()}
            assert {row.s: row.n for row in source(by="s", n=("count",))} == {s: len(v) for s, v in expected.items()}
            assert source(tm.col("s") == "s1", n=("count",), s=("min", "s")) == (len(expected["s1"]), "s1")
            lengths = source(by="long", n=("count",))
            assert [(len(row.long), row.n) for row in lengths] == [(3, 45), (100_000, 15)]
        txn.update("t", 1, {"long": "y" * 90_000})
        assert txn.aggregate("t", by="s", long=("max", "long"))[2].long == "y" * 90_000
        txn.update("t", 2, {"s": "own"})
        txn.insert("t", (99, "own", "z" * 50_000))
        assert txn.aggregate("t", by="s", n=("count",))[1] == ("own", 2)
        assert [row.id for row in txn.scan("t", ["id"], where=tm.col("s") == "own")] == [2, 99]
        txn.rollback()
    flat = db.create_table("f", [tm.Column("id", tm.Int64)], "id")
    flat.insert_many([(key,) for key in range(40)])
    db.add_column("f", tm.Column("tag", tm.VarChar(9), default="none"))
    db.add_column("f", tm.Column("d", tm.Decimal(9, 2), nullable=True))
    flat.update_where({"tag": "odd", "d": Decimal("1.25")}, tm.col("id") % 2 == 1)
    assert flat.aggregate(by=["tag", "d"], n=("count",)) == [("none", None, 20), ("odd", Decimal("1.25"), 20)]
    assert flat.scan(where=tm.col("tag") == "odd").aggregate(low=("min", "tag"), n=("count",)) == ("odd", 20)
    db.drop_column("f", "tag")
    assert flat.aggregate(by="d", total=("sum", "d")) == [(None, None), (Decimal("1.25"), Decimal("25.00"))]


@memory_only
def test_groups_by_an_index_chosen_or_named_equal_those_of_a_full_scan(db: tm.Database) -> None:
    columns = [tm.Column("id", tm.Int64), tm.Column("a", tm.Int32), tm.Column("c", tm.Char(3)), tm.Column("x", tm.Int8)]
    table = db.create_table("t", columns, "id")
    table.insert_many([(key, key % 50, f"c{key % 9}", key % 5) for key in range(4_000)])
    query: dict[str, Any] = {"by": ["c"], "n": ("count",), "low": ("min", "c"), "total": ("sum", "id")}
    wheres = [tm.col("a") == 3, tm.col("a").between(10, 12), tm.col("id").isin([5, 9, 13])]
    before = [table.aggregate(where, **query) for where in wheres]
    db.create_index("t", "by_a", ["a", "c"])
    assert [table.explain(where=where)["access"] for where in wheres] == ["index", "index", "primary key"]
    assert [table.aggregate(where, **query) for where in wheres] == before
    named = table.scan(index="by_a", lower=10, upper=13)
    assert named.aggregate(**query) == before[1]
    alone = table.scan(index="by_a", lower=10, upper=13).aggregate(by="c", n=("count",), a=("sum", "a"))
    assert [(row.c, row.n) for row in alone] == [(row.c, row.n) for row in before[1]]
    with db.transaction() as txn:
        txn.update("t", 3, {"c": "zz"})
        assert txn.aggregate("t", tm.col("a") == 3, **query)[-1] == ("zz", 1, "zz", 3)
        txn.rollback()
    found = table.scan(index="by_a", limit=100).aggregate(by="a", n=("count",))
    assert [tuple(row) for row in found] == [(0, 80), (1, 20)]
