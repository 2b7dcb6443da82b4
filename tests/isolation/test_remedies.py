"""What prevents the anomalies that a level allows: locks, calls that compute, snapshots, a row for a rule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.isolation import remedies
from tests.isolation.levels import LEVELS, READ_COMMITTED, SNAPSHOT, Outcome
from tests.isolation.plays import (
    HAPPENS,
    PLAYS,
    READS,
    REFUSED,
    WAITS,
    Case,
    condition_cycle,
    condition_cycle_of_changes,
    write_skew,
)
from tests.isolation.stage import Face, Play, outcomes, perform
from tests.isolation.ways import Lock

LOCKED = [
    pytest.param(case, level, lock, id=f"{case.name}-{level}-{lock}")
    for case in PLAYS
    for level in LEVELS
    for lock in case.locked.get(level, {})
]
# How a play ends in which both wait for one row at first, or change it.
BY_LOCK = {READ_COMMITTED: WAITS, SNAPSHOT: HAPPENS}
BY_CHANGE = {READ_COMMITTED: WAITS, SNAPSHOT: REFUSED}
RULES = [
    pytest.param(case, level, id=f"{case.name}-{level}")
    for case in PLAYS
    for level in LEVELS
    if case.at(level) is HAPPENS
]


@pytest.mark.parametrize(("case", "level", "lock"), LOCKED)
def test_locks_keep_rows_as_they_were_read(face: Face, case: Case, level: str, lock: Lock) -> None:
    ways = face.ways_of(case.locking(lock))
    assert outcomes(face, level, case.play, ways) == {way.name: case.locked[level][lock] for way in ways}


def test_plays_with_locks_agree_with_the_table() -> None:
    assert remedies.cells_of_locks() == remedies.REMEDIES[remedies.LOCKS]


@pytest.mark.parametrize(("case", "level"), RULES)
def test_change_of_a_row_that_stands_for_the_rule_prevents_every_anomaly(face: Face, case: Case, level: str) -> None:
    assert perform(face, level, case.play, first=remedies.change_rule) is BY_CHANGE[level]


@pytest.mark.parametrize("case", [each for each in PLAYS if each.read_committed is HAPPENS], ids=lambda case: case.name)
def test_lock_of_that_row_prevents_every_anomaly_at_read_committed(face: Face, case: Case) -> None:
    assert perform(face, READ_COMMITTED, case.play, first=remedies.lock_rule) is WAITS


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("play", [write_skew, condition_cycle, condition_cycle_of_changes])
def test_lock_of_that_row_shows_a_snapshot_nothing_new(face: Face, play: Play, level: str) -> None:
    assert perform(face, level, play, first=remedies.lock_rule) is BY_LOCK[level]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("change", remedies.COMPUTING.values(), ids=list(remedies.COMPUTING))
def test_call_that_computes_loses_no_update(face: Face, change: Callable[[Any], object], level: str) -> None:
    assert perform(face, level, remedies.counted_by(change)) is BY_CHANGE[level]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("play", [remedies.compared_update, remedies.one_name])
def test_call_that_compares_overwrites_nothing(face: Face, play: Play, level: str) -> None:
    assert perform(face, level, play) is BY_CHANGE[level]


@pytest.mark.parametrize("level", LEVELS)
def test_delete_that_compares_deletes_no_row_that_has_changed(face: Face, level: str) -> None:
    ends: dict[str, Outcome] = {READ_COMMITTED: READS, SNAPSHOT: REFUSED}
    assert perform(face, level, remedies.compared_delete) is ends[level]


@pytest.mark.parametrize("case", [each for each in PLAYS if each.has_reader], ids=lambda case: case.name)
def test_snapshot_shows_one_state(here: Face, case: Case) -> None:
    end = READS if case.read_committed is HAPPENS else case.read_committed
    ways = [way for way in case.ways if way.reading != "unique index"]  # which snapshots do not take
    found = outcomes(here, READ_COMMITTED, case.play, ways, reader=lambda: remedies.SnapshotReader(here.db))
    assert found == {way.name: end for way in ways}
