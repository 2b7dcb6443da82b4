"""`python -m tests.kills.peers DIRECTORY`: SIGKILL of a served store and of the MariaDB and MySQL that follow it.

The store is made in DIRECTORY, as `store`; an existing one is refused. Exit code 1 at the first broken promise, with
the seed. It needs both servers (tests/replication/mariadb_rig.py, mysql_rig.py).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict

from tests.kills.peers.loop import Plan, kill_loop
from tests.kills.peers.planted import DEFECTS
from tidemark.recovery.crash_harness.program import Violation


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m tests.kills.peers", description=__doc__)
    parser.add_argument("directory", help="where the store is made; it must exist")
    parser.add_argument("--minutes", type=float, default=10, help="of load, kills and broken links")
    parser.add_argument("--rate", type=int, default=5_000, help="commits a second, at most")
    parser.add_argument("--kills", type=int, default=20, help="of each replica and of the store")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--defect", choices=sorted(DEFECTS), default="", help="planted in the store's process")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    asked = parser.parse_args(arguments)
    plan = Plan(60 * asked.minutes, asked.rate, asked.kills, asked.seed, asked.defect)
    try:
        report = kill_loop(asked.directory, plan, None if asked.json else _say)
    except Violation as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write((json.dumps(asdict(report)) if asked.json else str(report)) + "\n")
    return 0


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")


if __name__ == "__main__":
    sys.exit(main())
