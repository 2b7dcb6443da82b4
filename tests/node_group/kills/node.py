"""One node as a process of the kill loop: `python -m tests.node_group.kills.node DIRECTORY NUMBER GROUP CALLS`.

It says what it is, one JSON line for each change, and lives until it is killed, or its standard input ends.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
from typing import Any

import tidemark as tm
from tests.node_group.kills.points import arm
from tidemark.node_group import NodeGroup

SECRET = b"a secret of nodes"
OPTIONS: dict[str, Any] = {
    "data_memory": "64 MiB",
    "redo_log": "8 MiB",
    "undo_log": "4 MiB",
    "page_buffer": "256 KiB",
    "checkpoint_interval_ms": 700,
    "gcp_interval_ms": 200,
}
POLL_SECONDS = 0.02


def tell(state: dict[str, Any]) -> None:
    """One line for whoever started this process."""
    sys.stdout.write(json.dumps(state) + "\n")
    sys.stdout.flush()


def main() -> None:
    """See the module."""
    directory, number, group, calls = sys.argv[1:5]
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s.%(msecs)03d %(threadName)s %(message)s", datefmt="%H:%M:%S"
    )
    point = os.environ.get("TIDEMARK_KILL_AT")
    if point:
        arm(point)
    is_over = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), is_over.set()), daemon=True).start()
    with NodeGroup(directory, int(number), group, SECRET, calls, found=number == "1", **OPTIONS) as node:
        before: dict[str, Any] = {}
        while not is_over.wait(POLL_SECONDS):
            try:
                status = node.status()
            except tm.Error as error:
                tell({"state": "ended", "error": f"{type(error).__name__}: {error.message}"})
                is_over.wait()
                break
            state = {name: status[name] for name in ("state", "view", "members", "primary")}
            if state != before:
                before = state
                tell(state)


if __name__ == "__main__":
    main()
