"""`python -m tests.crash.programs PART`: a part of the crash harness on a program of this folder.

`states`, `anomalies`, `kills` and `losses` are those of `python -m tidemark.recovery.crash_harness`. They run a program
of `PROGRAMS` unless the command names one. `states --disk` takes the four programs over disk tables in turn. `stress`
is power losses, then kills if there is a directory, while threads change rows, indexes, partitions and tables.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from tidemark.recovery.crash_harness.__main__ import WHOLE_STATE
from tidemark.recovery.crash_harness.__main__ import main as run_part
from tidemark.recovery.crash_harness.kill_loop import kill_loop
from tidemark.recovery.crash_harness.power_loop import power_loop
from tidemark.recovery.crash_harness.program import Violation, resolve

HERE = "tests.crash.programs"
STRESS = f"{HERE}.stress"
STRESS_VERIFY = f"{HERE}.stress_verify:verify"
STRESS_LIFE_MS_MAX = 4_000  # its threads have more to warm up
PROGRAMS = {
    "states": (f"{HERE}.history:work", WHOLE_STATE),
    "anomalies": (f"{HERE}.history:short_work", WHOLE_STATE),
    "kills": (f"{HERE}.bank:work", f"{HERE}.bank:verify"),
    "losses": (f"{STRESS}:work", STRESS_VERIFY),
}
DISK_PROGRAMS = tuple(f"{HERE}.disk_history:{name}" for name in ("work", "epoch_work", "unfiltered_work", "tiny_work"))


def stress(arguments: Sequence[str]) -> int:
    """Run the stress program; prints the figures of losses, and of kills."""
    parser = argparse.ArgumentParser(prog=f"python -m {HERE} stress")
    parser.add_argument("directory", nargs="?", help="where the store is, for kills")
    parser.add_argument("--disk", action="store_true", help="some of the columns on disk pages")
    parser.add_argument("--kills", type=int, default=50, help="SIGKILLs of a store in the directory")
    parser.add_argument("--losses", type=int, default=100, help="power losses under a store in memory")
    parser.add_argument("--life-ms-max", type=int, default=STRESS_LIFE_MS_MAX)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    asked = parser.parse_args(arguments)
    work = f"{STRESS}:{'disk_work' if asked.disk else 'work'}"

    def say(line: str) -> None:
        if not asked.json:
            print(line, file=sys.stderr)

    def reported(figures: dict[str, object]) -> None:
        line = json.dumps(figures) if asked.json else ", ".join(f"{name} {value}" for name, value in figures.items())
        print(line, flush=True)

    try:
        reported(power_loop(resolve(work), resolve(STRESS_VERIFY), asked.losses, asked.seed, print_line=say).__dict__)
        if asked.directory is not None:
            limits = asked.kills, asked.seed, asked.life_ms_max
            reported(kill_loop(work, STRESS_VERIFY, asked.directory, *limits, say).__dict__)
    except Violation as violation:
        print(violation, file=sys.stderr)
        return 1
    return 0


def main(arguments: Sequence[str]) -> int:
    """Run one part; the exit code is 1 at a broken promise."""
    part, rest = (arguments[0], list(arguments[1:])) if arguments else ("--help", [])
    if part == "stress":
        return stress(rest)
    if part == "states" and "--disk" in rest:
        rest.remove("--disk")
        pieces = rest if "--jobs" in rest else [*rest, "--jobs", "1"]
        return max(run_part([part, "--work", program, *pieces]) for program in DISK_PROGRAMS)
    work, verify = PROGRAMS.get(part, ("", ""))
    return run_part([part, "--work", work, "--verify", verify, *rest] if work else [part, *rest])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
