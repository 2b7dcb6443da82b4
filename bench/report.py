"""One line per measurement: our figure, each peer's, the goal and whether it is met; printed, and kept as JSON."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from bench.rounds import Timing

OURS = "Tidemark"
RESULTS = Path(__file__).parent / "results"
PACKAGES = ("numpy", "numba", "pyarrow", "lmdb", "rocksdict")


@dataclass
class Goal:
    """A goal and the value reached."""

    wanted: str
    reached: float
    met: bool


@dataclass
class Line:
    """One measurement. Figures are medians in `unit`; `rounds` holds every round."""

    goal: str
    what: str
    unit: str
    figures: dict[str, float]
    goals: list[Goal] = field(default_factory=list)
    settings: dict[str, str] = field(default_factory=dict)
    rounds: dict[str, list[float]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


SCALES = {"s": 1.0, "ms": 1e3, "µs": 1e6}


def line_of(goal: str, what: str, timings: Mapping[str, Timing], scale: str = "µs") -> Line:
    """A line of timings, which are seconds per operation."""
    factor = SCALES[scale]
    return Line(
        goal,
        what,
        scale,
        {name: timing.median_s * factor for name, timing in timings.items()},
        settings={name: timing.settings for name, timing in timings.items()},
        rounds={name: [each * factor for each in timing.rounds_s] for name, timing in timings.items()},
    )


def times_faster(line: Line, peer: str, factor: float) -> None:
    """Add the goal: at least `factor` times as fast as a peer. Without that peer there is no verdict."""
    if peer in line.figures:
        reached = line.figures[peer] / line.figures[OURS]
        line.goals.append(Goal(f"≥ {factor:g}× {peer}", reached, reached >= factor))


def at_most(line: Line, what: str, reached: float, limit: float) -> None:
    """Goal: a value of at most `limit`."""
    line.goals.append(Goal(f"{what} ≤ {limit:g}", reached, reached <= limit))


def at_least(line: Line, what: str, reached: float, limit: float) -> None:
    """Goal: a value of at least `limit`."""
    line.goals.append(Goal(f"{what} ≥ {limit:g}", reached, reached >= limit))


def short(value: float) -> str:
    """Format with three significant digits."""
    return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:.3g}"


def show(line: Line) -> None:
    """Print one line."""
    print(f"{line.goal:<4} {line.what} [{line.unit}]")
    ours = line.figures.get(OURS)
    shown = []
    for name, value in line.figures.items():
        ratio = "" if name == OURS or not ours else f" ({value / ours:.2f}×)"
        shown.append(f"{name} {short(value)}{ratio}")
    print("     " + " | ".join(shown))
    for goal in line.goals:
        print(f"     goal {goal.wanted}: {short(goal.reached)}, {'met' if goal.met else 'MISSED'}")
    for note in line.notes:
        print(f"     {note}")
    print(flush=True)


def git_commit() -> str:
    """Return the short commit of the sources, with + if they have changed since."""

    def ask(*words: str) -> str:
        return subprocess.run(["git", *words], capture_output=True, text=True, check=False).stdout.strip()

    commit = ask("rev-parse", "--short", "HEAD")
    changed = ask("status", "--porcelain", "--untracked-files=no", "engine", "recovery", "tidemark", "bench")
    return (commit or "unknown") + ("+" if commit and changed else "")


def machine() -> dict[str, Any]:
    """Return facts of the machine that explain figures, without its name or any path."""
    model = "unknown"
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        found = [line for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        model = found[0].partition(":")[2].strip() if found else model
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "missing"
    return {
        "cores": os.cpu_count(),
        "processor": model,
        "memory_gib": round(memory / 2**30, 1),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "packages": versions,
        "load_average": os.getloadavg()[0],
    }


def keep(lines: list[Line], settings: Mapping[str, Any], folder: Path = RESULTS, name: str = "goals") -> Path:
    """Write the results as JSON; returns the file."""
    folder.mkdir(parents=True, exist_ok=True)
    commit = git_commit()
    date = time.strftime("%Y-%m-%d")
    value = {
        "date": date,
        "commit": commit,
        "machine": machine(),
        "settings": dict(settings),
        "lines": [asdict(line) for line in lines],
    }
    target = folder / f"{date}-{commit.rstrip('+')}-{name}.json"
    target.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return target


def put_table(page: Path, bench: str, table: str, source: str) -> None:
    """Replace the text between two marks of a page: `<!-- table of BENCH -->`, `<!-- end of the table -->`."""
    start, finish = f"<!-- table of {bench} -->", "<!-- end of the table -->"
    head, rest = page.read_text(encoding="utf-8").split(start, 1)
    tail = rest.split(finish, 1)[1]
    page.write_text(
        f"{head}{start}\n\nFigures in `bench/results/{source}`.\n\n{table}\n\n{finish}{tail}", encoding="utf-8"
    )
