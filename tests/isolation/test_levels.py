"""Each level allows the anomalies that the table says, and prevents the others, over every face of a store.

Story: the isolation of transactions was tested by one thread, with Rejected in place of each wait, and not by clients.
"""

from __future__ import annotations

import pytest

from tests.isolation.levels import ALLOWED, ANOMALIES, LEVELS, Outcome
from tests.isolation.plays import PLAYS, Case
from tests.isolation.stage import Face, outcomes


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("case", PLAYS, ids=lambda case: case.name)
def test_play_ends_as_its_level_says(face: Face, case: Case, level: str) -> None:
    ways = face.ways_of(case.ways)
    assert outcomes(face, level, case.play, ways) == {way.name: case.at(level) for way in ways}


@pytest.mark.parametrize("level", ALLOWED)
def test_plays_agree_with_the_table(level: str) -> None:
    """A level that allows an anomaly allows it in each play, so that none is left out by chance."""
    happen = {name: {case.at(level) is Outcome.HAPPENS for case in PLAYS if case.anomaly == name} for name in ANOMALIES}
    assert happen == {name: {name in ALLOWED[level]} for name in ANOMALIES}
