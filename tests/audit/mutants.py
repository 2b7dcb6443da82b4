"""Mutants of the rooms that promises rest on: `python -m tests.audit.mutants wire --share 10`; `make mutants` for all.

The cases of a room run once, to record for each line which of them run it. A mutant is the program with one change of
one function (`changes.py`). It runs the cases that reach the changed line, quickest first, until one fails. A mutant
that passes them all has survived: a test is missing, or the change means nothing. Lines that no case reaches are
counted apart.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from multiprocessing.connection import wait
from pathlib import Path

import pytest

from tests.audit import lines, planted
from tests.audit.changes import Change, changes
from tests.audit.rooms import ROOMS, Room
from tidemark.engine.jit import registry

# Limit for the cases of one mutant, by their time in the program: a line that every case runs is not tried with all.
CASES_SECONDS = 40.0
UNREACHED = "reached by no case"


def prepare(room: Room) -> None:
    """Load everything that the children need into this process."""
    registry.import_all()
    registry.compile_declared()
    code = pytest.main(["--collect-only", "-qq", *planted.OPTIONS[2:], *room.tests])
    if code:
        raise SystemExit(f"the tests of {room.name} cannot be collected: pytest ended with {int(code)}")


def record(room: Room, folder: Path) -> tuple[lines.Lines, dict[str, float]]:
    """Run the cases of a room on the program. Raises: SystemExit if one fails."""
    output = folder / "lines.json"
    os.environ[lines.SOURCES_VARIABLE] = ",".join(room.files)
    os.environ[lines.OUTPUT_VARIABLE] = str(output)
    options = [*planted.OPTIONS[1:], *room.tests]
    recording = planted.FORKING.Process(target=lambda: sys.exit(int(pytest.main(options, plugins=[lines]))))
    recording.start()
    recording.join()
    if recording.exitcode:
        raise SystemExit(f"a case of {room.name} fails without any mutant; repair it first")
    return lines.read(output)


def chosen(cases: list[str], seconds: dict[str, float]) -> list[str]:
    """The quickest first, as many as the time of a mutant allows."""
    found: list[str] = []
    total = 0.0
    for case in sorted(cases, key=lambda each: (seconds[each], each)):
        total += seconds[case]
        if found and total > CASES_SECONDS:
            break
        found.append(case)
    return found


def run(room: Room, share: int, seed: int, jobs: int) -> Counter[str]:
    """Count the outcomes of the mutants. Print each one that no case has seen at once."""
    prepare(room)
    counts: Counter[str] = Counter()

    def note(end: str, file: str, change: Change) -> None:
        counts[end] += 1
        if not end.startswith("seen"):
            print(f"{end}: {file}, {change.told(Path(file).read_bytes())}", flush=True)

    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        by_case, seconds = record(room, folder)
        reached: dict[tuple[str, int], list[str]] = {}
        for case, files in by_case.items():
            for file, numbers in files.items():
                for number in numbers:
                    reached.setdefault((file, number), []).append(case)
        ahead: list[tuple[str, Change]] = [
            (file, change) for file in room.files for change in changes(Path(file).read_bytes())
        ]
        ahead = random.Random(seed).sample(ahead, -(-len(ahead) // share))
        running: dict[int, planted.Mutant] = {}
        number = 0
        while ahead or running:
            while ahead and len(running) < jobs:
                file, change = ahead.pop()
                cases = chosen(reached.get((file, change.line), []), seconds)
                if not cases:
                    note(UNREACHED, file, change)
                    continue
                number += 1
                expected = sum(seconds[each] for each in cases)
                mutant = planted.Mutant(file, change, cases, expected, folder / str(number))
                running[mutant.process.sentinel] = mutant
            for ended in wait(list(running)):
                mutant = running.pop(ended)
                note(mutant.end(), mutant.file, mutant.change)
                shutil.rmtree(mutant.folder)
    return counts


def main() -> None:
    """Test one room in a process of its own: the imports of its tests do not affect another room."""
    parser = argparse.ArgumentParser(prog="python -m tests.audit.mutants", description=__doc__)
    parser.add_argument("room", choices=[each.name for each in ROOMS])
    parser.add_argument("--share", type=int, default=10, help="one mutant of so many")
    parser.add_argument("--seed", type=int, default=1, help="which ones")
    parser.add_argument("--jobs", type=int, default=4, help="processes at once")
    given = parser.parse_args()
    began = time.monotonic()
    (room,) = [each for each in ROOMS if each.name == given.room]
    counts = run(room, given.share, given.seed, given.jobs)
    numbers = ", ".join(f"{number} {end}" for end, number in counts.most_common())
    print(f"{room.name}: {counts.total()} mutants in {time.monotonic() - began:.0f} s: {numbers}", flush=True)


if __name__ == "__main__":
    main()
