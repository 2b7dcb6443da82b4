"""P3 and P4: reading by key, one at a time and ten thousand at a time."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np

from bench import peers
from bench.context import Context
from bench.report import OURS, Line, line_of, times_faster
from bench.rounds import Work, interleave, timed
from bench.rows import PACK

BATCH = 10_000
BATCHES = 5


def _single(context: Context) -> list[Work]:
    loaded = context.loaded
    keys = context.keys(context.scale.points, 1)

    def ours() -> None:
        get = loaded.table.get
        for key in keys:
            get(key)

    def lmdb() -> None:
        begin, unpack = loaded.lmdb.begin, PACK.unpack
        for key in keys:
            with begin() as txn:
                unpack(txn.get(key.to_bytes(8, "big")))

    def sqlite() -> None:
        execute = loaded.sqlite.execute
        for key in keys:
            execute("select * from t where id=?", (key,)).fetchone()

    def rocksdb() -> None:
        get, unpack = loaded.rocksdb.get, PACK.unpack
        for key in keys:
            unpack(get(key.to_bytes(8, "big")))

    def redis() -> None:
        assert loaded.redis is not None
        ask, unpack = loaded.redis.client.ask, PACK.unpack
        for key in keys:
            unpack(ask(b"GET", key.to_bytes(8, "big")))

    works = [
        Work(OURS, timed(ours), "get(key), a named tuple"),
        Work("LMDB", timed(lmdb), "one read transaction per key, then unpack"),
        Work("SQLite", timed(sqlite), "prepared select by primary key; " + peers.sqlite_settings("normal")),
    ]
    return works + _others(context, rocksdb, redis, "get", "GET, one round trip per key")


def _others(
    context: Context, rocksdb: Callable[[], None], redis: Callable[[], None], first: str, second: str
) -> list[Work]:
    works = []
    if context.loaded.rocksdb is not None:
        works.append(Work("RocksDB", timed(rocksdb), f"{first}, then unpack; rows flushed to table files"))
    if context.loaded.redis is not None:
        works.append(Work("Redis", timed(redis), f"{second}, then unpack; " + peers.redis_settings("everysec")))
    return works


def _many(context: Context) -> list[Work]:
    loaded = context.loaded
    batches = [context.keys(BATCH, 10 + number) for number in range(BATCHES)]
    arrays = [np.array(batch) for batch in batches]

    def ours() -> None:
        for array in arrays:
            loaded.table.get_many(array)

    def lmdb() -> None:
        for batch in batches:
            with loaded.lmdb.begin() as txn:
                found = txn.cursor().getmulti([key.to_bytes(8, "big") for key in batch])
                unpack = PACK.unpack
                [unpack(value) for _, value in found]

    def sqlite() -> None:
        for batch in batches:
            loaded.sqlite.execute(
                "select t.* from json_each(?) as k join t on t.id = k.value", (json.dumps(batch),)
            ).fetchall()

    def rocksdb() -> None:
        for batch in batches:
            unpack = PACK.unpack
            [unpack(value) for value in loaded.rocksdb.get([key.to_bytes(8, "big") for key in batch])]

    def redis() -> None:
        assert loaded.redis is not None
        for batch in batches:
            found = loaded.redis.client.ask(b"MGET", *[key.to_bytes(8, "big") for key in batch])
            unpack = PACK.unpack
            [unpack(value) for value in found]

    works = [
        Work(OURS, timed(ours), "get_many of a NumPy array of keys, an Arrow record batch"),
        Work("LMDB getmulti", timed(lmdb), "cursor.getmulti, then unpack to tuples"),
        Work("SQLite", timed(sqlite), "join with json_each of the keys, fetchall"),
    ]
    return works + _others(context, rocksdb, redis, "get of a list (MultiGet)", "one MGET")


def measure(context: Context) -> list[Line]:
    """P3, then P4."""
    rounds = context.scale.rounds + 2
    p3 = line_of(
        "P3", "get(key) → named tuple, random keys", interleave(_single(context), context.scale.points, rounds)
    )
    times_faster(p3, "LMDB", 1)
    times_faster(p3, "SQLite", 3)
    found = interleave(_many(context), BATCH * BATCHES, rounds)
    p4 = line_of("P4", f"get_many of {BATCH:,} random keys → Arrow, per key", found)
    times_faster(p4, "LMDB getmulti", 10)
    return [p3, p4]
