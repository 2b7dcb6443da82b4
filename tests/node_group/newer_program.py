"""A node of a later program: `python -m tests.node_group.newer_program DIRECTORY NUMBER GROUP CALLS`.

It writes everything in the format after the current one, reads both formats, and speaks the protocols of both. It
prints one line when it is a member, and runs until its standard input ends.
"""

from __future__ import annotations

import sys

from tests.planting import without_the_face

with without_the_face():
    from tidemark.engine.sealed import sealed_layout as sealed

sealed.FORMAT_VERSION += 1
assert "tidemark.engine.log.group" not in sys.modules, "the format is already known elsewhere"

from tidemark.replication.wire import handshake  # noqa: E402

handshake.VERSION += 1

import tidemark as tm  # noqa: E402
from tests.node_group.site import OPTIONS, PATIENCE_MS, SECRET  # noqa: E402


def main() -> None:
    """See the module."""
    directory, number, group, calls = sys.argv[1:5]
    with tm.NodeGroup(directory, int(number), group, SECRET, calls, **OPTIONS) as node:
        node.wait_member(PATIENCE_MS)
        sys.stdout.write("member\n")
        sys.stdout.flush()
        sys.stdin.read()


if __name__ == "__main__":
    main()
