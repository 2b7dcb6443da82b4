"""P8: P5 while local checkpoints run without pause, next to the same updates without them; a local checkpoint alone."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import numpy as np

import tidemark as tm
from bench.context import Context
from bench.report import OURS, Line, at_least, at_most
from bench.rows import COLUMNS, make_table

SEGMENT_SECONDS = 2.0
CHUNK = 1 << 20
SYNC_EVERY = 16
LONG_NS = 1_000_000


@dataclass
class Segment:
    """One stretch of updates."""

    operations: int = 0
    seconds: float = 0.0
    longest_ms: float = 0.0
    over_1_ms: int = 0
    lcp_bytes: int = 0
    lcp_seconds: float = 0.0
    checkpoints: int = 0


@dataclass
class Stretch:
    """All segments of one kind."""

    segments: list[Segment] = field(default_factory=list)

    @property
    def rate(self) -> float:
        return median(each.operations / each.seconds for each in self.segments)

    @property
    def longest_ms(self) -> float:
        return max(each.longest_ms for each in self.segments)


def update_for(table: Any, keys: list[int], seconds: float, stop: threading.Event | None = None) -> Segment:
    """One-row updates for a while (or until `stop`), every one timed."""
    found = Segment()
    clock = time.perf_counter_ns
    began = last = clock()
    end = began + int(seconds * 1e9)
    longest = 0
    value = float(began)
    while last < end and not (stop is not None and stop.is_set()):
        for key in keys[found.operations % len(keys) :][:256]:
            table.update(key, {"b": value})
            now = clock()
            taken = now - last
            last = now
            value += 1.0
            if taken > LONG_NS:
                found.over_1_ms += 1
            if taken > longest:
                longest = taken
        found.operations += 256
    found.seconds = (last - began) / 1e9
    found.longest_ms = longest / 1e6
    return found


def beside_checkpoints(db: tm.Database, table: Any, keys: list[int]) -> Segment:
    """Updates while another thread makes local checkpoints one after the other."""
    stop = threading.Event()
    reports: list[dict[str, Any]] = []

    def run() -> None:
        while not stop.is_set():
            reports.append(db.checkpoint())

    thread = threading.Thread(target=run)
    thread.start()
    found = update_for(table, keys, SEGMENT_SECONDS)
    stop.set()
    thread.join()
    found.lcp_bytes = sum(report["size_bytes"] for report in reports)
    found.lcp_seconds = sum(report["seconds"] for report in reports)
    found.checkpoints = len(reports)
    return found


def raw_write(path: str, size: int) -> float:
    """Seconds to write and sync this many bytes the way a data file is written: 1 MiB at a time, a sync every 16."""
    block = os.urandom(CHUNK)
    began = time.perf_counter()
    descriptor = os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
    for number in range(-(-size // CHUNK)):
        os.write(descriptor, block)
        if number % SYNC_EVERY == SYNC_EVERY - 1:
            os.fdatasync(descriptor)
    os.fdatasync(descriptor)
    os.close(descriptor)
    return time.perf_counter() - began


def measure(context: Context) -> list[Line]:
    """One line for the writers, one for the checkpoint alone."""
    scale = context.scale
    db = context.open("lcp", durability="epoch", background=True, redo_log="2 GiB", checkpoint_interval_ms=0)
    with db:
        table = db.create_table("t", COLUMNS, "id")
        table.insert_many(make_table(0, scale.lcp_rows))
        keys = [int(key) for key in np.random.default_rng(8).integers(0, scale.lcp_rows, 200_000)]
        db.checkpoint()
        update_for(table, keys, SEGMENT_SECONDS / 2)
        without, beside, alone, raw = Stretch(), Stretch(), [], []
        for _ in range(scale.lcp_segments):
            without.segments.append(update_for(table, keys, SEGMENT_SECONDS))
            beside.segments.append(beside_checkpoints(db, table, keys))
            report = db.checkpoint()
            alone.append(report["size_bytes"] / report["seconds"] / 1e6)
            raw.append(report["size_bytes"] / raw_write(str(context.folder / "raw-lcp"), report["size_bytes"]) / 1e6)
    writing = sum(each.lcp_bytes for each in beside.segments) / sum(each.lcp_seconds for each in beside.segments) / 1e6
    first = Line("P8", "updates per second while local checkpoints run", "1/s", {})
    first.figures = {OURS: beside.rate, "without a local checkpoint": without.rate}
    first.rounds = {
        OURS: [each.operations / each.seconds for each in beside.segments],
        "without a local checkpoint": [each.operations / each.seconds for each in without.segments],
    }
    first.settings = {OURS: f"{scale.lcp_rows:,} rows, one writing thread, local checkpoints one after the other"}
    at_least(first, "share of the throughput without one", beside.rate / without.rate, 0.9)
    at_least(first, "MB/s the checkpoint writes meanwhile", writing, 150)
    at_most(first, "longest pause of a writer, ms,", beside.longest_ms, 5)
    first.notes.append(
        f"longest pause without a local checkpoint {without.longest_ms:.1f} ms; updates over 1 ms: "
        f"{sum(each.over_1_ms for each in beside.segments)} of {sum(each.operations for each in beside.segments):,} "
        f"beside {sum(each.checkpoints for each in beside.segments)} checkpoints, "
        f"{sum(each.over_1_ms for each in without.segments)} of "
        f"{sum(each.operations for each in without.segments):,} without"
    )
    second = Line("P8", "a local checkpoint alone", "MB/s", {OURS: median(alone), "raw sequential write": median(raw)})
    second.rounds = {OURS: alone, "raw sequential write": raw}
    second.settings = {"raw sequential write": "1 MiB blocks, fdatasync every 16 MiB, same bytes"}
    at_least(second, "share of raw sequential writing", median(alone) / median(raw), 0.6)
    return [first, second]
