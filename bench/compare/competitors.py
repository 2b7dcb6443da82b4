"""The workloads, and each store that can be opened for them here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench import peers
from bench.compare import lmdb_stores, redis_stores, rocksdb_stores, sqlite_stores, tidemark_stores
from bench.compare.records import MIXES, Records
from bench.compare.stores import Durability, Operation, Store
from bench.compare.subscribers import Population
from bench.report import OURS

SCANNED = "E"


@dataclass(frozen=True)
class Workload:
    """What is loaded, and the operations that follow."""

    name: str
    what: str
    data: Records | Population
    operations: list[Operation]
    is_scanned: bool = False


@dataclass(frozen=True)
class Competitor:
    """One store: how it is opened and loaded for YCSB and for TATP, and what is printed beside its figures."""

    name: str
    settings: Callable[[Durability], str]
    open_records: Callable[[Path, Durability, Records, bool], Store]
    open_subscribers: Callable[[Path, Durability, Population], Store]

    def open(self, workload: Workload, durability: Durability, folder: Path) -> Store:
        """A new store in `folder`, loaded and settled."""
        if isinstance(workload.data, Records):
            return self.open_records(folder, durability, workload.data, workload.is_scanned)
        return self.open_subscribers(folder, durability, workload.data)


def workloads(rows: int, operations: int) -> list[Workload]:
    """YCSB A to F over `rows` records, TATP over `rows` subscribers."""
    records, population = Records(rows), Population(rows)
    found = [
        Workload(f"YCSB {letter}", mix.what, records, records.operations(letter, operations), letter == SCANNED)
        for letter, mix in MIXES.items()
    ]
    return [*found, Workload("TATP", "the standard mix", population, population.operations(operations))]


def competitors() -> list[Competitor]:
    """Tidemark and every peer that is installed."""
    found = [
        Competitor(
            OURS, tidemark_stores.settings, tidemark_stores.TidemarkRecords, tidemark_stores.TidemarkSubscribers
        ),
        Competitor("SQLite", sqlite_stores.settings, sqlite_stores.SqliteRecords, sqlite_stores.SqliteSubscribers),
        Competitor("LMDB", lmdb_stores.settings, lmdb_stores.LmdbRecords, lmdb_stores.LmdbSubscribers),
    ]
    if peers.rocksdict is not None:
        rocksdb = rocksdb_stores
        found.append(Competitor("RocksDB", rocksdb.settings, rocksdb.RocksdbRecords, rocksdb.RocksdbSubscribers))
    if peers.REDIS_BINARY is not None:
        redis = redis_stores
        found.append(Competitor("Redis", redis.settings, redis.RedisRecords, redis.RedisSubscribers))
    return found
