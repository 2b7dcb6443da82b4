"""`python -m bench.applier_memory [--rows N ...] [--out DIR]`: memory of applying one epoch transaction of many rows.

A child process fills a store, writes a binlog with one epoch that updates every row (whole images, a transaction of
the source for each 1,000), and applies it. Shown is how far resident memory rose above what it was before, at its peak:
the epoch passes reader, intake, passes and, with NDB$EPOCH_TRANS and one row in conflict, the dependency tracker. In
`relay` it is received into a relay log first. The binlog and the store's files are in a temporary folder.
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
from engine.batch_operations import read_keys
from engine.clock import SystemClock
from engine.columnar import encode_keys
from engine.files import PosixFiles
from replication.applier.applier import Applier
from replication.applier.transactions import EpochTransaction, LogFolder, transactions
from replication.binlog import events as e
from replication.binlog.images import BinlogOptions, RowBatch, image_rule
from replication.binlog.row_plan import RowImages, TablePlans
from replication.binlog.writer import BinlogWriter, WriterOptions
from replication.channel import ChannelOptions, ReplicaChannel
from replication.protocol.handshake import Site
from replication.receiver import LocalReceiver
from replication.settings.setup import SiteSettings
from replication.source import BinlogEnd, SourceBinlog
from replication.system_tables import NDB_APPLY_STATUS, NDB_REPLICATION

TABLE = "d.t"
SOURCE, OWN = 2, 1
EPOCH = 7
BATCH_ROWS = 50_000
ROWS_OF_A_TRANSACTION = 1_000
FUNCTION = "NDB$EPOCH_TRANS()"
MODES = {"no function": (None, False), "transactional": (FUNCTION, False), "relay": (FUNCTION, True)}
STATUS = Path("/proc/self/status")


def resident_mib(which: str = "VmRSS") -> float:
    """VmRSS, or VmHWM, which is its peak since `forget_peak`."""
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(which))
    return int(line.split()[1]) / 1024


def forget_peak() -> None:
    """The peak is what memory is now."""
    Path("/proc/self/clear_refs").write_text("5")


def filled(folder: str, rows: int, function: str | None) -> tm.Database:
    """A store with rows of its own that the peer has confirmed, but for the first one."""
    db = tm.open(folder, durability="epoch", background=False, redo_log="4 GiB", data_memory="4 GiB")
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
    table, status = db._store.table(TABLE), TablePlans(db._store.table(NDB_APPLY_STATUS).format)
    plans = TablePlans(table.format)
    words = np.concatenate([np.zeros(3, np.int64), status.row_format.encode_row((SOURCE, EPOCH, "", 0, 0))])
    first = RowImages(words, None, np.array([3], np.int64))
    writer.begin([plans], RowBatch(status, image_rule(7, BinlogOptions()), e.WRITE, first, as_called=True))
    for begin in range(0, rows, BATCH_ROWS):
        keys = np.arange(begin, min(begin + BATCH_ROWS, rows))
        entries, offsets, _ = read_keys(table, encode_keys(table.format, {"id": keys}), None, False)
        ids = keys // ROWS_OF_A_TRANSACTION + 1
        after = entries.copy()
        after[offsets[: keys.size] + 2] ^= 1  # some fixed column has another value
        both = RowImages(
            np.concatenate([entries, after]), offsets[: keys.size].copy(), offsets[: keys.size] + entries.size
        )
        writer.append(RowBatch(plans, image_rule(7, BinlogOptions()), e.UPDATE, both, ids))
    writer.commit()
    writer.sync()
    return writer


class Positions:
    """The channel's view of a store that has applied nothing, and the applier behind it."""

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
    """A channel whose relay log has everything."""
    positions = Positions(applier)
    relay = PosixFiles(folder)
    source, own = Site(SOURCE, "ab" * 16, 0), Site(OWN, "cd" * 16, 0)
    channel = ReplicaChannel(relay, SystemClock(), own, positions, positions, ChannelOptions())
    binlog = SourceBinlog(log.files, SOURCE, lambda: BinlogEnd(EPOCH, writer.synced))
    receiver = LocalReceiver(channel, source, binlog, SystemClock())
    while receiver.receive_next():
        pass
    return channel


def measure(rows: int, mode: str) -> dict[str, Any]:
    """One figure, in this process."""
    function, through_relay = MODES[mode]
    with tempfile.TemporaryDirectory(prefix="tidemark-bench-") as folder:
        for name in ("store", "log", "relay"):
            (Path(folder) / name).mkdir()
        db = filled(f"{folder}/store", rows, function)
        writer = write_log(f"{folder}/log", db, rows)
        log_bytes = sum(path.stat().st_size for path in (Path(folder) / "log" / "binlog").iterdir())
        log = LogFolder(PosixFiles(f"{folder}/log"))
        applier = Applier(db._store, SiteSettings(OWN))
        before = resident_mib()
        forget_peak()
        began = time.perf_counter()
        relay_mib = 0.0
        if through_relay:
            channel = received(f"{folder}/relay", writer, log, applier)
            relay_mib = resident_mib("VmHWM") - before
            channel.apply_all()
        else:
            for unit in transactions(log, None, writer.end):
                assert isinstance(unit, EpochTransaction)
                applier.apply(unit)
        seconds = time.perf_counter() - began
        counters = applier.status()
        assert function is None or counters["trans_reject_count"] == 1, counters
        return {
            "rows": rows,
            "mode": mode,
            "log_mib": round(log_bytes / (1 << 20), 1),
            "before_mib": round(before, 1),
            "rise_mib": round(resident_mib("VmHWM") - before, 1),
            "receiving_rise_mib": round(relay_mib, 1),
            "seconds": round(seconds, 1),
            "refused": counters["trans_row_reject_count"],
        }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.applier_memory", description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[100_000, 1_000_000, 3_000_000])
    parser.add_argument("--mode", choices=list(MODES), nargs="+", default=list(MODES))
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.child:
        print(json.dumps(measure(given.rows[0], given.mode[0])))
        return 0
    found = []
    for rows in given.rows:
        for mode in given.mode:
            command = [sys.executable, "-m", "bench.applier_memory", "--child", "--rows", str(rows), "--mode", mode]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            found.append(json.loads(done.stdout.splitlines()[-1]))
            print(found[-1], flush=True)
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "applier-memory.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
