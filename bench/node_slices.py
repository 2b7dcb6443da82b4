"""`python -m bench.node_slices [--rows N] [--rounds N] [--disk] [--out DIR] [--page FILE]`: a slice holds the latch.

The live node's side of a node restart takes a slice of a fragment under the commit latch (at most 32 Ki slots looked
at, 256 KiB of rows copied; docs/internals/node-group.md, *Slices and the stream*), and a commit waits for it. No
commits run here: the bench measures how long the latch is held for each slice of a scan, by the share of rows that
changed. With `--disk` the text of a row is on disk: a slice opens a snapshot under the latch, and reads pages without
it.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import tidemark as tm
from bench.node_restart import FOLDER
from bench.node_restart_live import BATCH, COLUMNS, FRAGMENTS, NAME, SEED, options_of, rows_of
from bench.report import RESULTS, keep, put_table
from tidemark.engine.jit.registry import compile_declared
from tidemark.recovery.node_restart.messages import ROWID_SYNC, Plan, Ready, Slice, Taken
from tidemark.recovery.node_restart.source import SLICE_SLOTS, SLICE_WORDS, Source

ROWS = 2_000_000
SHARES = (0.0, 0.01, 0.1, 1.0)
DISK_COLUMNS = [*COLUMNS[:-1], replace(COLUMNS[-1], storage="disk")]


class TimedLatch:
    """A latch that keeps for how long it was held each time, in milliseconds."""

    def __init__(self, latch: Any) -> None:
        self.latch = latch
        self._since = 0.0
        self.held_ms: list[float] = []

    def __enter__(self) -> None:
        self.latch.__enter__()
        self._since = time.perf_counter()

    def __exit__(self, *error: object) -> None:
        held_s = time.perf_counter() - self._since
        self.latch.__exit__(*error)
        self.held_ms.append(held_s * 1e3)


def scan(db: Any, since: int) -> dict[str, Any]:
    """Take all slices of the rows changed after an epoch; return the milliseconds of each, and what they held."""
    store = db.parts.store
    source = Source(store, db.parts.files, db.parts.opened.identity)
    source.begin(Ready(since, 0, ROWID_SYNC, ""))
    table = store.tables.by_name[NAME]
    source.plan(Plan({(table.table_id, number): since for number in table.by_number}))
    latch = TimedLatch(store.latch)
    rows = size_bytes = 0
    largest = 0
    while True:
        store.latch = latch
        try:
            if source.wants_read:
                source.read()
            messages = source.step()
        finally:
            store.latch = latch.latch
        slices = [each for each in messages if isinstance(each, Slice)]
        for each in slices:
            rows += each.rows
            size_bytes += each.words.nbytes
            largest = max(largest, each.words.nbytes)
            source.taken(Taken(each.size_words))
        if not slices:
            if source.progress.is_done:
                break
            if not source.wants_read:
                store.log.flush()  # a slice is sent after the groups of the rows it shows
    held = latch.held_ms
    return {"held_ms": held, "slots": source.progress.slots, "rows": rows, "bytes": size_bytes, "largest": largest}


def change(db: Any, rows: int, share: float) -> None:
    """Update a share of the rows, spread over all pages."""
    keys = np.sort(np.random.default_rng([SEED, rows]).permutation(rows)[: int(rows * share)])
    for first in range(0, len(keys), BATCH):
        db[NAME].update_many(rows_of(keys[first : first + BATCH], "c"))
    db.sync()


def measure(rows: int, rounds: int, on_disk: bool) -> list[dict[str, Any]]:
    """Measure every share, each with `rounds` scans; all slices of all rounds count."""
    compile_declared()
    found = []
    options = options_of(rows)
    if on_disk:
        options |= {"page_buffer": options["data_memory"], "undo_log": options["redo_log"], "snapshot_memory": 64 << 20}
    with tempfile.TemporaryDirectory(dir=FOLDER, prefix=".bench-") as place:
        with tm.open(Path(place) / "live", **options) as db:
            if on_disk:
                db.create_tablespace("pages", size="64 MiB")
            table = db.create_table(NAME, DISK_COLUMNS if on_disk else COLUMNS, "id", tm.HashPartition(FRAGMENTS))
            for first in range(0, rows, BATCH):
                table.insert_many(rows_of(np.arange(first, min(first + BATCH, rows)), "b"))
            db.checkpoint()
            since = db.sync()
            for share in SHARES:
                change(db, rows, share)
                scan(db, since)
                for number in range(rounds):
                    found.append({"share": share, "round": number, **scan(db, since)})
                since = db.sync() or since  # without a change nothing is closed
    return found


def table_of(found: list[dict[str, Any]]) -> str:
    """As Markdown."""
    out = [
        "| rows changed | latch taken, times | slots looked at each | KB copied | held, ms: median | 99 % | worst |",
        "|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for share in sorted({each["share"] for each in found}):
        cells = [each for each in found if each["share"] == share]
        held = np.array([ms for each in cells for ms in each["held_ms"]])
        slots, size_bytes = (sum(each[what] for each in cells) / len(held) for what in ("slots", "bytes"))
        out.append(
            f"| {share:.0%} | {len(held):,} | {slots:,.0f} | {size_bytes / 1e3:,.0f} | {median(held):.2f}"
            f" | {np.percentile(held, 99):.2f} | {held.max():.2f} |"
        )
    return "\n".join(out)


def run() -> None:
    """Measure, print, keep, and put the table into its page."""
    parser = argparse.ArgumentParser(prog="python -m bench.node_slices", description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS, help=f"of the table (default: {ROWS:,})")
    parser.add_argument("--rounds", type=int, default=3, help="scans of each share (default: 3)")
    parser.add_argument("--disk", action="store_true", help="with the text of the rows on disk")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the JSON file (default: bench/results)")
    parser.add_argument("--page", type=Path, help="also put the table into this Markdown page, between its marks")
    arguments = parser.parse_args()
    found = measure(arguments.rows, arguments.rounds, arguments.disk)
    name = "node-slices" + ("-disk" if arguments.disk else "")
    settings = {"seed": SEED, "rows": arguments.rows, "slice_slots": SLICE_SLOTS, "slice_bytes": 8 * SLICE_WORDS}
    target = keep([], {**settings, "scans": found}, arguments.out, name)
    print(f"kept in {target.name}")
    if arguments.page:
        put_table(arguments.page, "bench." + name.replace("-", "_"), table_of(found), target.name)
    else:
        print(table_of(found))


if __name__ == "__main__":
    run()
