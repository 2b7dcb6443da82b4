"""One call that reads shows one instant, whatever is committed while it reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import tidemark as tm
from tests.isolation.levels import LEVELS, begun
from tests.isolation.stage import Face

ROWS = 70_000  # several batches, and of a client's scan several pages
PAD = "x" * 64


def make_big(face: Face) -> None:
    """Make a large table."""
    columns = [tm.Column("id", tm.Int64), tm.Column("n", tm.Int64), tm.Column("pad", tm.VarChar(64))]
    face.db.create_table("big", columns, "id")
    face.db.create_index("big", "by_n", ["n"])
    for first in range(0, ROWS, 10_000):
        keys = np.arange(first, first + 10_000)
        face.db["big"].insert_many({"id": keys, "n": keys, "pad": [PAD] * 10_000})


@pytest.fixture(scope="module")
def big(face: Face) -> Face:
    make_big(face)
    return face


def change(txn: Any) -> None:
    """Change rows that a scan has read, and some that it has not."""
    for key in (0, 1, ROWS - 2, ROWS - 1):
        txn.update("big", key, {"n": -key - 1})
    txn.delete("big", ROWS - 3)
    txn.insert("big", (ROWS, ROWS, PAD))


def undo(txn: Any) -> None:
    """Undo that."""
    for key in (0, 1, ROWS - 2, ROWS - 1):
        txn.update("big", key, {"n": key})
    txn.insert("big", (ROWS - 3, ROWS - 3, PAD))
    txn.delete("big", ROWS)


SCANS: dict[str, Callable[[Any], Any]] = {
    "scan": lambda txn: txn.scan("big"),
    "ordered index": lambda txn: txn.scan("big", index="by_n"),
    "reverse": lambda txn: txn.scan("big", index="by_n", reverse=True),
    "condition": lambda txn: txn.scan("big", where=tm.col("pad") == PAD),
}


def values(scan: Any, between: Callable[[], object]) -> list[int]:
    """What a scan reads in column n, sorted. between: called after its first batch."""
    batches: Iterator[Any] = scan.batches()
    found = next(batches)["n"].to_pylist()
    assert len(found) < ROWS, "the scan was one step"
    between()
    return sorted([*found, *(n for batch in batches for n in batch["n"].to_pylist())])


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("scan", SCANS.values(), ids=list(SCANS))
def test_scan_shows_one_instant(big: Face, scan: Callable[[Any], Any], level: str) -> None:
    with begun(big.db, level) as txn:
        try:
            assert values(scan(txn), lambda: big.db.run(change)) == list(range(ROWS))
        finally:
            big.db.run(undo)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("scan", SCANS.values(), ids=list(SCANS))
def test_scan_shows_nothing_that_is_not_committed(big: Face, scan: Callable[[Any], Any], level: str) -> None:
    with begun(big.db, level) as txn, begun(big.db, level) as other:
        assert values(scan(txn), lambda: change(other)) == list(range(ROWS))
        other.rollback()
