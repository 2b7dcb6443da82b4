"""Two stores that get the same calls: in one every transaction of some size spools, in the other none does."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import tidemark as tm
from tests.store.support import open_memory
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles

NAME = "test.t"
KEYS = 400
OPTIONS: dict[str, Any] = {
    "data_memory": "64 MiB",
    "redo_log": "32 MiB",
    "undo_log": "64 MiB",
    "page_buffer": "1 MiB",
    "checkpoint_memory": "1 MiB",
}
SPOOLING: dict[str, Any] = {**OPTIONS, "transaction_memory": "64 KiB", "transaction_limit": "64 MiB"}
ORDINARY: dict[str, Any] = {**OPTIONS, "transaction_memory": "16 MiB", "transaction_limit": "16 MiB"}


def columns(kind: str) -> list[tm.Column]:
    """fixed: no var part. var: with one, which holds part of the key. disk: with a disk part, chained at times. unique:
    with a column of distinct values.
    """
    if kind == "unique":
        return [*columns("var"), tm.Column("u", tm.Int64, nullable=True)]
    if kind == "fixed":
        return [tm.Column("id", tm.Int64), tm.Column("n", tm.Int64), tm.Column("c", tm.Char(60))]
    made = [
        tm.Column("id", tm.Int64),
        tm.Column("n", tm.Int64, nullable=True),
        tm.Column("c", tm.VarChar(300)),
        tm.Column("note", tm.Text, nullable=True),
    ]
    if kind == "disk":
        made.append(tm.Column("cold", tm.VarBinary(700), storage="disk"))
        made.append(tm.Column("blob", tm.Blob, nullable=True, storage="disk"))
    return made


class Beside:
    """Both stores, and the random draws for them from one seed."""

    def __init__(self, seed: int, kind: str, is_indexed: bool) -> None:
        self.rng = random.Random(seed)
        self.kind = kind
        self.is_indexed = is_indexed
        self.files = MemoryFiles()
        self.columns = columns(kind)
        self.spooling: Any = open_memory(self.files, **SPOOLING)
        self.ordinary: Any = open_memory(None, **ORDINARY)
        for db in (self.spooling, self.ordinary):
            if kind == "disk":
                db.create_tablespace("main", "4 MiB", page_size="8 KiB", extent="64 KiB")
            db.create_table(NAME, self.columns, "id", tm.HashPartition(3))
            if is_indexed:
                db.create_index(NAME, "by_n", "n")
                db.create_index(NAME, "by_c", ["c", "id"])
            if kind == "unique":
                db.create_index(NAME, "by_u", "u", unique=True, ordered=True)

    def value(self, name: str) -> Any:
        rng = self.rng
        if name == "n":
            return rng.randrange(50)
        if name == "c":
            return rng.choice(["", "a", "zz", "x" * 50])
        if name == "u":
            return None if rng.random() < 0.3 else rng.randrange(100 * KEYS)
        if name == "note":
            return None if rng.random() < 0.6 else "n" * rng.randrange(2_000)
        if name == "cold":
            return bytes([rng.randrange(256)]) * rng.randrange(700)
        return None if rng.random() < 0.9 else b"c" * rng.randrange(20_000)

    def row(self, key: int) -> tuple[Any, ...]:
        return (key, *[self.value(column.name) for column in self.columns[1:]])

    def draw(self) -> Callable[[Any], Any]:
        """Make one call on both transactions; both must return the same."""
        rng, names = self.rng, [column.name for column in self.columns[1:]]
        key = rng.randrange(KEYS)
        keys = rng.sample(range(KEYS), 40)
        row, rows = self.row(key), [self.row(each) for each in keys]
        name = rng.choice(names)
        value = self.value(name)
        calls: list[Callable[[Any], Any]] = [
            lambda txn: txn.write(NAME, row),
            lambda txn: txn.insert(NAME, row),
            lambda txn: txn.write_many(NAME, rows),
            lambda txn: txn.write_many(NAME, rows),
            lambda txn: txn.insert_many(NAME, rows),
            lambda txn: txn.update(NAME, key, {name: value}),
            lambda txn: txn.update(NAME, key, {"n": value if name == "n" else 7}),
            lambda txn: txn.update(NAME, key, {"n": tm.col("n") + 1}, where=tm.col("n") > 20),
            lambda txn: txn.update_where(NAME, {"n": tm.col("n") + 1}, where=tm.col("n") < 15),
            lambda txn: txn.update_many(NAME, [{"id": each[0], name: each[names.index(name) + 1]} for each in rows]),
            lambda txn: txn.delete(NAME, key),
            lambda txn: txn.delete_many(NAME, keys[:5]),
            lambda txn: txn.delete_where(NAME, tm.col("n") == value if name == "n" else tm.col("n") == 3),
            lambda txn: txn.get(NAME, key),
            lambda txn: txn.get(NAME, key, lock="exclusive"),
            lambda txn: txn.get_many(NAME, keys).to_pylist(),
            lambda txn: txn.get_many(NAME, keys, columns=["id", "n"]).to_pylist(),
            lambda txn: sorted(map(repr, txn.scan(NAME))),
            lambda txn: sorted(map(repr, txn.scan(NAME, where=tm.col("n") < 10))),
            lambda txn: sorted(map(repr, txn.scan(NAME, where=tm.col("c") == "zz", columns=["id", "c"]))),
        ]
        if self.is_indexed:
            calls.append(lambda txn: sorted(map(repr, txn.scan(NAME, index="by_n", lower=5, upper=30))))
            calls.append(lambda txn: [row.n for row in txn.scan(NAME, index="by_n", lower=5, upper=30)])
            calls.append(lambda txn: list(map(repr, txn.scan(NAME, index="by_c", reverse=True, limit=50))))
        return rng.choice(calls)

    def answers(self, call: Callable[[Any], Any], one: Any, other: Any) -> None:
        """The same call on both transactions; answers and refusals must be the same."""
        found = []
        for txn in (one, other):
            try:
                found.append(("answer", call(txn)))
            except tm.Rejected as error:
                found.append((type(error).__name__, error.message))
        assert found[0] == found[1], f"{found[0]!r:.2000} and {found[1]!r:.2000}"

    def block(self, one: Any, other: Any, calls: int, depth: int = 0) -> None:
        """Some calls, a few of them in savepoints, of which some are rolled back."""
        for _ in range(calls):
            if depth < 2 and self.rng.random() < 0.08:
                self.within_savepoints(one, other, depth)
            else:
                self.answers(self.draw(), one, other)

    def within_savepoints(self, one: Any, other: Any, depth: int) -> None:
        is_rolled_back = self.rng.random() < 0.6
        try:
            with one.savepoint(), other.savepoint():
                self.block(one, other, self.rng.randrange(1, 25), depth + 1)
                if is_rolled_back:
                    raise RolledBack
        except RolledBack:
            return

    def transact(self, calls: int) -> bool:
        """One transaction of both; whether it spooled."""
        one, other = self.spooling.transaction(), self.ordinary.transaction()
        self.block(one, other, calls)
        spooled = getattr(one, "spool", None) is not None  # one that has not begun has no such attribute
        if self.rng.random() < 0.25:
            one.rollback()
            other.rollback()
        else:
            one.commit(True)
            other.commit(True)
        return spooled

    def crash(self) -> None:
        self.files = self.files.kill()
        self.spooling = open_memory(self.files, **SPOOLING)

    def verify(self) -> None:
        """Rows agree."""
        one, other = (sorted(map(repr, db[NAME].scan())) for db in (self.spooling, self.ordinary))
        assert one == other

    def verify_whole(self) -> None:
        """`verify`, and the spooling store agrees with itself."""
        self.verify()
        assert self.spooling.check()["problems"] == []


class RolledBack(Exception):
    """Ends a savepoint."""
