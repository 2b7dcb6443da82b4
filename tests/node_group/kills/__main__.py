"""`python -m tests.node_group.kills DIRECTORY`: SIGKILL of a node group's processes under a bank, by seed and count.

Exit code 1 at the first broken promise, with its seed; the directory then holds stores and logs of all processes.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from recovery.crash_harness.program import Violation
from tests.node_group.kills.loop import Loop
from tests.node_group.kills.points import POINTS


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--arbitrator", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    loop = Loop(given.directory, given.nodes, given.arbitrator, given.seed)
    try:
        loop.run(given.kills)
        said = "no promise broken"
    except Violation as error:
        said = f"BROKEN: {error}"
    tellers, readers = loop.tellers, loop.readers
    print(
        f"seed {given.seed}: {sum(loop.kills.values())} kills {dict(sorted(loop.kills.items()))}, judged {loop.judged}"
    )
    print(
        f"  acknowledged {sum(len([1 for o in t.outcomes.values() if o == 'acknowledged']) for t in tellers)},"
        f" unknown {sum(len([1 for o in t.outcomes.values() if o != 'acknowledged']) for t in tellers)},"
        f" reads {sum(r.reads for r in readers)} (refused {sum(r.refused for r in readers)}),"
        f" longest wait {max(t.longest_s for t in tellers):.2f} s, errors {[dict(t.errors) for t in tellers]}"
    )
    missed = sorted(point for point in POINTS if not loop.reached[point])
    print(f"  points reached {dict(sorted(loop.reached.items()))}; not yet: {', '.join(missed) or 'none'}")
    print(f"  {said}")
    return 0 if said.startswith("no") else 1


if __name__ == "__main__":
    sys.exit(main())
