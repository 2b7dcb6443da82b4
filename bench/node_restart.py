"""`python -m bench.node_restart [--quick] [--out DIR] [--picture FILE] [--page FILE]`: the variants of a node restart.

Two nodes are copies of one store. One is away while a share of the rows changes on the other (nine in ten are updated,
one is deleted, and as many are made); then it joins while one-row transactions continue there at a steady rate, on rows
that have changed already. Live node and joiner are two processes, the messages go over a pipe as the bytes that
`replication/node_group/codec.py` makes of them.

Counted for each size, share and variant: seconds from `Ready` to `End`, bytes by what they carry, slots looked at,
transactions a second of the writers, and the longest time one of them ended after its turn; and the same writers
without a join, after it.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import shutil
import tempfile
import time
from dataclasses import asdict
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

import tidemark as tm
from bench.node_restart_live import (
    BATCH,
    COLUMNS,
    FRAGMENTS,
    FULL,
    NAME,
    ROW_BYTES,
    SEED,
    Setting,
    main,
    options_of,
    rows_of,
)
from bench.report import RESULTS, keep, put_table
from tidemark.engine.base.clock import SystemClock
from tidemark.engine.base.options import Options
from tidemark.engine.files.directory import PosixFiles
from tidemark.engine.jit.registry import compile_declared
from tidemark.recovery.local_checkpoint.writer import LocalCheckpoint
from tidemark.recovery.node_restart.joiner import Join
from tidemark.recovery.node_restart.messages import DELETE_LOG, VARIANTS, End
from tidemark.recovery.node_restart.restart import make_recoverable
from tidemark.recovery.system_restart.restart import Restart
from tidemark.recovery.system_restart.through import Through
from tidemark.replication.node_group.codec import decode, encode

ROWS = 125_000
FACTORS = (1, 4, 16)
SHARES = (0.001, 0.01, 0.1, 1.0)
RATE = 2_000
TIMES = 8  # updates of each row in one series: the log has every change, a scan only the last
TIMES_FACTOR, TIMES_SHARE = 4, 0.1
NAMES = {
    "rowid_sync": "ROWID synchronisation",
    "replay_log": "replay log",
    "delete_log": "delete log",
    FULL: "delete log too short: full copy",
}
# The bench measures the work and not the disk.
FOLDER = Path("/dev/shm") if Path("/dev/shm").is_dir() else Path()


class PipeLink:
    """Link of a join over a pipe."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self.ended = 0.0

    def send(self, message: Any) -> None:
        """Send a message to the live node."""
        self._pipe.send_bytes(b"".join(encode(message)))

    def receive(self) -> Any:
        """Return the next message of the live node."""
        message = decode(bytearray(self._pipe.recv_bytes()))
        if isinstance(message, End):
            self.ended = time.perf_counter()
        return message


def make_base(folder: Path, rows: int) -> int:
    """Build a store with the rows in a local checkpoint; return the epoch that both nodes know."""
    with tm.open(folder, **options_of(rows)) as db:
        table = db.create_table(NAME, COLUMNS, "id", tm.HashPartition(FRAGMENTS))
        for first in range(0, rows, BATCH):
            table.insert_many(rows_of(np.arange(first, min(first + BATCH, rows)), "b"))
        db.checkpoint()
        return int(db.sync())


def join(folder: Path, setting: Setting, through: int, welcome: Any, pipe: Connection) -> dict[str, float]:
    """Bring the node back; seconds by phase."""
    files = PosixFiles(folder)
    files.lock()
    link = PipeLink(pipe)
    variant = DELETE_LOG if setting.variant == FULL else setting.variant
    options = Options.from_keywords(options_of(setting.rows))
    opened = Restart(
        files, options, SystemClock(), Through(through), catch_up=Join(welcome, link, through, variant)
    ).run()
    phases: dict[str, float] = {}
    for phase in opened.report.phases:
        phases[phase.name] = phases.get(phase.name, 0.0) + phase.ms / 1e3
    store = opened.store
    began = time.perf_counter()
    make_recoverable(LocalCheckpoint(store, files, opened.identity, opened.sysfile.next_lcp_id, opened.unsound))
    phases["local checkpoint"] = time.perf_counter() - began
    files.close_all()
    files.unlock()
    return phases


