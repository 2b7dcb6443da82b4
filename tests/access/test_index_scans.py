"""Scans by an index, with every option of a scan, against the sorted rows of a dict."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import tidemark as tm
from tests.store.support import open_memory
from tidemark.engine.queries import index_choice as choice

NAME = "test.t"
COLUMNS = [
    tm.Column("id", tm.Int64),
    tm.Column("owner", tm.VarChar(30), nullable=True),
    tm.Column("n", tm.Int32, nullable=True),
    tm.Column("flag", tm.Int8),
    tm.Column("x", tm.Float64),
]
PAYLOAD = [tm.Column("note", tm.VarChar(40), nullable=True), tm.Column("cold", tm.VarBinary(900), nullable=True)]
INDEXES = {"by_owner": ("owner", "n"), "by_n": ("n", "id"), "by_flag": ("flag", "n"), "by_x": ("x",)}
NAMES = [column.name for column in [*COLUMNS, *PAYLOAD]]
Row = tuple[Any, ...]
Test = Callable[[Row], bool]


def order(value: Any) -> tuple[Any, ...]:
    if value is None:
        return (0,)
    return (1, value.encode()) if isinstance(value, str) else (1, value)


class Stage:
    """A table on one of the storages, and `rows`, its content as the open transaction sees it."""

    def __init__(self, seed: int, storage: str) -> None:
        print("seed", seed)
        self.r = random.Random(seed)
        self.db = open_memory(page_buffer="1 MiB", data_memory="32 MiB")
        payload = PAYLOAD
        if storage == "disk":
            self.db.create_tablespace("main", size="1 MiB", page_size="4 KiB", extent="64 KiB")
            payload = [tm.Column(each.name, each.type, each.nullable, storage="disk") for each in PAYLOAD]
        partition = tm.RangePartition("id", [("low", 150), ("middle", 400), ("high", tm.MAXVALUE)])
        self.table = self.db.create_table(NAME, [*COLUMNS, *payload], "id", partition=partition)
        self.rows = {key: self.row(key) for key in range(600)}
        self.table.insert_many(list(self.rows.values()))
        for name, names in INDEXES.items():
            self.db.create_index(NAME, name, names)

    def value(self, name: str) -> Any:
        r = self.r
        if name == "owner":
            return r.choice([None, "", "ann", "anna", "an", "bob", "ä", "a\0b"])
        if name == "n":
            return r.choice([None, *range(-4, 9), 2**31 - 1, -(2**31)])
        if name == "flag":
            return r.randint(-2, 2)
        if name == "x":
            return r.choice([0.0, -1.5, 2.25, float("inf"), 7.0])
        return r.choice([None, "n" * r.randint(0, 40)] if name == "note" else [None, b"c" * r.randint(0, 900)])

    def row(self, key: int) -> Row:
        return (key, *[self.value(name) for name in NAMES[1:]])

    def change(self, txn: Any) -> None:
        for _ in range(self.r.randint(1, 60)):
            key = self.r.randrange(700)
            if key in self.rows and self.r.random() < 0.3:
                txn.delete(NAME, key)
                del self.rows[key]
            elif key in self.rows and self.r.random() < 0.6:
                name = self.r.choice(NAMES[1:])
                value = self.value(name)
                txn.update(NAME, key, {name: value})
                self.rows[key] = tuple(
                    value if each == name else old for each, old in zip(NAMES, self.rows[key], strict=True)
                )
            else:
                self.rows[key] = self.row(key)
                txn.write(NAME, self.rows[key])

    # --- questions ------------------------------------------------------------------------------
    def leaf(self) -> tuple[Any, Test]:
        r = self.r
        name = r.choice(["id", "owner", "n", "flag", "x", "n", "owner", "note"])
        at, column, value, other = NAMES.index(name), tm.col(name), self.value(name), self.value(name)
        if name == "id":
            value, other = r.randint(0, 700), r.randint(0, 700)
        shape = r.randint(0, 6)
        if shape == 0 and name not in ("id", "flag", "x"):
            return column.is_null(), lambda row: row[at] is None
        if shape == 1 and isinstance(value, str):
            return column.like(value[:2] + "%"), lambda row: row[at] is not None and row[at].startswith(value[:2])
        if value is None or other is None:
            return column.is_not_null(), lambda row: row[at] is not None
        if shape in (2, 3):
            return column == value, lambda row: row[at] == value
        if shape == 4:
            return column.isin([value, other]), lambda row: row[at] in (value, other)
        if shape == 5:
            return column > value, lambda row: row[at] is not None and order(row[at]) > order(value)
        return column.between(
            value, other
        ), lambda row: row[at] is not None and order(value) <= order(row[at]) <= order(other)

    def condition(self) -> tuple[Any, Test]:
        one, first = self.leaf()
        draw = self.r.random()
        if draw < 0.35:
            return one, first
        other, second = self.leaf()
        if draw < 0.9:
            return one & other, lambda row: first(row) and second(row)
        return one | other, lambda row: first(row) or second(row)

    def range(self, name: str) -> tuple[dict[str, Any], Test]:
        """Bounds of an index, and the keys they accept."""
        places = [NAMES.index(each) for each in INDEXES[name]]
        draw = self.r.random()
        if draw < 0.2:
            return {}, lambda row: True
        values = [self.r.randint(0, 700) if each == "id" else self.value(each) for each in INDEXES[name]]
        if draw < 0.3 and isinstance(values[0], str):
            start = values[0]
            return {"prefix": start}, lambda row: row[places[0]] is not None and row[places[0]].startswith(start)
        few = values[: self.r.randint(1, len(values))]

        def key(row: Row, count: int) -> list[Any]:
            return [order(row[place]) for place in places[:count]]

        low = [order(value) for value in few]
        if draw < 0.5:
            return {"prefix": tuple(few)}, lambda row: key(row, len(few)) == low
        more = [self.r.randint(0, 700) if each == "id" else self.value(each) for each in INDEXES[name]][: len(few)]
        high = [order(value) for value in more]
        if draw < 0.7:
            return {"lower": tuple(few)}, lambda row: key(row, len(few)) >= low
        return (
            {"lower": tuple(few), "upper": tuple(more)},
            lambda row: low <= key(row, len(few)) < high,
        )

    def ask(self, txn: Any) -> None:
        r = self.r
        by, test = {}, lambda row: True
        name = r.choice([None, *INDEXES])
        if name is not None:
            by, test = self.range(name)
            by |= {"index": name, "reverse": r.random() < 0.5}
        where, accepts = self.condition() if r.random() < 0.7 or name is None else (None, lambda row: True)
        partitions = r.choice([None, None, ["low"], ["middle", "high"], []])
        spans = {"low": range(150), "middle": range(150, 400), "high": range(400, 10_000)}
        wanted = [
            row
            for row in self.rows.values()
            if test(row) and accepts(row) and (partitions is None or any(row[0] in spans[each] for each in partitions))
        ]
        options = {**by, "where": where, "partitions": partitions}
        call: Any = self.table.scan if txn is None else lambda *more, **given: txn.scan(NAME, *more, **given)
        names = r.choice([NAMES, ["id"], ["n", "id"], [*(INDEXES[name] if name else ()), "flag"], NAMES[:5]])
        names = list(dict.fromkeys(names))
        self.compare(call, name, names, wanted, options)
        self.compare_sums(call, wanted, options)

    def compare(
        self, call: Any, name: str | None, names: list[str], wanted: list[Row], options: dict[str, Any]
    ) -> None:
        r = self.r
        places = [NAMES.index(each) for each in names]
        limit = r.choice([None, None, r.randint(0, len(wanted) + 1)])
        shape = r.randint(0, 3)
        if shape == 0:
            found = [tuple(row.values()) for row in call(names, limit, **options).to_arrow().to_pylist()]
        else:
            found = [tuple(row) for row in call(names, limit, **options)]
        if limit is None:
            assert sorted(map(repr, found)) == sorted(repr(tuple(row[at] for at in places)) for row in wanted), options
        assert len(found) == min(len(wanted), len(wanted) if limit is None else limit), options
        if name is not None and set(INDEXES[name]) <= set(names):
            at = [names.index(each) for each in INDEXES[name]]
            keys = [[order(row[NAMES.index(each)]) for each in INDEXES[name]] for row in wanted]
            keys.sort(reverse=options["reverse"])
            assert [[order(row[each]) for each in at] for row in found] == keys[:limit], options

    def compare_sums(self, call: Any, wanted: list[Row], options: dict[str, Any]) -> None:
        numbers = [row[2] for row in wanted if row[2] is not None]
        found = call(**options).aggregate(
            rows=("count",), n=("sum", "n"), least=("min", "n"), some=("count", "note"), ids=("sum", "id")
        )
        assert tuple(found) == (
            len(wanted),
            sum(numbers) if numbers else None,
            min(numbers, default=None),
            sum(row[5] is not None for row in wanted),
            sum(row[0] for row in wanted) if wanted else None,
        ), options
        assert call(**options).count() == len(wanted)

    def ask_locked(self, txn: Any) -> None:
        name = self.r.choice([None, *INDEXES])
        by, test = ({}, lambda row: True) if name is None else self.range(name)
        where, accepts = self.condition()
        wanted = [row for row in self.rows.values() if test(row) and accepts(row)]
        found = [tuple(row) for row in txn.scan(NAME, lock="exclusive", index=name, where=where, **by)]
        assert sorted(map(repr, found)) == sorted(map(repr, wanted)), by
        limit = self.r.randint(0, 9)
        some = list(txn.scan(NAME, ["id"], limit, "shared", index=name, where=where, **by))
        assert len(some) == min(limit, len(wanted)), by


@pytest.fixture(params=["memory", "disk"])
def kept(request: Any) -> Iterator[str]:
    yield request.param


@pytest.mark.parametrize("is_forced", [True, False], ids=["chosen", "estimated"])
@pytest.mark.parametrize("seed", range(3))
def test_index_scans_with_all_there_is_are_what_the_rows_say(
    kept: str, seed: int, is_forced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_forced:  # any index that a condition bounds is taken, however small the table
        monkeypatch.setattr(choice, "RANGE_COST", 0)
        monkeypatch.setattr(choice, "INDEXED_ROW_COST", 0)
        monkeypatch.setattr(choice, "ONLY_ROW_COST", 0)
        monkeypatch.setattr(choice, "DISK_ROW_COST", 0)
    stage = Stage(seed, kept)
    for _ in range(25):
        stage.ask(None)
    for _ in range(4):
        before = dict(stage.rows)
        is_kept = stage.r.random() < 0.5
        with contextlib.suppress(ZeroDivisionError), stage.db.transaction() as txn:
            stage.ask(txn)
            for _ in range(3):
                stage.change(txn)
                with contextlib.suppress(ZeroDivisionError), txn.savepoint():
                    inner = dict(stage.rows)
                    stage.change(txn)
                    stage.ask(txn)
                    stage.rows = inner
                    raise ZeroDivisionError
                for _ in range(4):
                    stage.ask(txn)
                stage.ask_locked(txn)
            if not is_kept:
                raise ZeroDivisionError
        if not is_kept:
            stage.rows = before
        for _ in range(4):
            stage.ask(None)
    assert stage.db.check()["problems"] == []
    stage.db.close()
