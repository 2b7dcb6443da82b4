"""The plays of an anomaly see a planted defect that allows it, and the others do not fail by it."""

from __future__ import annotations

import importlib.util
import random
from pathlib import Path

import pytest

from tests.elsewhere import python
from tests.isolation.defects import DEFECTS, Defect
from tests.seeds import fresh_seeds
from tests.shares import few

# Each takes a process of some seconds: a run takes one, another one each time.
DRAWN = random.Random(fresh_seeds(1)[0]).sample(DEFECTS, few(1, len(DEFECTS)))


@pytest.mark.processes
@pytest.mark.timeout(600)
@pytest.mark.parametrize("defect", DRAWN, ids=lambda defect: defect.name)
def test_planted_defect_is_seen(defect: Defect) -> None:
    ended = python("-m", "tests.isolation.planted", defect.name)
    assert ended.returncode == 0, f"{ended.stdout[-3_000:]}{ended.stderr[-3_000:]}"


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.name)
def test_line_of_a_planted_defect_is_still_there(defect: Defect) -> None:
    source = importlib.util.find_spec(defect.module)
    assert source is not None and source.origin is not None
    assert Path(source.origin).read_text(encoding="utf-8").count(defect.old) == 1