class LiveNode:
    """The process of the live node."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        (self.pipe, far_pipe), (self.control, far_control) = context.Pipe(), context.Pipe()
        self._process = context.Process(target=main, args=(far_pipe, far_control), daemon=True)
        self._process.start()
        far_pipe.close()  # otherwise the death of that process would not end a wait for it
        far_control.close()

    def __enter__(self) -> LiveNode:
        return self

    def __exit__(self, *error: object) -> None:
        if error[0] is None:
            self.control.send(None)
            self._process.join(60)
        self._process.kill()


def run_cell(live_node: LiveNode, base: Path, setting: Setting, through: int) -> dict[str, Any]:
    """One join: both directories made from the base."""
    with tempfile.TemporaryDirectory(dir=base.parent, prefix="cell-") as place:
        live, node = Path(place) / "live", Path(place) / "node"
        shutil.copytree(base, live)
        shutil.copytree(base, node)
        control = live_node.control
        control.send((str(live), setting, through))
        phases = join(node, setting, through, control.recv(), live_node.pipe)
        control.send("joined")
        served = control.recv()
    gc.collect()
    return {"setting": asdict(setting), "phases_seconds": phases, **served}


def settings_of(is_quick: bool, rows: int, rate: int) -> list[Setting]:
    """Every cell, the variants of one size and share side by side."""
    factors, shares = (FACTORS[:2], (0.01, 1.0)) if is_quick else (FACTORS, SHARES)
    cells = []
    for factor in factors:
        for share in shares:
            cells += [Setting(factor, rows * factor, share, variant, rate) for variant in VARIANTS]
        cells.append(Setting(factor, rows * factor, shares[0], FULL, rate))
    if not is_quick:
        times = [Setting(TIMES_FACTOR, rows * TIMES_FACTOR, TIMES_SHARE, each, rate, TIMES) for each in VARIANTS]
        place = 1 + max(number for number, each in enumerate(cells) if each.factor == TIMES_FACTOR)
        cells[place:place] = times  # side by side with those of the size
    return cells


def measure(is_quick: bool, rows: int, rate: int, rounds: int) -> list[dict[str, Any]]:
    """Measure all cells; every round is kept."""
    compile_declared()
    found = []
    with LiveNode() as live, tempfile.TemporaryDirectory(dir=FOLDER, prefix=".bench-") as place:
        bases: dict[int, tuple[Path, int]] = {}
        small = Path(place) / "warm"
        through = make_base(small, 2_000)
        for variant in (*VARIANTS, FULL):
            run_cell(live, small, Setting(0, 2_000, 0.1, variant, rate), through)
        for setting in settings_of(is_quick, rows, rate):
            if setting.factor not in bases:
                for base, _ in bases.values():
                    shutil.rmtree(base)
                base = Path(place) / f"base-{setting.factor}"
                bases = {setting.factor: (base, make_base(base, setting.rows))}
            for number in range(rounds):
                base, through = bases[setting.factor]
                cell = {"round": number, **run_cell(live, base, setting, through)}
                print(shown(cell), flush=True)
                found.append(cell)
    return found


# --- what is shown --------------------------------------------------------------------------------
def sent_bytes(cell: dict[str, Any]) -> int:
    """Return the bytes of the copy, without the stream, which every member receives anyway."""
    return sum(size for kind, size in cell["bytes"].items() if kind != "stream")


def shown(cell: dict[str, Any]) -> str:
    """A line for the terminal."""
    setting = cell["setting"]
    return (
        f"{setting['factor']}×, {setting['share']:.1%}, {setting['variant']}"
        f"{', ' + str(setting['times']) + ' times' if setting['times'] > 1 else ''}:"
        f" {cell['seconds']:.3f} s, {sent_bytes(cell):,} bytes of {cell['changed_bytes']:,} changed,"
        f" stream {cell['bytes']['stream']:,}, {cell['slots']:,} slots, writers {cell['writers']['per_second']:,.0f}/s"
        f" (alone {cell['alone']['per_second']:,.0f}), longest pause {cell['writers']['pause_ms']:.1f} ms"
        f" (alone {cell['alone']['pause_ms']:.1f})"
    )


def medians(cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return, for each setting, the round whose seconds are the median."""
    by_setting: dict[str, list[dict[str, Any]]] = {}
    for cell in cells:
        by_setting.setdefault(json.dumps(cell["setting"]), []).append(cell)
    return [sorted(each, key=lambda cell: cell["seconds"])[len(each) // 2] for each in by_setting.values()]


def table_of(cells: list[dict[str, Any]]) -> str:
    """The tables of the page, as Markdown, from the cells as they stand in the JSON."""
    out = [
        "| rows | changed | variant | seconds | MB sent | … of the changed rows | slots looked at | rows, deletes sent"
        " | stream, MB | writers/s (alone) | longest pause, ms (alone) |",
        "|---:|---:|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for cell in medians(cells):
        setting = cell["setting"]
        sent = sent_bytes(cell)
        changed = f"{sent / cell['changed_bytes']:.2f}"
        times = f", {setting['times']} times" if setting["times"] > 1 else ""
        out.append(
            f"| {setting['rows']:,} | {setting['share']:.1%}{times} | {NAMES[setting['variant']]}"
            f" | {cell['seconds']:.3f} | {sent / 1e6:.2f} | {changed} | {cell['slots']:,}"
            f" | {cell['rows']:,}, {cell['items']:,} | {cell['bytes']['stream'] / 1e6:.2f}"
            f" | {cell['writers']['per_second']:,.0f} ({cell['alone']['per_second']:,.0f})"
            f" | {cell['writers']['pause_ms']:.1f} ({cell['alone']['pause_ms']:.1f}) |"
        )
    return "\n".join([*out, "", *extrapolated(medians(cells))])


def extrapolated(cells: list[dict[str, Any]]) -> list[str]:
    """Extrapolate the seconds to 100 GB and 1 TB of such rows, by the rates of the largest size: of the scan where
    almost nothing has changed, of the bytes where all has. A quick run, whose joins take milliseconds, gives none.
    """
    factor = max(cell["setting"]["factor"] for cell in cells)
    if factor < FACTORS[-1]:
        return []
    cells = [each for each in cells if each["setting"]["factor"] == factor and each["setting"]["times"] == 1]
    rates: dict[str, tuple[float, float]] = {}
    for variant in VARIANTS:
        line = [each for each in cells if each["setting"]["variant"] == variant]
        few, all_ = (
            min(line, key=lambda each: each["setting"]["share"]),
            max(line, key=lambda each: each["setting"]["share"]),
        )
        rates[variant] = few["slots"] / few["seconds"], sent_bytes(all_) / all_["seconds"]
    out = ["| data | changed | " + " | ".join(NAMES[each] for each in VARIANTS) + " |", "|---:|---:|---:|---:|---:|"]
    for size in (100e9, 1e12):
        for share in SHARES:
            seconds = []
            for variant in VARIANTS:
                slots, rate = rates[variant]
                scan = size / ROW_BYTES / slots if slots else 0.0
                seconds.append(f"{scan + size * share / rate:,.0f} s")
            out.append(f"| {size / 1e9:,.0f} GB | {share:.1%} | {' | '.join(seconds)} |")
    said = ", ".join(
        f"{NAMES[each]} {slots / 1e6:,.1f} M slots/s and {rate / 1e6:,.0f} MB/s"
        for each, (slots, rate) in rates.items()
    )
    return [f"Extrapolated from the rates at {factor}×: {said}.", "", *out]


def draw_picture(cells: list[dict[str, Any]], target: Path) -> None:
    """A column for each size: seconds above, megabytes sent below, by the share that changed."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "node-restart"
    from matplotlib import pyplot

    cells = [each for each in medians(cells) if each["setting"]["times"] == 1]
    factors = sorted({each["setting"]["factor"] for each in cells})
    figure, axes = pyplot.subplots(2, len(factors), figsize=(13, 7), sharex=True, sharey="row", squeeze=False)
    for column, factor in enumerate(factors):
        for variant, colour in zip(NAMES, ("#1f5fa8", "#e08a1e", "#3a8f4a", "#888888"), strict=True):
            line = [
                each for each in cells if (each["setting"]["factor"], each["setting"]["variant"]) == (factor, variant)
            ]
            shares = [each["setting"]["share"] * 100 for each in line]
            for axis, values in (
                (axes[0][column], [each["seconds"] for each in line]),
                (axes[1][column], [sent_bytes(each) / 1e6 for each in line]),
            ):
                if variant == FULL:
                    axis.axhline(values[0], linestyle="--", color=colour, label=NAMES[variant])
                else:
                    axis.plot(shares, values, marker="o", color=colour, label=NAMES[variant])
                axis.set_xscale("log")
                axis.set_yscale("log")
                axis.grid(alpha=0.3)
        axes[0][column].set_title(f"{factor}×: {cells_rows(cells, factor):,} rows", fontsize=10)
        axes[1][column].set_xlabel("rows changed, %")
    axes[0][0].set_ylabel("seconds")
    axes[1][0].set_ylabel("MB sent, without the stream")
    axes[0][0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(target, metadata={"Date": None})


def cells_rows(cells: list[dict[str, Any]], factor: int) -> int:
    """Rows of a size."""
    return int(next(each["setting"]["rows"] for each in cells if each["setting"]["factor"] == factor))


def run() -> None:
    """Measure, print, keep, draw, and put the table into its page."""
    parser = argparse.ArgumentParser(prog="python -m bench.node_restart", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few cells, few rows: to see that it works")
    parser.add_argument("--rows", type=int, help=f"rows at 1× (default: {ROWS:,})")
    parser.add_argument("--rate", type=int, default=RATE, help=f"transactions a second (default: {RATE:,})")
    parser.add_argument("--rounds", type=int, default=1, help="of each cell; the median is shown (default: 1)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the JSON file (default: bench/results)")
    parser.add_argument("--picture", type=Path, help="also draw seconds and bytes into this SVG file")
    parser.add_argument("--page", type=Path, help="also put the tables into this Markdown page, between its marks")
    arguments = parser.parse_args()
    rows = arguments.rows or (ROWS // 5 if arguments.quick else ROWS)
    cells = measure(arguments.quick, rows, arguments.rate, arguments.rounds)
    settings = {"seed": SEED, "is_quick": arguments.quick, "row_bytes": ROW_BYTES, "cells": cells}
    target = keep([], settings, arguments.out, "node-restart" + ("-quick" if arguments.quick else ""))
    print(f"kept in {target.name}")
    if arguments.picture:
        draw_picture(cells, arguments.picture)
    if arguments.page:
        put_table(arguments.page, "bench.node_restart", table_of(cells), target.name)
    else:
        print(table_of(cells))


if __name__ == "__main__":
    run()
