"""Scans say how far they have come."""

from __future__ import annotations

from typing import Any

import tidemark as tm
from tests.store.support import open_memory


def opened() -> Any:
    db = open_memory(data_memory="64 MiB", redo_log="32 MiB")
    table = db.create_table("t", [tm.Column("id", tm.Int64), tm.Column("n", tm.Int64)], "id")
    table.insert_many([(key, key % 10) for key in range(100_000)])
    table.update_where({"n": 11}, where=tm.col("id") < 5)
    return db, table


def test_progress_of_a_whole_scan_ends_with_every_row_of_the_total() -> None:
    db, table = opened()
    reported: list[tuple[int, int, str]] = []
    assert table.to_arrow(progress=lambda *what: reported.append(what)).num_rows == 100_000
    assert len(reported) > 2 and reported[-1] == (100_000, 100_000, "rows")
    assert [done for done, _, _ in reported] == sorted({done for done, _, _ in reported})
    db.close()


def test_progress_counts_the_rows_found_where_their_number_is_unknown() -> None:
    db, table = opened()
    db.create_index("t", "by_n", "n")
    for scan in (
        lambda progress: table.scan(where=tm.col("n") == 11, progress=progress),
        lambda progress: table.scan(index="by_n", lower=11, progress=progress),
        lambda progress: db.transaction().scan("t", where=tm.col("n") == 11, progress=progress),
    ):
        reported: list[tuple[int, int, str]] = []
        assert len(list(scan(lambda *what, reported=reported: reported.append(what)))) == 5  # type: ignore[misc]
        assert reported[-1] == (5, -1, "rows")
    db.close()


def test_error_of_a_progress_callback_ends_the_scan() -> None:
    db, table = opened()

    def stop(*_: Any) -> None:
        raise LookupError

    try:
        table.to_arrow(progress=stop)
    except LookupError:
        pass
    else:
        raise AssertionError("the callback was not heard")
    assert len(table) == 100_000
    db.close()
