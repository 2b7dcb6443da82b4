"""`python -m bench.false_conflicts [--quick] [--out DIR]`: the share of false conflicts of NDB$EPOCH between two
processes.

Two sites over TCP, the first one with NDB$EPOCH(bits) on a table of a few hundred rows. At both, updates of random rows
come at a rate; each goes from the row as the site has it. A conflict is *false* if the update of the second site went
from the very row that the first one has when it refuses it: nothing had happened there that the second site had not
seen. That is seen by values: each site writes a number of its own, never used before, into a column of its own, the
exceptions row has what the update went from, and the refresh in the first site's binlog what was there. Links are
delayed by a proxy. One thing is varied at a time.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import threading
import time
from collections import defaultdict
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import tidemark as tm
from bench.pair import HOST, SECRET, DelayProxy, Remote
from bench.report import RESULTS
from tidemark.engine.files.directory import PosixFiles
from tidemark.engine.jit.registry import compile_declared
from tidemark.replication.binlog import events as e
from tidemark.replication.binlog.position import Position
from tidemark.replication.binlog.reader import BinlogReader, StatementMaps
from tidemark.replication.settings.any_value import FLAG_REFRESH

SEED = 31_337
TABLE = "hot.t"
ROWS = 200
WAIT_MS = 120_000
GCP_MS = 2_000
KINDS = ("WRITE_ROW", "UPDATE_ROW", "DELETE_ROW", "REFRESH_ROW", "READ_ROW")
CAUSES = ("ROW_DOES_NOT_EXIST", "ROW_ALREADY_EXISTS", "DATA_IN_CONFLICT", "TRANS_IN_CONFLICT")


@dataclass(frozen=True)
class Setting:
    """What is varied. `rate`: updates a second at each site; `delay_ms`: of each direction of each link."""

    interval_ms: int = 100
    delay_ms: int = 0
    rate: int = 200
    bits: int = 6
    seconds: float = 6.0


@dataclass
class Found:
    """The outcome of a setting; shares are of the updates of the second site. `epoch_ms`: the mean duration of an epoch
    of the second site, which is longer than the setting on a busy machine.
    """

    setting: Setting
    epoch_ms: float
    updates: int
    conflicts: int
    false: int
    conflict_share: float
    false_share: float


class Site:
    """One site, in its process."""

    def __init__(self, server_id: int, directory: str, setting: Setting) -> None:
        self.server_id = server_id
        self.setting = setting
        self.db = tm.open(
            directory,
            server_id=server_id,
            log_bin="binlog",
            log_apply_status=True,
            log_updated_only=False,
            log_update_as_write=False,
            durability="epoch",
            epoch_interval_ms=setting.interval_ms,
            gcp_interval_ms=GCP_MS,
            data_memory="64 MiB",
            redo_log="64 MiB",
        )
        self.serving = tm.serve(self.db, f"{HOST}:0", SECRET)

    def address(self) -> tuple[str, int]:
        """Return the address at which the site serves its binlog."""
        return self.serving.address

    def prepare(self) -> None:
        """Create the tables and rows; the first site does this."""
        db, function = self.db, f"NDB$EPOCH({self.setting.bits})"
        db.create_replication_table()
        db["mysql.ndb_replication"].insert((b"hot", b"t", 1, 7, function.encode()))
        four = ("NDB$server_id", "NDB$master_server_id", "NDB$master_epoch", "NDB$count")
        types = (tm.UInt32, tm.UInt32, tm.UInt64, tm.UInt32)
        columns = [tm.Column(name, kind) for name, kind in zip(four, types, strict=True)]
        columns += [tm.Column("NDB$OP_TYPE", tm.Enum(*KINDS)), tm.Column("NDB$CFT_CAUSE", tm.Enum(*CAUSES))]
        columns += [tm.Column("id", tm.Int32)]
        columns += [tm.Column(f"{name}$OLD", tm.Int64, nullable=True) for name in "ab"]
        db.create_table(f"{TABLE}$EX", columns, primary_key=four)
        db.create_table(TABLE, [tm.Column("id", tm.Int32), tm.Column("a", tm.Int64), tm.Column("b", tm.Int64)], "id")
        db[TABLE].insert_many([(each, 0, 0) for each in range(ROWS)])

    def follow(self, address: tuple[str, int]) -> None:
        """Apply the changes of another site."""
        self.channel = tm.Channel(address, self.db, secret=SECRET, skip_start=False)

    def wait_applied(self, other: int) -> None:
        """Wait until the other site has applied everything from here."""
        self.db.wait_applied(self.db.sync(), WAIT_MS, at=[other])

    def wait_returned(self) -> None:
        """Wait until the other site's binlog has reported here what that site applied."""
        pause, epoch = threading.Event(), self.db.binlog.newest_epoch
        while (row := self.db["mysql.ndb_apply_status"].get(self.server_id)) is None or row.epoch < epoch:
            pause.wait(0.005)

    def work(self, seed: int) -> tuple[int, float]:
        """Update at the rate and for the time of the setting; return (updates, actual milliseconds per epoch)."""
        rng, column, step = random.Random(seed), "ab"[self.server_id - 1], 1 / self.setting.rate
        epochs = self.db.binlog.counters()["epochs"]
        begun, made, pause = time.monotonic(), 0, threading.Event()
        while (now := time.monotonic() - begun) < self.setting.seconds:
            if now < made * step:
                pause.wait(made * step - now)
                continue
            made += 1
            self.db[TABLE].update(rng.randrange(ROWS), {column: made})
        epochs = self.db.binlog.counters()["epochs"] - epochs
        return made, (time.monotonic() - begun) * 1_000 / max(1, epochs)

    def rows(self) -> list[tuple[Any, ...]]:
        """The table."""
        return sorted(tuple(row) for row in self.db[TABLE].scan())

    def exceptions(self) -> tuple[list[tuple[Any, ...]], tuple[str, int]]:
        """((own epoch, order, id, a, b) that refused updates went from, end of the binlog)."""
        self.db.sync()
        self.db.binlog.write_closed_epochs()
        columns = ["$EPOCH", "NDB$count", "id", "a$OLD", "b$OLD"]
        return sorted(tuple(row) for row in self.db[f"{TABLE}$EX"].scan(columns=columns)), self.db.binlog.durable_end()


