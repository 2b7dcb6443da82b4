"""`python -m tests.kills.nodes DIRECTORY`: SIGKILL of a node group's processes under a bank, by seed and count.

Exit code 1 at the first broken promise, or if a point was tried and never reached; the directory then holds stores and
logs of all processes. The last line is a summary.
"""

from __future__ import annotations

import argparse
import sys
import traceback
from pathlib import Path

from tests.kills.nodes.bank import ACKNOWLEDGED
from tests.kills.nodes.loop import Loop
from tests.kills.nodes.planted import DEFECTS
from tests.kills.nodes.site import VARIANT_NAMES, Mode
from tidemark.recovery.crash_harness.program import Violation


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="end after so many seconds")
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--arbitrator", action="store_true")
    parser.add_argument("--variant", choices=VARIANT_NAMES, default=VARIANT_NAMES[0], help="how nodes come back")
    parser.add_argument("--binlog", action="store_true", help="every node has one; they are compared")
    parser.add_argument("--memory", action="store_true", help="commits wait for no disk; one dies at a time")
    parser.add_argument("--no-changes", action="store_true", help="no schema changes between kills")
    parser.add_argument("--points", default="", help="only these points, separated by commas")
    parser.add_argument("--defect", choices=sorted(DEFECTS), default="", help="planted in every node")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    mode = Mode(
        given.nodes, given.arbitrator, given.variant, given.binlog, not given.no_changes, given.defect, given.memory
    )
    if given.memory and given.arbitrator:
        parser.error("with an arbitrator one death may decide the next view, and take what is in memory alone")
    loop = Loop(given.directory, mode, given.seed)
    if given.points:
        loop.points = given.points.split(",")
    said = ""
    try:
        loop.run(given.kills, seconds=given.seconds)
    except Violation as error:
        said = str(error)
        if error.__cause__ is not None:
            traceback.print_exception(error.__cause__)
    return report(loop, said, f"{given.directory}")


def report(loop: Loop, broken: str, directory: str) -> int:
    """Print a summary; return the exit code."""
    scenes = loop.scenes
    sys.stdout.write(f"{'point':28} tried reached\n")
    for point in loop.points:
        sys.stdout.write(f"{point:28} {scenes.tried[point]:5} {scenes.reached[point]:7}\n")
    for client in loop.clients:
        errors = ", ".join(f"{count} {name}" for name, count in sorted(client.errors.items()))
        sys.stdout.write(f"{client.name}: {client.acknowledged}, longest wait {client.longest_s:.1f} s; {errors}\n")
    if loop.mode.with_binlog:
        sys.stdout.write(f"binlogs: {loop.binlogs.compared} epochs compared, {loop.binlogs.gaps} gaps told\n")
    never = [point for point in loop.points if scenes.tried[point] > 1 and not scenes.reached[point]]
    untried = [point for point in loop.points if not scenes.tried[point]]
    roles = ", ".join(f"{count} {role}" for role, count in sorted(loop.kills.items()))
    acknowledged = sum(client.total[ACKNOWLEDGED] for client in loop.clients)
    reads = sum(reader.reads for reader in loop.readers)
    verdict = f"BROKEN: {broken}; see {directory}" if broken else "no promise broken"
    sys.stdout.write(
        f"seed {loop.seed}: {loop.killed} kills ({roles}; {sum(scenes.reached.values())} at"
        f" {len(+scenes.reached)} points of {len(loop.points)}, not reached: {', '.join(never) or 'none'},"
        f" not tried: {len(untried)}), {loop.judged} judgements, {acknowledged} acknowledged,"
        f" {reads} reads: {verdict}\n"
    )
    return 1 if broken or never else 0


if __name__ == "__main__":
    sys.exit(main())
