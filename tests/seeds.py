"""Seeds of a command line, and seeds that no earlier run had, drawn while tests are collected: the same ones in every
process of a run.
"""

from __future__ import annotations

import os
import random


def fresh_seeds(count: int) -> list[int]:
    """Return `count` seeds of 32 bits; their tests have them in their names."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID")
    rng = random.SystemRandom() if run is None else random.Random(run)
    return [rng.getrandbits(32) for _ in range(count)]


def seed_range(text: str) -> range:
    """Return the seeds of a command line: "A:B", from A up to but without B, or A alone."""
    first, _, after = text.partition(":")
    return range(int(first), int(after) if after else int(first) + 1)
