"""P6: one-row update transactions, each durable on return: one thread, one beside a busy thread, sixteen threads."""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from bench import peers
from bench.context import Context, together
from bench.report import OURS, Line, at_least, at_most, line_of, times_faster
from bench.rounds import Timing, Work, interleave, timed
from bench.rows import B_OFFSET, COLUMNS, PACK

THREADS = 16
ROWS = 16_000
PAGE = bytes(4_096)
RAW_BYTES = 64 << 20
DOUBLE = struct.Struct("<d")
RAW = "one durable write"
Update = Callable[[int, float], None]


class Stores:
    """Every store, small and fully durable; an updater per thread for each."""

    def __init__(self, context: Context, stack: ExitStack) -> None:
        folder = context.folder
        self.context = context
        self.stack = stack
        rows = context.tuples[:ROWS]
        self.keys = [row[0] for row in rows]
        self.db = context.open("durable")
        stack.callback(self.db.close)
        self.table = self.db.create_table("t", COLUMNS, "id")
        self.table.insert_many(context.table.slice(0, len(rows)))
        self.sqlite_path = folder / "durable.sqlite"
        first = peers.sqlite_open(self.sqlite_path, "full")
        stack.callback(first.close)
        peers.sqlite_load(first, rows)
        pairs = peers.encode(rows)
        self.lmdb = peers.lmdb_open(folder / "durable.lmdb")
        stack.callback(self.lmdb.close)
        peers.lmdb_load(self.lmdb, pairs)
        self.rocksdb: Any = None
        if peers.rocksdict is not None:
            self.rocksdb = peers.rocksdb_open(folder / "durable.rocksdb")
            stack.callback(self.rocksdb.close)
            peers.rocksdb_load(self.rocksdb, pairs, True)
            self.rocksdb.set_write_options(peers.rocksdb_write_options(True))
        self.redis: peers.RedisServer | None = None
        if peers.REDIS_BINARY is not None:
            self.redis = peers.RedisServer(folder / "durable.redis", "always")
            stack.callback(self.redis.stop)
            peers.redis_load(self.redis.client, pairs)

    # --- one updater per thread --------------------------------------------------------------------
    def ours(self) -> Update:
        update = self.table.update
        return lambda key, value: update(key, {"b": value})

    def of_sqlite(self) -> Update:
        connection = peers.sqlite_open(self.sqlite_path, "full", is_new=False)
        self.stack.callback(connection.close)
        execute = connection.execute

        def update(key: int, value: float) -> None:
            execute("update t set b=? where id=?", (value, key))

        return update

    def of_lmdb(self) -> Update:
        begin = self.lmdb.begin

        def update(key: int, value: float) -> None:
            place = key.to_bytes(8, "big")
            with begin(write=True) as txn:
                row = list(PACK.unpack(txn.get(place)))
                row[1] = value
                txn.put(place, PACK.pack(*row))

        return update

    def of_rocksdb(self) -> Update:
        get, put = self.rocksdb.get, self.rocksdb.put

        def update(key: int, value: float) -> None:
            place = key.to_bytes(8, "big")
            row = list(PACK.unpack(get(place)))
            row[1] = value
            put(place, PACK.pack(*row))

        return update

    def of_redis(self) -> Update:
        assert self.redis is not None
        client = peers.RedisClient(self.redis.port)
        self.stack.callback(client.close)
        offset = b"%d" % B_OFFSET

        def update(key: int, value: float) -> None:
            client.ask(b"SETRANGE", key.to_bytes(8, "big"), offset, DOUBLE.pack(value))

        return update

    def makers(self) -> dict[str, tuple[Callable[[], Update], str]]:
        """Every store there is: name → (maker of an updater, settings)."""
        found: dict[str, tuple[Callable[[], Update], str]] = {
            OURS: (self.ours, "update, durability=commit"),
            "SQLite FULL": (
                self.of_sqlite,
                "autocommit update, a connection per thread; " + peers.sqlite_settings("full"),
            ),
            "LMDB": (self.of_lmdb, "write transaction: get, put; LMDB, default sync"),
        }
        if self.rocksdb is not None:
            found["RocksDB"] = (self.of_rocksdb, "get, put, no transaction; " + peers.ROCKSDB_SYNC)
        if self.redis is not None:
            found["Redis"] = (self.of_redis, "SETRANGE, a connection per thread; " + peers.redis_settings("always"))
        return found


