"""`python -m bench.check [--against COMMIT] [--turns N]`: whether ordinary calls take longer than before.

Runs `bench.ordinary` of the commit whose figures were kept last, and of the tree as it is, in turn, in processes of
their own. Prints for each call the medians, their ratio, and that ratio for the peers, which have not changed: so the
second one is the noise of the machine. Exits with 1 if a call takes more than SLOWER times as long, noise taken off.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from bench.report import OURS, RESULTS, short

SLOWER = 1.15
ROWS, OPERATIONS = 50_000, 5_000
Figures = Mapping[str, Mapping[str, float]]  # by call, then by store


class Compared(NamedTuple):
    """A call, before and now, in µs; noise: the same ratio of the peers."""

    what: str
    before: float
    now: float
    noise: float

    @property
    def ratio(self) -> float:
        """How many times as long the call takes now."""
        return self.now / self.before

    @property
    def is_slower(self) -> bool:
        """Whether it takes longer than the noise explains."""
        return self.ratio / max(1.0, self.noise) > SLOWER


def last_kept(folder: Path = RESULTS) -> str:
    """The commit of the newest kept figures of ordinary calls. Raises: LookupError."""
    names = sorted(path.name for path in folder.glob("*-ordinary.json"))
    if not names:
        raise LookupError("no figures of ordinary calls are kept; run `python -m bench.ordinary`, or give --against")
    commit: str = json.loads((folder / names[-1]).read_text(encoding="utf-8"))["commit"]
    return commit.rstrip("+")


def medians(runs: Iterable[Figures]) -> dict[str, dict[str, float]]:
    """The median of each figure over several runs."""
    found: dict[str, dict[str, list[float]]] = {}
    for run in runs:
        for what, figures in run.items():
            for name, value in figures.items():
                found.setdefault(what, {}).setdefault(name, []).append(value)
    return {what: {name: statistics.median(each) for name, each in stores.items()} for what, stores in found.items()}


def compare(before: Iterable[Figures], now: Iterable[Figures]) -> list[Compared]:
    """What both measured, call by call."""
    old, new = medians(before), medians(now)
    peers = [
        new[what][name] / figures[name]
        for what, figures in old.items()
        for name in figures
        if name != OURS and name in new.get(what, {})
    ]
    noise = statistics.median(peers) if peers else 1.0
    both = [what for what in old if OURS in old[what] and OURS in new.get(what, {})]
    found = []
    for what in both:
        beside = [new[what][name] / old[what][name] for name in old[what] if name != OURS and name in new[what]]
        found.append(Compared(what, old[what][OURS], new[what][OURS], statistics.median(beside) if beside else noise))
    return found


def run(tree: Path, out: Path) -> Figures:
    """One run of a tree's `bench.ordinary`, one round of each call."""
    sizes = ["--rows", str(ROWS), "--operations", str(OPERATIONS), "--rounds", "1", "--out", str(out)]
    # The tree's own packages come first, whatever is installed.
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    command = [sys.executable, "-m", "bench.ordinary", *sizes]
    subprocess.run(command, cwd=tree, env=environment, check=True, stdout=subprocess.DEVNULL)
    (kept,) = out.glob("*.json")
    lines: list[dict[str, Any]] = json.loads(kept.read_text(encoding="utf-8"))["lines"]
    kept.unlink()
    return {line["what"]: line["figures"] for line in lines}


def measure(commit: str, turns: int) -> list[Compared]:
    """Run the commit and the tree as it is in turn. Raises: subprocess.CalledProcessError."""
    here = Path(__file__).parents[1]
    before: list[Figures] = []
    now: list[Figures] = []
    with tempfile.TemporaryDirectory(prefix="bench-check-") as folder:
        then, out = Path(folder) / "tree", Path(folder) / "out"
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", str(then), commit], cwd=here, check=True)
        try:
            for turn in range(turns):
                order = [(then, before), (here, now)]
                for tree, into in order if turn % 2 == 0 else reversed(order):
                    into.append(run(tree, out))
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(then)], cwd=here, check=False)
    return compare(before, now)


def main() -> int:
    """Compare and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.check", description=__doc__)
    parser.add_argument("--against", default="", help="the commit before; by default that of the figures kept last")
    parser.add_argument("--turns", type=int, default=3)
    given = parser.parse_args()
    commit = given.against or last_kept()
    found = measure(commit, given.turns)
    width = max(len(each.what) for each in found)
    print(f"{'µs a call, or a row':<{width}}  {commit:>8}       now  ratio  peers")
    for each in found:
        mark = "  slower" if each.is_slower else ""
        figures = f"{short(each.before):>8}  {short(each.now):>8}  {each.ratio:5.2f}  {each.noise:5.2f}"
        print(f"{each.what:<{width}}  {figures}{mark}")
    return 1 if any(each.is_slower for each in found) else 0


if __name__ == "__main__":
    sys.exit(main())
