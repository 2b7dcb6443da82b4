"""The process of the store that gets killed: it serves two ports of MySQL's protocol, and writes.

It is a site of the other kill loop (`tests/kills/sites/site.py`), with its tables and its durable writers, and with one
thread that commits small transactions at a rate, without a wait for the disk. More lines come through its pipe:

in: `count`  `alter NUMBER`  `rotate`  `purge FILE`  `end`  `close`
"""

from __future__ import annotations

import datetime as dt
import decimal
import random
import threading
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any, Final

from tests.kills.peers.planted import DEFECTS
from tests.kills.sites.modes import OPTIONS
from tests.kills.sites.site import Site, run_life
from tests.kills.sites.writers import LIFE_BITS, prepare
from tests.replication.mysql_port_rig import HOST, USERS
from tidemark.engine.base.clock import SystemClock
from tidemark.engine.base.errors import Error, IndexExists, Rejected, Retryable, TableExists
from tidemark.engine.schema.column import Column
from tidemark.engine.types import DateTime, Decimal, Enum, Float64, Int32, Int64, VarBinary, VarChar
from tidemark.recovery.crash_harness.program import resolve

MODE = "one_way"
SERVER_ID = 1
FLAVORS: Final = ("mariadb", "mysql")
SEQUENCE_MASK = (1 << LIFE_BITS) - 1
LOAD = "shop.load"
ROWS = 8_000
BATCH = 10  # commits between two looks at the clock
BEHIND_S_MAX = 0.5  # a load that is late by more does not make up for it
STORE_OPTIONS: dict[str, Any] = {
    **OPTIONS,
    "data_memory": "256 MiB",
    "redo_log": "64 MiB",
    "epoch_interval_ms": 100,
    "gcp_interval_ms": 500,
    "checkpoint_interval_ms": 5_000,
    "max_binlog_size": "4 MiB",
    "log_transaction_id": False,
    "log_empty_update": False,
}
_COLUMNS: Final = [
    Column("id", Int64),
    Column("code", Int64, nullable=True),
    Column("n", Int32),
    Column("name", VarChar(60), nullable=True),
    Column("price", Decimal(20, 4), nullable=True),
    Column("share", Float64, nullable=True),
    Column("at", DateTime, nullable=True),
    Column("data", VarBinary(40), nullable=True),
    Column("kind", Enum("pen", "cup", "bag")),
]
_WORDS: Final = ("Ärmel", "Bär", "cup", "δέλτα", "яблоко", "漢字", "", "it's", "a\\b", "\x00\n")
_BEGIN: Final = dt.datetime(1970, 1, 1)


def added(number: int) -> Column:
    """Return the column that a schema change adds; rows that are there get its default."""
    if number % 2:
        return Column(f"c{number}", VarChar(20), nullable=True)
    return Column(f"c{number}", Int64, nullable=True, default=number)


class Load(threading.Thread):
    """Commits transactions at a rate until `stop`, in a table of which no other thread changes rows."""

    def __init__(self, db: Any, rate: int, life: int) -> None:
        super().__init__(name="load", daemon=True)
        self.db = db
        self.rate = rate
        self.rng = random.Random(f"load {life}")
        self.clock = SystemClock()
        self.stopped = threading.Event()
        self.failed: Error | None = None
        self.commits = 0
        self.next_code = life << 40

    def run(self) -> None:
        try:
            self._look()
            due = self.clock.monotonic()
            while not self.stopped.is_set():
                wait_s = due - self.clock.monotonic()
                if wait_s > 0:
                    self.stopped.wait(wait_s)
                    continue
                due = max(due, due - wait_s - BEHIND_S_MAX) + BATCH / self.rate
                for _ in range(BATCH):
                    self._commit()
        except Error as error:
            self.failed = error

    def stop(self) -> None:
        self.stopped.set()
        self.join()

    def _look(self) -> None:
        """Read which rows there are."""
        self.there = self.db[LOAD].to_arrow(["id"]).column("id").to_pylist()
        self.absent = sorted(set(range(ROWS)).difference(self.there))
        self._know_columns()

    def _know_columns(self) -> None:
        self.columns = self.db[LOAD].definition.columns[len(_COLUMNS) :]

    def _commit(self) -> None:
        """Commit one transaction; after a failed one, such as next to a schema change, go on with another one."""
        rng = self.rng
        try:
            with self.db.transaction() as txn:
                for _ in range(1 if rng.random() < 0.9 else rng.randrange(2, 12)):
                    self._change(txn, rng.random())
                txn.commit(False)
        except Retryable:
            self._look()
            return
        self.commits += 1
        if not self.commits % 256:
            self._know_columns()

    def _change(self, txn: Any, draw: float) -> None:
        if self.absent and (draw < 0.2 or not self.there):
            key = _taken(self.absent, self.rng)
            txn.insert(LOAD, {"id": key, "kind": "pen", "n": 0, **self._values(9)})
            self.there.append(key)
        elif draw < 0.35:
            key = _taken(self.there, self.rng)
            txn.delete(LOAD, key)
            self.absent.append(key)
        else:
            txn.update(LOAD, self.rng.choice(self.there), self._values(2))

    def _values(self, most: int) -> dict[str, Any]:
        """Return new values of some columns; those of the unique index never come again."""
        rng, values = self.rng, {}
        for name in rng.sample(list(_VALUES), min(most, len(_VALUES))):
            is_null = name not in ("n", "kind") and rng.random() < 0.1
            values[name] = None if is_null else _VALUES[name](rng)
        if rng.random() < 0.3:
            self.next_code += 1
            values["code"] = self.next_code
        for each in self.columns:
            if rng.random() < 0.3:
                values[each.name] = rng.choice(_WORDS) if isinstance(each.type, VarChar) else rng.getrandbits(60)
        return values


