"""`top`: rates over the intervals of a clock that the test moves, and the screen of a store of another process."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import termios
from pathlib import Path
from typing import Any

import pytest

import tidemark as tm
from tests.cli.support import ROOT, SMALL, held_open, refused, run
from tidemark import control_socket
from tidemark.cli.top_command import Keys, lines, samples
from tidemark.engine.base import clock as clocks
from tidemark.engine.base.clock import ManualClock, SystemClock


def test_rates_are_of_the_interval_between_two_samples(store: Path) -> None:
    clock = ManualClock()
    with tm.open(store, **SMALL) as db:
        account = db["test.account"]
        work = iter([0, 40, 0])

        def status() -> dict[str, Any]:
            for key in range(next(work)):
                account.insert({"id": 100 + key, "owner": "x"})
            return db.status()

        sampled = samples(status, clock, 2.0)
        busy = next(sampled)
        assert busy["per_second"]["commits"] == 20.0 and busy["per_second"]["log_bytes"] > 0
        assert busy["log"]["head_lsn"] == db.status()["log"]["head_lsn"]
        idle = next(sampled)
        assert idle["per_second"]["commits"] == 0.0
        assert round(clock.monotonic() - ManualClock().monotonic()) == 4


def test_screen_has_a_line_for_each_part_of_a_store(store: Path) -> None:
    with tm.open(store, server_id=1, log_bin="binlog", **SMALL) as db:
        status = db.status()
    status["lcp"]["running"] = {"rows": 250, "of": 1_000}
    status["log"]["used_bytes"] = status["log"]["capacity_bytes"] // 2
    pages = {"hits": 30, "misses": 10, "resident": 5, "frames": 8}
    status["disk"]["page_buffer"] = {"8192": pages}
    status["replication"]["lag"] = {"to server 2": {"lag_epochs": 3, "lag_seconds": 1.5}}
    status["replication"]["channels"] = {"main": {"source": "a:1", "lag": {"epochs": 1, "seconds": None}}}
    before = {**status, "disk": {"page_buffer": {"8192": {**pages, "hits": 0, "misses": 0}}}}
    states = iter([before, status])
    shown = "\n".join(lines(next(samples(lambda: next(states), ManualClock(), 1.0))))
    for part in (
        "store open",
        "commits                    0.0 /s",
        "[##########..........]  50.0%  LSN 0 to",
        "[#####...............]  25.0%  number 2: 250 of 1,000 rows",
        "75.0% of pages hit, 5 of 8 frames in use",
        "to server 2: 3 epochs, 1.5 s",
        "from a:1 (main): 1 epoch, unknown age",
        "held by         a restart",
    ):
        assert part in shown, shown


def test_one_sample_of_a_store_of_another_process(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clocks, "SystemClock", ManualClock)
    with held_open(store) as process:
        result = run("top", store, "--once", "--json", "--every", "5")
        assert result.exit_code == 0, result.output
        sample = json.loads(result.stdout)
        assert sample["store"] == {"pid": process.pid, "state": "open"} and sample["channels"] == []
        assert f"process {process.pid}, store open" in run("top", store, "--once").stdout
    text = refused("top", store, "--once")
    assert f"no process has {store} open; only a store that a process has open can be watched" in text
    with held_open(store, background=False) as process:
        assert f"process {process.pid} has {store} open, but it cannot be watched" in refused("top", store, "--once")


def test_samples_end_with_the_store_and_with_q(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Story: when the store was closed, `top` ended with `PeerError … [Errno 2]`, as for a store that none had open."""
    with tm.open(store, **SMALL) as db:
        status = db.status()
    answers = iter([status, status])

    def ask(*_: object) -> dict[str, Any]:
        found = next(answers, None)
        if found is None:
            raise tm.PeerError("no answer")
        return found

    monkeypatch.setattr(control_socket, "ask", ask)
    monkeypatch.setattr(clocks, "SystemClock", ManualClock)
    result = run("top", store)
    assert result.exit_code == 0 and result.stdout.count("store open") == 1
    assert result.stderr == f"{store} was closed, or its process has ended\n"
    clock, pressed = ManualClock(), iter([False, False, True])

    def wait(seconds: float) -> bool:
        clock.sleep(seconds)
        return next(pressed)

    assert len(list(samples(lambda: status, clock, 1.0, wait))) == 2


def test_key_q_ends_a_wait_and_other_keys_do_not() -> None:
    leader, follower = pty.openpty()
    with os.fdopen(follower, encoding="utf-8") as terminal, Keys(terminal) as keys:
        before = termios.tcgetattr(follower)
        assert not before[3] & termios.ICANON
        os.write(leader, b"xq")
        assert keys.wait(SystemClock(), 100.0)
        clock = ManualClock()
        assert Keys(None).wait(clock, 2.0) is False and round(clock.monotonic() - ManualClock().monotonic()) == 2
    os.close(leader)


def test_store_that_no_process_has_open_is_named_without_the_kernels(store: Path) -> None:
    program = (
        "import sys\nfrom click.testing import CliRunner\nfrom tidemark.cli.commands import commands\n"
        f"found = CliRunner().invoke(commands, ['top', {str(store)!r}, '--once'])\n"
        "print(found.exit_code, 'can be watched' in found.stderr, 'numba' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.split() == ["1", "True", "False"], done.stderr
