"""`python -m bench.undo_filter [--quick] [--out DIR] [--picture FILE] [--page FILE]`: what the UNDO filter saves.

A store without background threads is driven by a clock of its own, in ticks of 20 ms: updates at a rate, one
transaction a tick; pages cleaned ahead each tick; an epoch closed every 100 ms; a GCI (and the sysfile, which makes
epochs restorable) every `gcp_interval_ms`. So nothing depends on how fast the machine is, and the counts repeat.

What is counted: UNDO records written and left out, bytes and groups written, and which of three needs had each flush
made: a page had to go to disk (write-ahead), the buffer was half full, or a local checkpoint.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import tidemark as tm
from bench.disk_child import DISK_COLUMNS, NOTE_BYTES, PAGE_BYTES, PIECE_ROWS, ROWS_PER_PAGE, rows_with_notes
from bench.report import RESULTS, keep, put_table
from bench.workload import zipf_ranks
from tidemark.engine.disk.undo_kernels import FILTER_DROPPED, FILTER_KEPT

SEED = 20_261
TICK_MS = 20
EPOCH_MS = 100
WARM_MS = 10_000
RUN_MS = 20_000
HOT_SHARE, HOT_ACCESSES = 0.01, 0.9
ROWS = 64_000
RATES = (500, 2_000, 8_000)
GCP_MS = (100, 500, 2_000, 10_000)
CACHES = (10, 50)
SKEWS = ("uniform", "zipf", "hot set")
UNDO_LOG = "512 MiB"  # large enough for every cell: without local checkpoints no part of the log is freed
# Counts do not depend on the disk, so the stores are on an in-memory file system if there is one.
FOLDER = Path("/dev/shm") if Path("/dev/shm").is_dir() else Path()
REASONS = ("page", "buffer", "checkpoint")


@dataclass(frozen=True)
class Setting:
    """One cell. checkpoint_ms: the interval of local checkpoints; 0: none."""

    series: str
    rate: int
    gcp_ms: int
    skew: str
    cache_percent: int
    is_filtering: bool = True
    checkpoint_ms: int = 0


@dataclass
class Cell:
    """The counts of a setting, after the warm-up."""

    setting: Setting
    updates: int = 0
    kept: dict[str, int] = field(default_factory=lambda: dict.fromkeys(REASONS, 0))
    dropped: dict[str, int] = field(default_factory=lambda: dict.fromkeys(REASONS, 0))
    groups: int = 0
    flushes: int = 0
    bytes_written: int = 0
    pages_written: int = 0

    @property
    def dropped_share(self) -> float:
        """Records left out, of those that left the buffer."""
        dropped = sum(self.dropped.values())
        return dropped / max(1, dropped + sum(self.kept.values()))


class Watch:
    """Counts flushes by the need that caused them, with hooks that only this benchmark sets."""

    def __init__(self, db: tm.Database, cell: Cell) -> None:
        self.cell = cell
        self.is_counting = False
        self.reason = "buffer"
        self.disk = db.parts.store.disk
        self.undo = self.disk.undo
        publish = self.undo.publish

        def counted(batch: Any, group: Any) -> None:
            if self.is_counting:
                cell.kept[self.reason] += group.result[FILTER_KEPT]
                cell.dropped[self.reason] += group.result[FILTER_DROPPED]
            publish(batch, group)

        self.disk.writer.write_ahead = self
        self.undo.publish = counted  # type: ignore[method-assign]

    def flush_through(self, lsn: int) -> None:
        """Flush the UNDO log as the page writer asks."""
        with self.because("page"):
            self.undo.flush_through(lsn)

    @contextmanager
    def because(self, reason: str) -> Iterator[None]:
        """Count flushes of the block for this reason, unless the block is part of a local checkpoint."""
        before = self.reason
        if before != "checkpoint":
            self.reason = reason
        try:
            yield
        finally:
            self.reason = before

    def numbers(self) -> tuple[int, int, int, int]:
        """Counters of the log and the pages."""
        pages = sum(cache.write_behind.pages_written for cache in self.disk.caches.values())
        return self.undo.groups_written, self.undo.flushes, self.undo.bytes_written, pages


def draw(skew: str, rows: int, count: int, rng: np.random.Generator) -> Any:
    """Return keys to update. Popular rows are scattered, but a hot set is on as few pages as possible."""
    if skew == "uniform":
        return rng.integers(0, rows, count)
    if skew == "hot set":
        hot = int(rows * HOT_SHARE)
        return np.where(rng.random(count) < HOT_ACCESSES, rng.integers(0, hot, count), rng.integers(0, rows, count))
    return np.random.default_rng(SEED).permutation(rows)[zipf_ranks(rows, count, rng)]


def run_cell(setting: Setting, rows: int, warm_ms: int, run_ms: int, folder: Path) -> Cell:
    """Drive one store through warm-up and run."""
    cell = Cell(setting)
    rng = np.random.default_rng([SEED, setting.rate])
    options: dict[str, Any] = {"data_memory": "64 MiB", "redo_log": "256 MiB", "checkpoint_interval_ms": 0}
    options["page_buffer"] = rows // ROWS_PER_PAGE * PAGE_BYTES * setting.cache_percent // 100
    options.update(undo_log=UNDO_LOG, undo_filter=setting.is_filtering, page_flush_rate=0)
    with tm.open(folder, durability="epoch", background=False, **options) as db:
        table = db.create_table("t", DISK_COLUMNS, "id")
        for first in range(0, rows, PIECE_ROWS):
            table.insert_many(rows_with_notes(first, min(PIECE_ROWS, rows - first)))
        db.checkpoint()
        watch = Watch(db, cell)
        before = watch.numbers()
        for now in range(TICK_MS, warm_ms + run_ms + 1, TICK_MS):
            if now == warm_ms + TICK_MS:
                watch.is_counting, before = True, watch.numbers()
            keys = draw(setting.skew, rows, setting.rate * TICK_MS // 1_000, rng)
            _tick(db, table, watch, np.unique(keys), now)
        after = watch.numbers()
    cell.groups, cell.flushes, cell.bytes_written, cell.pages_written = (
        new - old for new, old in zip(after, before, strict=True)
    )
    return cell


def _tick(db: tm.Database, table: Any, watch: Watch, keys: Any, now: int) -> None:
    """Run the updates of a tick, then the work that is due by the clock."""
    setting = watch.cell.setting
    note = f"{now:0{NOTE_BYTES}d}"
    table.update_many(pa.table({"id": keys, "b": np.full(len(keys), float(now)), "note": [note] * len(keys)}))
    if watch.is_counting:
        watch.cell.updates += len(keys)
    watch.disk.clean_ahead()
    if setting.checkpoint_ms and now % setting.checkpoint_ms == 0:
        with watch.because("checkpoint"):
            db.checkpoint()
    if now % setting.gcp_ms == 0:
        db.parts.clockwork.advance_gci()
    elif now % EPOCH_MS == 0:
        db.parts.clockwork.advance_epoch()


def settings_of(is_quick: bool) -> list[Setting]:
    """Every cell: the grid, the same without the filter, local checkpoints."""
    rates, gcps = ((2_000,), (100, 2_000)) if is_quick else (RATES, GCP_MS)
    grid = [
        Setting("grid", rate, gcp, skew, cache) for skew in SKEWS for cache in CACHES for rate in rates for gcp in gcps
    ]
    without = [
        Setting("without", rate, gcps[-1], skew, cache, False) for skew in SKEWS for cache in CACHES for rate in rates
    ]
    checkpoints = [
        Setting("checkpoint", 2_000, gcp, "hot set", 50, True, every)
        for every in (500, 2_000, 5_000)
        for gcp in (500, 2_000)
    ]
    return grid + without + checkpoints


def measure(is_quick: bool) -> list[Cell]:
    """All cells, one after the other."""
    cells = []
    rows, warm_ms, run_ms = (16_000, 2_000, 4_000) if is_quick else (ROWS, WARM_MS, RUN_MS)
    for setting in settings_of(is_quick):
        with tempfile.TemporaryDirectory(dir=FOLDER, prefix=".bench-") as folder:
            cell = run_cell(setting, rows, warm_ms, run_ms, Path(folder) / "store")
        print(
            f"{setting.series}: {setting.skew}, cache {setting.cache_percent} %, {setting.rate:,}/s,"
            f" GCP {setting.gcp_ms:,} ms{'' if setting.is_filtering else ', no filter'},"
            f" checkpoint {setting.checkpoint_ms}: {cell.dropped_share:.1%} left out, {cell.bytes_written:,} bytes,"
            f" {cell.groups:,} groups in {cell.flushes:,} flushes",
            flush=True,
        )
        cells.append(cell)
    return cells


# --- what is shown --------------------------------------------------------------------------------
def table_of(cells: list[dict[str, Any]]) -> str:
    """The tables of the page, as Markdown, from the cells as they stand in the JSON."""
    without = {_place(each): each for each in cells if each["setting"]["series"] == "without"}
    out = ["| updates of | cache | rate | GCP | records left out | bytes, of those without filter | groups, likewise |"]
    out.append("|---|---:|---:|---:|---:|---:|---:|")
    for cell in cells:
        setting = cell["setting"]
        if setting["series"] == "grid":
            plain = without[_place(cell)]
            out.append(
                f"| {setting['skew']} | {setting['cache_percent']} % | {setting['rate']:,}/s | {setting['gcp_ms']:,} ms"
                f" | {_share(cell):.1%} | {_ratio(cell, plain, 'bytes_written')} | {_ratio(cell, plain, 'groups')} |"
            )
    out += ["", "| cell | GCP | left out | written because of a page | … a half full buffer | … a local checkpoint |"]
    out.append("|---|---:|---:|---:|---:|---:|")
    for cell in cells:
        setting = cell["setting"]
        if setting["series"] != "without":
            total = max(1, sum(cell["kept"].values()) + sum(cell["dropped"].values()))
            shares = " | ".join(f"{cell['kept'][reason] / total:.1%}" for reason in REASONS)
            out.append(f"| {_name(setting)} | {setting['gcp_ms']:,} ms | {_share(cell):.1%} | {shares} |")
    return "\n".join(out)


def _name(setting: dict[str, Any]) -> str:
    often = f", a local checkpoint every {setting['checkpoint_ms']:,} ms" if setting["checkpoint_ms"] else ""
    return f"{setting['skew']}, cache {setting['cache_percent']} %, {setting['rate']:,}/s{often}"


def _place(cell: dict[str, Any]) -> tuple[Any, ...]:
    setting = cell["setting"]
    return setting["rate"], setting["skew"], setting["cache_percent"]


def _share(cell: dict[str, Any]) -> float:
    dropped = sum(cell["dropped"].values())
    return dropped / max(1, dropped + sum(cell["kept"].values()))


def _ratio(cell: dict[str, Any], plain: dict[str, Any], name: str) -> str:
    return f"{cell[name] / max(1, plain[name]):.2f} ({cell[name]:,})"


def draw_picture(cells: list[dict[str, Any]], target: Path) -> None:
    """One panel for each skew: records left out by life of a GCI; a line for each rate and cache."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "undo-filter"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(SKEWS), figsize=(13, 4), sharey=True)
    grid = [each for each in cells if each["setting"]["series"] == "grid"]
    for axis, skew in zip(axes, SKEWS, strict=True):
        for rate, colour in zip(RATES, ("#1f5fa8", "#e08a1e", "#3a8f4a"), strict=True):
            for cache, style in zip(CACHES, ("--", "-"), strict=True):
                line = [each for each in grid if _place(each) == (rate, skew, cache)]
                if not line:
                    continue
                times = [each["setting"]["gcp_ms"] for each in line]
                shares = [_share(each) * 100 for each in line]
                axis.plot(times, shares, style, marker="o", color=colour, label=f"{rate:,}/s, cache {cache} %")
        axis.set_xscale("log")
        axis.set_xticks(GCP_MS, [f"{each:,}" for each in GCP_MS])
        axis.minorticks_off()
        axis.set_title(skew, fontsize=10)
        axis.set_xlabel("gcp_interval_ms")
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("UNDO records left out, %")
    axes[-1].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(target, metadata={"Date": None})


def main() -> None:
    """Measure, print, keep, draw, and put the table into its page."""
    parser = argparse.ArgumentParser(prog="python -m bench.undo_filter", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few cells, few rows: to see that it works")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the JSON file (default: bench/results)")
    parser.add_argument("--picture", type=Path, help="also draw the shares into this SVG file")
    parser.add_argument("--page", type=Path, help="also put the tables into this Markdown page, between its marks")
    arguments = parser.parse_args()
    print(f"seed {SEED}")
    cells = json.loads(json.dumps([asdict(each) for each in measure(arguments.quick)]))
    settings = {"seed": SEED, "is_quick": arguments.quick, "tick_ms": TICK_MS, "cells": cells}
    if not arguments.quick:
        settings |= {"rows": ROWS, "warm_ms": WARM_MS, "run_ms": RUN_MS}
    target = keep([], settings, arguments.out, "undo-filter" + ("-quick" if arguments.quick else ""))
    print(f"kept in {target.name}")
    if arguments.picture:
        draw_picture(cells, arguments.picture)
    if arguments.page:
        put_table(arguments.page, "bench.undo_filter", table_of(cells), target.name)
    else:
        print(table_of(cells))


if __name__ == "__main__":
    main()