@contextmanager
def raw_file(folder: Path) -> Iterator[Callable[[], None]]:
    """Fill a file with written bytes; yield a function that makes the next 4 KiB durable."""
    path = folder / "raw"
    with path.open("wb") as file:
        for _ in range(RAW_BYTES >> 20):
            file.write(bytes(1 << 20))
    descriptor = os.open(path, os.O_RDWR)
    os.fsync(descriptor)
    place = 0

    def write() -> None:
        nonlocal place
        os.pwrite(descriptor, PAGE, place)
        os.fdatasync(descriptor)
        place = (place + len(PAGE)) % RAW_BYTES

    try:
        yield write
    finally:
        os.close(descriptor)


@contextmanager
def busy_thread() -> Iterator[None]:
    """A Python thread that computes for as long as the block lasts."""
    stop = threading.Event()

    def spin() -> None:
        number = 0
        while not stop.is_set():
            number += 1

    thread = threading.Thread(target=spin)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _single(stores: Stores, write: Callable[[], None], count: int, is_busy: bool) -> dict[str, Timing]:
    value = stores.context.fresh_value

    def run_of(update: Update) -> Callable[[], float]:
        def work() -> None:
            for key in stores.keys[:count]:
                update(key, value())

        def beside() -> float:
            with busy_thread():
                return timed(work)()

        return beside if is_busy else timed(work)

    def raw() -> None:
        for _ in range(count):
            write()

    works = [Work(name, run_of(make()), settings) for name, (make, settings) in stores.makers().items()]
    if is_busy:
        works = [work for work in works if work.name in (OURS, "SQLite FULL")]
    else:
        works.append(Work(RAW, timed(raw), "pwrite and fdatasync of 4 KiB of a file written before"))
    return interleave(works, count, 2 if is_busy else stores.context.scale.rounds + 2)


def _threads(stores: Stores, count: int) -> dict[str, Timing]:
    value = stores.context.fresh_value
    each = max(1, count // 4)

    def run_of(make: Callable[[], Update]) -> Callable[[], float]:
        updates = [make() for _ in range(THREADS)]

        def work(number: int) -> None:
            update = updates[number]
            for key in stores.keys[number * each : (number + 1) * each]:
                update(key, value())

        return lambda: together(THREADS, work)

    works = [Work(name, run_of(make), settings) for name, (make, settings) in stores.makers().items()]
    return interleave(works, THREADS * each, stores.context.scale.rounds)


def measure(context: Context) -> list[Line]:
    """Three lines: one thread, one beside a busy thread, sixteen threads."""
    count = context.scale.durable_points
    with ExitStack() as stack:
        stores = Stores(context, stack)
        write = stack.enter_context(raw_file(context.folder))
        single = line_of("P6", "one-row update, durability=commit, 1 thread", _single(stores, write, count, False))
        at_most(single, "durable writes per update", single.figures[OURS] / single.figures[RAW], 1.15)
        busy = line_of("P6", "the same beside one busy Python thread", _single(stores, write, count // 8, True))
        many = line_of("P6", f"one-row update, durability=commit, {THREADS} threads", _threads(stores, count))
    times_faster(many, "SQLite FULL", 6)
    ratio = single.figures["SQLite FULL"] / many.figures[OURS]
    at_least(many, "times as fast as SQLite FULL with one thread", ratio, 3)
    return [single, busy, many]
