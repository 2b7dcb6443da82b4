"""The rules after a crash: every acknowledged transaction is there as a whole. Each thread may have one more, which was
in flight.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tidemark.demo.data import AMOUNT_DIGITS, CHANGED, cents, totals
from tidemark.demo.refresh import THREADS

if TYPE_CHECKING:
    import pyarrow as pa


LINES_OF_ORDER = 8  # a line's number is below it


def check(
    orders: pa.Table, lines: pa.Table, log: pa.Table, acked: dict[int, int], loaded: tuple[pa.Table, pa.Table]
) -> list[str]:
    """Return every violation found, in words; empty if there is none.

    acked: newest acknowledged sequence by thread. loaded: orders and lines as they were at the beginning.
    """
    return [
        *check_log(log, acked),
        *check_totals(orders, lines),
        *check_effects(orders, lines, log, np.asarray(loaded[0].column("o_orderkey"))),
        *check_comments("order", *(order_comments(each) for each in (orders, loaded[0]))),
        *check_comments("line", *(line_comments(each) for each in (lines, loaded[1]))),
    ]


def order_comments(orders: pa.Table) -> tuple[Any, Any, pa.Array]:
    """(keys, prices in cents, comments)."""
    comments = orders.column("o_comment").combine_chunks()
    return np.asarray(orders.column("o_orderkey")), cents(orders.column("o_totalprice")), comments


def line_comments(lines: pa.Table) -> tuple[Any, Any, pa.Array]:
    """(keys, prices in cents, comments)."""
    keys = np.asarray(lines.column("l_orderkey")) * LINES_OF_ORDER + np.asarray(lines.column("l_linenumber"))
    return keys, cents(lines.column("l_extendedprice")), lines.column("l_comment").combine_chunks()


def check_comments(what: str, held: tuple[Any, Any, pa.Array], loaded: tuple[Any, Any, pa.Array]) -> list[str]:
    """Check the comments, which are on disk: each is as loaded, or repeats the price that a change has set."""
    import pyarrow as pa
    import pyarrow.compute as compute

    keys, prices, comments = held
    comments, original = (each.cast(pa.string()) for each in (comments, loaded[2]))
    is_changed = compute.starts_with(comments, CHANGED)
    said = compute.utf8_slice_codeunits(comments.filter(is_changed), len(CHANGED), len(CHANGED) + AMOUNT_DIGITS).cast(
        pa.int64()
    )
    mask = np.asarray(is_changed)
    wrong = int((np.asarray(said) != prices[mask]).sum())
    by_key = np.argsort(loaded[0])
    place = np.searchsorted(loaded[0], keys[~mask], sorter=by_key)
    place = by_key[np.minimum(place, by_key.size - 1)]
    is_known = loaded[0][place] == keys[~mask]
    same = compute.equal(comments.filter(compute.invert(is_changed)), original.take(pa.array(place)))
    wrong += int((~(np.asarray(same) & is_known)).sum())
    return [f"{wrong} {what} comments are not what they must be"] if wrong else []


def check_log(log: pa.Table, acked: dict[int, int]) -> list[str]:
    """Check that each thread's sequences are 1 to n without a gap; n is the last acknowledged or the next one."""
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
    """Check that each order's total is the sum of its lines, and that each line has an order."""
    keys, _, expected = totals(lines)
    order_keys = np.asarray(orders.column("o_orderkey"))
    by_key = np.argsort(order_keys)
    if not np.array_equal(order_keys[by_key], keys):
        return [f"orders and lines do not match: {order_keys.size} orders, lines of {keys.size}"]
    held = cents(orders.column("o_totalprice"))[by_key]
    wrong = np.flatnonzero(held != expected)
    return (
        [f"order {keys[wrong[0]]} and {wrong.size - 1} others have totals that contradict their lines"]
        if wrong.size
        else []
    )


def check_effects(orders: pa.Table, lines: pa.Table, log: pa.Table, initial_keys: Any) -> list[str]:
    """Check that each order shows the effect of its newest transaction, and that all other orders are unchanged."""
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
