"""`log_exclusive_reads` on real stores: rows read with an exclusive lock are replicated, and conflict."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import tidemark as tm
from tests.applier.stage import HEAD
from tests.conformance.scenario import parse_scenario
from tests.conformance.store_site import StoreSite, store_sites
from tests.replication.site import epochs_in, open_site
from tidemark.engine.base.errors import Rejected

NAME = "test.t1"
COLUMNS = [
    {"name": "a", "type": "int"},
    {"name": "b", "type": "varchar(2000)", "nullable": True},
    {"name": "c", "type": "int"},
    {"name": "d", "type": "int", "nullable": True},
]
_IMAGES = [
    {"name": f"{name}${image}", "type": kind, "nullable": True}
    for name, kind in (("b", "varchar(2000)"), ("c", "int"))
    for image in ("OLD", "NEW")
]
READS: dict[str, Callable[[Any], Any]] = {
    "key": lambda txn: txn.get(NAME, 1, lock="exclusive"),
    "unique index": lambda txn: txn.get(NAME, 1, lock="exclusive", index="by_c"),
    "keys": lambda txn: txn.get_many(NAME, [1], lock="exclusive"),
    "keys, without key columns": lambda txn: txn.get_many(NAME, [1, 99], ["b"], lock="exclusive"),
    "keys of a unique index": lambda txn: txn.get_many(NAME, [1], ["d"], lock="exclusive", index="by_c"),
    "ordered index": lambda txn: list(txn.scan(NAME, lock="exclusive", index="by_d", prefix=1)),
    "scan": lambda txn: list(txn.scan(NAME, ["b"], lock="exclusive", where=tm.col("b") == "Initial data 1")),
    "lookup": lambda txn: list(txn.scan(NAME, ["b"], lock="exclusive", where=tm.col("a") == 1)),
    "lookup by a unique index": lambda txn: list(txn.scan(NAME, lock="exclusive", where=tm.col("c").isin([1, 99]))),
}


@pytest.fixture
def pair() -> Iterator[dict[str, StoreSite]]:
    """Yield sites of which A is the primary of NDB$EPOCH_TRANS, with t1, its exceptions table, and t2."""
    head = [each for each in HEAD if "$" not in each["name"] or each["name"].startswith("NDB$")]
    rows = [[number, f"Initial data {number}", number, number] for number in range(1, 5)]

    def settings(server_id: int, function: str | None) -> list[dict[str, Any]]:
        row = {"db": "test", "server_id": server_id, "binlog_type": 7, "conflict_fn": function}
        return [{**row, "table_name": name} for name in ("t1", "t2")]

    case = {
        "sites": {"A": {"server_id": 1}, "B": {"server_id": 3}},
        "circular": True,
        "tables": [{"db": "test", "name": name, "columns": COLUMNS, "pk": ["a"]} for name in ("t1", "t2")],
        "ndb_replication": {"A": settings(1, "NDB$EPOCH_TRANS()"), "B": settings(3, None)},
        "exceptions_tables": {
            "A": [
                {
                    "for": name,
                    "name": name + "$EX",
                    "columns": head + _IMAGES,
                    "pk": [each["name"] for each in head[:4]],
                }
                for name in ("t1", "t2")
            ]
        },
        "initial_rows": {name: {"t1": rows, "t2": rows} for name in "AB"},
        "steps": [],
    }
    sites = dict(store_sites(parse_scenario(case).sites))
    sites["B"].db.create_index(NAME, "by_c", "c", unique=True)
    sites["B"].db.create_index(NAME, "by_d", "d")
    sites["B"].db.sync()
    sites["A"].taken = sites["B"].end()
    yield sites
    for site in sites.values():
        site.close()


def send(source: StoreSite, target: StoreSite) -> None:
    source.epoch()
    target.replicate(source, False)


def text(rows: list[tuple[Any, ...]]) -> dict[int, Any]:
    return {row[0]: row[1] for row in rows}


@pytest.mark.parametrize("how", READS)
def test_update_of_a_row_read_at_another_site_rejects_the_reader_s_transaction(
    pair: dict[str, StoreSite], how: str
) -> None:
    """Tests 2, 5, 6 and 7 of the server's read tracking, with the counters and exceptions rows recorded there."""
    a, b = pair["A"], pair["B"]
    with a.db.transaction() as txn:
        txn.update(NAME, 1, {"b": "Primary 1"})
    with b.db.transaction(log_exclusive_reads=True) as txn:
        READS[how](txn)
        txn.update("test.t2", 3, {"b": "Secondary 3"})
    send(b, a)
    assert a.error is None
    names = "conflict_fn_epoch_trans trans_row_conflict_count trans_row_reject_count trans_reject_count"
    counters = a.counters()
    assert [counters[name] for name in names.split()] == [1, 1, 2, 1]
    assert counters["trans_detect_iter_count"] == counters["trans_conflict_commit_count"] == 1
    found = {table: tuple(row[name] for name in row if name not in _UNTOLD) for table, row in a.exceptions()}
    assert found == {
        "t1$EX": ("READ_ROW", "TRANS_IN_CONFLICT", 1, "Initial data 1", "Initial data 1", 1, 1),
        "t2$EX": ("UPDATE_ROW", "TRANS_IN_CONFLICT", 3, "Initial data 3", "Secondary 3", 3, 3),
    }
    send(a, b)
    assert text(b.rows("t1"))[1] == "Primary 1" and text(b.rows("t2"))[3] == "Initial data 3"


