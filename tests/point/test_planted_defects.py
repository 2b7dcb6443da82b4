"""The comparison of both paths sees planted defects."""

from __future__ import annotations

import random
import signal

import pytest

from tests.crash.defects import Defect
from tests.elsewhere import python
from tests.point.defects import POINT_DEFECTS
from tests.seeds import fresh_seeds
from tests.shares import few

# Each takes a process of some seconds: a run takes a part of them, another part each time.
DRAWN = random.Random(fresh_seeds(1)[0]).sample(POINT_DEFECTS, few(2, len(POINT_DEFECTS)))


@pytest.mark.processes
@pytest.mark.timeout(600)
@pytest.mark.parametrize("defect", DRAWN, ids=lambda defect: defect.name)
def test_planted_defect_is_seen(defect: Defect) -> None:
    found = python("-m", "tests.point.planted", defect.name)
    if -found.returncode in (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT):
        return
    assert found.returncode == 0, f"{defect.name} was not seen: {found.stdout}{found.stderr}"
