"""A process with more than 1,024 open descriptors: calls, channels and nodes still wait for their links.

Story: they waited in `select`, which takes none above 1,023. The call server and every channel of a busy process ended
with a ValueError at the first link that got a higher descriptor.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DESCRIPTORS = 1_200
SCRIPT = """
import os
import sys
from tests.node_group.site import OPTIONS, SECRET
import tidemark as tm
from tests.waiting import wait_until
held = [os.open(os.devnull, os.O_RDONLY) for _ in range(1_050)]
assert held[-1] > 1_023
place = sys.argv[1]
columns = [tm.Column("id", tm.Int64), tm.Column("n", tm.Int64)]
with (
    tm.open(place + "/source", server_id=1, log_bin="log", **OPTIONS) as source,
    tm.open(place + "/replica", server_id=2, **OPTIONS) as replica,
    tm.serve(source, "127.0.0.1:0", SECRET) as serving,
    tm.serve_calls(source, "127.0.0.1:0", SECRET) as taking,
):
    with tm.connect([taking.address], SECRET) as db:
        db.create_table("t", columns, "id")
        db["t"].insert((1, 2))
    with tm.Channel(serving.name, replica, secret=SECRET, skip_start=False) as channel:
        wait_until(lambda: channel.check_running() or "main.t" in replica.tables() and len(replica["t"]) == 1)
        assert replica["t"].get(1) == (1, 2)
"""


def test_links_of_calls_and_channels_have_descriptors_above_1023(tmp_path: Path) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < DESCRIPTORS:
        pytest.skip(f"this machine lets a process have {hard} descriptors, and {DESCRIPTORS} are needed")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, hard)),
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
