"""P5: one-row update transactions at random keys, durable with their epoch; peers at the nearest durability."""

from __future__ import annotations

import struct

from bench import peers
from bench.context import Context
from bench.report import OURS, Line, line_of, times_faster
from bench.rounds import Work, interleave, timed
from bench.rows import B_OFFSET, PACK

DOUBLE = struct.Struct("<d")


def measure(context: Context) -> list[Line]:
    """One line."""
    loaded = context.loaded
    keys = context.keys(context.scale.points, 5)
    value = context.fresh_value

    def ours() -> None:
        update = loaded.table.update
        for key in keys:
            update(key, {"b": value()})

    def sqlite() -> None:
        execute = loaded.sqlite.execute
        for key in keys:
            execute("update t set b=? where id=?", (value(), key))

    def lmdb() -> None:
        for key in keys:
            place = key.to_bytes(8, "big")
            with loaded.lmdb.begin(write=True) as txn:
                row = list(PACK.unpack(txn.get(place)))
                row[1] = value()
                txn.put(place, PACK.pack(*row))

    def rocksdb() -> None:
        get, put = loaded.rocksdb.get, loaded.rocksdb.put
        for key in keys:
            place = key.to_bytes(8, "big")
            row = list(PACK.unpack(get(place)))
            row[1] = value()
            put(place, PACK.pack(*row))

    def redis() -> None:
        assert loaded.redis is not None
        ask = loaded.redis.client.ask
        offset = b"%d" % B_OFFSET
        for key in keys:
            ask(b"SETRANGE", key.to_bytes(8, "big"), offset, DOUBLE.pack(value()))

    works = [
        Work(OURS, timed(ours), 'update(key, {"b": value}), durability=epoch (100 ms)'),
        Work("SQLite NORMAL", timed(sqlite), "autocommit update; " + peers.sqlite_settings("normal")),
        Work("LMDB", timed(lmdb), "write transaction: get, put; " + peers.LMDB_NO_SYNC),
    ]
    if loaded.rocksdb is not None:
        works.append(Work("RocksDB", timed(rocksdb), "get, put, no transaction; " + peers.ROCKSDB_NO_SYNC))
    if loaded.redis is not None:
        works.append(Work("Redis", timed(redis), "SETRANGE, one round trip each; " + peers.redis_settings("everysec")))
    line = line_of(
        "P5",
        "one-row update, durability=epoch, random keys",
        interleave(works, len(keys), context.scale.rounds + 2),
    )
    times_faster(line, "SQLite NORMAL", 4)
    return [line]
