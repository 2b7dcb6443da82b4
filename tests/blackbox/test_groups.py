"""Commands of a node group under kills, stops and losses keep what they acknowledged; `python -m tests.blackbox
groups` does more of it.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.seeds import fresh_seeds
from tests.shares import few

ROOT = Path(__file__).resolve().parents[2]
EVENTS = few(2, 60)


@pytest.mark.timeout(few(900, 7_200))
@pytest.mark.parametrize("seed", fresh_seeds(1))
def test_group_keeps_what_it_acknowledged_whatever_happens_to_its_processes(seed: int) -> None:
    command = [sys.executable, "-m", "tests.blackbox", "groups", "--seed", str(seed), "--events", str(EVENTS)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    print(ended.stdout)
    assert ended.returncode == 0, f"{' '.join(command[1:])}\n{ended.stdout}{ended.stderr}"
