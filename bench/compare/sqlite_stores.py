"""SQLite: WAL and the settings of `bench.peers`, prepared statements, `begin immediate` where a transaction writes."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench import peers
from bench.compare.orders import ASK, BID, DEPTH, MOST_FILLS, OrderBook, limit_of, rank_of
from bench.compare.records import NAMES, RECORD, Records, modified
from bench.compare.stores import Content, Durability
from bench.compare.subscribers import KEY_PARTS, TABLES, Population

SELECTED = ", ".join(NAMES)
USERTABLE = f"create table usertable (key integer primary key, {', '.join(f'{name} blob' for name in NAMES)})"
UPDATES = [f"update usertable set {name}=? where key=?" for name in NAMES]
ORDER_TABLES = (
    "create table account (id integer primary key, cash integer)",
    "create table orders"
    " (id integer primary key, account integer, symbol text, side integer, rank integer, left integer)",
    "create table trade (taker integer, maker integer, price integer, quantity integer, primary key (taker, maker))"
    " without rowid",
)
BY_RANK = "create index by_rank on orders (symbol, side, rank, id)"
PAY = "update account set cash=cash+? where id=?"
DESTINATION = """
select cf.numberx from special_facility sf, call_forwarding cf
where sf.s_id=? and sf.sf_type=? and sf.is_active=1 and cf.s_id=sf.s_id and cf.sf_type=sf.sf_type
and cf.start_time<=? and ?<cf.end_time"""


def settings(durability: Durability) -> str:
    """What is printed beside the figure."""
    return peers.sqlite_settings(durability.synchronous)


def _insert(table: str, values: int) -> str:
    return f"insert into {table} values ({','.join('?' * values)})"


def _create(table: str) -> str:
    """Composite keys are kept in the key's tree."""
    names = list(TABLES[table])
    if table == "subscriber":
        return f"create table subscriber (s_id integer primary key, sub_nbr unique, {', '.join(names[2:])})"
    keys = ", ".join(names[: KEY_PARTS[table]])
    return f"create table {table} ({', '.join(names)}, primary key ({keys})) without rowid"


def _settle(connection: sqlite3.Connection) -> None:
    """Move the load out of the log."""
    connection.execute("pragma wal_checkpoint(truncate)").fetchall()


class SqliteRecords:
    """YCSB: one table by its integer key, which scans use too."""

    def __init__(self, folder: Path, durability: Durability, data: Records, is_scanned: bool) -> None:
        path = folder / "sqlite"
        self.connection = peers.sqlite_open(path, durability.synchronous, tables=[USERTABLE])
        self.execute = self.connection.execute
        rows = ((int.from_bytes(key, "big"), *RECORD.unpack(image)) for key, image in data.pairs)
        peers.sqlite_load(self.connection, rows, _insert("usertable", 1 + len(NAMES)))
        _settle(self.connection)

    def read(self, key: int) -> Sequence[Any]:
        row: tuple[Any, ...] = self.execute(f"select {SELECTED} from usertable where key=?", (key,)).fetchone()
        return row

    def update(self, key: int, field: int, value: bytes) -> None:
        self.execute(UPDATES[field], (value, key))

    def insert(self, key: int, fields: tuple[bytes, ...]) -> None:
        self.execute("insert into usertable values (?,?,?,?,?,?,?,?,?,?,?)", (key, *fields))

    def scan(self, key: int, count: int) -> list[Sequence[Any]]:
        text = f"select {SELECTED} from usertable where key>=? order by key limit ?"
        return self.execute(text, (key, count)).fetchall()

    def modify(self, key: int, field: int, value: bytes) -> None:
        self.execute("begin immediate")
        row = self.execute(f"select {SELECTED} from usertable where key=?", (key,)).fetchone()
        self.execute(UPDATES[field], (modified(row[field], value), key))
        self.execute("commit")

    def content(self) -> Content:
        return {row[0]: row[1:] for row in self.execute("select * from usertable")}

    def close(self) -> None:
        self.connection.close()


