"""Running works side by side: rounds interleaved, the first one untimed, medians.

The machine may be shared and noisy, so no work runs all its rounds in a row: each round runs every work once, and each
round begins with a different work.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Run = Callable[[], float]


@dataclass
class Work:
    """One competitor: `run` does one round and returns the seconds that count."""

    name: str
    run: Run
    settings: str = ""


@dataclass
class Timing:
    """The results of the rounds of one work, in seconds per operation."""

    name: str
    settings: str
    rounds_s: list[float] = field(default_factory=list)

    @property
    def median_s(self) -> float:
        """Median of the timed rounds."""
        return statistics.median(self.rounds_s)


def timed(work: Callable[[], Any]) -> Run:
    """A run that counts the whole call."""

    def run() -> float:
        began = time.perf_counter()
        work()
        return time.perf_counter() - began

    return run


def interleave(works: list[Work], operations: int, rounds: int, warm_rounds: int = 1) -> dict[str, Timing]:
    """Run all works `rounds` times in turn after `warm_rounds` untimed ones; timings per operation, by name."""
    found = {work.name: Timing(work.name, work.settings) for work in works}
    for number in range(warm_rounds + rounds):
        for place in range(len(works)):
            work = works[(place + number) % len(works)]
            gc.collect()
            seconds = work.run()
            if number >= warm_rounds:
                found[work.name].rounds_s.append(seconds / operations)
    return found
