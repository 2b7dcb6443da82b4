"""One competitor of P12 in a process of its own: `python -m bench.disk_child`. Each line is one JSON request.

The separate process lets the parent count system calls and bytes from outside (/proc/PID/io). Requests: open, update,
insert, settle, close; each has one answer. A row is the standard row of the benchmarks with a note of 200 bytes; `b`
and `note` are disk columns. Every competitor makes the same rows and draws the same keys, from seeds.
"""

from __future__ import annotations

import json
import os
import sqlite3
import struct
import sys
import threading
import time
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

import tidemark as tm
from bench import peers
from bench.rows import COLUMNS, make_table
from tidemark.background import PAGES_POLL_SECONDS

PAGE_BYTES = 8_192
NOTE_BYTES = 200
NOTES = 64
ROWS_PER_PAGE = 32  # 31 words each: piece header, disk part of 29 words, slot
PIECE_ROWS = 20_000
DISK_COLUMNS = [tm.Column(each.name, each.type, storage="disk") if each.name == "b" else each for each in COLUMNS] + [
    tm.Column("note", tm.VarChar(NOTE_BYTES), storage="disk")
]
PACK = struct.Struct("<qdq20sI200s")
SQL_TABLE = "create table t (id integer primary key, b real, ts integer, name blob, flags integer, note text)"
SQL_INSERT = "insert into t values (?,?,?,?,?,?)"
SQL_UPDATE = "update t set b=?, note=? where id=?"


def notes_of(seed: int) -> list[str]:
    """Texts of the same length, to be used in turn."""
    return [f"{number:08d}".rjust(NOTE_BYTES, "abcdefghijkl"[number % 12]) for number in range(seed, seed + NOTES)]


def rows_with_notes(first: int, count: int) -> pa.Table:
    """Rows with the ids first … in order, as an Arrow table."""
    table = make_table(first, count)
    notes = notes_of(first)
    return table.set_column(0, "id", pa.array(np.arange(first, first + count))).append_column(
        "note", pa.array([notes[number % NOTES] for number in range(count)])
    )


def tuples_of(table: pa.Table) -> list[tuple[Any, ...]]:
    """The rows as Python tuples."""
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


class Competitor(Protocol):
    """The requests of the parent."""

    def load(self, table: pa.Table) -> None:
        """Load the rows in bulk."""
        ...

    def update(self, key: int, value: float, note: str) -> None:
        """One transaction."""
        ...

    def insert(self, row: tuple[Any, ...]) -> None:
        """One transaction."""
        ...

    def settle(self) -> None:
        """Wait until the background work of the earlier calls is done."""
        ...

    def close(self) -> None:
        """End."""
        ...


class Ours:
    """Tidemark; `page_buffer` is the cache."""

    def __init__(self, folder: Path, cache_bytes: int, durability: Any, is_filtering: bool) -> None:
        self.db = tm.open(
            folder,
            data_memory="512 MiB",
            redo_log="256 MiB",
            undo_log="256 MiB",
            page_buffer=cache_bytes,
            durability=durability,
            undo_filter=is_filtering,
        )
        self.table = self.db.create_table("t", DISK_COLUMNS, "id")
        self.load = self.table.insert_many
        self.insert = self.table.insert

    def update(self, key: int, value: float, note: str) -> None:
        self.table.update(key, {"b": value, "note": note})

    def settle(self) -> None:
        self.db.sync()
        written = -1
        while written != (written := self.counters()["pages_written"]):
            threading.Event().wait(3 * PAGES_POLL_SECONDS)  # pages that are still dirty then are hot, or few

    def counters(self) -> dict[str, Any]:
        """Of the page cache."""
        found: dict[str, Any] = self.db.status()["disk"]["page_buffer"][str(PAGE_BYTES)]
        return found

    def close(self) -> None:
        self.db.close()


class OfSqlite:
    """SQLite: WAL, pages of the same size, the same bytes of cache."""

    def __init__(self, path: Path, cache_bytes: int, synchronous: str) -> None:
        self.connection = sqlite3.connect(path, isolation_level=None)
        self.execute = self.connection.execute
        self.execute(f"pragma page_size={PAGE_BYTES}")
        self.execute("pragma journal_mode=wal")
        self.execute(f"pragma synchronous={synchronous}")
        self.execute(f"pragma cache_size=-{cache_bytes >> 10}")
        self.execute(SQL_TABLE)

    def load(self, table: pa.Table) -> None:
        self.execute("begin")
        self.connection.executemany(SQL_INSERT, tuples_of(table))
        self.execute("commit")

    def update(self, key: int, value: float, note: str) -> None:
        self.execute(SQL_UPDATE, (value, note, key))

    def insert(self, row: tuple[Any, ...]) -> None:
        self.execute(SQL_INSERT, row)

    def settle(self) -> None:
        pass  # SQLite has no background work

    def close(self) -> None:
        self.connection.close()


