"""The oracle finds the faults it was made for, put back one by one, within so many programs."""

from __future__ import annotations

import importlib.util
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.blackbox.defects import DEFECTS, Defect
from tests.seeds import fresh_seeds

ROOT = Path(__file__).resolve().parents[2]
# A run takes one of the quick ones, another each time; `make soak` takes all.
DRAWN = random.Random(fresh_seeds(1)[0]).sample([each for each in DEFECTS if each.is_quick], 1)


def find(defect: Defect) -> None:
    command = [sys.executable, "-m", "tests.blackbox.planted", defect.name]
    ended = subprocess.run(command, cwd=ROOT, env={**os.environ}, capture_output=True, text=True)
    print(ended.stdout)
    assert ended.returncode == 0, f"{defect.name} was not found\n{ended.stdout[-3_000:]}{ended.stderr[-3_000:]}"


@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("defect", DRAWN, ids=lambda defect: defect.name)
def test_planted_fault_is_found(defect: Defect) -> None:
    find(defect)


@pytest.mark.soak
@pytest.mark.parametrize("defect", [each for each in DEFECTS if each not in DRAWN], ids=lambda defect: defect.name)
def test_planted_fault_that_was_not_drawn_is_found(defect: Defect) -> None:
    find(defect)


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.name)
def test_line_of_a_planted_fault_is_still_there(defect: Defect) -> None:
    source = importlib.util.find_spec(defect.module)
    assert source is not None and source.origin is not None
    assert Path(source.origin).read_text().count(defect.old) == 1


def test_planted_faults_have_names_of_their_own() -> None:
    assert len({each.name for each in DEFECTS}) == len(DEFECTS)
