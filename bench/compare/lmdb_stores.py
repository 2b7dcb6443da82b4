"""LMDB: packed rows under sorted keys; each operation is one read or write transaction."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice, takewhile
from pathlib import Path
from typing import Any

from bench import peers
from bench.compare.orders import (
    ASK,
    BID,
    CASH,
    DEPTH,
    MOST_FILLS,
    ORDER,
    PAIR,
    PLACE,
    RANK_OFFSET,
    SYMBOL_CHARS,
    TRADE,
    OrderBook,
    limit_of,
    pair_key,
    place_key,
    rank_of,
)
from bench.compare.records import FIELD_BYTES, RECORD, Records, modified
from bench.compare.stores import Content, Durability
from bench.compare.subscribers import (
    ACCESS,
    BIT_1_OFFSET,
    DATA_A_OFFSET,
    FACILITY,
    FORWARDING,
    SUBSCRIBER,
    VLR_OFFSET,
    Population,
    unpacked,
)


def settings(durability: Durability) -> str:
    """What is printed beside the figure."""
    return peers.LMDB_SYNC if durability.is_synced else peers.LMDB_NO_SYNC


class LmdbRecords:
    """YCSB: key → packed record."""

    def __init__(self, folder: Path, durability: Durability, data: Records, is_scanned: bool) -> None:
        self.environment = peers.lmdb_open(folder / "lmdb", durability.is_synced)
        self.begin: Any = self.environment.begin
        peers.lmdb_load(self.environment, data.pairs)
        self.environment.sync(True)

    def read(self, key: int) -> Sequence[Any]:
        with self.begin() as txn:
            return RECORD.unpack(txn.get(key.to_bytes(8, "big")))

    def update(self, key: int, field: int, value: bytes) -> None:
        place, at = key.to_bytes(8, "big"), field * FIELD_BYTES
        with self.begin(write=True) as txn:
            image = txn.get(place)
            txn.put(place, image[:at] + value + image[at + FIELD_BYTES :])

    def insert(self, key: int, fields: tuple[bytes, ...]) -> None:
        with self.begin(write=True) as txn:
            txn.put(key.to_bytes(8, "big"), RECORD.pack(*fields))

    def scan(self, key: int, count: int) -> list[Sequence[Any]]:
        with self.begin() as txn:
            cursor = txn.cursor()
            if not cursor.set_range(key.to_bytes(8, "big")):
                return []
            return [RECORD.unpack(image) for image in islice(cursor.iternext(keys=False), count)]

    def modify(self, key: int, field: int, value: bytes) -> None:
        place = key.to_bytes(8, "big")
        with self.begin(write=True) as txn:
            fields = list(RECORD.unpack(txn.get(place)))
            fields[field] = modified(fields[field], value)
            txn.put(place, RECORD.pack(*fields))

    def content(self) -> Content:
        with self.begin() as txn:
            return {int.from_bytes(key, "big"): RECORD.unpack(image) for key, image in txn.cursor()}

    def close(self) -> None:
        self.environment.close()


class LmdbSubscribers:
    """TATP: composite keys, sub_nbr → s_id beside them; facilities and forwardings are ranges of keys."""

    def __init__(self, folder: Path, durability: Durability, data: Population) -> None:
        self.environment = peers.lmdb_open(folder / "lmdb", durability.is_synced)
        self.begin: Any = self.environment.begin
        peers.lmdb_load(self.environment, data.pairs)
        self.environment.sync(True)

    def get_subscriber_data(self, s_id: int) -> Sequence[Any]:
        with self.begin() as txn:
            return SUBSCRIBER.unpack(txn.get(b"s" + s_id.to_bytes(4, "big")))

    def get_new_destination(self, s_id: int, sf_type: int, start: int, end: int) -> list[bytes]:
        place = s_id.to_bytes(4, "big") + bytes((sf_type,))
        with self.begin() as txn:
            facility = txn.get(b"f" + place)
            if facility is None or not FACILITY.unpack(facility)[0]:
                return []
            found, cursor, last = [], txn.cursor(), b"c" + place + bytes((start,))
            if cursor.set_range(b"c" + place):
                for _, value in takewhile(lambda pair: pair[0] <= last, cursor):
                    end_time, numberx = FORWARDING.unpack(value)
                    if end < end_time:
                        found.append(numberx)
            return found

    def get_access_data(self, s_id: int, ai_type: int) -> Sequence[Any] | None:
        with self.begin() as txn:
            value = txn.get(b"a" + s_id.to_bytes(4, "big") + bytes((ai_type,)))
            return None if value is None else ACCESS.unpack(value)

    def update_subscriber_data(self, s_id: int, bit_1: int, sf_type: int, data_a: int) -> bool:
        place = s_id.to_bytes(4, "big")
        key = b"f" + place + bytes((sf_type,))
        with self.begin(write=True) as txn:
            facility = txn.get(key)
            if facility is None:
                txn.abort()
                return False
            txn.put(key, facility[:DATA_A_OFFSET] + bytes((data_a,)) + facility[DATA_A_OFFSET + 1 :])
            key = b"s" + place
            subscriber = txn.get(key)
            txn.put(key, subscriber[:BIT_1_OFFSET] + bytes((bit_1,)) + subscriber[BIT_1_OFFSET + 1 :])
            return True

    def update_location(self, sub_nbr: bytes, vlr_location: int) -> bool:
        with self.begin(write=True) as txn:
            key = b"s" + txn.get(b"n" + sub_nbr)
            txn.put(key, txn.get(key)[:VLR_OFFSET] + vlr_location.to_bytes(4, "little"))
            return True

    def insert_call_forwarding(self, sub_nbr: bytes, sf_type: int, start: int, end: int, numberx: bytes) -> bool:
        with self.begin(write=True) as txn:
            place = txn.get(b"n" + sub_nbr)
            first, cursor = b"f" + place, txn.cursor()
            cursor.set_range(first)
            facilities = [key[-1] for key in takewhile(lambda key: key[:5] == first, cursor.iternext(values=False))]
            if sf_type in facilities:
                key = b"c" + place + bytes((sf_type, start))
                if txn.put(key, FORWARDING.pack(end, numberx), overwrite=False):
                    return True
            txn.abort()
            return False

    def delete_call_forwarding(self, sub_nbr: bytes, sf_type: int, start: int) -> bool:
        with self.begin(write=True) as txn:
            if txn.delete(b"c" + txn.get(b"n" + sub_nbr) + bytes((sf_type, start))):
                return True
            txn.abort()
            return False

    def content(self) -> Content:
        with self.begin() as txn:
            return dict(filter(None, (unpacked(key, value) for key, value in txn.cursor())))

    def close(self) -> None:
        self.environment.close()


class LmdbOrders:
    """The order book: accounts, orders and trades by their numbers; the places of orders are a range of keys."""

    def __init__(self, folder: Path, durability: Durability, data: OrderBook) -> None:
        self.environment = peers.lmdb_open(folder / "lmdb", durability.is_synced)
        self.begin: Any = self.environment.begin
        peers.lmdb_load(self.environment, data.pairs)
        self.environment.sync(True)

    def place(self, order: int, account: int, symbol: str, side: int, price: int, quantity: int) -> int:
        name = symbol.encode().ljust(SYMBOL_CHARS, b"\0")
        with self.begin(write=True) as txn:
            if side == BID and not _pay(txn, account, -price * quantity):
                txn.abort()
                return False
            left = quantity
            for rank, maker in _places(txn, name, ASK - side, MOST_FILLS):
                if rank > limit_of(side, price) or not left:
                    break
                key = pair_key(b"o", maker)
                owner, _, _, _, has = ORDER.unpack(txn.get(key))
                filled, paid = min(left, has), abs(rank)
                if filled == has:
                    txn.delete(key)
                    txn.delete(place_key(name, ASK - side, rank, maker))
                else:
                    txn.put(key, ORDER.pack(owner, name, ASK - side, rank, has - filled))
                txn.put(pair_key(b"t", order, maker), TRADE.pack(paid, filled))
                _pay(txn, account if side == ASK else owner, paid * filled)
                if side == BID and paid < price:
                    _pay(txn, account, (price - paid) * filled)
                left -= filled
            if left:
                rank = rank_of(side, price)
                txn.put(pair_key(b"o", order), ORDER.pack(account, name, side, rank, left))
                txn.put(place_key(name, side, rank, order), b"")
            return quantity - left

    def cancel(self, order: int) -> bool:
        key = pair_key(b"o", order)
        with self.begin(write=True) as txn:
            packed = txn.get(key)
            if packed is None:
                txn.abort()
                return False
            account, name, side, rank, left = ORDER.unpack(packed)
            if side == BID:
                _pay(txn, account, -rank * left)
            txn.delete(place_key(name, side, rank, order))
            return bool(txn.delete(key))

    def depth(self, symbol: str) -> list[tuple[int, int, int]]:
        name = symbol.encode().ljust(SYMBOL_CHARS, b"\0")
        with self.begin() as txn:
            return [
                (side, rank, ORDER.unpack(txn.get(pair_key(b"o", order)))[4])
                for side in (BID, ASK)
                for rank, order in _places(txn, name, side, DEPTH)
            ]

    def account(self, account: int) -> Sequence[Any]:
        with self.begin() as txn:
            return CASH.unpack(txn.get(pair_key(b"a", account)))

    def content(self) -> Content:
        found: Content = {}
        with self.begin() as txn:
            for key, value in txn.cursor():
                if key[:1] == b"a":
                    found["account", PAIR.unpack(key)[1]] = CASH.unpack(value)
                elif key[:1] == b"o":
                    account, name, *rest = ORDER.unpack(value)
                    found["orders", PAIR.unpack(key)[1]] = (account, name.rstrip(b"\0").decode(), *rest)
                elif key[:1] == b"t":
                    found["trade", *PAIR.unpack(key)[1:]] = TRADE.unpack(value)
        return found

    def close(self) -> None:
        self.environment.close()


def _pay(txn: Any, account: int, cents: int) -> bool:
    """Change the cash of an account; False, with nothing changed, if it would be below zero."""
    key = pair_key(b"a", account)
    cash = CASH.unpack(txn.get(key))[0] + cents
    return cash >= 0 and bool(txn.put(key, CASH.pack(cash)))


def _places(txn: Any, name: bytes, side: int, count: int) -> list[tuple[int, int]]:
    """(rank, order) of the best orders of a side."""
    prefix = b"p" + name + bytes((side,))
    cursor = txn.cursor()
    cursor.set_range(prefix)
    keys = islice(takewhile(lambda key: key.startswith(prefix), cursor.iternext(values=False)), count)
    return [(rank - RANK_OFFSET, order) for _, _, _, rank, order in map(PLACE.unpack, keys)]
