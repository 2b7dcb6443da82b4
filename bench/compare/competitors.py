"""The workloads, and each store that can be opened for them here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench import peers
from bench.compare import lmdb_stores, redis_stores, rocksdb_stores, sqlite_stores, tidemark_stores
from bench.compare.orders import OrderBook
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
    data: Records | Population | OrderBook
    operations: list[Operation]
    is_scanned: bool = False


@dataclass(frozen=True)
class Competitor:
    """One store: how it is opened and loaded for each kind of workload, and what is printed beside its figures."""

    name: str
    settings: Callable[[Durability], str]
    open_records: Callable[[Path, Durability, Records, bool], Store]
    open_subscribers: Callable[[Path, Durability, Population], Store]
    open_orders: Callable[[Path, Durability, OrderBook], Store] | None = None

    def has(self, workload: Workload) -> bool:
        """Whether it takes part: the order book asks for transactions over ordered keys."""
        return self.open_orders is not None or not isinstance(workload.data, OrderBook)

    def open(self, workload: Workload, durability: Durability, folder: Path) -> Store:
        """A new store in `folder`, loaded and settled."""
        if isinstance(workload.data, Records):
            return self.open_records(folder, durability, workload.data, workload.is_scanned)
        if isinstance(workload.data, OrderBook):
            assert self.open_orders
            return self.open_orders(folder, durability, workload.data)
        return self.open_subscribers(folder, durability, workload.data)


def workloads(rows: int, operations: int) -> list[Workload]:
    """YCSB A to F over `rows` records, TATP over `rows` subscribers, the order book beside them."""
    records, population, book = Records(rows), Population(rows), OrderBook(rows)
    found = [
        Workload(f"YCSB {letter}", mix.what, records, records.operations(letter, operations), letter == SCANNED)
        for letter, mix in MIXES.items()
    ]
    tatp = Workload("TATP", "the standard mix", population, population.operations(operations))
    orders = Workload("orders", "orders placed, matched, cancelled and shown", book, book.operations(operations))
    return [*found, tatp, orders]


def competitors() -> list[Competitor]:
    """Tidemark and every peer that is installed."""
    found = [
        Competitor(
            OURS,
            tidemark_stores.settings,
            tidemark_stores.TidemarkRecords,
            tidemark_stores.TidemarkSubscribers,
            tidemark_stores.TidemarkOrders,
        ),
        Competitor(
            "SQLite",
            sqlite_stores.settings,
            sqlite_stores.SqliteRecords,
            sqlite_stores.SqliteSubscribers,
            sqlite_stores.SqliteOrders,
        ),
        Competitor(
            "LMDB", lmdb_stores.settings, lmdb_stores.LmdbRecords, lmdb_stores.LmdbSubscribers, lmdb_stores.LmdbOrders
        ),
    ]
    if peers.rocksdict is not None:
        rocksdb = rocksdb_stores
        found.append(Competitor("RocksDB", rocksdb.settings, rocksdb.RocksdbRecords, rocksdb.RocksdbSubscribers))
    if peers.REDIS_BINARY is not None:
        redis = redis_stores
        found.append(Competitor("Redis", redis.settings, redis.RedisRecords, redis.RedisSubscribers))
    return found
