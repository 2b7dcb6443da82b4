"""`python -m bench.ordinary [--rows N] [--operations N] [--rounds N] [--out DIR]`: the calls that programs make most.

One table with a key, texts, a NULL, an amount, an ordered and a unique index, and the same rows in SQLite (WAL, NORMAL)
and LMDB (packed rows, keys of the unique index beside them, sync=False). Tidemark has `durability="epoch"`. Keys are
random, constants differ in every call, and each caller gets fields. Microseconds a call, or a row where it says so.
"""

from __future__ import annotations

import argparse
import struct
import tempfile
from collections.abc import Callable
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

import tidemark as tm
from bench import peers
from bench.report import OURS, RESULTS, Line, at_most, keep, line_of, show
from bench.rounds import Work, interleave, timed
from tidemark.engine.jit.registry import compile_declared

COLUMNS = [
    tm.Column("id", tm.Int64),
    tm.Column("owner", tm.VarChar(20)),
    tm.Column("code", tm.VarChar(20)),
    tm.Column("n", tm.Int64),
    tm.Column("cents", tm.Decimal(12, 2)),
    tm.Column("note", tm.VarChar(40), nullable=True),
]
PACK = struct.Struct("<20s20sqq?40s")  # all but the key; the flag says whether there is a note
SQL_TABLES = (
    "create table t (id integer primary key, owner text, code text unique, n integer, cents integer, note text)",
    "create index by_owner on t (owner)",
)
SEED = 20_261_129
PER_OWNER = 2
SCANNED = 50
BATCH = 10
Calls = dict[str, Callable[[], Any]]


def rows_of(count: int) -> list[tuple[Any, ...]]:
    """The rows, with the amount in cents."""
    return [
        (key, f"owner{key // PER_OWNER:07}", f"code{key:08}", key, key * 7 % 100_000, None if key % 2 else "noted")
        for key in range(count)
    ]


def packed(row: tuple[Any, ...]) -> bytes:
    """A row as LMDB keeps it."""
    _, owner, code, n, cents, note = row
    return PACK.pack(owner.encode(), code.encode(), n, cents, note is not None, (note or "").encode())


def unpacked(image: bytes) -> tuple[Any, ...]:
    """Its fields."""
    owner, code, n, cents, has_note, note = PACK.unpack(image)
    texts = owner.rstrip(b"\0").decode(), code.rstrip(b"\0").decode()
    return (*texts, n, cents, note.rstrip(b"\0").decode() if has_note else None)


class Stores:
    """The open stores, and the keys of a round."""

    def __init__(self, folder: Path, rows: int, operations: int) -> None:
        found = rows_of(rows)
        self.db = tm.open(folder / "tidemark", durability="epoch", data_memory="1 GiB", redo_log="512 MiB")
        self.table = self.db.create_table("t", COLUMNS, "id")
        self.table.insert_many([(*row[:4], Decimal(row[4]) / 100, row[5]) for row in found])
        self.db.create_index("t", "by_owner", "owner")
        self.db.create_index("t", "by_code", "code", unique=True)
        self.db.create_index("t", "by_id", "id")
        self.sqlite = peers.sqlite_open(folder / "sqlite", "normal", tables=SQL_TABLES)
        peers.sqlite_load(self.sqlite, found, "insert into t values (?,?,?,?,?,?)")
        self.lmdb = peers.lmdb_open(folder / "lmdb", False)
        pairs = [(b"r" + row[0].to_bytes(8, "big"), packed(row)) for row in found]
        pairs += [(b"c" + row[2].encode(), b"r" + row[0].to_bytes(8, "big")) for row in found]
        peers.lmdb_load(self.lmdb, sorted(pairs))
        self.keys: list[int] = np.random.default_rng(SEED).integers(0, rows, operations).tolist()
        self.rows = rows

    def close(self) -> None:
        """Close them."""
        self.db.close()
        self.sqlite.close()
        self.lmdb.close()


def each(keys: list[int], call: Callable[[int], Any]) -> Callable[[], None]:
    """A round of one call for each key."""

    def work() -> None:
        for key in keys:
            call(key)

    return work


def place(key: int) -> bytes:
    """The key of a row in LMDB."""
    return b"r" + key.to_bytes(8, "big")


