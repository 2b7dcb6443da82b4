"""Updates that change nothing, on tables with a function that compares epochs of rows: they must reach the other
site.
"""

from __future__ import annotations

from typing import Any

import pytest

import tidemark as tm
from tests.replication.site import DISK, transactions_in
from tests.replication.test_unique_clashes import pair_of  # noqa: F401  # a fixture
from tests.replication.two_sites import COLUMNS, EPOCH_FUNCTIONS, Pair

DISK_COLUMNS = [*COLUMNS, tm.Column("far", tm.VarChar(900), nullable=True, storage="disk")]
ROWS = [(each, f"u{each}", "as it was") for each in range(8)]


def put_back(db: Any, key: int) -> None:
    with db.transaction() as txn:
        txn.update("shop.item", key, {"note": "other"})
        txn.update("shop.item", key, {"note": "as it was"})


def made_again(db: Any, key: int) -> None:
    with db.transaction() as txn:
        row = tuple(txn.get("shop.item", key))
        txn.delete("shop.item", key)
        txn.insert("shop.item", row)


# Each leaves the row with key 0, 1, … as it was.
WAYS = (
    lambda db, key: db["shop.item"].update(key, {"note": "as it was"}),
    lambda db, key: db["shop.item"].update(key, {"u": f"u{key}", "note": "as it was"}),
    lambda db, key: db["shop.item"].update_many([{"id": key, "note": "as it was"}]),
    lambda db, key: db["shop.item"].update_where({"note": "as it was"}, tm.col("id") == key),
    lambda db, key: db["shop.item"].write(tuple(db["shop.item"].get(key))),
    lambda db, key: db["shop.item"].write_many([tuple(db["shop.item"].get(key))]),
    put_back,
    made_again,
)


def types_of(function: str) -> tuple[int, ...]:
    return (6, 7, 8, 9) if "EPOCH2" in function else (2, 3, 6, 7, 8, 9)


CASES = [(function, binlog_type) for function in EPOCH_FUNCTIONS for binlog_type in types_of(function)]


def check_no_false_conflict(pair: Pair) -> None:
    """Let the primary run every update of nothing: the next changes of the secondary must be taken."""
    before = pair.rows()
    assert before[0] == before[1] and len(before[0]) == len(ROWS)
    for key, way in enumerate(WAYS):
        way(pair.primary, key)
    pair.turn(2)
    assert pair.rows() == before
    for key in before[0]:
        pair.secondary["shop.item"].update(key, {"note": "of the secondary"})
    pair.turn(2)
    assert pair.conflicts() == [0, 0], [tuple(row) for row in pair.primary["shop.item$EX"].scan()]
    assert pair.rows()[0] == pair.rows()[1]
    assert {row[1] for row in pair.rows()[0].values()} == {"of the secondary"}


@pytest.mark.parametrize(("function", "binlog_type"), CASES)
def test_change_of_the_other_site_after_an_update_of_nothing_is_taken(
    pair_of: Any,  # noqa: F811
    function: str,
    binlog_type: int,
) -> None:
    """Story: the update moved the epoch of the row and was not logged. The other site could neither apply nor confirm
    an epoch that never reached it, and its next change was refused, though no other transaction had changed the row.
    """
    pair = pair_of(function, binlog_type, is_unique=True)
    pair.primary["shop.item"].insert_many(ROWS)
    pair.turn(2)
    check_no_false_conflict(pair)


@pytest.mark.parametrize(("function", "binlog_type"), CASES[::2])
def test_change_after_an_update_of_nothing_is_taken_with_columns_on_disk(
    pair_of: Any,  # noqa: F811
    function: str,
    binlog_type: int,
) -> None:
    """Story: as above; only the columns in memory were compared, or only the disk part was put back."""

    def prepare(db: Any) -> None:
        db.create_tablespace("far", "1 MiB")

    pair = pair_of(function, binlog_type, True, DISK_COLUMNS, prepare, **DISK)
    pair.primary["shop.item"].insert_many([(*row, "far " * row[0]) for row in ROWS])
    pair.turn(2)
    pair.primary["shop.item"].update(0, {"far": ""})
    pair.primary["shop.item"].update_many([{"id": 3, "far": "far " * 3}])
    check_no_false_conflict(pair)


@pytest.mark.parametrize("binlog_type", [6, 8])
def test_row_made_the_secondarys_own_by_an_update_of_nothing_ends_equal(
    pair_of: Any,  # noqa: F811
    binlog_type: int,
) -> None:
    """Story: a site discards a reflected update if it is itself the author of the row. An update of nothing had made it
    the author, and was not replicated: the sites differed for good.
    """
    pair = pair_of("NDB$EPOCH2(31)", binlog_type)
    pair.primary["shop.item"].insert((1, "a", "old"))
    pair.turn(2)
    pair.primary["shop.item"].delete(1)
    pair.primary.parts.clockwork.advance_epoch()
    pair.secondary["shop.item"].delete(1)
    pair.secondary.parts.clockwork.advance_epoch()
    pair.secondary["shop.item"].insert((1, "b", "new"))
    pair.secondary.parts.clockwork.advance_epoch()
    pair.to_primary.apply_all()
    pair.primary.parts.clockwork.advance_epoch()
    pair.secondary["shop.item"].update(1, {"note": "newer"})
    pair.secondary.parts.clockwork.advance_epoch()
    pair.to_secondary.apply_all()  # the delete, and the refresh caused by the insert
    pair.secondary["shop.item"].update(1, {"note": pair.secondary["shop.item"].get(1).note})
    pair.turn(3, first="primary")
    assert pair.rows()[0] == pair.rows()[1]


@pytest.mark.parametrize("function", [None, "NDB$OLD(stamp)", "NDB$MAX(stamp)", "TM$GREATEST(stamp)"])
def test_updates_of_nothing_are_not_logged_for_functions_that_compare_no_epochs(
    pair_of: Any,  # noqa: F811
    function: str | None,
) -> None:
    """If they were logged, they would be refused: their stamp is no greater than the existing one."""
    columns = [*COLUMNS, tm.Column("stamp", tm.UInt64, default=0)]
    pair = pair_of(function, 7, False, columns)
    pair.primary["shop.item"].insert_many([(*row, 1) for row in ROWS])
    pair.turn(1)
    for key, way in enumerate(WAYS):
        way(pair.primary, key)
    pair.primary.sync()
    reported = [
        row for epoch in transactions_in(pair.primary.parts.files) for row in epoch.rows if row.table == "shop.item"
    ]
    assert [row.kind for row in reported] == ["WRITE_ROW"] * len(ROWS)
    pair.turn(1)
    assert pair.conflicts() == [0, 0] and pair.rows()[0] == pair.rows()[1]
