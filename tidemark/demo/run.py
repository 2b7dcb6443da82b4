"""`tidemark demo`: load, then three rounds of refresh work, SIGKILL, restart and proof."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import tidemark as tm
from tidemark.demo import data
from tidemark.demo.verify import check
from tidemark.engine.base.clock import SystemClock
from tidemark.engine.base.errors import Error, Unsupported
from tidemark.report import restart_timeline

if TYPE_CHECKING:
    import pyarrow as pa

PrintLine = Callable[[str], None]
WARM_ACKS = 100  # a round is timed after this many acknowledged transactions: by then all kernels are compiled


class DemoFailed(Error):
    """The demo found a violation."""


class Demo:
    """One run of the main job in a folder of its own."""

    def __init__(
        self, folder: Path, scale: float, rounds: int, seconds: float, seed: int, print_line: PrintLine
    ) -> None:
        self.folder = folder
        self.scale = scale
        self.rounds = rounds
        self.seconds = seconds
        self.seed = seed
        self.print_line = print_line
        self.clock = SystemClock()
        self.rng = np.random.default_rng(seed)
        self.acked: dict[int, int] = {}
        self.loaded: Any = None
        self.disk: dict[str, Any] = {}

    def run(self) -> dict[str, Any]:
        """Run it; return the figures. Raises: DemoFailed at the first violation."""
        shutil.rmtree(self.folder / "store", ignore_errors=True)
        self.folder.mkdir(parents=True, exist_ok=True)
        result: dict[str, Any] = {"seed": self.seed, "load": self._load(), "rounds": []}
        for number in range(1, self.rounds + 1):
            result["rounds"].append(self._round(number))
        phases = result["rounds"][-1]["restart"]["phases"]
        picture = self.folder / "restart-timeline.svg"
        try:
            restart_timeline(phases, picture)
            self.print_line(f"restart timeline: {picture}")
        except Unsupported as error:
            self.print_line(f"left out: a picture of the restart; {error.message}")
        (self.folder / "demo.json").write_text(json.dumps(result, indent=1), encoding="utf-8")
        return result

    def _store(self) -> str:
        return str(self.folder / "store")

    def _load(self) -> dict[str, Any]:
        files = data.generate(self.folder, self.scale)
        orders, lines = data.read(files[0], data.ORDERS), data.read(files[1], data.LINEITEM)
        self.loaded = orders, lines
        began = self.clock.monotonic()
        with self._open() as db:
            data.load(db, orders, lines)
            disk = data.disk_figures(db)
        seconds = self.clock.monotonic() - began
        rows = orders.num_rows + lines.num_rows
        self.print_line(f"loaded {rows:,} rows in {seconds:.1f} s, kernels' first compile included")
        self._print_disk("load", disk)
        return {"rows": rows, "seconds": seconds, "disk": disk}

    def _open(self) -> tm.Database:
        return tm.open(self._store(), page_buffer=data.PAGE_BUFFER_BYTES)

    def _print_disk(self, when: str, disk: dict[str, Any]) -> None:
        held, buffer = disk["pages"] * disk["page_bytes"], disk["frames"] * disk["page_bytes"]
        hits = disk["hits"] / max(disk["hits"] + disk["misses"], 1)
        filtered = disk["undo_bytes_filtered"] / max(disk["undo_bytes"], 1)
        self.print_line(
            f"    {when}: {disk['pages']:,} pages of comments on disk ({held / 1e6:.1f} MB, {held / buffer:.0f} times"
            f" the page buffer), {hits:.1%} of page requests hit,"
            f" {filtered:.1%} of {disk['undo_bytes'] / 1e6:.1f} MB UNDO filtered"
        )

    def _round(self, number: int) -> dict[str, Any]:
        acks = self._work_and_kill(number)
        began = self.clock.monotonic()
        with self._open() as db:
            opened = self.clock.monotonic() - began
            report = db.restart_report
            tables = {name: db[f"tpch.{name}"].to_arrow() for name in ("orders", "lineitem", "refresh_log")}
        violations = check(tables["orders"], tables["lineitem"], tables["refresh_log"], self.acked, self.loaded)
        if violations:
            raise DemoFailed(f"round {number}: {violations[0]} (seed {self.seed}); keep {self._store()} for study")
        held, disk = self._sequences(tables["refresh_log"]), self.disk
        in_flight = sum(held.values()) - sum(self.acked.values())
        # A transaction that was in flight and survived counts as acknowledged: the next round continues after it.
        self.acked = held
        self.print_line(
            f"round {number}: killed after {acks:,} acknowledged transactions; all there, {in_flight} in flight"
            f" made it, totals of {tables['orders'].num_rows:,} orders agree with {tables['lineitem'].num_rows:,} lines"
        )
        self.print_line(
            f"    every comment of {tables['orders'].num_rows + tables['lineitem'].num_rows:,} rows is right"
        )
        if disk:
            self._print_disk("before the kill", disk)
        self._print_timeline(report["phases"])
        found = {"acknowledged": acks, "in_flight": in_flight, "open_seconds": opened}
        return {**found, "disk": disk, "restart": report}

    @staticmethod
    def _sequences(log: pa.Table) -> dict[int, int]:
        threads, sequences = np.asarray(log.column("thread")), np.asarray(log.column("sequence"))
        return {int(number): int(sequences[threads == number].max()) for number in np.unique(threads)}

    def _work_and_kill(self, number: int) -> int:
        """Let the refresh process work and kill it in the middle; return the transactions acknowledged in this
        round.
        """
        command = [sys.executable, "-m", "tidemark.demo.refresh", self._store(), str(self.seed + number)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        counted = 0
        ready = threading.Event()

        def listen() -> None:
            nonlocal counted
            for line in process.stdout or ():
                if not line.endswith("\n"):
                    break
                if line.startswith("{"):
                    self.disk = json.loads(line)
                    continue
                thread, sequence = line.split()
                self.acked[int(thread)] = int(sequence)
                counted += 1
                if counted == WARM_ACKS:
                    ready.set()
            ready.set()

        listener = threading.Thread(target=listen, name="demo-acks")
        listener.start()
        ready.wait()
        self.clock.sleep(self.seconds * (0.6 + 0.4 * float(self.rng.random())))
        is_alive = process.poll() is None
        process.kill()
        process.wait()
        listener.join()
        if process.stdout is not None:
            process.stdout.close()
        if not is_alive:
            raise DemoFailed(f"round {number}: the refresh process ended by itself; see its message above")
        return counted

    def _print_timeline(self, phases: list[dict[str, Any]]) -> None:
        self.print_line(f"    {'phase':<14}{'ms':>10}{'rows':>12}{'MB/s':>10}")
        for phase in phases:
            rate = phase["bytes"] / 1e6 / (phase["ms"] / 1e3) if phase["ms"] and phase["bytes"] else 0.0
            self.print_line(f"    {phase['name']:<14}{phase['ms']:>10.1f}{phase['rows']:>12,}{rate:>10.1f}")