def reads(s: Stores) -> dict[str, tuple[int, float | None, Calls]]:
    """By what is done: operations of a round, the goal, and the work of each store."""
    table, keys, execute, begin = s.table, s.keys, s.sqlite.execute, s.lmdb.begin
    by_id, by_code, by_owner = (f"select * from t where {name}=?" for name in ("id", "code", "owner"))
    col = tm.col

    def lmdb_get(key: int) -> tuple[Any, ...]:
        with begin() as txn:
            return unpacked(txn.get(place(key)))

    def lmdb_by_code(key: int) -> tuple[Any, ...]:
        with begin() as txn:
            return unpacked(txn.get(txn.get(b"c" + b"code%08d" % key)))

    def lmdb_four(key: int) -> list[Any]:
        with begin() as txn:
            return [unpacked(txn.get(place((key + more) % s.rows))) for more in range(4)]

    def lmdb_scan(key: int) -> list[Any]:
        with begin() as txn:
            cursor = txn.cursor()
            cursor.set_range(place(key))
            return [unpacked(image) for image in islice(cursor.iternext(keys=False), SCANNED)]

    def lmdb_all() -> None:
        with begin() as txn:
            cursor = txn.cursor()
            cursor.set_range(b"r")
            for image in cursor.iternext(keys=False):
                unpacked(image)

    def ours_one(key: int) -> Any:
        with s.db.transaction() as txn:
            return txn.get("t", key)

    def ours_four(key: int) -> Any:
        with s.db.transaction() as txn:
            return [txn.get("t", (key + more) % s.rows) for more in range(4)]

    def sqlite_four(key: int) -> Any:
        execute("begin")
        found = [execute(by_id, ((key + more) % s.rows,)).fetchone() for more in range(4)]
        execute("commit")
        return found

    count, scans = len(keys), keys[: max(1, len(keys) // 20)]
    order = f"select * from t where id>=? order by id limit {SCANNED}"
    counted = "select count(*) from t where owner=?"
    return {
        "get a row by its key": (
            count,
            0.6,
            {
                OURS: each(keys, table.get),
                "SQLite": each(keys, lambda key: execute(by_id, (key,)).fetchone()),
                "LMDB": each(keys, lmdb_get),
            },
        ),
        "get rows by their keys and keep them": (
            count,
            0.9,
            {
                OURS: lambda: [table.get(key) for key in keys],
                "SQLite": lambda: [execute(by_id, (key,)).fetchone() for key in keys],
                "LMDB": lambda: [lmdb_get(key) for key in keys],
            },
        ),
        "get a row by a unique index": (
            count,
            0.8,
            {
                OURS: each(keys, lambda key: table.get(f"code{key:08}", index="by_code")),
                "SQLite": each(keys, lambda key: execute(by_code, (f"code{key:08}",)).fetchone()),
                "LMDB": each(keys, lmdb_by_code),
            },
        ),
        "a transaction of one get": (
            count,
            1.3,
            {OURS: each(keys, ours_one), "LMDB": each(keys, lmdb_get)},
        ),
        "a transaction of four gets": (
            count,
            2.7,
            {OURS: each(keys, ours_four), "SQLite": each(keys, sqlite_four), "LMDB": each(keys, lmdb_four)},
        ),
        "select two rows by a value of an ordered index": (
            count,
            3.0,
            {
                OURS: each(keys, lambda key: list(table.scan(where=col("owner") == f"owner{key // PER_OWNER:07}"))),
                "SQLite": each(keys, lambda key: execute(by_owner, (f"owner{key // PER_OWNER:07}",)).fetchall()),
            },
        ),
        "select a row by a condition on its key": (
            count,
            None,
            {
                OURS: each(keys, lambda key: list(table.scan(where=col("id") == key))),
                "SQLite": each(keys, lambda key: execute(by_id, (key,)).fetchall()),
            },
        ),
        "count the rows with a value of an ordered index": (
            count,
            None,
            {
                OURS: each(keys, lambda key: table.scan(where=col("owner") == f"owner{key // PER_OWNER:07}").count()),
                "SQLite": each(keys, lambda key: execute(counted, (f"owner{key // PER_OWNER:07}",)).fetchone()),
            },
        ),
        f"scan {SCANNED} rows in the order of keys, a row": (
            len(scans) * SCANNED,
            0.15,
            {
                OURS: each(scans, lambda key: list(table.scan(index="by_id", lower=key, limit=SCANNED))),
                "SQLite": each(scans, lambda key: execute(order, (key,)).fetchall()),
                "LMDB": each(scans, lmdb_scan),
            },
        ),
        "iterate over the table, a row": (
            s.rows,
            0.15,
            {
                OURS: lambda: [None for _ in table],
                "SQLite": lambda: [None for _ in execute("select * from t")],
                "LMDB": lmdb_all,
            },
        ),
    }


def writes(s: Stores) -> dict[str, tuple[int, float | None, Calls]]:
    """As `reads`."""
    table, keys, execute, begin = s.table, s.keys, s.sqlite.execute, s.lmdb.begin
    col = tm.col
    few = keys[: max(1, len(keys) // BATCH)]
    gone = {name: iter(range(s.rows, 1 << 40)) for name in (OURS, "SQLite", "LMDB")}
    new = {name: iter(range(s.rows, 1 << 40)) for name in (OURS, "SQLite", "LMDB")}

    def lmdb_change(key: int, change: Callable[[list[Any]], None]) -> None:
        with begin(write=True) as txn:
            fields = list(PACK.unpack(txn.get(place(key))))
            change(fields)
            txn.put(place(key), PACK.pack(*fields))

    def add(cents: int) -> Callable[[list[Any]], None]:
        def change(fields: list[Any]) -> None:
            fields[3] += cents

        return change

    def count_up(by: int) -> Callable[[list[Any]], None]:
        def change(fields: list[Any]) -> None:
            fields[2] += by

        return change

    def ours_modify(key: int) -> None:
        with s.db.transaction() as txn:
            row = txn.get("t", key, "exclusive")
            txn.update("t", key, {"n": row.n + 1})

    def ours_one(key: int) -> None:
        with s.db.transaction() as txn:
            txn.update("t", key, {"n": key})

    def ours_transfer(key: int) -> None:
        with s.db.transaction() as txn:
            txn.update("t", key, {"n": col("n") - 1})
            txn.update("t", (key + 1) % s.rows, {"n": col("n") + 1})

    def sqlite_transfer(key: int) -> None:
        execute("begin immediate")
        execute("update t set n=n-1 where id=?", (key,))
        execute("update t set n=n+1 where id=?", ((key + 1) % s.rows,))
        execute("commit")

    def sqlite_modify(key: int) -> None:
        execute("begin immediate")
        (n,) = execute("select n from t where id=?", (key,)).fetchone()
        execute("update t set n=? where id=?", (n + 1, key))
        execute("commit")

    def lmdb_transfer(key: int) -> None:
        with begin(write=True) as txn:
            for each_key, by in ((key, -1), ((key + 1) % s.rows, 1)):
                fields = list(PACK.unpack(txn.get(place(each_key))))
                fields[2] += by
                txn.put(place(each_key), PACK.pack(*fields))

    def lmdb_insert(_: int) -> None:
        key = next(new["LMDB"])
        with begin(write=True) as txn:
            row = (key, "owner", f"code{key:08}", key, key % 100_000, None)
            txn.put(place(key), packed(row))
            txn.put(b"c" + row[2].encode(), place(key))

    def lmdb_delete(_: int) -> None:
        key = next(gone["LMDB"])
        with begin(write=True) as txn:
            txn.delete(place(key))
            txn.delete(b"c" + b"code%08d" % key)

    def ours_insert(_: int) -> None:
        key = next(new[OURS])
        table.insert((key, "owner", f"code{key:08}", key, Decimal(key % 100_000), None))

    def sqlite_insert(_: int) -> None:
        key = next(new["SQLite"])
        execute("insert into t values (?,?,?,?,?,?)", (key, "owner", f"code{key:08}", key, key % 100_000, None))

    def ours_batch(_: int) -> None:
        found = [next(new[OURS]) for _ in range(BATCH)]
        table.insert_many([(key, "owner", f"code{key:08}", key, Decimal(key % 100_000), None) for key in found])

    def sqlite_batch(_: int) -> None:
        found = [next(new["SQLite"]) for _ in range(BATCH)]
        execute("begin immediate")
        rows = [(key, "owner", f"code{key:08}", key, key % 100_000, None) for key in found]
        s.sqlite.executemany("insert into t values (?,?,?,?,?,?)", rows)
        execute("commit")

    conditional = "update t set cents=cents-? where id=? and cents>=?"
    upsert = (
        "insert into t values (?,?,?,?,?,?) on conflict (id) do update set owner=excluded.owner, code=excluded.code,"
        " n=excluded.n, cents=excluded.cents, note=excluded.note"
    )
    count = len(keys)
    found: dict[str, tuple[float | None, Calls]] = {
        "update a row": (
            1.0,
            {
                OURS: each(keys, lambda key: table.update(key, {"n": key})),
                "SQLite": each(keys, lambda key: execute("update t set n=? where id=?", (key, key))),
                "LMDB": each(keys, lambda key: lmdb_change(key, lambda fields: fields.__setitem__(2, key))),
            },
        ),
        "update a row by an expression": (
            1.5,
            {
                OURS: each(keys, lambda key: table.update(key, {"n": col("n") + key})),
                "SQLite": each(keys, lambda key: execute("update t set n=n+? where id=?", (key, key))),
                "LMDB": each(keys, lambda key: lmdb_change(key, count_up(key))),
            },
        ),
        "take an amount where there is enough": (
            1.5,
            {
                OURS: each(
                    keys,
                    lambda key: table.update(
                        key, {"cents": col("cents") - Decimal(key) / 100}, where=col("cents") >= Decimal(key) / 100
                    ),
                ),
                "SQLite": each(keys, lambda key: execute(conditional, (key, key, key))),
                "LMDB": each(keys, lambda key: lmdb_change(key, add(-key))),
            },
        ),
        "update by a condition on the key": (
            None,
            {
                OURS: each(keys, lambda key: table.update_where({"n": col("n") + key}, where=col("id") == key)),
                "SQLite": each(keys, lambda key: execute("update t set n=n+? where id=?", (key, key))),
            },
        ),
        "upsert a row that exists": (
            None,
            {
                OURS: each(
                    keys,
                    lambda key: table.upsert((key, "owner", f"code{key:08}", key, Decimal(key % 100_000), None)),
                ),
                "SQLite": each(
                    keys, lambda key: execute(upsert, (key, "owner", f"code{key:08}", key, key % 100_000, None))
                ),
            },
        ),
        "update a row by a unique index": (
            1.2,
            {
                OURS: each(keys, lambda key: table.update(f"code{key:08}", {"n": key}, index="by_code")),
                "SQLite": each(keys, lambda key: execute("update t set n=? where code=?", (key, f"code{key:08}"))),
            },
        ),
        "a transaction of one update": (2.2, {OURS: each(keys, ours_one)}),
        "a transaction that reads and updates a row": (
            3.0,
            {
                OURS: each(keys, ours_modify),
                "SQLite": each(keys, sqlite_modify),
                "LMDB": each(keys, lambda key: lmdb_change(key, count_up(1))),
            },
        ),
        "a transfer between two rows": (
            5.0,
            {OURS: each(keys, ours_transfer), "SQLite": each(keys, sqlite_transfer), "LMDB": each(keys, lmdb_transfer)},
        ),
        "insert a row": (
            1.0,
            {OURS: each(keys, ours_insert), "SQLite": each(keys, sqlite_insert), "LMDB": each(keys, lmdb_insert)},
        ),
        f"insert {BATCH} rows in one call": (
            None,
            {OURS: each(few, ours_batch), "SQLite": each(few, sqlite_batch)},
        ),
        "delete a row": (
            1.0,
            {
                OURS: each(keys, lambda _: table.delete(next(gone[OURS]))),
                "SQLite": each(keys, lambda _: execute("delete from t where id=?", (next(gone["SQLite"]),))),
                "LMDB": each(keys, lmdb_delete),
            },
        ),
    }
    counts = {f"insert {BATCH} rows in one call": len(few)}
    return {what: (counts.get(what, count), goal, calls) for what, (goal, calls) in found.items()}


def measure(s: Stores, rounds: int) -> list[Line]:
    """A line for each call, printed as it comes."""
    lines = []
    for what, (operations, goal, calls) in {**reads(s), **writes(s)}.items():
        works = [Work(name, timed(work)) for name, work in calls.items()]
        line = line_of("call", what, interleave(works, operations, rounds))
        if goal is not None:
            at_most(line, "µs", line.figures[OURS], goal)
        show(line)
        lines.append(line)
    return lines


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(prog="python -m bench.ordinary", description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--operations", type=int, default=20_000, help="calls of a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the JSON file")
    given = parser.parse_args()
    compile_declared()
    with tempfile.TemporaryDirectory(dir=".", prefix=".bench-") as folder:
        stores = Stores(Path(folder), given.rows, given.operations)
        lines = measure(stores, given.rounds)
        stores.close()
    settings = {"rows": given.rows, "operations": given.operations, "rounds": given.rounds, "seed": SEED}
    print(f"kept in {keep(lines, settings, given.out, 'ordinary').name}")


if __name__ == "__main__":
    main()