def refreshes(directory: str, end: Position) -> dict[tuple[int, int], list[tuple[int, int]]]:
    """Return (a, b) of each refreshed row, in order, by own epoch and id."""
    files = PosixFiles(directory)
    reader, maps = BinlogReader(files), StatementMaps()
    found: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    epoch = 0
    for read in reader.events(end):
        event = read.event
        maps.observe(event)
        if isinstance(event, e.Rows):
            origin = read.at
            name = maps.of(event, origin).name
            for chunk in maps.reader(event, origin).chunks(event.body, origin):
                if not epoch:
                    epoch = chunk.after[1].to_pylist()[0]
                elif name == TABLE and event.conflict_flags == FLAG_REFRESH:
                    for row in zip(*(chunk.after[place].to_pylist() for place in range(3)), strict=True):
                        found[epoch, row[0]].append(row[1:])
        if read.is_boundary:
            epoch = 0
    reader.close()
    files.close_all()
    return found


def measure(setting: Setting, folder: Path, seed: int) -> Found:
    """Measure one setting on two new stores."""
    places = [str(folder / name) for name in "ab"]
    proxies = [Remote(DelayProxy, setting.delay_ms / 1_000) for _ in places]
    sites = [Remote(Site, number + 1, place, setting) for number, place in enumerate(places)]
    one, two = sites
    try:
        one.ask("prepare")
        for proxy, site, other in zip(proxies, sites, (two, one), strict=True):
            proxy.ask("to", site.ask("address"))
            other.ask("follow", proxy.ask("address"))
        one.ask("wait_applied", 2)
        one.ask("wait_returned")
        for number, site in enumerate(sites):
            site.send("work", seed * 2 + number)
        _, (updates, epoch_ms) = (site.answer() for site in sites)
        two.ask("wait_applied", 1)
        one.ask("wait_applied", 2)
        if one.ask("rows") != two.ask("rows"):
            raise RuntimeError(f"the sites differ after {setting}")
        exceptions, end = one.ask("exceptions")
    finally:
        for each in (*sites, *proxies):
            each.end()
    there = refreshes(places[0], Position(*end))
    false = sum((a, b) in there.get((epoch, key), ()) for epoch, _, key, a, b in exceptions)
    count = len(exceptions)
    return Found(setting, epoch_ms, updates, count, false, count / updates, false / updates)


def settings(is_quick: bool) -> list[Setting]:
    """Return the settings, which vary one thing at a time."""
    base = Setting(seconds=2.0) if is_quick else Setting()
    varied: list[dict[str, int]] = [{"interval_ms": each} for each in (10, 50, 100, 500)]
    varied += [{"delay_ms": each} for each in (20, 100, 300)]
    varied += [{"rate": each} for each in (25, 50, 100, 400)]
    varied += [{"bits": each} for each in (0, 2, 4, 31)]
    varied += [{"interval_ms": 10, "bits": 31}, {"interval_ms": 10, "bits": 8}]
    return [replace(base, **each) for each in (varied[:4] if is_quick else varied)]


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path, default=RESULTS)
    asked = parser.parse_args()
    assert tm.Channel and tm.serve  # imported before processes are forked
    compile_declared()
    found = []
    print("| epoch interval, measured | delay | updates/s | bits | updates of B | conflicts | false | of updates |")
    print("|---|---|---|---|---|---|---|---|")
    for number, setting in enumerate(settings(asked.quick)):
        with tempfile.TemporaryDirectory() as folder:
            each = measure(setting, Path(folder), SEED + number)
        found.append(asdict(each))
        print(
            f"| {setting.interval_ms} ms, {each.epoch_ms:.0f} ms | {setting.delay_ms} ms | {setting.rate}"
            f" | {setting.bits} | {each.updates} |"
            f" {each.conflicts} ({each.conflict_share:.1%}) | {each.false} | {each.false_share:.2%} |",
            flush=True,
        )
    asked.out.mkdir(parents=True, exist_ok=True)
    (asked.out / "false-conflicts.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
