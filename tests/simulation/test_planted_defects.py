"""The simulation fails with each planted one-line defect of replication."""

from __future__ import annotations

import pytest

from tests.crash.defects import Defect
from tests.crash.replication_defects import REPLICATION_DEFECTS
from tests.crash.test_planted_defects import look

# These are found within a few seeds; the others need more.
QUICK = frozenset(
    {
        "refused-row-not-refreshed",
        "max-replicated-epoch-not-recovered",
        "row-epoch-not-compared",
        "exceptions-row-left-out",
        "epochs-logged-again-after-a-restart",
    }
)


@pytest.mark.timeout(1_200)
@pytest.mark.parametrize(
    "defect",
    [
        pytest.param(each, id=each.name, marks=() if each.name in QUICK else pytest.mark.soak)
        for each in REPLICATION_DEFECTS
    ],
)
def test_planted_defect_is_seen_by_the_simulation(defect: Defect) -> None:
    look(defect)


def test_quick_defects_are_planted() -> None:
    assert {each.name for each in REPLICATION_DEFECTS} > QUICK and len(REPLICATION_DEFECTS) >= 10
