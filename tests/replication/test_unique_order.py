"""Values of a unique index that change hands: the binlog has an order in which a server that checks each row at once,
as MySQL does, can take the changes.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tidemark as tm
from tests.replication.mysql_dump_rig import messages_of
from tests.replication.mysql_port_rig import served_end, store
from tests.replication.support import EXTREMES
from tests.seeds import fresh_seeds
from tidemark.replication.binlog import events as e
from tidemark.replication.binlog.position import Position
from tidemark.replication.binlog.reader import StatementMaps

SEAT = "shop.seat"
COLUMNS = [tm.Column("id", tm.Int64), tm.Column("row", tm.VarChar(5)), tm.Column("number", tm.Int64, nullable=True)]
ORIGIN = Position("served", 0)


def made(db: tm.Database) -> None:
    db.create_table(SEAT, COLUMNS, "id")
    db.create_index(SEAT, "by_place", ["row", "number"], unique=True)


class Strict:
    """A server with a primary key and a unique index, which checks both at each row."""

    def __init__(self) -> None:
        self.rows: dict[int, tuple[Any, ...]] = {}
        self.changes: list[int] = []  # number of each transaction

    def take(self, db: tm.Database) -> None:
        """Execute the whole binlog. Fails where a server stops."""
        served_end(db)
        maps, own = StatementMaps(), 0
        for raw in messages_of(db):
            _, event = e.parse(raw, ORIGIN)
            maps.observe(event)
            if isinstance(event, e.Rows) and maps.of(event, ORIGIN).name == SEAT:
                for chunk in maps.reader(event, ORIGIN).chunks(event.body, ORIGIN):
                    before, after = (_tuples(image, chunk.count) for image in (chunk.before, chunk.after))
                    for old, new in zip(before, after, strict=True):
                        self._change(old, new)
                        own += 1
            elif isinstance(event, e.Query) and event.statement == "COMMIT":
                self.changes, own = [*self.changes, own], 0

    def _change(self, old: Any, new: Any) -> None:
        if old is not None:
            assert repr(self.rows.pop(old[0], None)) == repr(old), "1032"  # a NaN equals no other
        if new is not None:
            assert new[0] not in self.rows, "1062 of the primary key"
            assert None in new[1:] or new[1:] not in {row[1:] for row in self.rows.values()}, f"1062: {new}"
            self.rows[new[0]] = new


def _tuples(image: dict[int, Any], count: int) -> list[Any]:
    columns = [image[place].to_pylist() for place in sorted(image)]
    return list(zip(*columns, strict=True)) if columns else [None] * count


def seat(number: int, place: int | None) -> dict[str, Any]:
    return {"id": number, "row": "a", "number": place}


def exchange(txn: Any) -> None:
    txn.update(SEAT, 1, {"number": None})
    txn.update(SEAT, 2, {"number": 10})
    txn.update(SEAT, 1, {"number": 20})


def pass_on(txn: Any) -> None:
    """Row 1 leaves its value to row 2, and changes again later."""
    txn.update(SEAT, 1, {"number": None})
    txn.update(SEAT, 2, {"number": 10})
    txn.update(SEAT, 1, {"row": "b"})


def delete_and_insert(txn: Any) -> None:
    txn.delete(SEAT, 1)
    txn.update(SEAT, 2, {"number": 10})
    txn.insert(SEAT, seat(1, 20))


def go_round(txn: Any) -> None:
    txn.update(SEAT, 3, {"row": "b"})
    txn.update(SEAT, 2, {"number": 30})
    txn.update(SEAT, 1, {"number": 20})
    txn.update(SEAT, 3, {"row": "a", "number": 10})


def insert_and_move(txn: Any) -> None:
    txn.insert(SEAT, seat(4, 40))
    txn.update(SEAT, 4, {"number": 41})
    txn.insert(SEAT, seat(5, 40))
    txn.delete(SEAT, 4)
    txn.insert(SEAT, seat(6, 41))


@pytest.mark.parametrize("work", [exchange, pass_on, delete_and_insert, go_round, insert_and_move])
def test_values_that_change_hands_in_a_transaction_reach_a_strict_server(
    work: Callable[[Any], None], tmp_path: Path
) -> None:
    """Story: changes of a transaction to one row were joined into one at the place of the last. A value of a unique
    index then came to a row before another one had released it, or two rows exchanged theirs at once: MariaDB and MySQL
    stopped with 1062 in the first seconds of `tests.kills.peers`.
    """
    with store(tmp_path) as db:
        made(db)
        db[SEAT].insert_many([seat(1, 10), seat(2, 20), seat(3, 30)])
        served_end(db)
        with db.transaction() as txn:
            work(txn)
        server = Strict()
        server.take(db)
        assert sorted(server.rows.values()) == sorted(tuple(row) for row in db[SEAT])


def test_changes_of_a_transaction_that_move_no_value_are_still_joined(tmp_path: Path) -> None:
    with store(tmp_path) as db:
        made(db)
        db[SEAT].insert_many([seat(1, 10), seat(2, 20)])
        served_end(db)
        with db.transaction() as txn:
            for place in (11, 12, 13):
                txn.update(SEAT, 1, {"number": place})
            txn.update(SEAT, 2, {"number": 12})
            txn.insert(SEAT, seat(3, 10))
            txn.delete(SEAT, 3)
        server = Strict()
        server.take(db)
        assert server.rows == {1: (1, "a", 13), 2: (2, "a", 12)}
        assert server.changes[-1] == 2


@pytest.mark.parametrize("seed", fresh_seeds(3))
def test_any_transactions_reach_a_strict_server(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    with store(tmp_path) as db:
        made(db)
        for _ in range(60):
            with db.transaction() as txn:
                for _ in range(rng.randrange(1, 12)):
                    _change_one(txn, rng)
            if rng.random() < 0.3:
                served_end(db)
        server = Strict()
        server.take(db)
        assert sorted(server.rows.values()) == sorted(tuple(row) for row in db[SEAT])


def _change_one(txn: Any, rng: random.Random) -> None:
    key, place = rng.randrange(6), rng.choice((None, *range(6)))
    try:
        if txn.get(SEAT, key) is None:
            txn.insert(SEAT, seat(key, place))
        elif rng.random() < 0.3:
            txn.delete(SEAT, key)
        else:
            txn.update(SEAT, key, {"number": place})
    except tm.DuplicateKey:
        pass


@pytest.mark.parametrize(
    "values", [(0.0, -0.0), (float("nan"), struct.unpack("<d", struct.pack("<Q", 0xFFF8 << 48))[0])]
)
def test_values_that_an_index_takes_for_one_are_one_for_the_order_of_changes(
    values: tuple[float, float], tmp_path: Path
) -> None:
    """Story: a NaN was compared as Python does, so one that changed hands was taken for two values, and the changes
    were joined.
    """
    with store(tmp_path) as db:
        db.create_table(SEAT, [tm.Column("id", tm.Int64), tm.Column("number", tm.Float64, nullable=True)], "id")
        db.create_index(SEAT, "by_number", ["number"], unique=True)
        db[SEAT].insert_many([{"id": 1, "number": values[0]}, {"id": 2, "number": 2.0}])
        served_end(db)
        with db.transaction() as txn:
            txn.update(SEAT, 1, {"number": None})
            txn.update(SEAT, 2, {"number": values[1]})
            txn.update(SEAT, 1, {"number": 2.0})
        server = Strict()
        server.take(db)
        assert server.changes[-1] == 3  # not joined to two, which would bring the value before it is free


def test_transaction_that_takes_back_what_it_has_changed_leaves_those_beside_it(tmp_path: Path) -> None:
    """Story: a transaction that inserted a row and deleted it again had no change left to compare, which was an error
    and stopped the binlog, if another one changed the table beside it.
    """
    with store(tmp_path) as db:
        made(db)
        served_end(db)
        with db.transaction() as txn:
            txn.insert(SEAT, seat(1, 10))
            txn.delete(SEAT, 1)
        db[SEAT].insert(seat(2, 20))
        server = Strict()
        server.take(db)
        assert server.rows == {2: (2, "a", 20)}


KEYABLE = [kind for kind in EXTREMES if kind.keyable and len(EXTREMES[kind]) > 1]


@pytest.mark.parametrize("kind", KEYABLE, ids=lambda kind: str(kind)[:16])
def test_values_of_each_type_that_change_hands_come_step_by_step(kind: Any, tmp_path: Path) -> None:
    first, second, *_ = dict.fromkeys(EXTREMES[kind])
    with store(tmp_path) as db:
        db.create_table(SEAT, [tm.Column("id", tm.Int64), tm.Column("v", kind, nullable=True)], "id")
        db.create_index(SEAT, "by_v", ["v"], unique=True)
        db[SEAT].insert_many([{"id": 1, "v": first}, {"id": 2, "v": second}])
        served_end(db)
        with db.transaction() as txn:
            txn.update(SEAT, 1, {"v": None})
            txn.update(SEAT, 2, {"v": first})
            txn.update(SEAT, 1, {"v": second})
        server = Strict()
        server.take(db)
        assert server.changes[-1] == 3