class OfRocksdb:
    """RocksDB: half of the bytes are block cache, half two write buffers."""

    def __init__(self, path: Path, cache_bytes: int, is_synced: bool) -> None:
        rocks = peers.rocksdict
        options = rocks.Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_write_buffer_size(cache_bytes // 4)
        options.set_max_write_buffer_number(2)
        options.increase_parallelism(2)
        blocks = rocks.BlockBasedOptions()
        blocks.set_block_cache(rocks.Cache(cache_bytes // 2))
        blocks.set_block_size(PAGE_BYTES)
        options.set_block_based_table_factory(blocks)
        self.database = rocks.Rdict(str(path), options)
        self.database.set_write_options(peers.rocksdb_write_options(is_synced))

    def load(self, table: pa.Table) -> None:
        peers.rocksdb_load(
            self.database, [(peers.key_bytes(row[0]), self._packed(row)) for row in tuples_of(table)], False
        )

    def _packed(self, row: tuple[Any, ...]) -> bytes:
        return PACK.pack(*row[:5], row[5].encode())

    def update(self, key: int, value: float, note: str) -> None:
        place = key.to_bytes(8, "big")
        row = list(PACK.unpack(self.database.get(place)))
        row[1], row[5] = value, note.encode()
        self.database.put(place, PACK.pack(*row))

    def insert(self, row: tuple[Any, ...]) -> None:
        self.database.put(peers.key_bytes(row[0]), self._packed(row))

    def settle(self) -> None:
        names = ("rocksdb.num-running-flushes", "rocksdb.num-running-compactions", "rocksdb.compaction-pending")
        while any(self.database.property_int_value(name) for name in names):
            threading.Event().wait(0.01)

    def close(self) -> None:
        self.database.close()


class OfPages:
    """Writes of the same pages without a store: a batch as large as Tidemark's, each page in place, then one sync."""

    def __init__(self, path: Path, cache_bytes: int, reads: bool) -> None:
        self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
        self.batch_pages = max(1, min(256, cache_bytes // PAGE_BYTES // 4))
        self.reads = reads
        self.rows = self.waiting = 0
        self.page = bytes(range(256)) * (PAGE_BYTES // 256)

    def load(self, table: pa.Table) -> None:
        self.rows += len(table)
        pages = -(-self.rows // ROWS_PER_PAGE)
        while os.fstat(self.descriptor).st_size < pages * PAGE_BYTES:
            os.pwrite(self.descriptor, self.page, os.fstat(self.descriptor).st_size)

    def update(self, key: int, value: float, note: str) -> None:
        del value, note
        offset = key // ROWS_PER_PAGE * PAGE_BYTES
        if self.reads:
            os.pread(self.descriptor, PAGE_BYTES, offset)
        os.pwrite(self.descriptor, self.page, offset)
        self.waiting += 1
        if self.waiting == self.batch_pages:
            self.settle()

    def insert(self, row: tuple[Any, ...]) -> None:
        self.update(row[0], row[1], row[5])

    def settle(self) -> None:
        os.fdatasync(self.descriptor)
        self.waiting = 0

    def close(self) -> None:
        os.close(self.descriptor)


def make(kind: str, folder: str, cache_bytes: int) -> Competitor:
    """A competitor by name, new, in a folder."""
    path = Path(folder) / kind
    makers: dict[str, Any] = {
        "epoch": lambda: Ours(path, cache_bytes, "epoch", True),
        "commit": lambda: Ours(path, cache_bytes, "commit", True),
        "epoch-all": lambda: Ours(path, cache_bytes, "epoch", False),
        "commit-all": lambda: Ours(path, cache_bytes, "commit", False),
        "sqlite-normal": lambda: OfSqlite(path, cache_bytes, "normal"),
        "sqlite-full": lambda: OfSqlite(path, cache_bytes, "full"),
        "rocksdb": lambda: OfRocksdb(path, cache_bytes, False),
        "rocksdb-sync": lambda: OfRocksdb(path, cache_bytes, True),
        "pages": lambda: OfPages(path, cache_bytes, False),
        "pages-read": lambda: OfPages(path, cache_bytes, True),
    }
    made: Competitor = makers[kind]()
    return made


def answer(state: dict[str, Any], request: dict[str, Any]) -> dict[str, Any]:
    """Do one request."""
    what = request["do"]
    if what == "open":
        state["it"] = it = make(request["kind"], request["folder"], request["cache_bytes"])
        for first in range(0, request["rows"], PIECE_ROWS):
            it.load(rows_with_notes(first, min(PIECE_ROWS, request["rows"] - first)))
        state["rows"] = request["rows"]
        it.settle()
        return {}
    it = state["it"]
    if what == "update":
        keys = np.random.default_rng(request["seed"]).integers(0, request["rows"], request["count"]).tolist()
        notes = notes_of(request["seed"])
        began = time.perf_counter()
        for number, key in enumerate(keys):
            it.update(key, float(number), notes[number % NOTES])
        return {"seconds": time.perf_counter() - began}
    if what == "insert":
        rows = tuples_of(rows_with_notes(state["rows"], request["count"]))
        state["rows"] += request["count"]
        began = time.perf_counter()
        for row in rows:
            it.insert(row)
        return {"seconds": time.perf_counter() - began}
    if what == "settle":
        it.settle()
        return {"counters": it.counters()} if isinstance(it, Ours) else {}
    it.close()
    return {}


def main() -> None:
    """Answer requests until the parent closes the pipe."""
    state: dict[str, Any] = {}
    for line in sys.stdin:
        print(json.dumps(answer(state, json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
