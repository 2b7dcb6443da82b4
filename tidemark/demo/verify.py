"""What must hold after a crash: every acknowledged transaction whole, nothing else but one in flight per thread."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tidemark.demo.data import cents, totals
from tidemark.demo.refresh import THREADS

if TYPE_CHECKING:
    import pyarrow as pa


def check(orders: pa.Table, lines: pa.Table, log: pa.Table, acked: dict[int, int], initial_keys: Any) -> list[str]:
    """Every violation found, in words; empty if all is well. acked: newest acknowledged sequence by thread."""
    return [
        *check_log(log, acked),
        *check_totals(orders, lines),
        *check_effects(orders, lines, log, initial_keys),
    ]


def check_log(log: pa.Table, acked: dict[int, int]) -> list[str]:
    """Each thread's sequences are 1 to n without a gap, n being the last acknowledged or the one behind it."""
    found = []
    threads, sequences = np.asarray(log.column("thread")), np.asarray(log.column("sequence"))
    for number in range(THREADS):
        mine = np.sort(sequences[threads == number])
        last = acked.get(number, 0)
        if not np.array_equal(mine, np.arange(1, mine.size + 1)):
            found.append(f"thread {number}: a transaction is missing among {mine.size}")
        if mine.size < last:
            found.append(f"thread {number}: acknowledged transaction {last} is lost, the store ends at {mine.size}")
        if mine.size > last + 1:
            found.append(f"thread {number}: {mine.size - last} transactions were in flight, at most one can be")
    return found


def check_totals(orders: pa.Table, lines: pa.Table) -> list[str]:
    """Each order's total is the sum of its lines, and each line has an order."""
    keys, _, expected = totals(lines)
    order_keys = np.asarray(orders.column("o_orderkey"))
    by_key = np.argsort(order_keys)
    if not np.array_equal(order_keys[by_key], keys):
        return [f"orders and lines do not match: {order_keys.size} orders, lines of {keys.size}"]
    held = cents(orders.column("o_totalprice"))[by_key]
    wrong = np.flatnonzero(held != expected)
    return (
        [f"order {keys[wrong[0]]} and {wrong.size - 1} others have totals that their lines deny"] if wrong.size else []
    )


def check_effects(orders: pa.Table, lines: pa.Table, log: pa.Table, initial_keys: Any) -> list[str]:
    """What the newest transaction on each order did is what the tables show; orders nobody touched are all there."""
    order = np.lexsort((np.asarray(log.column("sequence")), np.asarray(log.column("order_key"))))
    keys = np.asarray(log.column("order_key"))[order]
    newest = order[np.append(keys[1:] != keys[:-1], True)] if keys.size else order
    keys = np.asarray(log.column("order_key"))[newest]
    deleted = np.asarray(log.column("operation").to_numpy(zero_copy_only=False))[newest] == "delete"
    present = np.asarray(orders.column("o_orderkey"))
    expected = np.union1d(np.setdiff1d(initial_keys, keys), keys[~deleted])
    if not np.array_equal(np.sort(present), expected):
        gone, extra = np.setdiff1d(expected, present), np.setdiff1d(present, expected)
        return [f"{gone.size} orders are missing and {extra.size} should not be there"]
    line_keys, count, total = totals(lines)
    place = np.searchsorted(line_keys, keys[~deleted])
    alive = newest[~deleted]
    lines_logged = np.asarray(log.column("lines"))[alive]
    total_logged = np.asarray(log.column("total_cents"))[alive]
    wrong = np.flatnonzero((count[place] != lines_logged) | (total[place] != total_logged))
    return [f"{wrong.size} orders show half a transaction"] if wrong.size else []
