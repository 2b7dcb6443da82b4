"""An order book, seeded: accounts with cash, resting orders, trades; orders are placed, matched and cancelled.

The money of a bid is taken when it is placed. A new order is filled by resting orders of the other side, the best price
first, then the oldest; what is left of it rests. Money is in cents, as whole numbers: not every store has decimals. An
order's rank is its price, of bids the negative price, so that the best order of a side is the first by rank.
"""

from __future__ import annotations

import struct
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from bench import peers
from bench.compare.stores import Operation

SEED = 20_261_129
BID, ASK = 0, 1
SYMBOLS = [f"SYM{number:02}" for number in range(20)]
SYMBOL_CHARS = 8
MIDDLE_CENTS, SPREAD_CENTS = 10_000, 500
MOST_QUANTITY = 100
CASH_CENTS = 5_000_000
MOST_FILLS = 8  # of one new order
DEPTH = 5
ROWS_PER_ACCOUNT, ROWS_PER_ORDER = 100, 10  # how many of the rows of a run there are for an account, a resting order
# Shares in percent.
MIX = {"place": 50, "cancel": 15, "depth": 20, "account": 15}

# Packed values of key-value stores. In a key ranks are moved up so that they sort as bytes.
CASH = struct.Struct("<q")
ORDER = struct.Struct(f"<q{SYMBOL_CHARS}sBqq")
TRADE = struct.Struct("<qq")
PLACE = struct.Struct(f">c{SYMBOL_CHARS}sBQQ")
PAIR = struct.Struct(">cQQ")
RANK_OFFSET = 1 << 62


class OrderBook:
    """Accounts and resting orders: columns of a table, values of a row."""

    def __init__(self, rows: int) -> None:
        rng = np.random.default_rng([SEED, rows])
        self.account_count = max(10, rows // ROWS_PER_ACCOUNT)
        self.order_count = max(20, rows // ROWS_PER_ORDER)
        self.accounts = [(each, CASH_CENTS) for each in range(self.account_count)]
        owners = rng.integers(0, self.account_count, self.order_count).tolist()
        symbols = rng.choice(SYMBOLS, self.order_count).tolist()
        sides = rng.integers(BID, ASK + 1, self.order_count).tolist()
        far = rng.integers(1, SPREAD_CENTS, self.order_count).tolist()
        ranks = [
            off - MIDDLE_CENTS if side == BID else MIDDLE_CENTS + off for side, off in zip(sides, far, strict=True)
        ]
        lefts = rng.integers(1, MOST_QUANTITY + 1, self.order_count).tolist()
        self.orders = list(zip(range(self.order_count), owners, symbols, sides, ranks, lefts, strict=True))

    @cached_property
    def arrow(self) -> dict[str, pa.Table]:
        """Each table that has rows as Arrow."""
        accounts = dict(zip(("id", "cash"), zip(*self.accounts, strict=True), strict=True))
        orders = dict(zip(ORDER_COLUMNS, zip(*self.orders, strict=True), strict=True))
        return {"account": pa.table(accounts), "orders": pa.table(orders)}

    @cached_property
    def pairs(self) -> peers.Pairs:
        """All rows packed, orders also by their place in the book; sorted by key."""
        found = [(pair_key(b"a", key), CASH.pack(cash)) for key, cash in self.accounts]
        for order, account, symbol, side, rank, left in self.orders:
            found.append((pair_key(b"o", order), ORDER.pack(account, symbol.encode(), side, rank, left)))
            found.append((place_key(symbol.encode(), side, rank, order), b""))
        return sorted(found)

    def operations(self, count: int) -> list[Operation]:
        """A stream of calls; new orders cross the book about every second time."""
        rng = np.random.default_rng([SEED, 1])
        kinds = rng.choice(list(MIX), count, p=[share / 100 for share in MIX.values()]).tolist()
        accounts = rng.integers(0, self.account_count, count).tolist()
        symbols = rng.choice(SYMBOLS, count).tolist()
        sides = rng.integers(BID, ASK + 1, count).tolist()
        prices = (MIDDLE_CENTS + rng.integers(-SPREAD_CENTS, SPREAD_CENTS, count)).tolist()
        quantities = rng.integers(1, MOST_QUANTITY + 1, count).tolist()
        age = rng.random(count).tolist()
        out: list[Operation] = []
        for at, kind in enumerate(kinds):
            order = self.order_count + at
            given: dict[str, tuple[Any, ...]] = {
                "place": (order, accounts[at], symbols[at], sides[at], prices[at], quantities[at]),
                "cancel": (int(age[at] * order),),
                "depth": (symbols[at],),
                "account": (accounts[at],),
            }
            out.append((kind, given[kind]))
        return out


ORDER_COLUMNS = ("id", "account", "symbol", "side", "rank", "left")


def rank_of(side: int, price: int) -> int:
    """The rank of an order in its side of the book."""
    return -price if side == BID else price


def limit_of(side: int, price: int) -> int:
    """The last rank of the other side that an order of this side and price accepts."""
    return rank_of(ASK - side, price)


def pair_key(letter: bytes, first: int, second: int = 0) -> bytes:
    """The key of an account, an order or a trade in a key-value store."""
    return PAIR.pack(letter, first, second)


def place_key(symbol: bytes, side: int, rank: int, order: int) -> bytes:
    """The key of an order's place in the book in a key-value store."""
    return PLACE.pack(b"p", symbol, side, rank + RANK_OFFSET, order)
