"""The same operations on plain dictionaries: what every store is compared with before anything is measured."""

from __future__ import annotations

from typing import Any

from bench.compare.orders import ASK, BID, DEPTH, MOST_FILLS, OrderBook, limit_of, rank_of
from bench.compare.records import RECORD, Records, modified
from bench.compare.stores import Content
from bench.compare.subscribers import KEY_PARTS, TABLES, TYPES, Population


class RecordModel:
    """YCSB over one dictionary."""

    def __init__(self, data: Records) -> None:
        self.rows: dict[int, tuple[bytes, ...]] = {
            int.from_bytes(key, "big"): RECORD.unpack(image) for key, image in data.pairs
        }

    def read(self, key: int) -> tuple[bytes, ...]:
        return self.rows[key]

    def update(self, key: int, field: int, value: bytes) -> None:
        fields = list(self.rows[key])
        fields[field] = value
        self.rows[key] = tuple(fields)

    def insert(self, key: int, fields: tuple[bytes, ...]) -> None:
        self.rows[key] = fields

    def scan(self, key: int, count: int) -> list[tuple[bytes, ...]]:
        return [self.rows[each] for each in sorted(self.rows) if each >= key][:count]

    def modify(self, key: int, field: int, value: bytes) -> None:
        self.update(key, field, modified(self.rows[key][field], value))

    def content(self) -> Content:
        return dict(self.rows)

    def close(self) -> None:
        """Nothing is open."""


class SubscriberModel:
    """TATP over one dictionary: (table, parts of the key …) → the other columns."""

    def __init__(self, data: Population) -> None:
        self.rows: Content = {
            (name, *row[: KEY_PARTS[name]]): row[KEY_PARTS[name] :]
            for name, rows in data.tables.items()
            for row in rows
        }
        self.by_number = {row[1]: row[0] for row in data.tables["subscriber"]}

    def _change(self, key: tuple[Any, ...], column: str, value: Any) -> None:
        place = list(TABLES[key[0]]).index(column) - KEY_PARTS[key[0]]
        row = self.rows[key]
        self.rows[key] = (*row[:place], value, *row[place + 1 :])

    def get_subscriber_data(self, s_id: int) -> tuple[Any, ...]:
        return self.rows["subscriber", s_id]

    def get_new_destination(self, s_id: int, sf_type: int, start: int, end: int) -> list[bytes]:
        facility = self.rows.get(("special_facility", s_id, sf_type))
        if facility is None or not facility[0]:
            return []
        forwardings = (self.rows.get(("call_forwarding", s_id, sf_type, at)) for at in range(start + 1))
        return [row[1] for row in forwardings if row is not None and end < row[0]]

    def get_access_data(self, s_id: int, ai_type: int) -> tuple[Any, ...] | None:
        return self.rows.get(("access_info", s_id, ai_type))

    def update_subscriber_data(self, s_id: int, bit_1: int, sf_type: int, data_a: int) -> bool:
        if ("special_facility", s_id, sf_type) not in self.rows:
            return False
        self._change(("special_facility", s_id, sf_type), "data_a", data_a)
        self._change(("subscriber", s_id), "bit_1", bit_1)
        return True

    def update_location(self, sub_nbr: bytes, vlr_location: int) -> bool:
        self._change(("subscriber", self.by_number[sub_nbr]), "vlr_location", vlr_location)
        return True

    def insert_call_forwarding(self, sub_nbr: bytes, sf_type: int, start: int, end: int, numberx: bytes) -> bool:
        s_id = self.by_number[sub_nbr]
        facilities = [each for each in TYPES if ("special_facility", s_id, each) in self.rows]
        if sf_type not in facilities or ("call_forwarding", s_id, sf_type, start) in self.rows:
            return False
        self.rows["call_forwarding", s_id, sf_type, start] = (end, numberx)
        return True

    def delete_call_forwarding(self, sub_nbr: bytes, sf_type: int, start: int) -> bool:
        return self.rows.pop(("call_forwarding", self.by_number[sub_nbr], sf_type, start), None) is not None

    def content(self) -> Content:
        return dict(self.rows)

    def close(self) -> None:
        """Nothing is open."""


class OrderModel:
    """The order book over one dictionary: (table, parts of the key …) → the other columns."""

    def __init__(self, data: OrderBook) -> None:
        self.rows: Content = {("account", key): (cash,) for key, cash in data.accounts}
        self.rows |= {("orders", row[0]): row[1:] for row in data.orders}

    def _pay(self, account: int, cents: int) -> None:
        self.rows["account", account] = (self.rows["account", account][0] + cents,)

    def _side(self, symbol: str, side: int) -> list[tuple[int, int]]:
        """(rank, order) of a side, the best first."""
        found = [
            (row[3], key[1]) for key, row in self.rows.items() if key[0] == "orders" and row[1:3] == (symbol, side)
        ]
        return sorted(found)

    def place(self, order: int, account: int, symbol: str, side: int, price: int, quantity: int) -> int:
        if side == BID:
            if self.rows["account", account][0] < price * quantity:
                return False
            self._pay(account, -price * quantity)
        left = quantity
        for rank, maker in self._side(symbol, ASK - side)[:MOST_FILLS]:
            if rank > limit_of(side, price) or not left:
                break
            owner, _, _, _, has = self.rows["orders", maker]
            filled, paid = min(left, has), abs(rank)
            left -= filled
            self.rows["orders", maker] = (owner, symbol, ASK - side, rank, has - filled)
            if has == filled:
                del self.rows["orders", maker]
            self.rows["trade", order, maker] = (paid, filled)
            self._pay(account if side == ASK else owner, paid * filled)
            if side == BID:
                self._pay(account, (price - paid) * filled)
        if left:
            self.rows["orders", order] = (account, symbol, side, rank_of(side, price), left)
        return quantity - left

    def cancel(self, order: int) -> bool:
        row = self.rows.pop(("orders", order), None)
        if row is not None and row[2] == BID:
            self._pay(row[0], -row[3] * row[4])
        return row is not None

    def depth(self, symbol: str) -> list[tuple[int, int, int]]:
        sides = ((side, rank, order) for side in (BID, ASK) for rank, order in self._side(symbol, side)[:DEPTH])
        return [(side, rank, self.rows["orders", order][4]) for side, rank, order in sides]

    def account(self, account: int) -> tuple[Any, ...]:
        return self.rows["account", account]

    def content(self) -> Content:
        return dict(self.rows)

    def close(self) -> None:
        """Nothing is open."""