_UNTOLD = {each["name"] for each in HEAD[:4]} | {"NDB$ORIG_TRANSID"}


def test_reads_that_are_not_tracked_leave_no_trace(pair: dict[str, StoreSite]) -> None:
    a, b = pair["A"], pair["B"]
    with a.db.transaction() as txn:
        txn.update(NAME, 1, {"b": "Primary 1"})
    for tracks, lock in ((False, "exclusive"), (True, "shared"), (True, None)):
        with b.db.transaction(log_exclusive_reads=tracks) as txn:
            txn.get(NAME, 1, lock=lock)
            list(txn.scan(NAME, lock=lock))
            txn.get_many(NAME, [1, 2], lock=lock)
    send(b, a)
    assert not epochs_in(b.files)[-1].rows or all(row.flags == 0 for row in epochs_in(b.files)[-1].rows)
    assert a.counters()["trans_reject_count"] == 0 and a.exceptions() == []


def rows_logged(db: tm.Database) -> list[tuple[Any, ...]]:
    db.sync()
    return [(row.kind, (row.before or row.after)["a"], row.flags) for row in epochs_in(db.parts.files)[-1].rows]


def site(**options: Any) -> tm.Database:
    db = open_site(**options)
    db.create_table("d.t", [tm.Column("a", tm.Int32), tm.Column("b", tm.VarChar(20), nullable=True)], "a")
    db["d.t"].insert_many([{"a": number, "b": "v"} for number in range(5)])
    db.sync()
    return db


def test_row_that_is_read_and_changed_travels_as_changed() -> None:
    db = site()
    with db.transaction(log_exclusive_reads=True) as txn:
        for key in range(3):
            txn.get("d.t", key, lock="exclusive")
        txn.update("d.t", 1, {"b": "w"})
        txn.delete("d.t", 2)
        txn.update("d.t", 3, {"b": "w"})
        txn.get("d.t", 3, lock="exclusive")
        txn.insert("d.t", (9, "n"))
        txn.get("d.t", 9, lock="exclusive")
        assert txn.get("d.t", 77, lock="exclusive") is None
    logged = rows_logged(db)
    # By default updates are logged as writes; a read never is.
    assert sorted(logged) == [
        ("DELETE_ROW", 2, 0),
        ("UPDATE_ROW", 0, 4),
        ("WRITE_ROW", 1, 0),
        ("WRITE_ROW", 3, 0),
        ("WRITE_ROW", 9, 0),
    ]
    db.close()


def test_option_of_the_store_counts_for_transactions_that_say_nothing() -> None:
    db = site(log_exclusive_reads=True)
    for given, tracked in ((None, True), (False, False), (True, True)):
        with db.transaction(given) as txn:
            txn.get("d.t", 1, lock="exclusive")
            txn.update("d.t", 2, {"b": str(given)})
        assert (("UPDATE_ROW", 1, 4) in rows_logged(db)) is tracked
    assert db.binlog is not None
    db.binlog.set_option("log_exclusive_reads", False)
    with db.transaction() as txn:
        txn.get("d.t", 1, lock="exclusive")
        txn.update("d.t", 2, {"b": "last"})
    assert rows_logged(db) == [("WRITE_ROW", 2, 0)]
    db.close()


def test_rejected_change_after_a_read_leaves_the_read_tracked_and_what_follows_untagged() -> None:
    db = site()
    with db.transaction(log_exclusive_reads=True) as txn:
        txn.get("d.t", 1, lock="exclusive")
        with pytest.raises(Rejected):
            txn.insert("d.t", (1, "there is one"))
        txn.update("d.t", 2, {"b": "w"})
    assert sorted(rows_logged(db)) == [("UPDATE_ROW", 1, 4), ("WRITE_ROW", 2, 0)]
    db.close()


def test_read_after_a_savepoint_that_is_rolled_back_is_no_read() -> None:
    db = site()
    with db.transaction(log_exclusive_reads=True) as txn:
        with pytest.raises(ZeroDivisionError), txn.savepoint():
            txn.get("d.t", 1, lock="exclusive")
            raise ZeroDivisionError
        txn.update("d.t", 2, {"b": "w"})
    assert rows_logged(db) == [("WRITE_ROW", 2, 0)]
    db.close()