def _taken(keys: list[int], rng: random.Random) -> int:
    """Remove a key and return it."""
    place = rng.randrange(len(keys))
    keys[place], keys[-1] = keys[-1], keys[place]
    return keys.pop()


_VALUES: Final[dict[str, Callable[[random.Random], Any]]] = {
    "n": lambda rng: rng.randrange(-(1 << 31), 1 << 31),
    "name": lambda rng: rng.choice(_WORDS) * rng.randrange(1, 5),
    "price": lambda rng: decimal.Decimal(rng.randrange(-(10**20) + 1, 10**20)).scaleb(-4),
    "share": lambda rng: rng.choice((0.0, rng.random(), rng.uniform(-1e300, 1e300), rng.random() * 1e-300)),
    "at": lambda rng: _BEGIN + dt.timedelta(microseconds=rng.randrange(1 << 51)),
    "data": lambda rng: rng.randbytes(rng.randrange(41)),
    "kind": lambda rng: rng.choice(("pen", "cup", "bag")),
}


class ServedStore(Site):
    """One life of the store."""

    def __init__(self, directory: str, life: int, rate: int, defect: str, lines: Connection) -> None:
        super().__init__(MODE, SERVER_ID, directory, life, lines)
        if defect:
            DEFECTS[defect]()
        self.rate = rate
        self.load: Load | None = None

    def do_open(self, _: None) -> dict[str, Any]:
        """Restart the store and serve it; tell what it has now."""
        self.db = resolve("tidemark:open")(self.directory, server_id=SERVER_ID, **STORE_OPTIONS)
        prepare(self.db, self.role)
        with suppress(TableExists):
            self.db.create_table(LOAD, _COLUMNS, "id")
        with suppress(IndexExists):
            self.db.create_index(LOAD, "by_code", ["code"], unique=True)
        servings = {
            flavor: resolve("tidemark:serve_mysql")(self.db, f"{HOST}:0", USERS, flavor=flavor) for flavor in FLAVORS
        }
        ports = {flavor: each.address[1] for flavor, each in servings.items()}
        files = servings["mysql"].served.files()  # that peers may read, with their sizes
        return {"ports": ports, "files": [list(each) for each in files]}

    def do_write(self, _: None) -> None:
        super().do_write(None)
        self.load = Load(self.db, self.rate, self.life)
        self.load.start()

    def do_rest(self, _: None) -> None:
        if self.load is not None:
            self.load.stop()
            if self.load.failed is not None:
                raise self.load.failed
        super().do_rest(None)

    def do_count(self, _: None) -> dict[str, Any]:
        """Return the commits of this life."""
        own = sum(each.sequence & SEQUENCE_MASK for each in self.writers)
        return {"commits": own + (0 if self.load is None else self.load.commits)}

    def do_alter(self, number: int) -> None:
        """Add a column, unless an earlier life has."""
        column = added(number)
        if column.name not in {each.name for each in self.db[LOAD].definition.columns}:
            while True:
                try:
                    return self.db.add_column(LOAD, column)  # type: ignore[no-any-return]
                except Retryable:
                    continue

    def do_rotate(self, _: None) -> None:
        self.db.binlog.rotate()

    def do_purge(self, file: str) -> dict[str, Any]:
        """Remove the files before this one; return their names."""
        try:
            return {"gone": self.db.binlog.purge(to=file)}
        except Rejected:  # gone already
            return {"gone": []}

    def do_end(self, _: None) -> dict[str, Any]:
        """Return the end of the binlog, after everything is in it."""
        self.db.sync()
        self.db.binlog.write_closed_epochs()
        return {"end": list(self.db.binlog.durable_end())}

    def do_close(self, _: None) -> None:
        self.db.close()


def run_store(directory: str, life: int, rate: int, defect: str, commands: Connection, lines: Connection) -> None:
    """Run one life, in a process of its own."""
    run_life(ServedStore(directory, life, rate, defect, lines), commands)
