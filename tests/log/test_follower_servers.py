"""A transaction that applied changes of several servers is read back as what each of them did to a row."""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Any

import pytest

import tidemark as tm
from tests.log.test_follower import (
    COLUMNS,
    LARGE,
    ON_DISK,
    Row,
    Undone,
    captured,
    changes_of,
    copied,
    follower,
    nets,
    random_operation,
)
from tidemark.engine.applied import noted_rows

SOURCE = 17
SERVERS = (17, 18, 19)
Step = tuple[int, dict[Any, Row]]  # a server, and the table after the step


def read_changes(db: Any, by: Any) -> dict[Any, list[tuple[int, Any, Any]]]:
    """By table and key: server, row before, row after, in order."""
    found: dict[Any, list[tuple[int, Any, Any]]] = defaultdict(list)
    for part in changes_of(db, by):
        assert set(part.authors.tolist()) == {SOURCE}
        for server, (name, before, after) in zip(part.any_values.tolist(), nets(part), strict=True):
            found[name, (before or after)["id"]].append((server, before, after))
    return dict(found)


class Twin:
    """The effect of servers on each key, one entry for each run of changes of one server, without runs
    that cancel out.
    """

    def __init__(self) -> None:
        self.runs: dict[Any, list[list[Any]]] = defaultdict(list)

    def did(self, server: int, place: Any, before: Row | None, after: Row | None) -> None:
        runs = self.runs[place]
        if runs and runs[-1][0] == server:
            runs[-1][2] = after
        else:
            runs.append([server, before, after])

    def settled(self) -> dict[Any, list[tuple[int, Any, Any]]]:
        kept = {place: [(s, b, a) for s, b, a in runs if b or a] for place, runs in self.runs.items()}
        return {place: runs for place, runs in kept.items() if runs}


def random_steps(rng: random.Random, txn: Any, now: dict[str, Any], twin: Twin, count: int) -> None:
    for _ in range(count):
        server, before, touched = rng.choice(SERVERS), copied(now), set()
        noted_rows.tag(txn, server, SOURCE)
        random_operation(rng, txn, now, touched)
        for name, key in touched:
            twin.did(server, (name, key), before[name].get(key), now[name].get(key))


@pytest.mark.parametrize("seed", range(6))
def test_random_changes_of_several_servers_are_read_back_one_by_one(seed: int) -> None:
    rng = random.Random(seed)
    print("seed", seed)
    limit = "64 KiB" if seed % 2 else "8 MiB"  # spooled, or in one piece
    tables = {"memory": COLUMNS, "disk": ON_DISK, "large": LARGE}
    db = captured(tables, transaction_memory=limit, transaction_limit="32 MiB", undo_log="32 MiB")
    by = follower(db)
    now: dict[str, dict[Any, Row]] = {name: {} for name in tables}
    for _ in range(12):
        twin, held = Twin(), copied(now)
        txn = db.transaction()
        noted_rows.tag(txn, SOURCE, SOURCE)
        random_steps(rng, txn, now, twin, rng.choice([3, 20, 80]))
        before = copied(now)
        try:
            with txn.savepoint():
                random_steps(rng, txn, now, Twin(), 5)
                raise Undone
        except Undone:
            now = before
        random_steps(rng, txn, now, twin, 5)
        assert held != now
        txn.commit(True)
        assert read_changes(db, by) == twin.settled()


@pytest.mark.parametrize("memory", ["1 MiB", "64 KiB"], ids=["at once", "spooled"])
def test_row_of_one_server_that_another_took_away_is_reported_with_both(memory: str) -> None:
    """Story: joined to one change they cancelled out. In a circle the row's own site never learned that the row had
    been deleted, and kept it, without a conflict anywhere. (Simulation, seed 11459.)
    """
    one = tm.HashPartition(1)
    db = captured({"memory": COLUMNS}, partition=one, transaction_memory=memory, transaction_limit="4 MiB")
    by = follower(db)
    row = {"id": 0, "number": 1, "name": "a"}
    with db.transaction() as txn:
        noted_rows.tag(txn, 18, SOURCE)
        txn.insert("memory", row)
        for number in range(1, 1_000):
            txn.insert("memory", (number, 1, "b" * 40))
        noted_rows.tag(txn, 19, SOURCE)
        txn.delete("memory", 0)
    changes = read_changes(db, by)
    assert changes["memory", 0] == [(18, None, row), (19, row, None)]
    assert len(changes) == 1_000
