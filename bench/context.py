"""The parts of a run that all goals share: the folder, the rows, and stores loaded once with the same rows."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import tidemark as tm
from bench import peers
from bench.rows import COLUMNS, make_table, to_tuples

MEMORY_WARM_BYTES = 4 << 30


@dataclass
class Scale:
    """How much a run does."""

    rows: int = 1_000_000
    rounds: int = 3
    points: int = 20_000
    durable_points: int = 400
    restart_rows: int = 10_000_000
    restart_operations: int = 5_000_000
    lcp_rows: int = 2_000_000
    lcp_segments: int = 4
    disk_rows: int = 320_000
    disk_points: int = 10_000


QUICK = Scale(100_000, 2, 5_000, 100, 300_000, 150_000, 300_000, 2, 40_000, 2_000)


def warm_memory(size_bytes: int = MEMORY_WARM_BYTES) -> None:
    """Touch memory once and release it.

    The host of a virtual machine backs a page at its first touch. That costs far more than a store's own work on the
    page, and would be charged to the first store that is measured.
    """
    np.empty(size_bytes // 8, dtype=np.int64)[::512] = 1


class Context:
    """One run over one folder."""

    def __init__(self, folder: Path, scale: Scale) -> None:
        self.folder = folder
        self.scale = scale
        self._stack = ExitStack()
        self._values = map(float, itertools.count(1))

    # --- rows ------------------------------------------------------------------------------------
    @cached_property
    def table(self) -> pa.Table:
        """The rows as an Arrow table."""
        return make_table(0, self.scale.rows)

    @cached_property
    def tuples(self) -> list[tuple[Any, ...]]:
        """The rows as Python tuples."""
        return to_tuples(self.table)

    @cached_property
    def pairs(self) -> peers.Pairs:
        """The rows sorted and packed for key-value stores."""
        return peers.encode(self.tuples)

    def keys(self, count: int, seed: int) -> list[int]:
        """Random keys."""
        return [int(key) for key in np.random.default_rng(seed).integers(0, self.scale.rows, count)]

    def fresh_value(self) -> float:
        """Return a value that was not used before: SQLite skips the write of a row that does not change."""
        return next(self._values)

    # --- stores ----------------------------------------------------------------------------------
    def open(self, name: str, **options: Any) -> tm.Database:
        """Open a new Tidemark store."""
        peers.remove(self.folder / name)
        chosen = {"data_memory": "1 GiB", "redo_log": "512 MiB", **options}
        db: tm.Database = tm.open(self.folder / name, **chosen)
        return db

    def open_loaded(self, name: str, **options: Any) -> tuple[tm.Database, Any]:
        """Open a new Tidemark store that holds the rows; return (database, table)."""
        db = self.open(name, **options)
        table = db.create_table("t", COLUMNS, "id")
        table.insert_many(self.table)
        return db, table

    @cached_property
    def loaded(self) -> Loaded:
        """Every store with the rows in it, opened for speed short of durability; used by P3, P4, P5 and P16."""
        return Loaded(self, self._stack)

    def close(self) -> None:
        """Close what `loaded` opened."""
        self._stack.close()


class Loaded:
    """Tidemark with durability="epoch", and every peer at the nearest durability, all with the same rows."""

    def __init__(self, context: Context, stack: ExitStack) -> None:
        folder = context.folder
        self.db, self.table = context.open_loaded("loaded", durability="epoch")
        stack.callback(self.db.close)
        self.sqlite = peers.sqlite_open(folder / "loaded.sqlite", "normal")
        stack.callback(self.sqlite.close)
        peers.sqlite_load(self.sqlite, context.tuples)
        self.lmdb = peers.lmdb_open(folder / "loaded.lmdb", sync=False)
        stack.callback(self.lmdb.close)
        peers.lmdb_load(self.lmdb, context.pairs)
        self.rocksdb: Any = None
        if peers.rocksdict is not None:
            self.rocksdb = peers.rocksdb_open(folder / "loaded.rocksdb")
            stack.callback(self.rocksdb.close)
            peers.rocksdb_load(self.rocksdb, context.pairs, False)
            self.rocksdb.flush()
        self.redis: peers.RedisServer | None = None
        if peers.REDIS_BINARY is not None:
            self.redis = peers.RedisServer(folder / "loaded.redis", "everysec")
            stack.callback(self.redis.stop)
            self.redis_empty_bytes = self.redis.info(b"used_memory")
            peers.redis_load(self.redis.client, context.pairs)


def together(threads: int, work: Callable[[int], None]) -> float:
    """Run work(number) in so many threads at once; seconds from the common start to the last end."""
    gate = threading.Barrier(threads + 1)
    errors: list[BaseException] = []

    def run(number: int) -> None:
        gate.wait()
        try:
            work(number)
        except BaseException as error:
            errors.append(error)
            raise

    running = [threading.Thread(target=run, args=(number,)) for number in range(threads)]
    for thread in running:
        thread.start()
    gate.wait()
    began = time.perf_counter()
    for thread in running:
        thread.join()
    seconds = time.perf_counter() - began
    if errors:
        raise RuntimeError("a thread of the benchmark failed") from errors[0]
    return seconds


def slices(first: int, count: int, size: int) -> Iterator[tuple[int, int]]:
    """(first, count) of consecutive pieces."""
    for at in range(first, first + count, size):
        yield at, min(size, first + count - at)
