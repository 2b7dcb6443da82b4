"""Seeds that no earlier run had, drawn while tests are collected: the same ones in every process of a run."""

from __future__ import annotations

import os
import random


def fresh_seeds(count: int) -> list[int]:
    """Return `count` seeds of 32 bits; their tests have them in their names."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID")
    rng = random.SystemRandom() if run is None else random.Random(run)
    return [rng.getrandbits(32) for _ in range(count)]
