"""`python -m bench.local_checkpoint [--quick] [--out DIR] [--picture FILE]`: what copy-on-write costs.

By update rate and skew, beside the fuzzy variant of `bench.fuzzy`: old rows written, extra bytes, longest pause of a
writer, throughput under it, and the REDO between its start and its end, replayed at a restart. Every run starts from a
copy of the same store; rounds are interleaved; medians, for pauses the longest of all rounds.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import threading
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import tidemark as tm
from bench import peers
from bench.context import slices, warm_memory
from bench.fuzzy import fuzzy_checkpoint
from bench.report import RESULTS, keep
from bench.rows import COLUMNS, make_table
from bench.workload import SEED, Stretch, Writer
from tidemark.engine.jit.registry import compile_declared
from tidemark.engine.memory.arena import address_of
from tidemark.engine.memory.arena_layout import ENTRY_WORDS, F_LCP_COPIED

RATES = {10_000: "10 k/s", 50_000: "50 k/s", 0: "one row, no limit", -1: "1,000 rows, no limit"}
SKEWS = ("uniform", "zipf 0.99")
KINDS = ("copy-on-write", "fuzzy")
BEFORE_SECONDS = 0.7
LIMIT_SECONDS = 60.0
OPTIONS: dict[str, Any] = {
    "data_memory": "1 GiB",
    "redo_log": "1 GiB",
    "durability": "epoch",
    "checkpoint_interval_ms": 0,
    "checkpoint_log_share": 0.3,
}


@dataclass
class Run:
    """One local checkpoint under one stream of operations."""

    kind: str
    rate: int
    skew: str
    before: Stretch
    during: Stretch
    seconds: float
    rows: int
    size_bytes: int
    old_rows: int
    old_bytes: int
    replay_ms: float = 0.0
    replay_operations: int = 0


@dataclass
class Summary:
    """Medians of the rounds of one setting."""

    kind: str
    rate: str
    skew: str
    rows: int
    operations: int
    old_rows: int
    old_rows_share: float  # of the rows loaded
    old_bytes: int
    size_bytes: int  # of all files of the checkpoint, and of the rows that the fuzzy variant kept
    seconds: float
    megabytes_per_s: float
    rate_before: float
    rate_during: float
    longest_ms: float
    longest_before_ms: float
    replay_operations: int = 0
    replay_ms: float = 0.0


def build(folder: Path, rows: int) -> None:
    """Build the store that every run starts from: all rows, two local checkpoints, hardly any log after them."""
    with tm.open(folder, **OPTIONS) as db:
        table = db.create_table("t", COLUMNS, "id")
        for first, count in slices(0, rows, 500_000):
            table.insert_many(make_table(first, count))
        db.checkpoint()
        db.checkpoint()


def checkpoint(db: Any, kind: str) -> dict[str, Any]:
    """One local checkpoint of a kind; its report with the old rows copied."""
    if kind == "fuzzy":
        return fuzzy_checkpoint(db)
    report = dict(db.checkpoint())
    fragments = db["t"].table.fragments
    report["copied_rows"] = sum(int(db.parts.store.mem[address_of(each) + F_LCP_COPIED]) for each in fragments)
    return report


def run_once(base: Path, folder: Path, rows: int, kind: str, rate: int, skew: str) -> Run:
    """Write without a local checkpoint for a while, then beside one from its start to its end; then restart."""
    peers.remove(folder)
    shutil.copytree(base, folder)
    with tm.open(folder, **OPTIONS) as db:
        writer = Writer(db, rows, rate, skew.split()[0])
        writer.run(BEFORE_SECONDS / 2)
        before = writer.run(BEFORE_SECONDS)
        stop = threading.Event()
        reports: list[dict[str, Any]] = []

        def work() -> None:
            try:
                reports.append(checkpoint(db, kind))
            finally:
                stop.set()

        thread = threading.Thread(target=work)
        thread.start()
        during = writer.run(LIMIT_SECONDS, stop)
        thread.join()
        report = reports[0]
        old_rows, old_bytes = report["copied_rows"], report["copies_bytes"]
        if kind == "fuzzy":
            old_rows = during.kept_deletes
            old_bytes = old_rows * (ENTRY_WORDS + db["t"].table.format.fixed_words) * 8
        found = Run(
            kind,
            rate,
            skew,
            before,
            during,
            report["seconds"],
            report["rows"],
            report["size_bytes"],
            old_rows,
            old_bytes,
        )
    if kind == "copy-on-write":
        with tm.open(folder, **{**OPTIONS, "background": False}) as db:
            phase = next(each for each in db.restart_report["phases"] if each["name"] == "redo")
            found.replay_ms, found.replay_operations = phase["ms"], phase["rows"]
    return found


def summarize(runs: list[Run], loaded_rows: int) -> Summary:
    """Medians of the rounds of one setting."""
    first = runs[0]

    def middle(of: Any) -> float:
        return float(median(of(run) for run in runs))

    old_rows, rows, size = (
        middle(lambda run: run.old_rows),
        middle(lambda run: run.rows),
        middle(lambda run: run.size_bytes),
    )
    old_bytes = middle(lambda run: run.old_bytes)
    if first.kind == "fuzzy":
        size += old_bytes  # the fuzzy variant only counts these rows
    return Summary(
        first.kind,
        RATES[first.rate],
        first.skew,
        int(rows),
        int(middle(lambda run: run.during.operations)),
        int(old_rows),
        old_rows / loaded_rows,
        int(old_bytes),
        int(size),
        middle(lambda run: run.seconds),
        middle(lambda run: run.size_bytes / run.seconds) / 1e6,
        middle(lambda run: run.before.rate),
        middle(lambda run: run.during.rate),
        max(run.during.longest_ms for run in runs),
        max(run.before.longest_ms for run in runs),
        int(middle(lambda run: run.replay_operations)),
        middle(lambda run: run.replay_ms),
    )


def measure(folder: Path, rows: int, rounds: int) -> tuple[list[Summary], list[Run]]:
    """All settings, rounds interleaved; their summaries and every run."""
    base = folder / "base"
    build(base, rows)
    runs: dict[tuple[str, int, str], list[Run]] = {}
    for number in range(rounds + 1):
        for rate in RATES:
            for skew in SKEWS:
                for kind in KINDS if number % 2 else KINDS[::-1]:
                    if number == 0 and (rate, skew) != (0, SKEWS[0]):
                        continue  # the first round only warms up
                    found = run_once(base, folder / "run", rows, kind, rate, skew)
                    if number > 0:
                        runs.setdefault((kind, rate, skew), []).append(found)
    summaries = {place: summarize(each, rows) for place, each in runs.items()}
    for (kind, rate, skew), summary in summaries.items():
        if kind == "fuzzy":
            # The same log, replayed by the same kernel: the measured time per operation times its own operations.
            twin = summaries["copy-on-write", rate, skew]
            summary.replay_operations = summary.operations
            summary.replay_ms = twin.replay_ms / max(1, twin.replay_operations) * summary.operations
    ordered = [summaries[kind, rate, skew] for skew in SKEWS for rate in RATES for kind in KINDS]
    return ordered, [run for each in runs.values() for run in each]


HEADER = """\
| skew | writer | local checkpoint | took | operations meanwhile | old rows kept | their bytes, of all written \
| throughput under it | longest pause (without one) | REDO start to end |
|---|---|---|---|---|---|---|---|---|---|"""


def table_of(summaries: list[Summary]) -> str:
    """The measured table as Markdown."""
    lines = [HEADER]
    for each in summaries:
        lines.append(
            f"| {each.skew} | {each.rate} | {each.kind} | {each.seconds:.2f} s, {each.megabytes_per_s:.0f} MB/s"
            f" | {each.operations:,} | {each.old_rows:,} ({each.old_rows_share:.2%})"
            f" | {each.old_bytes / 1e6:.2f} of {each.size_bytes / 1e6:.1f} MB"
            f" | {each.rate_during:,.0f}/s ({each.rate_during / each.rate_before:.0%})"
            f" | {each.longest_ms:.1f} ms ({each.longest_before_ms:.1f})"
            f" | {each.replay_operations:,} operations, {each.replay_ms:.0f} ms |"
        )
    return "\n".join(lines)


def draw(summaries: list[Summary], target: Path, rows: int) -> None:
    """Three pictures over the same axis: old rows kept, throughput under it, longest pause."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "local-checkpoint"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 3, figsize=(13, 4.2))
    colours = {"copy-on-write": "#1f5fa8", "fuzzy": "#e08a1e"}
    panels = (
        ("old rows kept, % of the rows", lambda each: each.old_rows_share * 100),
        ("throughput under it, % of that without one", lambda each: each.rate_during / each.rate_before * 100),
        ("longest pause of a writer, ms", lambda each: each.longest_ms),
    )
    names = list(RATES.values())
    for axis, (title, value) in zip(axes, panels, strict=True):
        for place, (skew, kind) in enumerate((skew, kind) for skew in SKEWS for kind in KINDS):
            bars = [value(each) for each in summaries if each.skew == skew and each.kind == kind]
            at = [number + (place - 1.5) * 0.2 for number in range(len(names))]
            hatch = "" if skew == SKEWS[0] else "///"
            axis.bar(at, bars, 0.19, label=f"{kind}, {skew}", color=colours[kind], hatch=hatch, edgecolor="white")
        axis.set_xticks(range(len(names)), [name.replace(", ", ",\n") for name in names], fontsize=8)
        axis.set_title(title, fontsize=10)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].legend(fontsize=8, frameon=False)
    figure.suptitle(f"One local checkpoint of {rows:,} rows beside one writing thread", fontsize=11)
    figure.tight_layout()
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, metadata={"Date": None})


def main() -> None:
    """Measure, print the table, keep the figures and the picture."""
    parser = argparse.ArgumentParser(prog="python -m bench.local_checkpoint", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few rows, one round")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the JSON file (default: bench/results)")
    parser.add_argument("--picture", type=Path, help="SVG file to draw")
    arguments = parser.parse_args()
    rows, rounds = (400_000, 1) if arguments.quick else (1_000_000, 3)
    compile_declared()
    warm_memory()
    with tempfile.TemporaryDirectory(dir=".", prefix=".bench-") as folder:
        summaries, runs = measure(Path(folder), rows, rounds)
    print(table_of(summaries))
    settings: dict[str, Any] = {
        "rows": rows,
        "rounds": rounds,
        "seed": SEED,
        "summaries": [asdict(each) for each in summaries],
    }
    settings["runs"] = [asdict(each) for each in runs]
    print(f"kept in {keep([], settings, arguments.out, 'local-checkpoint').name}")
    if arguments.picture is not None:
        draw(summaries, arguments.picture, rows)


if __name__ == "__main__":
    main()
