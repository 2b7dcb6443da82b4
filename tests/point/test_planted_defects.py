"""The comparison of both paths sees planted defects."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.crash.defects import Defect
from tests.point.defects import POINT_DEFECTS
from tests.seeds import fresh_seeds
from tests.shares import few

ROOT = Path(__file__).resolve().parents[2]
# Each takes a process of some seconds: a run takes a part of them, another part each time.
DRAWN = random.Random(fresh_seeds(1)[0]).sample(POINT_DEFECTS, few(2, len(POINT_DEFECTS)))


@pytest.mark.processes
@pytest.mark.timeout(600)
@pytest.mark.parametrize("defect", DRAWN, ids=lambda defect: defect.name)
def test_planted_defect_is_seen(defect: Defect) -> None:
    command = [sys.executable, "-m", "tests.point.planted", defect.name]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    found = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    if -found.returncode in (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT):
        return
    assert found.returncode == 0, f"{defect.name} was not seen: {found.stdout}{found.stderr}"
