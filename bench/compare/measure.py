"""One workload at one durability: every store in turn, freshly loaded each time; rates and latencies.

Only one store is open at a time, so that background threads and servers of the others do not take part. Loading and
settling are not counted, nor is closing. The clock is read around each operation, for all alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from bench.compare.competitors import Competitor, Workload
from bench.compare.stores import Durability
from bench.report import Line
from bench.rounds import Timing, Work, interleave

WARM_ROUNDS = 1
RATE = "operations a second"
MEDIAN = "median latency"
TAIL = "99 % latency"
PERCENTILES = {MEDIAN: 50, TAIL: 99}
Calls = list[tuple[Callable[..., Any], tuple[Any, ...]]]


def what(durability: Durability, measure: str) -> str:
    """The `what` of a line."""
    return f"{durability.label}: {measure}"


def run(calls: Calls) -> tuple[float, list[float]]:
    """Seconds of all calls together, and of each."""
    clock = time.perf_counter
    times: list[float] = []
    note = times.append
    began = clock()
    for call, arguments in calls:
        start = clock()
        call(*arguments)
        note(clock() - start)
    return clock() - began, times


@dataclass
class Runs:
    """All rounds of one store: `once` does one. latencies_us: of each round, the warm one too, by percentile."""

    competitor: Competitor
    workload: Workload
    durability: Durability
    folder: Path
    latencies_us: list[list[float]] = field(default_factory=list)

    def once(self) -> float:
        """Load a store, run the operations, close it; seconds of the operations."""
        store = self.competitor.open(self.workload, self.durability, self.folder)
        try:
            calls = [(getattr(store, name), arguments) for name, arguments in self.workload.operations]
            seconds, times = run(calls)
        finally:
            store.close()
        self.latencies_us.append((np.percentile(times, list(PERCENTILES.values())) * 1e6).tolist())
        return seconds


def measure(
    stores: list[Competitor], workload: Workload, durability: Durability, folder: Path, rounds: int
) -> list[Line]:
    """Three lines: rate, median latency, 99 % latency."""
    runs = {store.name: Runs(store, workload, durability, folder) for store in stores}
    works = [Work(name, each.once, each.competitor.settings(durability)) for name, each in runs.items()]
    timings = interleave(works, len(workload.operations), rounds, WARM_ROUNDS)
    rates = {name: [1 / seconds for seconds in timing.rounds_s] for name, timing in timings.items()}
    lines = [_line(workload, what(durability, RATE), "1/s", rates, timings)]
    for place, name in enumerate(PERCENTILES):
        found = {
            store: [latencies[place] for latencies in each.latencies_us[WARM_ROUNDS:]] for store, each in runs.items()
        }
        lines.append(_line(workload, what(durability, name), "µs", found, timings))
    return lines


def _line(workload: Workload, text: str, unit: str, rounds: dict[str, list[float]], timings: dict[str, Timing]) -> Line:
    return Line(
        workload.name,
        text,
        unit,
        {name: median(each) for name, each in rounds.items()},
        settings={name: timing.settings for name, timing in timings.items()},
        rounds=rounds,
        notes=[workload.what],
    )
