"""Scans of tables, transactions and snapshots say how far they have come."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import tidemark as tm
from tests.store.support import open_memory

ROWS = 100_000
ELEVEN = tm.col("n") == 11
Reported = list[tuple[int, int, str]]


@pytest.fixture(scope="module")
def db() -> Iterator[Any]:
    db = open_memory(data_memory="64 MiB", redo_log="32 MiB")
    table = db.create_table("t", [tm.Column("id", tm.Int64), tm.Column("n", tm.Int64)], "id")
    table.insert_many([(key, key % 10) for key in range(ROWS)])
    table.update_where({"n": 11}, where=tm.col("id") < 5)
    db.create_index("t", "by_n", "n")
    yield db
    db.close()


def reported(scan: Callable[..., Any], **how: Any) -> tuple[Reported, int]:
    """What a scan reports, and how many rows it finds."""
    found: Reported = []
    rows = scan(progress=lambda *what: found.append(what), **how)
    return found, rows.num_rows if hasattr(rows, "num_rows") else len(list(rows))


def test_progress_of_a_whole_scan_ends_with_all_of_the_total(db: Any) -> None:
    found, count = reported(db["t"].to_arrow)
    assert count == ROWS and len(found) > 2 and found[-1] == (ROWS, ROWS, "rows")
    assert [done for done, _, _ in found] == sorted({done for done, _, _ in found})
    with db.snapshot() as snapshot:
        found, count = reported(snapshot["t"].to_arrow)
    assert count == ROWS and found[-1][0] == found[-1][1] and found[-1][2] == "pages"


def test_progress_counts_the_rows_found_where_their_number_is_unknown(db: Any) -> None:
    for how in ({"where": ELEVEN}, {"index": "by_n", "lower": 11}):
        found, count = reported(db["t"].scan, **how)
        assert count == 5 and found[-1] == (5, -1, "rows")
    with db.transaction() as txn:
        found, count = reported(lambda **how: txn.scan("t", **how), where=ELEVEN)
    assert count == 5 and found[-1] == (5, -1, "rows")
    with db.snapshot() as snapshot:
        found, count = reported(snapshot["t"].scan, index="by_n", limit=290)
    assert count == 290 and found[-1] == (290, -1, "rows")


def test_error_of_a_progress_callback_ends_the_scan(db: Any) -> None:
    def stop(*_: Any) -> None:
        raise LookupError

    with db.snapshot() as snapshot:
        for call in (db["t"].to_arrow, snapshot["t"].to_pandas):
            with pytest.raises(LookupError):
                call(progress=stop)
        assert len(db["t"]) == len(snapshot["t"]) == ROWS
