"""A store whose table has indexes, and a dict that says what must be in it and in which order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

import tidemark as tm
from tests.engine.arena_check import check_arena
from tests.index.stage import order_of
from tests.store.random_work import RandomWork, Rows

NAME = "test.t"
INDEXES = {"by_owner": ("owner", "n"), "by_n": ("n",), "by_text": ("long",), "by_flag": ("flag", "id")}
KEYS = 200


def columns(on_disk: bool) -> list[tm.Column]:
    made = [
        tm.Column("id", tm.Int64),
        tm.Column("owner", tm.VarChar(30), nullable=True),
        tm.Column("n", tm.Int32, nullable=True),
        tm.Column("flag", tm.Int8),
        tm.Column("long", tm.VarChar(600)),
        tm.Column("note", tm.Text, nullable=True),
    ]
    if on_disk:
        made.append(tm.Column("cold", tm.VarBinary(1_500), storage="disk"))
        made.append(tm.Column("chained", tm.Blob, nullable=True, storage="disk"))
    return made


class Indexed(RandomWork):
    """Random work on a table with ordered indexes."""

    def __init__(self, seed: int, on_disk: bool = False, partition: Any = None, **options: Any) -> None:
        self.on_disk = on_disk
        self.keys = KEYS
        super().__init__(NAME, self.columns_of(on_disk), seed, partition, **options)

    def columns_of(self, on_disk: bool) -> list[tm.Column]:
        return columns(on_disk)

    # --- rows -----------------------------------------------------------------------------------
    def value(self, name: str) -> Any:
        rng = self.rng
        if name == "owner":
            return None if rng.random() < 0.2 else rng.choice(["", "a", "b", "ab", "a\0", "ä"]) * rng.randint(0, 6)
        if name == "n":
            return None if rng.random() < 0.2 else rng.choice([0, 1, -1, 7, 2**31 - 1, -(2**31)])
        if name == "flag":
            return rng.randint(-3, 3)
        if name == "long":  # equal for so long that rows must be read to compare
            return "x" * rng.choice([0, 40, 500]) + rng.choice("abc") * rng.randint(0, 3)
        if name == "note":
            return None if rng.random() < 0.7 else "n" * rng.randrange(9_000)
        if name == "cold":
            return bytes([rng.randrange(256)]) * rng.randrange(1_500)
        return None if rng.random() < 0.8 else b"c" * rng.randrange(30_000)

    def change(self, txn: Any, rows: Rows) -> None:
        rng = self.rng
        key = rng.randrange(self.keys)
        draw = rng.random()
        if draw < 0.25:
            rows[key] = self.row(key)
            txn.write(NAME, rows[key])
        elif draw < 0.45 and key in rows:
            txn.delete(NAME, key)
            del rows[key]
        elif draw < 0.75 and key in rows:
            changes = {name: self.value(name) for name in rng.sample(self.names[1:], rng.randint(1, 3))}
            txn.update(NAME, key, changes)
            rows[key] = self.changed(rows[key], changes)
        elif draw < 0.8:
            fresh = [self.row(each) for each in rng.sample(range(self.keys), rng.randint(1, 30))]
            txn.write_many(NAME, fresh)
            rows.update({row[0]: row for row in fresh})
        elif draw < 0.85 and rows:
            some = rng.sample(sorted(rows), min(len(rows), 9))
            txn.update_many(NAME, [{"id": each, "n": each % 5} for each in some])
            for each in some:
                rows[each] = (*rows[each][:2], each % 5, *rows[each][3:])
        elif draw < 0.95:
            self.in_savepoint(txn, rows)
        elif key in rows and rng.random() < 0.5:
            txn.get(NAME, key, "exclusive")

    def look(self, txn: Any, rows: Rows) -> None:
        self.verify_order(rows, txn)

    # --- life -----------------------------------------------------------------------------------
    def index(self, *names: str) -> None:
        for name in names or INDEXES:
            self.db.create_index(NAME, name, INDEXES[name])

    # --- what must be ---------------------------------------------------------------------------
    def key_of(self, name: str, row: tuple[Any, ...]) -> tuple[Any, ...]:
        by_name = {column.name: (column, value) for column, value in zip(self.columns, row, strict=True)}
        return tuple(order_of(*by_name[each]) for each in INDEXES[name])

    def ranges(self, name: str, rows: Rows) -> Iterator[tuple[dict[str, Any], Rows]]:
        """A whole scan by an index, a range, and beginnings of keys, each with its rows."""
        first = next(column for column in self.columns if column.name == INDEXES[name][0])
        place = self.columns.index(first)
        reverse = self.rng.random() < 0.5
        yield {"reverse": reverse}, rows
        low, high = (self.value(first.name) for _ in range(2))
        if low is not None and high is not None:
            low_order, high_order = order_of(first, low), order_of(first, high)
            chosen = {k: r for k, r in rows.items() if low_order <= order_of(first, r[place]) < high_order}
            yield {"lower": low, "upper": (high,), "reverse": not reverse}, chosen
        yield {"prefix": (low,), "reverse": reverse}, {k: r for k, r in rows.items() if r[place] == low}
        if isinstance(low, str):
            chosen = {k: r for k, r in rows.items() if r[place] is not None and r[place].startswith(low)}
            yield {"prefix": low}, chosen

    def verify_order(self, rows: Rows, txn: Any = None) -> None:
        """Ranges of every index, in both directions, against the sorted dict."""
        scan = self.db[NAME].scan if txn is None else lambda **more: txn.scan(NAME, **more)
        for index in self.db.indexes(NAME):
            for by, chosen in self.ranges(index["name"], rows):
                self.compare(index["name"], chosen, scan, by)

    def compare(self, name: str, rows: Rows, scan: Callable[..., Any], by: dict[str, Any]) -> None:
        wanted = sorted((self.key_of(name, row) for row in rows.values()), reverse=by.get("reverse", False))
        names = self.names
        if self.on_disk and self.rng.random() < 0.5:
            names = names[:-2]
        found = [tuple(row) for row in scan(index=name, columns=names, **by)]
        assert {row[0]: row for row in found} == {k: r[: len(names)] for k, r in rows.items()}, (name, by)
        assert len(found) == len(rows), (name, by)
        assert [self.key_of(name, rows[row[0]]) for row in found] == wanted, (name, by)
        if wanted:
            limit = self.rng.randint(1, len(wanted))
            some = [self.key_of(name, rows[row[0]]) for row in scan(index=name, limit=limit, columns=["id"], **by)]
            assert some == wanted[:limit], (name, by)

    def verify(self) -> None:
        """Index and table match the dict, reservations are released, every word has one owner."""
        assert {row[0]: tuple(row) for row in self.table.scan()} == self.rows
        self.verify_order(self.rows)
        assert self.db.check()["problems"] == []
        for each in self.db.indexes(NAME):
            counters = self.db.status()["tables"][NAME]["indexes"][each["name"]]
            assert counters["reserved"] == 0 and counters["entries"] == len(self.rows), counters
        if isinstance(self.table.definition.partition, tm.HashPartition):
            check_arena(self.db)


# One seed always, more of them with more steps in the soak.
SEEDS = [1, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(2, 12))]


def live(store: Any, steps: int, first: Sequence[str], later: Sequence[str], dropped: str) -> None:
    """Random transactions, while indexes come and go, beside a local checkpoint, across a restart and a crash."""

    def indexes() -> list[str]:
        return [each["name"] for each in store.db.indexes(store.name)]

    store.index(*first)
    for step in range(1, steps + 1):
        store.transaction(looks=step % 5 == 0)
        if step % 10 == 0:
            store.verify()
        if step == 10:
            store.index(*later)
        if step == 25:
            store.db.checkpoint(lambda *_: store.transaction())
        if step == 30:
            store.db.drop_index(store.name, dropped)
        if step == 40:
            store.index(dropped)
        if step in (35, 45):
            before = indexes()
            store.reopen() if step == 35 else store.crash()
            assert indexes() == before and (dropped in before) == (step == 45)
    store.verify()
    store.db.close()
