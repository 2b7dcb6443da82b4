"""Each cell of the table in docs/isolation.md happens, or cannot.

Story: no document named the isolation of transactions; one transaction saw half of a large commit, one call the states
of several instants.
Transactions of one thread stand for those of several: where one would wait for a lock, it is Rejected here.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tidemark as tm
from tests.store.support import open_memory

PAGE = Path(__file__).parents[2] / "docs" / "isolation.md"
WAYS = ["transaction", "with locks", "one call", "snapshot"]
EVEN = tm.col("n") % 2 == 0


class Way:
    """Reads in one of the four ways."""

    def __init__(self, db: tm.Database, name: str) -> None:
        self.db = db
        self.name = name
        self.lock: Any = "exclusive" if name == "with locks" else None

    def begin(self) -> Any:
        return self.db.snapshot() if self.name == "snapshot" else self.db.transaction()

    def get(self, reader: Any, key: int) -> int:
        if self.name == "snapshot":
            return int(reader["t"][key].n)
        return int(reader.get("t", key, lock=self.lock).n)

    def keys(self, reader: Any, where: Any) -> list[int]:
        if self.name == "snapshot":
            return sorted(row.id for row in reader["t"].scan(where=where))
        return sorted(row.id for row in reader.scan("t", where=where, lock=self.lock))

    def end(self, reader: Any) -> None:
        reader.close() if self.name == "snapshot" else reader.commit()


def set_to(db: tm.Database, **values: int) -> None:
    with db.transaction() as txn:
        for key, value in values.items():
            txn.update("t", int(key[1:]), {"n": value})


# --- anomalies: whether each happens --------------------------------------------------------------
def dirty_write(db: tm.Database, way: Way) -> bool:
    one, two = db.transaction(), db.transaction()
    one.update("t", 1, {"n": 11})
    try:
        two.update("t", 1, {"n": 12})
    except tm.Rejected:
        return False
    finally:
        one.rollback()
    return True


def aborted_read(db: tm.Database, way: Way) -> bool:
    one, reader = db.transaction(), way.begin()
    one.update("t", 1, {"n": 101})
    try:
        seen = way.get(reader, 1)
    except tm.Rejected:
        return False
    finally:
        one.rollback()
    way.end(reader)
    return seen == 101


def intermediate_read(db: tm.Database, way: Way) -> bool:
    one, reader = db.transaction(), way.begin()
    one.update("t", 1, {"n": 101})
    try:
        seen = way.get(reader, 1)
    except tm.Rejected:
        return False
    finally:
        one.update("t", 1, {"n": 11})
        one.commit()
    way.end(reader)
    return seen == 101


def circular_flow(db: tm.Database, way: Way) -> bool:
    if way.name == "snapshot":
        one = db.transaction()
        one.update("t", 1, {"n": 11})
        reader = way.begin()
        seen = way.get(reader, 1)
        one.commit()
        way.end(reader)
        return seen == 11
    one, two = db.transaction(), db.transaction()
    one.update("t", 1, {"n": 11})
    two.update("t", 2, {"n": 22})
    try:
        return way.get(one, 2) == 22 and way.get(two, 1) == 11
    except tm.Rejected:
        return False
    finally:
        one.rollback()
        two.rollback()


def vanishing(db: tm.Database, way: Way) -> bool:
    reader = way.begin()
    set_to(db, k1=11, k2=19)
    seen = []
    try:
        seen.append(way.get(reader, 1))
        set_to(db, k1=12, k2=18)
        seen += [way.get(reader, 2), way.get(reader, 1)]
    except tm.Rejected:
        return False
    finally:
        way.end(reader)
    return seen[1] == 18 and seen[2] == 11


def many_preceders(db: tm.Database, way: Way) -> bool:
    reader = way.begin()
    before = way.keys(reader, EVEN)
    db["t"].insert((30, 30))
    after = way.keys(reader, EVEN)
    way.end(reader)
    return before != after


def lost_update(db: tm.Database, way: Way) -> bool:
    one, two = way.begin(), way.begin()
    try:
        of_one, of_two = way.get(one, 1), way.get(two, 1)
        one.update("t", 1, {"n": of_one + 1})
        one.commit()
        two.update("t", 1, {"n": of_two + 1})
        two.commit()
    except tm.Rejected:
        return False
    finally:
        one.rollback()
        two.rollback()
    return db["t"][1].n == 11


def read_skew(db: tm.Database, way: Way) -> bool:
    reader = way.begin()
    one = way.get(reader, 1)
    try:
        set_to(db, k1=12, k2=18)
    except tm.Rejected:
        return False
    finally:
        other = way.get(reader, 2)
        way.end(reader)
    return (one, other) == (10, 18)


def write_skew(db: tm.Database, way: Way) -> bool:
    one, two = way.begin(), way.begin()
    try:
        assert [way.get(each, key) for each in (one, two) for key in (1, 2)] == [10, 20] * 2
        one.update("t", 1, {"n": 11})
        two.update("t", 2, {"n": 21})
        one.commit()
        two.commit()
    except tm.Rejected:
        return False
    finally:
        one.rollback()
        two.rollback()
    return (db["t"][1].n, db["t"][2].n) == (11, 21)


def predicate_cycle(db: tm.Database, way: Way) -> bool:
    one, two = way.begin(), way.begin()
    where = tm.col("n") > 1_000
    assert way.keys(one, where) == way.keys(two, where) == []
    one.insert("t", (3, 3_000))
    two.insert("t", (4, 4_000))
    one.commit()
    two.commit()
    return 3 in db["t"] and 4 in db["t"]


# --- one call -------------------------------------------------------------------------------------
def in_one_call(db: tm.Database, work: Callable[[], None]) -> list[int]:
    """The values of a scan during which `work` is done."""
    db["t"].insert_many([(key, 0) for key in range(1_000, 80_000)])
    batches = db["t"].scan().batches()
    found = next(batches)["n"].to_pylist()
    work()
    return [*found, *(value for batch in batches for value in batch["n"].to_pylist())]


def call_sees_another_state(db: tm.Database, way: Way) -> bool:
    total = 10 + 20

    def work() -> None:
        with db.transaction() as txn:
            txn.update("t", 1, {"n": 11})
            txn.update("t", 79_999, {"n": -1})
            txn.insert("t", (90_000, 7))

    return sum(in_one_call(db, work)) != total


def call_sees_uncommitted(db: tm.Database, way: Way) -> bool:
    one = db.transaction()
    one.update("t", 79_999 if 79_999 in db["t"] else 1, {"n": 101})
    seen = in_one_call(db, lambda: None)
    one.rollback()
    return 101 in seen


def call_loses_update(db: tm.Database, way: Way) -> bool:
    for _ in range(2):
        db["t"].update(1, {"n": tm.col("n") + 1})
    return db["t"][1].n != 12


ANOMALIES: dict[str, Callable[[tm.Database, Way], bool]] = {
    "G0": dirty_write,
    "G1a": aborted_read,
    "G1b": intermediate_read,
    "G1c": circular_flow,
    "OTV": vanishing,
    "PMP": many_preceders,
    "P4": lost_update,
    "G-single": read_skew,
    "G2-item": write_skew,
    "G2": predicate_cycle,
}
OF_ONE_CALL = dict.fromkeys(("G1a", "G1b", "G1c"), call_sees_uncommitted)
OF_ONE_CALL |= dict.fromkeys(("OTV", "PMP", "G-single"), call_sees_another_state)
OF_ONE_CALL |= {"P4": call_loses_update, "G0": dirty_write}


def table() -> dict[tuple[str, str], str]:
    """The cells of the page, by anomaly and way."""
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert cells[0] == ["anomaly", *WAYS]
    return {
        (re.split(",", row[0])[0], way): value for row in cells[2:] for way, value in zip(WAYS, row[1:], strict=True)
    }


CELLS = table()


def test_page_has_every_anomaly() -> None:
    assert {name for name, _ in CELLS} == set(ANOMALIES)


@pytest.mark.parametrize(("name", "way"), [cell for cell, value in CELLS.items() if value != "–"])
def test_anomaly_happens_as_the_page_says(name: str, way: str) -> None:
    with open_memory(data_memory="32 MiB", redo_log="8 MiB", durability="epoch") as db:
        db.create_table("t", [tm.Column("id", tm.Int64), tm.Column("n", tm.Int64)], primary_key="id")
        db["t"].insert_many([(1, 10), (2, 20)])
        happens = (OF_ONE_CALL if way == "one call" else ANOMALIES)[name]
        assert happens(db, Way(db, way)) == {"yes": True, "no": False}[CELLS[name, way]]
