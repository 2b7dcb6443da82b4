"""`python -m bench.replication_lag [--quick] [--out DIR]`: two processes over TCP, a source and its replica.

Commits a second of one writer at the source, alone and with the replica attached; how long an epoch takes from when it
is in the source's binlog (closed, durable), and a commit from when its group was sealed, until the replica has applied
it; rows a second when a replica that was away catches up, after batches and after one-row transactions. Both processes
share the machine, and its wall clock. Rounds alternate; the median counts.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import tidemark as tm
from bench.pair import HOST, SECRET, Remote
from bench.report import OURS, RESULTS, Line, keep
from bench.rows import COLUMNS, make_table
from tidemark.engine.jit.registry import compile_declared

SEED = 80_808
WAIT_MS = 600_000
BATCH_ROWS = 10_000
PACE = 200
BACKLOG = 5_000
IMAGES = {"log_updated_only": False, "log_update_as_write": False}
OPTIONS: dict[str, Any] = {"log_bin": "binlog", "data_memory": "512 MiB", "redo_log": "512 MiB", **IMAGES}


class Source:
    """The site that writes."""

    def __init__(self, directory: str, durability: str) -> None:
        self.db = tm.open(directory, server_id=1, durability=durability, **OPTIONS)
        self.serving = tm.serve(self.db, f"{HOST}:0", SECRET)
        self.written: dict[int, int] = {}
        self.db.binlog.on_epoch.append(self._note)

    def _note(self, epoch: int) -> None:
        self.written[epoch] = time.time_ns() // 1_000

    def address(self) -> tuple[str, int]:
        """Return the address at which the source serves its binlog."""
        return self.serving.address

    def load(self, rows: int) -> None:
        """Make and fill the table."""
        self.rows = rows
        self.db.create_table("main.t", COLUMNS, "id")
        table = make_table(0, rows)
        for at in range(0, rows, 100_000):
            self.db["main.t"].insert_many(table.slice(at, 100_000))

    def singles(self, seed: int, seconds: float, count: int = 1 << 60) -> float:
        """One-row updates at random keys; how many a second."""
        keys = np.random.default_rng(seed).integers(0, self.rows, 1 << 20).tolist()
        update, done, begun = self.db["main.t"].update, 0, time.perf_counter()
        while time.perf_counter() - begun < seconds and done < count:
            update(keys[done & 0xFFFFF], {"b": float(done)})
            done += 1
        return done / (time.perf_counter() - begun)

    def paced(self, seed: int, seconds: float, rate: int) -> None:
        """One-row updates at a rate a second."""
        keys = np.random.default_rng(seed).integers(0, self.rows, int(rate * seconds)).tolist()
        pause, begun = threading.Event(), time.perf_counter()
        for number, key in enumerate(keys):
            left = begun + number / rate - time.perf_counter()
            if left > 0:
                pause.wait(left)
            self.db["main.t"].update(key, {"b": float(number)})

    def batches(self, count: int) -> int:
        """Batches of updates; how many rows."""
        for number in range(count):
            ids = (np.arange(BATCH_ROWS) + number * BATCH_ROWS) % self.rows
            self.db["main.t"].update_many(pa.table({"id": ids, "b": np.random.default_rng().random(BATCH_ROWS)}))
        return count * BATCH_ROWS

    def reached(self) -> None:
        """Wait until the replica has applied everything."""
        self.db.wait_applied(self.db.sync(), WAIT_MS, at=[2])

    def epochs(self) -> dict[int, int]:
        """Return when each epoch reached the binlog, in microseconds since 1970."""
        return self.written


class Replica:
    """The site that follows."""

    def __init__(self, directory: str, address: tuple[str, int], durability: str) -> None:
        self.db = tm.open(directory, server_id=2, durability=durability, data_memory="512 MiB", redo_log="512 MiB")
        self.channel = tm.Channel(address, self.db, secret=SECRET)
        self.seen: dict[int, tuple[int, int]] = {}
        note = self.channel.replica.on_applied

        def applied(transaction: Any) -> None:
            self.seen[transaction.epoch] = (time.time_ns() // 1_000, transaction.commit_us or 0)
            note(transaction)

        self.channel.replica.on_applied = applied  # type: ignore[method-assign]

    def start(self) -> None:
        """Receive and apply."""
        self.channel.start()

    def stop(self) -> None:
        """Stop receiving and applying."""
        self.channel.stop()

    def forget(self) -> None:
        """Discard the recorded times."""
        self.seen.clear()

    def epochs(self) -> dict[int, tuple[int, int]]:
        """Return, for each epoch, when it was applied and when its first group was sealed."""
        return self.seen


def _line(what: str, unit: str, **figures: list[float]) -> Line:
    named = {name.replace("_", " "): values for name, values in figures.items()}
    named = {OURS if name == "ours" else name: values for name, values in named.items()}
    medians = {name: statistics.median(values) for name, values in named.items()}
    return Line("R", what, unit, medians, rounds=named)


def _delays(source: Remote, replica: Remote, what: str) -> list[Line]:
    """Return the delays of the epochs that both sites have recorded."""
    written, applied = source.ask("epochs"), replica.ask("epochs")
    both = [epoch for epoch in applied if epoch in written]
    lines = []
    for name, values in (
        ("epoch in the binlog → applied", [(applied[each][0] - written[each]) / 1e3 for each in both]),
        ("first commit of the epoch → applied", [(applied[each][0] - applied[each][1]) / 1e3 for each in both]),
    ):
        values.sort()
        figures = {"median": statistics.median(values), "99 %": values[int(len(values) * 0.99)], "longest": values[-1]}
        lines.append(Line("R", f"{name}, {what}, {len(values)} epochs", "ms", figures))
    return lines


def run(folder: Path, durability: str, is_quick: bool) -> list[Line]:
    """All measurements with one durability."""
    rows, seconds, rounds = (100_000, 2.0, 2) if is_quick else (500_000, 4.0, 3)
    source = Remote(Source, str(folder / "a"), durability)
    replica = Remote(Replica, str(folder / "b"), source.ask("address"), durability)
    what = f"durability={durability}"
    try:
        source.ask("load", rows)
        replica.ask("start")
        source.ask("reached")
        replica.ask("forget")
        alone, attached = [], []
        for number in range(rounds):
            attached.append(source.ask("singles", SEED + number, seconds))
            source.ask("reached")
            replica.ask("stop")
            alone.append(source.ask("singles", SEED - number - 1, seconds / 2))
            replica.ask("start")
            source.ask("reached")
        lines = [_line(f"one-row updates of one writer, {what}", "1/s", ours=attached, without_replica=alone)]
        for ask in (("singles", SEED, 2 * seconds), ("paced", SEED, 3 * seconds, PACE)):
            replica.ask("forget")
            source.ask(*ask)
            source.ask("reached")
            pace = "writer at full speed" if ask[0] == "singles" else f"{PACE} updates a second"
            lines += _delays(source, replica, f"{pace}, {what}")
        caught: dict[str, list[float]] = {"batches": [], "one-row transactions": []}
        for _ in range(rounds):
            for name in caught:
                replica.ask("stop")
                count = source.ask("batches", rows // BATCH_ROWS) if name == "batches" else BACKLOG
                source.ask("singles", SEED, 60.0, 1 if name == "batches" else BACKLOG)
                begun = time.perf_counter()
                replica.ask("start")
                source.ask("reached")
                caught[name].append(count / (time.perf_counter() - begun))
        for name, values in caught.items():
            lines.append(_line(f"catch-up after {name}, {what}", "rows/s", ours=values))
    finally:
        source.end()
        replica.end()
    return lines


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path, default=RESULTS)
    asked = parser.parse_args()
    assert tm.Channel and tm.serve  # imported before processes are forked
    compile_declared()
    lines = []
    load = os.getloadavg()
    for durability in ("epoch", "commit"):
        with tempfile.TemporaryDirectory() as folder:
            found = run(Path(folder), durability, asked.quick)
        for line in found:
            figures = ", ".join(f"{name} {value:,.4g}" for name, value in line.figures.items())
            print(f"{line.what}: {figures} {line.unit}", flush=True)
        lines += found
    settings = {"load average before, after": [load[0], os.getloadavg()[0]], "source": OPTIONS}
    print(keep(lines, settings, asked.out, "replication-lag"))


if __name__ == "__main__":
    main()
