"""`python -m tests.soak --minutes N --seed S`: everything that runs long, turn by turn, for the given time.

A turn that runs when the time is over is completed. The seed decides which turn comes first, so that short soaks run
different ones. The last output is one table of counts. A turn with a finding is reported at once, with the command that
repeats it, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.soak.turns import FOLDER, TURNS, Turn
from tidemark.engine.base.clock import Clock, SystemClock

ROOT = Path(__file__).resolve().parents[2]
# A turn takes about a minute; one that takes this long hangs.
TURN_SECONDS_MAX = 3_600
SHOWN_LINES = 40


@dataclass
class Row:
    """Figures of all turns of one name."""

    turns: int = 0
    broken: int = 0
    seconds: float = 0.0
    seeds: list[int] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)


def counts_in(said: str, names: Sequence[str]) -> Counter[str]:
    """Return sums of numbers next to a name, before or after it: `"kills": 3`, `kills 3`, `3 kills`."""
    found: Counter[str] = Counter()
    for name in names:
        number = r"(\d+(?:,\d{3})*)\b"
        pattern = rf'(?:"{name}": |\b{name} ){number}|\b{number} {name}\b'
        for before, after in re.findall(pattern, said):
            found[name] += int((before or after).replace(",", ""))
    return found


def run_command(arguments: Sequence[str]) -> tuple[int, str]:
    """Run Python with these arguments, in a folder of its own; return exit code and output."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, *(folder if each == FOLDER else each for each in arguments)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        try:
            ended = subprocess.run(
                command,
                cwd=ROOT,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=TURN_SECONDS_MAX,
            )
        except subprocess.TimeoutExpired as error:
            said = error.stdout or b""
            return 1, (said if isinstance(said, str) else said.decode(errors="replace")) + "\nit did not end"
        return ended.returncode, ended.stdout


def soak(
    turns: Sequence[Turn],
    minutes: float,
    seed: int,
    say: Callable[[str], None],
    run: Callable[[Sequence[str]], tuple[int, str]] = run_command,
    clock: Clock | None = None,
) -> dict[str, Row]:
    """Run turn after turn until the time is over; return the figures of each, in the order of `turns`."""
    clock = clock or SystemClock()
    rows = {turn.name: Row() for turn in turns}
    end = clock.monotonic() + 60 * minutes
    first = number = random.Random(seed).randrange(len(turns))
    while clock.monotonic() < end:
        turn = turns[number % len(turns)]
        row, own = rows[turn.name], seed + (number - first) // len(turns)
        arguments = turn.arguments(own)
        began = clock.monotonic()
        code, said = run(arguments)
        counts = counts_in(said, turn.counted)
        row.turns += 1
        row.broken += code != 0
        row.seconds += clock.monotonic() - began
        row.seeds.append(own)
        row.counts.update(counts)
        shown = ", ".join(f"{name} {count:,}" for name, count in counts.items())
        say(f"{turn.name}, seed {own}: {shown or 'no counts'} in {clock.monotonic() - began:.0f} s")
        if code:
            last = "\n".join(said.splitlines()[-SHOWN_LINES:])
            say(f"BROKEN, exit code {code}: python {' '.join(arguments)}\n{last}")
        number += 1
    return rows


def table(rows: dict[str, Row]) -> str:
    """Return the rows that had a turn, as Markdown."""
    lines = ["| what | seeds | turns | broken | s | counts |", "|---|---|---:|---:|---:|---|"]
    for name, row in rows.items():
        if row.turns:
            seeds = f"{row.seeds[0]}–{row.seeds[-1]}" if row.turns > 1 else f"{row.seeds[0]}"
            counts = ", ".join(f"{key} {count:,}" for key, count in row.counts.items())
            lines.append(f"| {name} | {seeds} | {row.turns} | {row.broken} | {row.seconds:.0f} | {counts} |")
    waiting = [name for name, row in rows.items() if not row.turns]
    if waiting:
        lines += ["", f"No turn in this time: {', '.join(waiting)}."]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; print each turn and the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60, help="begin no turn later")
    parser.add_argument("--seed", type=int, default=1, help="of the first round; the next one has the next")
    parser.add_argument("--only", action="append", help="turns whose names have this in them; may be repeated")
    parser.add_argument("--list", action="store_true", help="print the names and end")
    asked = parser.parse_args(arguments)
    turns = [turn for turn in TURNS if not asked.only or any(each in turn.name for each in asked.only)]
    if not turns:
        parser.error(f"no turn has {' or '.join(asked.only)} in its name; --list prints them")
    if asked.list:
        print("\n".join(turn.name for turn in turns))
        return 0
    if asked.seed < 0:
        parser.error("a seed is 0 or more")
    rows = soak(turns, asked.minutes, asked.seed, lambda line: print(line, flush=True))
    print(f"\nseed {asked.seed}\n\n{table(rows)}")
    return 1 if any(row.broken for row in rows.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
