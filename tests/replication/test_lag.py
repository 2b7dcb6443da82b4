"""Lag, epochs in flight, and the status variables: what is counted where, and what is 0."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.store.support import open_memory
from tidemark.engine.schema.column import Column
from tidemark.engine.types import Int64
from tidemark.replication.channel.lag import EpochTrail
from tidemark.replication.settings.status import BY_NAME, PREFIX, VARIABLES, ReplicationStatus, shown_name

STATIONS = ("received", "applied", "returned", "confirmed")


def on_the_way(trail: EpochTrail) -> dict[str, int]:
    """Return the number of epochs on their way to each station."""
    return {name: each["epochs_on_the_way"] for name, each in trail.to_dict(0)["stations"].items()}


def test_circle_of_the_manual_has_its_epochs_where_the_figure_shows_them() -> None:
    """Current epoch 40, max replicated epoch 22. The figure shows 26 and 27 both in the queue of cluster 2 and on the
    way back; here they are on the way back.
    """
    trail = EpochTrail(STATIONS)
    for epoch in range(20, 40):
        trail.set_out(epoch, epoch * 1_000_000)
    for station, epoch in zip(STATIONS, (36, 27, 24, 22), strict=True):
        trail.passed(station, epoch)
    assert on_the_way(trail) == {
        "received": 3,  # 37 to 39, in flight to cluster 2
        "applied": 9,  # 28 to 36, queued there
        "returned": 3,  # 25 to 27, in flight back
        "confirmed": 2,  # 23 and 24, queued here
    }
    shown = trail.to_dict(now_us=40_000_000)
    assert (shown["newest_epoch"], shown["lag_epochs"], shown["lag_seconds"]) == (39, 17, 17.0)
    assert shown["stations"]["applied"] == {"passed_epoch": 27, "epochs_on_the_way": 9}


def test_nothing_on_the_way_is_no_lag_and_what_is_reported_again_counts_once() -> None:
    trail = EpochTrail(["applied"])
    assert trail.to_dict(5)["lag_epochs"] == 0 and trail.to_dict(5)["lag_seconds"] == 0.0
    for epoch in (7, 7, 5, 8):
        trail.set_out(epoch, 1_000_000)
    assert on_the_way(trail) == {"applied": 2}
    trail.passed("applied", 99)
    trail.passed("applied", 3)
    assert trail.to_dict(9)["lag_epochs"] == 0 and trail.to_dict(9)["stations"]["applied"]["passed_epoch"] == 99
    with pytest.raises(KeyError):
        trail.passed("nowhere", 1)


def test_trail_that_grows_too_long_forgets_the_oldest_and_still_counts_them() -> None:
    trail = EpochTrail(["applied"], epochs_max=10)
    for epoch in range(1, 31):
        trail.set_out(epoch, epoch)
    assert trail.to_dict(30)["lag_epochs"] == 30 and on_the_way(trail) == {"applied": 10}
    trail.passed("applied", 25)
    assert trail.to_dict(30)["lag_epochs"] == 5


def test_trail_agrees_with_a_list_of_all_epochs() -> None:
    seed = 20_261_124
    print("seed", seed)
    draw = random.Random(seed)
    trail = EpochTrail(STATIONS)
    epochs, passed = [0], dict.fromkeys(STATIONS, 0)
    for _ in range(2_000):
        if draw.random() < 0.5:
            epochs.append(epochs[-1] + draw.choice([1, 1, 5, 1 << 32]))
            trail.set_out(epochs[-1], epochs[-1])
        else:
            number = draw.randrange(len(STATIONS))
            most = passed[STATIONS[number - 1]] if number else epochs[-1]
            epoch = draw.choice([each for each in epochs if each <= most][-9:])
            passed[STATIONS[number]] = max(passed[STATIONS[number]], epoch)
            trail.passed(STATIONS[number], epoch)
        ahead = epochs[-1]
        for station, count in on_the_way(trail).items():
            assert count == sum(passed[station] < each <= ahead for each in epochs)
            ahead = min(ahead, passed[station])


def test_lag_of_a_trail_that_is_registered_is_under_status() -> None:
    with open_memory() as db:
        assert db.status()["replication"]["lag"] == {}
        trail = db.parts.replication.trails["east"] = EpochTrail(["applied"])
        trail.set_out(5, db.parts.store.clock.wall_us() - 2_500_000)
        shown = db.status()["replication"]["lag"]["east"]
        assert (shown["lag_epochs"], shown["lag_seconds"]) == (1, 2.5)


# --- variables --------------------------------------------------------------------------------------
NAMED: list[str] = [
    *(f"Ndb_conflict_fn_{name}" for name in ("old", "max", "max_del_win", "max_ins", "max_del_win_ins")),
    *(f"Ndb_conflict_fn_{name}" for name in ("epoch", "epoch_trans", "epoch2", "epoch2_trans")),
    *(f"Ndb_conflict_trans_{name}_count" for name in ("row_conflict", "row_reject", "reject", "detect_iter")),
    *("Ndb_conflict_trans_conflict_commit_count", "Ndb_conflict_epoch_delete_delete_count"),
    *("Ndb_conflict_reflected_op_prepare_count", "Ndb_conflict_reflected_op_discard_count"),
    *("Ndb_conflict_refresh_op_count", "Ndb_conflict_last_conflict_epoch", "Ndb_conflict_last_stable_epoch"),
    *("Ndb_replica_max_replicated_epoch", "Ndb_epoch", "Ndb_latest_epoch", "Ndb_latest_trans_epoch"),
    *(f"Ndb_latest_{name}_binlog_epoch" for name in ("received", "handled", "applied")),
]


def test_every_variable_the_sources_name_is_under_status_and_is_0_where_nothing_replicates() -> None:
    with open_memory() as db:
        db.create_table("t", [Column("id", Int64)], "id").insert((1,))
        shown: dict[str, Any] = db.status()["replication"]["variables"]
        assert set(NAMED) <= set(shown) and len(shown) == len(VARIABLES)
        assert {name for name in shown if name.startswith("Ndb_api_") and name.endswith("_replica")}
        assert shown["Ndb_epoch"] == db.status()["epoch"]["current"] > 0
        assert {value for name, value in shown.items() if name != "Ndb_epoch"} == {0}


def test_what_a_room_registers_is_shown_as_the_variable() -> None:
    status = ReplicationStatus()
    status.gauge("replica_max_replicated_epoch", lambda: 22)
    counters = status.new_counters()
    counters.add("conflict_fn_max" if "conflict_fn_max" in counters.totals else "max", 3)
    assert status.variables()["Ndb_replica_max_replicated_epoch"] == 22
    assert status.value("replica_max_replicated_epoch") == 22
    assert status.value("conflict_fn_max") == 0, "staged until its epoch transaction commits"
    counters.commit()
    assert status.value("conflict_fn_max") == 3
    with pytest.raises(KeyError):
        status.value("nothing")
    with pytest.raises(KeyError):
        status.gauge("nothing", lambda: 1)
    for variable in VARIABLES:
        assert BY_NAME[shown_name(variable).removeprefix(PREFIX)] is variable
