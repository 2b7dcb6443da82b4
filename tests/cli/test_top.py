"""`top`: rates over the intervals of a clock that the test moves, and the screen of a store of another process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tidemark as tm
from tests.cli.support import ROOT, SMALL, held_open, refused, run
from tidemark.cli.top_command import lines, samples
from tidemark.engine.base import clock as clocks
from tidemark.engine.base.clock import ManualClock


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
    assert "only a store that a process has open can be watched" in refused("top", store, "--once")


def test_store_that_no_process_has_open_is_named_without_the_kernels(store: Path) -> None:
    program = (
        "import sys\nfrom click.testing import CliRunner\nfrom tidemark.cli.commands import commands\n"
        f"found = CliRunner().invoke(commands, ['top', {str(store)!r}, '--once'])\n"
        "print(found.exit_code, 'can be watched' in found.stderr, 'numba' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.split() == ["1", "True", "False"], done.stderr
