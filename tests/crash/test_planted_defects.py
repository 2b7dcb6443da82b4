"""The harness sees: each of more than twenty one-line defects makes it fail."""

from __future__ import annotations

import importlib.util
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.crash.binlog_defects import BINLOG_DEFECTS
from tests.crash.call_defects import CALL_DEFECTS, CALL_KERNEL_DEFECTS
from tests.crash.defects import DEFECTS, KERNEL_DEFECTS, Defect
from tests.crash.disk_defects import DISK_DEFECTS, DISK_KERNEL_DEFECTS
from tests.crash.log_defects import LOG_DEFECTS
from tests.crash.replication_defects import REPLICATION_DEFECTS
from tests.crash.schedule_defects import SCHEDULE_DEFECTS
from tests.crash.view_defects import VIEW_DEFECTS
from tests.seeds import fresh_seeds

ROOT = Path(__file__).resolve().parents[2]
COMPILED = (*KERNEL_DEFECTS, *CALL_KERNEL_DEFECTS, *DISK_KERNEL_DEFECTS)
_PROCESSES = (*DEFECTS, *DISK_DEFECTS, *LOG_DEFECTS, *BINLOG_DEFECTS, *CALL_DEFECTS)
EVERY = (*_PROCESSES, *COMPILED, *REPLICATION_DEFECTS, *SCHEDULE_DEFECTS, *VIEW_DEFECTS)
# Each takes a process of some seconds: a run takes a part of them, another part each time; `make soak` takes all.
DRAWN_COUNT = 5
DRAWN = random.Random(fresh_seeds(1)[0]).sample(_PROCESSES, DRAWN_COUNT)
OTHERS = [each for each in _PROCESSES if each not in DRAWN]


def look(defect: Defect, **environment: str) -> None:
    """Run the part that must see it in a process of its own."""
    command = [sys.executable, "-m", "tests.crash.planted", defect.name]
    found = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
    )
    # Kernels follow addresses that a defect left in memory: a process that dies of a signal has seen the defect too.
    if -found.returncode in (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT):
        return
    assert found.returncode == 0, f"{defect.name} was not seen: {found.stdout}{found.stderr}"
    assert found.stdout.startswith(defect.name)


@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("defect", DRAWN, ids=lambda defect: defect.name)
def test_planted_defect_is_seen(defect: Defect) -> None:
    look(defect)


@pytest.mark.soak
@pytest.mark.parametrize("defect", SCHEDULE_DEFECTS, ids=lambda defect: defect.name)
def test_defect_that_an_order_of_threads_shows_is_seen(defect: Defect) -> None:
    look(defect, PYTHONHASHSEED="0")


@pytest.mark.soak
@pytest.mark.parametrize("defect", OTHERS, ids=lambda defect: defect.name)
def test_planted_defect_that_was_not_drawn_is_seen(defect: Defect) -> None:
    look(defect)


@pytest.mark.parametrize("defect", EVERY, ids=lambda defect: defect.name)
def test_line_of_a_planted_defect_is_still_there(defect: Defect) -> None:
    source = importlib.util.find_spec(defect.module)
    assert source is not None and source.origin is not None
    assert Path(source.origin).read_text().count(defect.old) == 1


@pytest.mark.soak
@pytest.mark.parametrize("defect", COMPILED, ids=lambda defect: defect.name)
def test_defect_planted_in_a_kernel_is_seen(defect: Defect) -> None:
    look(defect)


def test_enough_defects_are_planted() -> None:
    assert len(DEFECTS) >= 20
    assert len({defect.name for defect in EVERY}) == len(EVERY)
