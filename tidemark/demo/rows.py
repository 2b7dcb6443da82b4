"""Rows with the columns, the types and the proportions of TPC-H's `orders` and `lineitem`, for machines without the
published generator.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa

ORDERS_AT_SCALE_1 = 1_500_000
LINES_MAX = 7
PHRASES = 10_000
SEED = 1
WORDS = (
    "account anchor barge beacon bold buoy calm cargo chart coast crane current deck depth dock early ebb final fleet"
    " flood harbour heavy keel late lock low moor order packet pilot quay quick regular reef sail shoal signal slack"
    " sound special spring steady tide vessel wave"
).split()


def make(scale: float, totals: Any) -> tuple[pa.Table, pa.Table]:
    """Return orders and lines at a scale; the same ones for the same scale. totals: `data.totals`."""
    import pyarrow as pa

    rng = np.random.default_rng(SEED)
    count = max(int(ORDERS_AT_SCALE_1 * scale), 1)
    number = np.arange(count)
    keys = number // 8 * 32 + number % 8 + 1  # as in TPC-H, a quarter of all numbers
    lines_of_order = rng.integers(1, LINES_MAX + 1, count)
    rows = int(lines_of_order.sum())
    first = np.repeat(np.cumsum(lines_of_order) - lines_of_order, lines_of_order)
    days = rng.integers(8_036, 10_440, count)  # 1992 to 1998
    shipped = np.repeat(days, lines_of_order) + rng.integers(1, 122, rows)
    quantity = rng.integers(1, 51, rows)
    parts = rng.integers(1, max(int(200_000 * scale), 1) + 1, rows)
    is_old = shipped <= 9_298
    lines = pa.table(
        {
            "l_orderkey": np.repeat(keys, lines_of_order),
            "l_partkey": parts,
            "l_suppkey": rng.integers(1, max(int(10_000 * scale), 1) + 1, rows),
            "l_linenumber": (np.arange(rows) - first + 1).astype(np.int32),
            "l_quantity": _money(quantity * 100),
            "l_extendedprice": _money(quantity * (90_000 + parts // 10 % 20_001 + parts % 1_000 * 100)),
            "l_discount": _money(rng.integers(0, 11, rows)),
            "l_tax": _money(rng.integers(0, 9, rows)),
            "l_returnflag": pa.array(["N", "R", "A"]).take(np.where(is_old, rng.integers(1, 3, rows), 0)),
            "l_linestatus": pa.array(["O", "F"]).take(is_old.astype(np.int8)),
            "l_shipdate": _dates(shipped),
            "l_commitdate": _dates(np.repeat(days, lines_of_order) + rng.integers(30, 91, rows)),
            "l_receiptdate": _dates(shipped + rng.integers(1, 31, rows)),
            "l_shipinstruct": _one_of(rng, rows, "COLLECT COD", "DELIVER IN PERSON", "NONE", "TAKE BACK RETURN"),
            "l_shipmode": _one_of(rng, rows, "AIR", "FOB", "MAIL", "RAIL", "REG AIR", "SHIP", "TRUCK"),
            "l_comment": _comments(rng, rows, 43),
        }
    )
    _, _, cents = totals(lines)
    orders = pa.table(
        {
            "o_orderkey": keys,
            "o_custkey": rng.integers(1, max(int(150_000 * scale), 1) + 1, count),
            "o_orderstatus": _one_of(rng, count, "F", "O", "P"),
            "o_totalprice": _money(cents),
            "o_orderdate": _dates(days),
            "o_orderpriority": _one_of(rng, count, "1-URGENT", "2-HIGH", "3-MEDIUM", "4-NOT SPECIFIED", "5-LOW"),
            "o_clerk": _one_of(rng, count, *(f"Clerk#{clerk:09}" for clerk in range(1, 1_001))),
            "o_shippriority": np.zeros(count, np.int32),
            "o_comment": _comments(rng, count, 78),
        }
    )
    return orders, lines


def _money(cents: Any) -> pa.Array:
    import pyarrow as pa

    words = np.zeros((len(cents), 2), np.int64)  # of a decimal128: little-endian, and never negative here
    words[:, 0] = cents
    return pa.Array.from_buffers(pa.decimal128(15, 2), len(cents), [None, pa.py_buffer(words)])


def _dates(days: Any) -> pa.Array:
    import pyarrow as pa

    return pa.array(days.astype(np.int32)).cast(pa.date32())


def _one_of(rng: np.random.Generator, count: int, *values: str) -> pa.Array:
    import pyarrow as pa

    return pa.array(values).take(rng.integers(0, len(values), count))


def _comments(rng: np.random.Generator, count: int, length_max: int) -> pa.Array:
    """Return phrases of two words and more, up to a length."""
    phrases = []
    for _ in range(PHRASES):
        words = rng.choice(WORDS, length_max // 4)
        phrases.append(" ".join(words)[: int(rng.integers(10, length_max + 1))].rstrip())
    return _one_of(rng, count, *phrases)
