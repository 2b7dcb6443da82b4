"""P12: random updates of disk columns with a page buffer of a tenth of the data, beside peers with the same cache.

Every competitor is a process of its own (`bench/disk_child.py`). Its write calls and bytes are counted from outside, in
/proc/PID/io, over the timed rounds and the background work that they cause. Write calls are write, pwrite and writev,
the kernel's `syscw`; syncs do not count. All data is in the system's cache, so reads are copies and not disk reads.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from bench import peers
from bench.context import Context
from bench.disk_child import DISK_COLUMNS, PAGE_BYTES, PIECE_ROWS, ROWS_PER_PAGE, rows_with_notes
from bench.report import OURS, Goal, Line, at_most, line_of, times_faster
from bench.rounds import Timing, Work, interleave
from tidemark.engine.disk.cache_layout import C_POLICY, POLICY_LIRS, POLICY_LRU

SEED = 12
SCANS = 6
ZIPF = 0.99
PAGES_PER_SCAN = 2  # point reads between two scans, for each page of the table
NO_FILTER = "without UNDO filter"
PAGES = "writes of the same pages"
PAGES_READ = "reads and writes of them"
Counts = dict[str, int]


class Child:
    """A competitor's process."""

    def __init__(self, folder: Path, kind: str, rows: int, cache_bytes: int) -> None:
        self.rows = rows
        self.process = subprocess.Popen(
            [sys.executable, "-m", "bench.disk_child"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.ask("open", kind=kind, folder=str(folder), rows=rows, cache_bytes=cache_bytes)

    def ask(self, what: str, **values: Any) -> dict[str, Any]:
        """Send one request. Raises: RuntimeError if the process has ended; its messages are on standard error."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps({"do": what, **values}) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"a competitor of P12 ended with {self.process.wait()}")
        found: dict[str, Any] = json.loads(line)
        return found

    def counts(self) -> Counts:
        """Return the kernel's counters of the process."""
        text = Path(f"/proc/{self.process.pid}/io").read_text(encoding="ascii")
        return {name: int(value) for name, value in (line.split(": ") for line in text.splitlines())}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.ask("close")
        self.process.communicate()


class Counted:
    """Rounds of one competitor: seconds for the timing, calls and bytes of the timed rounds."""

    def __init__(self, child: Child, what: str, count: int) -> None:
        self.child, self.what, self.count = child, what, count
        self.round = 0
        self.operations = 0
        self.totals: Counts = {}
        child.ask("settle")

    def run(self) -> float:
        """One round; the first one is not counted, as it is not timed."""
        before = self.child.counts()
        answer = self.child.ask(self.what, seed=SEED + self.round, count=self.count, rows=self.child.rows)
        self.child.ask("settle")
        if self.round:
            after = self.child.counts()
            self.operations += self.count
            self.totals = {name: self.totals.get(name, 0) + after[name] - before[name] for name in after}
        self.round += 1
        seconds: float = answer["seconds"]
        return seconds

    def per_operation(self, name: str) -> float:
        """Calls or bytes per operation."""
        return self.totals[name] / self.operations


def competitors(durability: str, is_insert: bool) -> dict[str, tuple[str, str]]:
    """Name → (kind of child, settings)."""
    is_epoch = durability == "epoch"
    synced = "normal" if is_epoch else "full"
    found = {
        OURS: (durability, f"durability={durability}"),
        NO_FILTER: (f"{durability}-all", f"durability={durability}, undo_filter=False"),
        f"SQLite {synced.upper()}": (
            f"sqlite-{synced}",
            f"autocommit, WAL, synchronous={synced}, page_size {PAGE_BYTES}, cache_size the same bytes",
        ),
    }
    if peers.rocksdict is not None:
        kind = "rocksdb" if is_epoch else "rocksdb-sync"
        found["RocksDB"] = (kind, f"sync={not is_epoch}; half block cache, half write buffers, blocks of 8 KiB")
    if not is_insert:
        found[PAGES] = ("pages", "pwrite of 8 KiB at the rows' pages, fdatasync after a batch as large as ours")
        found[PAGES_READ] = ("pages-read", "the same, each page read first")
    return found


def _compare(context: Context, durability: str, what: str, cache_bytes: int) -> list[Line]:
    scale = context.scale
    count = scale.disk_points if durability == "epoch" else scale.disk_points // 5
    folder = context.folder / f"disk-{durability}-{what}"
    folder.mkdir()
    works, counted = [], {}
    children: list[Child] = []
    try:
        for name, (kind, settings) in competitors(durability, what == "insert").items():
            children.append(Child(folder, kind, scale.disk_rows, cache_bytes))
            counted[name] = Counted(children[-1], what, count)
            works.append(Work(name, counted[name].run, settings))
        timings = interleave(works, count, scale.rounds)
    finally:
        for child in children:
            child.__exit__(*sys.exc_info())
        peers.remove(folder)
    return _lines(context, durability, what, timings, counted)


def _lines(
    context: Context, durability: str, what: str, timings: dict[str, Timing], counted: dict[str, Counted]
) -> list[Line]:
    work = "random update" if what == "update" else "sequential insert"
    title = f"{work} of disk columns, durability={durability}, one-row transactions"
    speed = line_of("P12", f"{title}, buffer 10 % of the data", timings)
    synced = "SQLite NORMAL" if durability == "epoch" else "SQLite FULL"
    if what == "update":
        times_faster(speed, synced, 1)
        times_faster(speed, PAGES, 0.7)
        if peers.rocksdict is None:
            speed.notes.append(f"RocksDB: {peers.ROCKSDB_MISSING}")
    calls = Line("P12", f"write calls per {what}, durability={durability}", "calls", {})
    sizes = Line("P12", f"bytes written per {what}, durability={durability}", "bytes", {})
    for name, each in counted.items():
        calls.figures[name] = each.per_operation("syscw")
        sizes.figures[name] = each.per_operation("wchar")
        sizes.settings[name] = f"to the disk (write_bytes): {each.per_operation('write_bytes'):,.0f}"
    if what == "update":
        at_most(calls, f"write calls per {what}", calls.figures[OURS], 2)
    ours = counted[OURS]
    calls.notes.append(
        f"{ours.operations:,} {what}s counted from outside (/proc/PID/io) in {context.scale.rounds} rounds"
    )
    sizes.notes.append("handed to the system; the settings tell what reached the disk until then")
    return [speed, calls, sizes]


def _hit_rates(context: Context, cache_bytes: int) -> Line:
    """Point reads by Zipf's law beside full scans, through the store, once for each policy."""
    rows = context.scale.disk_rows
    pages = rows // ROWS_PER_PAGE
    reads = pages * PAGES_PER_SCAN
    line = Line("P12", f"point reads by Zipf {ZIPF} that find their page, a full scan every {reads:,}", "share", {})
    for name, policy in ((OURS, POLICY_LIRS), ("LRU", POLICY_LRU)):
        rounds = _hit_rounds(context, name, policy, cache_bytes, reads)
        line.rounds[name] = rounds
        line.figures[name] = sum(rounds) / len(rounds)
        line.settings[name] = "LIRS" if policy == POLICY_LIRS else "the same store, the cache's policy switched to LRU"
    line.goals.append(
        Goal("hits ≥ LRU's", line.figures[OURS] / line.figures["LRU"], line.figures[OURS] >= line.figures["LRU"])
    )
    line.notes.append(
        f"seed {SEED}; {rows:,} rows on {pages:,} pages, {SCANS} scans, the first one's reads not counted"
    )
    return line


def _hit_rounds(context: Context, name: str, policy: int, cache_bytes: int, reads: int) -> list[float]:
    rows = context.scale.disk_rows
    rng = np.random.default_rng(SEED)
    steps = np.cumsum(np.arange(1, rows + 1, dtype=np.float64) ** -ZIPF)
    popular = rng.permutation(rows)
    rounds = []
    with context.open(f"disk-{name}", page_buffer=cache_bytes, durability="epoch", undo_log="128 MiB") as db:
        table: Any = db.create_table("t", DISK_COLUMNS, "id")
        cache = db.parts.store.disk.caches[PAGE_BYTES]
        db.parts.store.mem[cache.address + C_POLICY] = policy  # before the first page is loaded
        for first in range(0, rows, PIECE_ROWS):
            table.insert_many(rows_with_notes(first, min(PIECE_ROWS, rows - first)))
        for number in range(SCANS):
            keys = popular[np.searchsorted(steps, rng.random(reads) * steps[-1])].tolist()
            before = cache.reader.pages_read
            for key in keys:
                table.get(key)
            if number:
                rounds.append(1 - (cache.reader.pages_read - before) / reads)
            table.to_arrow()
    return rounds


def measure(context: Context) -> list[Line]:
    """Speed, calls and bytes of updates and inserts; hit rates."""
    pages = context.scale.disk_rows // ROWS_PER_PAGE
    cache_bytes = pages * PAGE_BYTES // 10
    lines = []
    for durability in ("epoch", "commit"):
        for what in ("update", "insert"):
            lines += _compare(context, durability, what, cache_bytes)
    lines.append(_hit_rates(context, cache_bytes))
    lines[0].notes.append(f"{pages:,} pages of data, {cache_bytes // PAGE_BYTES:,} frames; seeds {SEED} …")
    return lines
