"""P1 and P2: `insert_many` of all rows in one durable transaction, into a store that is new in every round."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from bench import peers
from bench.context import Context
from bench.report import OURS, Line, line_of, times_faster
from bench.rounds import Work, interleave
from bench.rows import COLUMNS, PACK


def _ours(context: Context, source: Callable[[], Any]) -> Callable[[], float]:
    def run() -> float:
        rows = source()
        with context.open("bulk") as db:
            table = db.create_table("t", COLUMNS, "id")
            began = time.perf_counter()
            table.insert_many(rows)
            return time.perf_counter() - began

    return run


def _sqlite(context: Context) -> Callable[[], float]:
    def run() -> float:
        connection = peers.sqlite_open(context.folder / "bulk.sqlite", "full")
        began = time.perf_counter()
        peers.sqlite_load(connection, context.tuples)
        seconds = time.perf_counter() - began
        connection.close()
        return seconds

    return run


def _lmdb(context: Context, from_tuples: bool) -> Callable[[], float]:
    def run() -> float:
        with peers.lmdb_open(context.folder / "bulk.lmdb") as environment:
            began = time.perf_counter()
            peers.lmdb_load(environment, peers.encode(context.tuples) if from_tuples else context.pairs)
            return time.perf_counter() - began

    return run


def _rocksdb(context: Context, from_tuples: bool) -> Callable[[], float]:
    def run() -> float:
        database = peers.rocksdb_open(context.folder / "bulk.rocksdb")
        began = time.perf_counter()
        pairs = context.pairs
        if from_tuples:
            pairs = [(peers.key_bytes(row[0]), PACK.pack(*row)) for row in context.tuples]
        peers.rocksdb_load(database, pairs, True)
        seconds = time.perf_counter() - began
        database.close()
        return seconds

    return run


def _redis(context: Context, from_tuples: bool) -> Callable[[], float]:
    def run() -> float:
        with peers.redis(context.folder / "bulk.redis", "always") as server:
            began = time.perf_counter()
            pairs = context.pairs
            if from_tuples:
                pairs = [(peers.key_bytes(row[0]), PACK.pack(*row)) for row in context.tuples]
            peers.redis_load(server.client, pairs)
            return time.perf_counter() - began

    return run


def measure(context: Context) -> list[Line]:
    """Both goals in one run."""
    ours = "insert_many, durability=commit, new store per round"
    works = [
        Work("ours from Arrow", _ours(context, lambda: context.table), ours),
        Work("ours from tuples", _ours(context, lambda: context.tuples), ours),
        Work("SQLite executemany", _sqlite(context), peers.sqlite_settings("full") + ", one transaction"),
        Work("LMDB putmulti", _lmdb(context, False), peers.LMDB_SYNC + ", append=True, one transaction"),
        Work("LMDB from tuples", _lmdb(context, True), "LMDB, default sync, packing and sorting counted"),
    ]
    if peers.rocksdict is not None:
        works.append(
            Work("RocksDB WriteBatch", _rocksdb(context, False), peers.ROCKSDB_SYNC + ", 100,000 rows a batch")
        )
        works.append(Work("RocksDB from tuples", _rocksdb(context, True), peers.ROCKSDB_SYNC + ", packing counted"))
    if peers.REDIS_BINARY is not None:
        settings = peers.redis_settings("always") + ", pipelined MSET of 500"
        works.append(Work("Redis MSET", _redis(context, False), settings))
        works.append(Work("Redis from tuples", _redis(context, True), settings + ", packing counted"))
    found = interleave(works, context.scale.rows, context.scale.rounds)
    arrow = {"ours from Arrow": OURS, "ours from tuples": None}
    first = {
        arrow.get(name, name) or name: timing for name, timing in found.items() if not name.endswith("from tuples")
    }
    second = {OURS: found["ours from tuples"], "SQLite executemany": found["SQLite executemany"]}
    second |= {name: found[name] for name in found if name.endswith("from tuples") and not name.startswith("ours")}
    p1 = line_of("P1", "insert_many from Arrow, durable, per row", first)
    times_faster(p1, "LMDB putmulti", 5)
    times_faster(p1, "SQLite executemany", 10)
    p2 = line_of("P2", "insert_many from Python tuples, durable, per row", second)
    times_faster(p2, "SQLite executemany", 3)
    return [p1, p2]
