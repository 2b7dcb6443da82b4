"""A way of writing that no longer asks the checks is seen."""

from __future__ import annotations

import random

import pytest

from tests.checks.defects import CHECK_DEFECTS
from tests.crash.defects import Defect
from tests.elsewhere import python
from tests.seeds import fresh_seeds
from tests.shares import few

# Each takes a process of some seconds: a run takes a part of them, another part each time.
DRAWN = random.Random(fresh_seeds(1)[0]).sample(CHECK_DEFECTS, few(1, len(CHECK_DEFECTS)))


@pytest.mark.processes
@pytest.mark.timeout(600)
@pytest.mark.parametrize("defect", DRAWN, ids=lambda defect: defect.name)
def test_planted_defect_is_seen(defect: Defect) -> None:
    found = python("-m", "tests.checks.planted", defect.name)
    assert found.returncode == 0, f"{defect.name} was not seen: {found.stdout}{found.stderr}"
