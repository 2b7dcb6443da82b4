"""Debezium follows a served store: its events add up to the store, after kills too, and it leaves out no change."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tidemark as tm
from tests.replication.debezium_rig import HOST, Event, need_debezium, properties_of, running
from tests.replication.debezium_run import follow, wait_for
from tests.replication.debezium_state import Broken, State
from tests.replication.mysql_port_rig import ITEM, OPTIONS, USERS
from tests.replication.mysql_statements import CLIENTS
from tests.replication.site import WHOLE, open_site
from tests.replication.test_mysql_histories import BREAKS, made
from tests.replication.test_mysql_peers import change
from tests.seeds import fresh_seeds

WAYS = pytest.mark.parametrize("has_gtids", [False, True], ids=["position", "gtid"])
# What Debezium says when it stops because the place of its offsets is not there.
STOPS = "is no longer available on the server"


# --- with the peer ---------------------------------------------------------------------------------
@WAYS
@pytest.mark.parametrize("seed", fresh_seeds(1))
def test_events_add_up_to_the_store_after_kills(has_gtids: bool, seed: int, tmp_path: Path) -> None:
    """One kill is within the snapshot, one within the stream."""
    said: list[str] = []
    asked = follow(tmp_path, seed, 2, has_gtids=has_gtids, rows=300, rate=50, say=said.append)
    print("\n".join(said))
    (client,) = (each for each in CLIENTS if each.name == "Debezium and Connector/J")
    known = {each for each in client.statements if isinstance(each, tuple)}
    assert {each for each in asked if each[1]} <= known


def _purged(path: Path, options: dict[str, Any]) -> Path:
    with tm.open(path, **options) as db:
        assert db.binlog is not None
        change(db, 2_000)
        db.sync()
        db.checkpoint()
        db.binlog.rotate()
        db.binlog.purge(to=db.binlog.durable_end().file)
    return path


@pytest.mark.parametrize(
    ("ends", "has_gtids"),
    [(_purged, False), (_purged, True), *((ends, True) for ends in BREAKS)],
    ids=lambda each: each.__name__.strip("_") if callable(each) else ("position", "gtid")[each],
)
def test_debezium_does_not_continue_with_a_hole(
    ends: Callable[[Path, dict[str, Any]], Path], has_gtids: bool, tmp_path: Path
) -> None:
    """By position nothing tells two futures of a store apart, at no server."""
    need_debezium()
    options = {**OPTIONS, "log_gtids": has_gtids}
    path = tmp_path / "store"
    made(path, options)
    shutil.copytree(path, tmp_path / "kept")
    with tm.open(path, **options) as db, tm.serve_mysql(db, f"{HOST}:0", USERS) as serving:
        properties, state = properties_of(tmp_path, serving.address), State(db)
        with running(tmp_path, properties) as run:
            wait_for(run, state, lambda: bool(state.tables))
            change(db, 1_000)
            db["shop.item"].insert((9_999, "end"))
            wait_for(run, state, lambda: (9_999,) in state.tables["shop.item"])
        state.check()
    with tm.open(ends(path, options), **options) as db:
        for first in (3_000, 4_000, 5_000):
            change(db, first)
        state = State(db)
        with tm.serve_mysql(db, f"{HOST}:{properties['database.port']}", USERS):
            with running(tmp_path, properties) as run:
                run.wait()
                assert STOPS in run.log(), run.log()[-3_000:]
                assert not list(run.new_events())


# --- the oracle, without the peer ------------------------------------------------------------------
def event(op: str, place: int, before: Any = None, after: Any = None) -> Event:
    source = {"db": "shop", "table": "item", "file": "binlog.000001", "pos": place, "row": 0}
    rows = {
        name: None if row is None else {"id": row, "v": "x"} for name, row in (("before", before), ("after", after))
    }
    return Event("shop.shop.item", None, json.dumps({"op": op, "source": source, **rows}))


READ = [event("r", 100, after=1), event("r", 100, after=2)]
WRONG = {
    "a row twice in a snapshot": ([[*READ, event("r", 100, after=1)]], "is there already"),
    "a row of the snapshot again as an insert": ([[*READ, event("c", 200, after=2)]], "is there already"),
    "an insert in neither": ([[*READ, event("u", 200, 3, 3)]], "no row"),
    "a delete twice": ([[*READ, event("d", 200, 1), event("d", 300, 1)]], "no row"),
    "an event from before the snapshot": ([[*READ, event("c", 90, after=3)]], "before the place of the snapshot"),
    "rows of two snapshots": ([[*READ, event("r", 101, after=3)]], "told None"),
    "a snapshot that continues in another life": ([READ[:1], READ[1:]], r"row \(1,\) is \(1, 'x'\), told None"),
    "a snapshot after the stream": ([[*READ, event("c", 200, after=3), event("r", 100, after=4)]], "comes after"),
    "an order that is not that of the file": (
        [[*READ, event("c", 300, after=3), event("c", 200, after=4)]],
        "comes after",
    ),
    "an event twice in a life": ([[*READ, event("c", 200, after=3), event("c", 200, after=3)]], "comes twice"),
    "an event told again in other words": (
        [[*READ, event("c", 200, after=3)], [event("c", 200, after=4)]],
        "comes twice",
    ),
    "a row too few": ([[*READ]], r"row \(3,\) is \(3, 'x'\), told None"),
    "a row too many": (
        [[*READ, event("c", 200, after=3), event("c", 300, after=4)]],
        r"row \(4,\) is None",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_oracle_finds_what_is_wrong(name: str) -> None:
    lives, message = WRONG[name]
    with open_site(**WHOLE) as db:
        db.create_table("shop.item", ITEM, "id").insert_many([{"id": number, "v": "x"} for number in (1, 2, 3)])
        state = State(db)
        with pytest.raises(Broken, match=message):
            for life in lives:
                state.begin_life()
                state.take_all(life)
            state.check()


def test_oracle_takes_what_is_told_again_after_a_kill() -> None:
    with open_site(**WHOLE) as db:
        db.create_table("shop.item", ITEM, "id").insert_many([{"id": number, "v": "x"} for number in (1, 3, 4)])
        state = State(db)
        later = [event("c", 200, after=3), event("d", 300, 2)]
        for life in (READ[:1], [*READ, *later], [*later[1:], event("c", 400, after=4)]):
            state.begin_life()
            state.take_all(life)
        assert (state.check(), state.snapshots, state.streamed, state.repeated) == (3, 2, 3, 1)