class SqliteSubscribers:
    """TATP: four tables, the statements of its specification."""

    def __init__(self, folder: Path, durability: Durability, data: Population) -> None:
        tables = [_create(name) for name in TABLES]
        self.connection = peers.sqlite_open(folder / "sqlite", durability.synchronous, tables=tables)
        self.execute = self.connection.execute
        for name, rows in data.tables.items():
            peers.sqlite_load(self.connection, rows, _insert(name, len(TABLES[name])))
        _settle(self.connection)

    def get_subscriber_data(self, s_id: int) -> Sequence[Any]:
        row: tuple[Any, ...] = self.execute("select * from subscriber where s_id=?", (s_id,)).fetchone()
        return row

    def get_new_destination(self, s_id: int, sf_type: int, start: int, end: int) -> list[bytes]:
        return [row[0] for row in self.execute(DESTINATION, (s_id, sf_type, start, end))]

    def get_access_data(self, s_id: int, ai_type: int) -> Sequence[Any] | None:
        text = "select data1, data2, data3, data4 from access_info where s_id=? and ai_type=?"
        row: tuple[Any, ...] | None = self.execute(text, (s_id, ai_type)).fetchone()
        return row

    def update_subscriber_data(self, s_id: int, bit_1: int, sf_type: int, data_a: int) -> bool:
        execute = self.execute
        execute("begin immediate")
        changed = execute("update special_facility set data_a=? where s_id=? and sf_type=?", (data_a, s_id, sf_type))
        if not changed.rowcount:
            execute("rollback")
            return False
        execute("update subscriber set bit_1=? where s_id=?", (bit_1, s_id))
        execute("commit")
        return True

    def update_location(self, sub_nbr: bytes, vlr_location: int) -> bool:
        text = "update subscriber set vlr_location=? where sub_nbr=?"
        return self.execute(text, (vlr_location, sub_nbr)).rowcount == 1

    def _s_id(self, sub_nbr: bytes) -> int:
        return int(self.execute("select s_id from subscriber where sub_nbr=?", (sub_nbr,)).fetchone()[0])

    def insert_call_forwarding(self, sub_nbr: bytes, sf_type: int, start: int, end: int, numberx: bytes) -> bool:
        execute = self.execute
        execute("begin immediate")
        s_id = self._s_id(sub_nbr)
        facilities = execute("select sf_type from special_facility where s_id=?", (s_id,)).fetchall()
        try:
            if (sf_type,) in facilities:
                execute("insert into call_forwarding values (?,?,?,?,?)", (s_id, sf_type, start, end, numberx))
                execute("commit")
                return True
        except sqlite3.IntegrityError:
            pass  # the forwarding exists
        execute("rollback")
        return False

    def delete_call_forwarding(self, sub_nbr: bytes, sf_type: int, start: int) -> bool:
        execute = self.execute
        execute("begin immediate")
        text = "delete from call_forwarding where s_id=? and sf_type=? and start_time=?"
        is_found = execute(text, (self._s_id(sub_nbr), sf_type, start)).rowcount == 1
        execute("commit" if is_found else "rollback")
        return is_found

    def content(self) -> Content:
        return {
            (name, *row[: KEY_PARTS[name]]): row[KEY_PARTS[name] :]
            for name in TABLES
            for row in self.execute(f"select * from {name}")
        }

    def close(self) -> None:
        self.connection.close()


class SqliteOrders:
    """The order book: three tables, an index over a side of a symbol's book."""

    def __init__(self, folder: Path, durability: Durability, data: OrderBook) -> None:
        self.connection = peers.sqlite_open(folder / "sqlite", durability.synchronous, tables=ORDER_TABLES)
        self.execute = self.connection.execute
        peers.sqlite_load(self.connection, data.accounts, _insert("account", 2))
        peers.sqlite_load(self.connection, data.orders, _insert("orders", 6))
        self.execute(BY_RANK)
        _settle(self.connection)

    def place(self, order: int, account: int, symbol: str, side: int, price: int, quantity: int) -> int:
        execute = self.execute
        execute("begin immediate")
        if side == BID:
            cost = price * quantity
            taken = execute("update account set cash=cash-? where id=? and cash>=?", (cost, account, cost))
            if not taken.rowcount:
                execute("rollback")
                return False
        left = quantity
        text = "select * from orders where symbol=? and side=? and rank<=? order by rank, id limit ?"
        for maker, owner, _, _, rank, has in execute(
            text, (symbol, ASK - side, limit_of(side, price), MOST_FILLS)
        ).fetchall():
            filled, paid = min(left, has), abs(rank)
            if filled == has:
                execute("delete from orders where id=?", (maker,))
            else:
                execute("update orders set left=left-? where id=?", (filled, maker))
            execute("insert into trade values (?,?,?,?)", (order, maker, paid, filled))
            execute(PAY, (paid * filled, account if side == ASK else owner))
            if side == BID and paid < price:
                execute(PAY, ((price - paid) * filled, account))
            left -= filled
            if not left:
                break
        if left:
            row = (order, account, symbol, side, rank_of(side, price), left)
            execute("insert into orders values (?,?,?,?,?,?)", row)
        execute("commit")
        return quantity - left

    def cancel(self, order: int) -> bool:
        execute = self.execute
        execute("begin immediate")
        found = execute("select account, side, rank, left from orders where id=?", (order,)).fetchone()
        if found is None:
            execute("rollback")
            return False
        account, side, rank, left = found
        if side == BID:
            execute(PAY, (-rank * left, account))
        execute("delete from orders where id=?", (order,))
        execute("commit")
        return True

    def depth(self, symbol: str) -> list[tuple[int, int, int]]:
        text = "select side, rank, left from orders where symbol=? and side=? order by rank, id limit ?"
        return [row for side in (BID, ASK) for row in self.execute(text, (symbol, side, DEPTH))]

    def account(self, account: int) -> Sequence[Any]:
        row: tuple[Any, ...] = self.execute("select cash from account where id=?", (account,)).fetchone()
        return row

    def content(self) -> Content:
        rows: Content = {("account", row[0]): row[1:] for row in self.execute("select * from account")}
        rows |= {("orders", row[0]): row[1:] for row in self.execute("select * from orders")}
        return rows | {("trade", *row[:2]): row[2:] for row in self.execute("select * from trade")}

    def close(self) -> None:
        self.connection.close()
