"""`python -m tests.kills.sites DIRECTORY`: SIGKILL of replicating sites, by seed and count.

Each mode has its stores in DIRECTORY, as MODE-siteN; existing ones are refused. Exit code 1 at the first broken
promise, with mode, seed and round.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict

from tests.kills.sites.loop import LIFE_MS_MAX, kill_loop
from tests.kills.sites.modes import MODES
from tidemark.recovery.crash_harness.program import Violation


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m tests.kills.sites", description=__doc__)
    parser.add_argument("directory", help="where the stores are made; it must exist")
    parser.add_argument("--mode", choices=sorted(MODES), action="append", help="this circuit; may be repeated")
    parser.add_argument("--kills", type=int, default=50, help="of each mode")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--life-ms-max", type=int, default=LIFE_MS_MAX)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    asked = parser.parse_args(arguments)
    try:
        for name in asked.mode or MODES:
            folder = f"{asked.directory}/{name}"
            say = None if asked.json else _say
            report = kill_loop(name, folder, asked.kills, asked.seed, asked.life_ms_max, say)
            sys.stdout.write((json.dumps(asdict(report)) if asked.json else str(report)) + "\n")
            sys.stdout.flush()
    except Violation as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")


if __name__ == "__main__":
    sys.exit(main())
