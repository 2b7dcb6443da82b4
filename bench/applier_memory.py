"""`python -m bench.applier_memory [--rows N ...] [--memory SIZE] [--out DIR]`: memory of applying one large epoch.

A child process fills a store, writes a binlog with one epoch that updates every row (whole images, a transaction of
the source for each 1,000), receives it into a relay log and applies it. Shown is how far resident memory rose above
what it was before, at its peak, how much of that is data memory, and the rest of it while receiving and while applying:
the epoch passes relay log, reader, intake, passes and, with NDB$EPOCH_TRANS and one row in conflict, the dependency
tracker. Everything is in a temporary folder.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import tidemark as tm
from bench.report import RESULTS
from bench.rows import COLUMNS, make_table
from tidemark.engine.access.batch_operations import read_keys
from tidemark.engine.base.clock import SystemClock
from tidemark.engine.files.directory import PosixFiles
from tidemark.engine.memory.arena_layout import PAGE_BYTES
from tidemark.engine.rows.columnar import encode_keys
from tidemark.replication.applier.applier import Applier
from tidemark.replication.applier.transactions import LogFolder
from tidemark.replication.binlog import events as e
from tidemark.replication.binlog.images import BinlogOptions, RowBatch, rule_of
from tidemark.replication.binlog.row_plan import RowImages, TablePlans
from tidemark.replication.binlog.writer import BinlogWriter, WriterOptions
from tidemark.replication.channel.channel import ChannelOptions, ReplicaChannel
from tidemark.replication.channel.receiver import LocalReceiver
from tidemark.replication.channel.source import SourceBinlog
from tidemark.replication.settings.binlog_type import binlog_type
from tidemark.replication.settings.setup import SiteSettings
from tidemark.replication.settings.system_tables import NDB_APPLY_STATUS, NDB_REPLICATION
from tidemark.replication.wire.handshake import Site

RULE = rule_of(binlog_type(7)[0])
TABLE = "d.t"
SOURCE, OWN = 2, 1
EPOCH = 7
BATCH_ROWS = 50_000
ROWS_OF_A_TRANSACTION = 1_000
MODES = {"no function": None, "NDB$EPOCH": "NDB$EPOCH()", "NDB$EPOCH_TRANS": "NDB$EPOCH_TRANS()"}
STATUS = Path("/proc/self/status")


def resident_mib(which: str = "VmRSS") -> float:
    """Return VmRSS in MiB, or VmHWM, its peak since `forget_peak`."""
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(which))
    return int(line.split()[1]) / 1024


def forget_peak() -> None:
    """Reset the peak to the memory in use now."""
    Path("/proc/self/clear_refs").write_text("5")


def filled(folder: str, rows: int, function: str | None, memory: str) -> tm.Database:
    """Open a store with rows that it wrote itself; the peer has confirmed all but the first one."""
    options = {"durability": "epoch", "background": False, "redo_log": "1 GiB", "data_memory": "4 GiB"}
    db = tm.open(folder, transaction_memory=memory, **options)  # type: ignore[arg-type]  # a dict has one type
    db.create_replication_table()
    with db.transaction() as txn:
        txn.write(NDB_REPLICATION, (b"d", b"t", 0, 7, None if function is None else function.encode()))
    table = db.create_table(TABLE, COLUMNS, "id")
    for first in range(0, rows, 1 << 18):
        table.insert_many(make_table(first, min(1 << 18, rows - first)))
    confirmed = db.sync()
    with db.transaction() as txn:
        txn.write(NDB_APPLY_STATUS, (OWN, confirmed, "", 0, 0))
    table.update(0, {"b": 1.0})
    db.sync()
    db.checkpoint()
    return db


def write_log(folder: str, db: tm.Database, rows: int) -> BinlogWriter:
    """A binlog with one epoch that updates every row."""
    files = PosixFiles(folder)
    files.make_directory("binlog")
    images = BinlogOptions(transaction_id=True, empty_update=True)
    writer = BinlogWriter(files, SystemClock(), options=WriterOptions(server_id=SOURCE, sync_binlog=0, images=images))
    table, status = db.parts.store.tables.named(TABLE), TablePlans(db.parts.store.tables.named(NDB_APPLY_STATUS).format)
    plans = TablePlans(table.format)
    words = np.concatenate([np.zeros(3, np.int64), status.row_format.encode_row((SOURCE, EPOCH, "", 0, 0))])
    first = RowImages(words, None, np.array([3], np.int64))
    writer.begin([plans], RowBatch(status, RULE, e.WRITE, first, as_called=True))
    for begin in range(0, rows, BATCH_ROWS):
        keys = np.arange(begin, min(begin + BATCH_ROWS, rows))
        entries, offsets, _ = read_keys(table, encode_keys(table.format, {"id": keys}), None, False)
        ids = keys // ROWS_OF_A_TRANSACTION + 1
        after = entries.copy()
        after[offsets[: keys.size] + 2] ^= 1  # some fixed column has another value
        both = RowImages(
            np.concatenate([entries, after]), offsets[: keys.size].copy(), offsets[: keys.size] + entries.size
        )
        writer.append(RowBatch(plans, RULE, e.UPDATE, both, ids))
    writer.commit()
    writer.sync()
    return writer


class Positions:
    """The positions that a channel reads from its replica, here of a store that has applied nothing."""

    def __init__(self, applier: Applier) -> None:
        self._applier = applier

    def rows(self) -> list[Any]:
        return []

    def clear(self) -> None: ...

    def make_durable(self) -> None: ...

    def start(self) -> None: ...

    def apply(self, transaction: Any) -> object:
        return self._applier.apply(transaction)

    def statement(self, text: str, database: str, server_id: int) -> None: ...


def received(folder: str, writer: BinlogWriter, log: LogFolder, applier: Applier) -> ReplicaChannel:
    """Return a channel whose relay log has the whole binlog."""
    positions = Positions(applier)
    relay = PosixFiles(folder)
    source, own = Site(SOURCE, "ab" * 16, 0), Site(OWN, "cd" * 16, 0)
    channel = ReplicaChannel(relay, SystemClock(), own, positions, positions, ChannelOptions())
    binlog = SourceBinlog(log.files, SOURCE, lambda: (EPOCH, writer.synced))
    receiver = LocalReceiver(channel, source, binlog, SystemClock())
    while receiver.receive_next():
        pass
    return channel


def arena_mib(db: tm.Database) -> float:
    """Data memory in use."""
    return db.parts.store.arena.used_pages() * PAGE_BYTES / (1 << 20)


def measure(rows: int, mode: str, memory: str) -> dict[str, Any]:
    """One figure, in this process."""
    with tempfile.TemporaryDirectory(prefix="tidemark-bench-") as folder:
        for name in ("store", "log", "relay"):
            (Path(folder) / name).mkdir()
        db = filled(f"{folder}/store", rows, MODES[mode], memory)
        writer = write_log(f"{folder}/log", db, rows)
        log_bytes = sum(path.stat().st_size for path in (Path(folder) / "log" / "binlog").iterdir())
        log = LogFolder(PosixFiles(f"{folder}/log"))
        applier = Applier(db.parts.store, SiteSettings(OWN))
        before, arena_before = resident_mib(), arena_mib(db)
        forget_peak()
        channel = received(f"{folder}/relay", writer, log, applier)
        receiving_mib = resident_mib("VmHWM") - before
        began = time.perf_counter()
        while channel.apply_next() is not None:
            pass
        seconds = time.perf_counter() - began
        rise, arena = resident_mib("VmHWM") - before, arena_mib(db) - arena_before
        counters = applier.counters.totals
        refused = counters["trans_row_reject_count"] + counters["conflict_fn_epoch"]
        assert (refused > 0) == (mode != "no function"), counters
        return {
            "rows": rows,
            "mode": mode,
            "transaction_memory": memory,
            "log_mib": round(log_bytes / (1 << 20), 1),
            "before_mib": round(before, 1),
            "rise_mib": round(rise, 1),
            "data_memory_mib": round(arena, 1),
            "else_mib": round(rise - arena, 1),
            "receiving_mib": round(receiving_mib, 1),
            "seconds": round(seconds, 1),
            "refused": refused,
        }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.applier_memory", description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[100_000, 1_000_000, 3_000_000])
    parser.add_argument("--mode", choices=list(MODES), nargs="+", default=list(MODES))
    parser.add_argument("--memory", default="256 MiB", help="transaction_memory of the store")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.child:
        print(json.dumps(measure(given.rows[0], given.mode[0], given.memory)))
        return 0
    found = []
    for rows in given.rows:
        for mode in given.mode:
            command = [sys.executable, "-m", "bench.applier_memory", "--child", "--rows", str(rows), "--mode", mode]
            command += ["--memory", given.memory]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            found.append(json.loads(done.stdout.splitlines()[-1]))
            print(found[-1], flush=True)
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "applier-memory.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
