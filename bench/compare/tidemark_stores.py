"""Tidemark: typed tables. Forwardings and facilities are read by their keys, which the specification bounds; orders are
found and changed by expressions, as the guide writes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tidemark as tm
from bench.compare.orders import ASK, BID, DEPTH, MOST_FILLS, SYMBOL_CHARS, OrderBook, limit_of, rank_of
from bench.compare.records import FIELD_BYTES, NAMES, Records, modified
from bench.compare.stores import Content, Durability
from bench.compare.subscribers import KEY_PARTS, LETTERS, STARTS, TYPES, Population, columns
from bench.context import Context, Scale

LEAST_MEMORY = 1 << 30
BYTES_PER_SUBSCRIBER = 4_000  # of data_memory: the rows of all four tables, and as much again
START_STEP = STARTS[1]
BY_KEY = "by_key"
BY_NUMBER = "by_number"
BY_RANK = "by_rank"
BYTES_PER_ORDER = 1_000


def settings(durability: Durability) -> str:
    """What is printed beside the figure."""
    return f"durability={durability.ours}; an ordered index for scans, a unique one over sub_nbr"


def _open(folder: Path, durability: Durability, size_bytes: int) -> tm.Database:
    memory = max(LEAST_MEMORY, size_bytes)
    return Context(folder, Scale()).open("tidemark", durability=durability.ours, data_memory=memory)


class TidemarkRecords:
    """YCSB: one table; an ordered index over its key if records are scanned."""

    def __init__(self, folder: Path, durability: Durability, data: Records, is_scanned: bool) -> None:
        self.db = _open(folder, durability, 3 * data.size_bytes)
        fields = [tm.Column(name, tm.Binary(FIELD_BYTES)) for name in NAMES]
        self.table = self.db.create_table("usertable", [tm.Column("key", tm.Int64), *fields], "key")
        self.table.insert_many(data.table)
        if is_scanned:
            self.db.create_index("usertable", BY_KEY, "key")
        self.db.sync()

    def read(self, key: int) -> Sequence[Any]:
        row: tuple[Any, ...] = self.table.get(key)
        return row

    def update(self, key: int, field: int, value: bytes) -> None:
        self.table.update(key, {NAMES[field]: value})

    def insert(self, key: int, fields: tuple[bytes, ...]) -> None:
        self.table.insert((key, *fields))

    def scan(self, key: int, count: int) -> list[Sequence[Any]]:
        return list(self.table.scan(limit=count, index=BY_KEY, lower=key))  # all columns: a choice of them costs more

    def modify(self, key: int, field: int, value: bytes) -> None:
        with self.db.transaction() as txn:
            row = txn.get("usertable", key, "exclusive")
            txn.update("usertable", key, {NAMES[field]: modified(row[1 + field], value)})

    def content(self) -> Content:
        return {row[0]: tuple(row[1:]) for row in self.table.scan()}

    def close(self) -> None:
        self.db.close()


class TidemarkSubscribers:
    """TATP: four tables, a unique index over sub_nbr. A transaction reads rows as they are committed."""

    def __init__(self, folder: Path, durability: Durability, data: Population) -> None:
        self.db = _open(folder, durability, data.count * BYTES_PER_SUBSCRIBER)
        for name, rows in data.arrow.items():
            described = columns(name)
            keys = [column.name for column in described[: KEY_PARTS[name]]]
            self.db.create_table(name, described, keys).insert_many(rows)
        self.db.create_index("subscriber", BY_NUMBER, "sub_nbr", unique=True)
        self.db.sync()
        self.subscriber = self.db["subscriber"]
        self.access = self.db["access_info"]

    def get_subscriber_data(self, s_id: int) -> Sequence[Any]:
        row: tuple[Any, ...] = self.subscriber.get(s_id)
        return row

    def get_new_destination(self, s_id: int, sf_type: int, start: int, end: int) -> list[bytes]:
        with self.db.transaction() as txn:
            facility = txn.get("special_facility", (s_id, sf_type))
            if facility is None or not facility.is_active:
                return []
            keys = [(s_id, sf_type, at) for at in range(0, start + 1, START_STEP)]
            found = [txn.get("call_forwarding", key) for key in keys]
        return [row.numberx for row in found if row is not None and end < row.end_time]

    def get_access_data(self, s_id: int, ai_type: int) -> Sequence[Any] | None:
        row: tuple[Any, ...] | None = self.access.get((s_id, ai_type))
        return row

    def update_subscriber_data(self, s_id: int, bit_1: int, sf_type: int, data_a: int) -> bool:
        with self.db.transaction() as txn:
            try:
                txn.update("special_facility", (s_id, sf_type), {"data_a": data_a})
            except tm.RowNotFound:
                txn.rollback()
                return False
            return txn.update("subscriber", s_id, {"bit_1": bit_1})

    def update_location(self, sub_nbr: bytes, vlr_location: int) -> bool:
        return self.subscriber.update(sub_nbr, {"vlr_location": vlr_location}, index=BY_NUMBER)

    def insert_call_forwarding(self, sub_nbr: bytes, sf_type: int, start: int, end: int, numberx: bytes) -> bool:
        with self.db.transaction() as txn:
            s_id = txn.get("subscriber", sub_nbr, index=BY_NUMBER).s_id
            facilities = [each for each in TYPES if txn.get("special_facility", (s_id, each)) is not None]
            try:
                if sf_type in facilities:
                    txn.insert("call_forwarding", (s_id, sf_type, start, end, numberx))
                    return True
            except tm.DuplicateKey:
                txn.rollback()
            return False

    def delete_call_forwarding(self, sub_nbr: bytes, sf_type: int, start: int) -> bool:
        with self.db.transaction() as txn:
            s_id = txn.get("subscriber", sub_nbr, index=BY_NUMBER).s_id
            try:
                return txn.delete("call_forwarding", (s_id, sf_type, start))
            except tm.RowNotFound:
                txn.rollback()
                return False

    def content(self) -> Content:
        return {
            (name, *row[: KEY_PARTS[name]]): tuple(row[KEY_PARTS[name] :])
            for name in LETTERS
            for row in self.db[name].scan()
        }

    def close(self) -> None:
        self.db.close()


class TidemarkOrders:
    """The order book: three tables, an ordered index over a side of a symbol's book."""

    def __init__(self, folder: Path, durability: Durability, data: OrderBook) -> None:
        self.db = _open(folder, durability, (data.account_count + data.order_count) * BYTES_PER_ORDER)
        kinds: dict[str, Any] = {"symbol": tm.VarChar(SYMBOL_CHARS), "side": tm.UInt8}
        tables = {
            "account": ("id", "cash"),
            "orders": ("id", "account", "symbol", "side", "rank", "left"),
            "trade": ("taker", "maker", "price", "quantity"),
        }
        for name, names in tables.items():
            key = names[: 2 if name == "trade" else 1]
            self.db.create_table(name, [tm.Column(each, kinds.get(each, tm.Int64)) for each in names], key)
        for name, rows in data.arrow.items():
            self.db[name].insert_many(rows)
        self.db.create_index("orders", BY_RANK, ("symbol", "side", "rank", "id"))
        self.db.sync()

    def place(self, order: int, account: int, symbol: str, side: int, price: int, quantity: int) -> int:
        col = tm.col
        with self.db.transaction() as txn:
            if side == BID:
                cost = price * quantity
                if not txn.update("account", account, {"cash": col("cash") - cost}, where=col("cash") >= cost):
                    return False
            left = quantity
            accepted = (col("symbol") == symbol) & (col("side") == ASK - side) & (col("rank") <= limit_of(side, price))
            for maker in txn.scan("orders", where=accepted, index=BY_RANK, limit=MOST_FILLS, lock="exclusive"):
                filled, paid = min(left, maker.left), abs(maker.rank)
                if filled == maker.left:
                    txn.delete("orders", maker.id)
                else:
                    txn.update("orders", maker.id, {"left": col("left") - filled})
                txn.insert("trade", (order, maker.id, paid, filled))
                seller = account if side == ASK else maker.account
                txn.update("account", seller, {"cash": col("cash") + paid * filled})
                if side == BID and paid < price:
                    txn.update("account", account, {"cash": col("cash") + (price - paid) * filled})
                left -= filled
                if not left:
                    break
            if left:
                txn.insert("orders", (order, account, symbol, side, rank_of(side, price), left))
        return quantity - left

    def cancel(self, order: int) -> bool:
        with self.db.transaction() as txn:
            row = txn.get("orders", order, "exclusive")
            if row is None:
                return False
            if row.side == BID:
                txn.update("account", row.account, {"cash": tm.col("cash") - row.rank * row.left})
            return txn.delete("orders", order)

    def depth(self, symbol: str) -> list[tuple[int, int, int]]:
        found: list[tuple[int, int, int]] = []
        for side in (BID, ASK):
            where = (tm.col("symbol") == symbol) & (tm.col("side") == side)
            rows = self.db["orders"].scan(("side", "rank", "left"), where=where, index=BY_RANK, limit=DEPTH)
            found += [tuple(row) for row in rows]
        return found

    def account(self, account: int) -> Sequence[Any]:
        row: tuple[Any, ...] = self.db["account"].get(account)
        return row

    def content(self) -> Content:
        found: Content = {("account", row.id): (row.cash,) for row in self.db["account"].scan()}
        found |= {("orders", row.id): tuple(row[1:]) for row in self.db["orders"].scan()}
        return found | {("trade", row.taker, row.maker): tuple(row[2:]) for row in self.db["trade"].scan()}

    def close(self) -> None:
        self.db.close()
