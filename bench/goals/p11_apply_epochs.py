"""P11: applying replicated epochs with NDB$EPOCH detection, against the same without, and against MariaDB.

Each run applies the same binlog, written by the store's own writer: epochs that update existing rows, each a
transaction of its own. Tidemark closes ten epochs a second, as always, and is synced before the clock stops; MariaDB
flushes its log once a second. MariaDB is not a replica here: its client sends it the output of `mysqlbinlog`, row
events in BINLOG statements. Without an installed MariaDB that part is left out.
"""

from __future__ import annotations

import time
from contextlib import ExitStack

import numpy as np
import pyarrow as pa
import pytest

import tidemark as tm
from bench.context import Context
from bench.report import OURS, Line, at_most, line_of, times_faster
from bench.rounds import Run, Work, interleave
from bench.rows import COLUMNS
from tests.replication.mariadb_rig import mysqlbinlog, running_server
from tidemark.engine.access.batch_operations import read_keys, scan
from tidemark.engine.base.clock import SystemClock
from tidemark.engine.files.directory import PosixFiles
from tidemark.engine.rows.columnar import encode_keys
from tidemark.replication.applier.applier import Applier
from tidemark.replication.applier.transactions import EpochTransaction, LogFolder, transactions
from tidemark.replication.binlog import events as e
from tidemark.replication.binlog.images import BinlogOptions, RowBatch, rule_of
from tidemark.replication.binlog.position import Position
from tidemark.replication.binlog.row_plan import RowImages, TablePlans
from tidemark.replication.binlog.writer import BinlogWriter, WriterOptions
from tidemark.replication.settings.binlog_type import binlog_type
from tidemark.replication.settings.setup import SiteSettings
from tidemark.replication.settings.system_tables import MADE_WITH_STORE, NDB_APPLY_STATUS, NDB_REPLICATION_TABLE

RULE = rule_of(binlog_type(7)[0])
TABLE = "d.t"
EPOCHS = 20
SOURCE, OWN = 2, 1
WITHOUT = "without detection"
MARIADB = "mysqlbinlog | mariadb"
MARIADB_COLUMNS = (
    "id BIGINT PRIMARY KEY, b DOUBLE NOT NULL, ts BIGINT NOT NULL, name BINARY(20) NOT NULL,"
    " flags INT UNSIGNED NOT NULL"
)


def open_site(context: Context, name: str, function: str | None, background: bool) -> tm.Database:
    """Open a store with the rows and what replication needs; the peer has confirmed epochs newer than all rows."""
    settings = {"durability": "epoch", "redo_log": "2 GiB", "transaction_memory": "512 MiB"}
    db = context.open(name, background=background, **settings)
    for definition in (*MADE_WITH_STORE, NDB_REPLICATION_TABLE):
        if definition.name not in db:
            db.create_table(definition.name, definition.columns, definition.primary_key)
    db.create_table(TABLE, COLUMNS, "id").insert_many(context.table)
    confirmed = db.sync()
    with db.transaction() as txn:
        txn.write(NDB_REPLICATION_TABLE.name, (b"d", b"t", 0, 7, None if function is None else function.encode()))
        txn.write(NDB_APPLY_STATUS, (OWN, confirmed, "", 0, 0))
    return db


def _writer(context: Context, name: str) -> tuple[LogFolder, BinlogWriter]:
    folder = context.folder / name
    folder.mkdir()
    files = PosixFiles(str(folder))
    files.make_directory("binlog")
    options = WriterOptions(server_id=SOURCE, sync_binlog=0, images=BinlogOptions())
    return LogFolder(files), BinlogWriter(files, SystemClock(), options=options)


def write_rows(context: Context, source: tm.Database) -> LogFolder:
    """A binlog that inserts all rows, for a server that has none."""
    log, writer = _writer(context, "p11-first")
    table = source.parts.store.tables.named(TABLE)
    plans = TablePlans(table.format)
    writer.begin([plans])
    for batch in scan(table, None):
        rows = RowImages(batch.entries, None, batch.offsets[: batch.count].copy())
        writer.append(RowBatch(plans, RULE, e.WRITE, rows))
    writer.commit()
    writer.close()
    return log


def write_log(context: Context, source: tm.Database, epochs: int, rows: int) -> tuple[LogFolder, list[Position]]:
    """A binlog of epochs that update `rows` random rows each: (where it is, where each epoch ends)."""
    log, writer = _writer(context, "p11-log")
    plans = TablePlans(source.parts.store.tables.named(TABLE).format)
    status = TablePlans(source.parts.store.tables.named(NDB_APPLY_STATUS).format)
    ends = [writer.end]
    for epoch in range(1, epochs + 1):
        writer.begin([plans], _status(status, epoch))
        keys = np.sort(np.random.default_rng(epoch).choice(context.scale.rows, rows, replace=False))
        before, after = _images(source, keys, epoch)
        words = np.concatenate([before[0], after[0]])
        images = RowImages(words, before[1], after[1] + before[0].size)
        writer.append(RowBatch(plans, RULE, e.UPDATE, images))
        ends.append(writer.commit().end)
    writer.sync()
    return log, ends


def _status(plans: TablePlans, epoch: int) -> RowBatch:
    image = plans.row_format.encode_row((SOURCE, epoch, "", 0, 0))
    words = np.concatenate([np.zeros(3, np.int64), image])
    rows = RowImages(words, None, np.array([3], np.int64))
    return RowBatch(plans, RULE, e.WRITE, rows, as_called=True)


def _images(source: tm.Database, keys: np.ndarray, epoch: int) -> tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...]]:
    """(words, offsets) of rows before and after an epoch's change."""
    table = source.parts.store.tables.named(TABLE)
    encoded = encode_keys(table.format, {"id": keys})
    before = read_keys(table, encoded, None, False)[:2]
    changes = {"id": keys, "b": np.full(keys.size, float(epoch)), "ts": np.full(keys.size, epoch)}
    source[TABLE].update_many(pa.table(changes))
    return before, read_keys(table, encoded, None, False)[:2]


def measure(context: Context) -> list[Line]:
    """One line: seconds a row, an epoch at a time, each a transaction."""
    with ExitStack() as stack:
        return [_measure(context, stack)]


def _measure(context: Context, stack: ExitStack) -> Line:
    rows = max(1_000, context.scale.rows // 100)
    source = open_site(context, "p11-source", None, background=False)
    first = write_rows(context, source)
    log, ends = write_log(context, source, EPOCHS * (context.scale.rounds + 1), rows)
    source.close()
    works = []
    sites = []
    for name, function in ((OURS, "NDB$EPOCH()"), (WITHOUT, None)):
        db = open_site(context, f"p11-{'with' if function else 'without'}", function, background=True)
        sites.append(db)
        text = f"function {function}, epochs of {rows} updates, full images, durability=epoch, synced at the end"
        works.append(Work(name, _applying(db, log, ends), text))
    mariadb = _mariadb(context, first, ends, stack)
    if mariadb is not None:
        works.append(Work(MARIADB, mariadb, "one statement for each megabyte of events, InnoDB, flush at commit off"))
    line = line_of("P11", "applying an epoch, a row", interleave(works, EPOCHS * rows, context.scale.rounds))
    if mariadb is None:
        line.notes.append("MariaDB is not at hand: nothing was measured beside it")
    times_faster(line, MARIADB, 10)
    at_most(line, "times without detection", line.figures[OURS] / line.figures[WITHOUT], 1.3)
    for db in sites:
        db.close()
    return line


def _applying(db: tm.Database, log: LogFolder, ends: list[Position]) -> Run:
    """Return a function that applies the next epochs at each call, and returns the seconds."""
    applier = Applier(db.parts.store, SiteSettings(OWN))
    place = 0

    def run() -> float:
        nonlocal place
        first, place = place, place + EPOCHS
        began = time.perf_counter()
        for unit in transactions(log, ends[first], ends[place]):
            assert isinstance(unit, EpochTransaction)
            applier.apply(unit)
        db.sync()
        seconds = time.perf_counter() - began
        assert not applier.counters.totals["conflict_fn_epoch"], "rows were confirmed, so nothing is in conflict"
        return seconds

    return run


def _mariadb(context: Context, first: LogFolder, ends: list[Position], stack: ExitStack) -> Run | None:
    """As `_applying`, through MariaDB's tools; the events are text before the clock runs. None without them."""
    try:
        server = stack.enter_context(running_server())
    except pytest.skip.Exception as skipped:
        print(f"P11: {skipped}")
        return None
    server.sql("SET GLOBAL innodb_buffer_pool_size = 1 << 30")
    server.sql(f"CREATE DATABASE d; CREATE TABLE {TABLE} ({MARIADB_COLUMNS})")
    everything = [
        f"{context.folder}/p11-first/binlog/{name}" for name in first.files.list("binlog") if name[-1].isdigit()
    ]
    server.sql(mysqlbinlog("--disable-log-bin", "--database=d", *everything))
    found = server.sql(f"SELECT COUNT(*) FROM {TABLE}")
    assert int(found) == context.scale.rows, found
    place = 0

    def run() -> float:
        nonlocal place
        begin, place = place, place + EPOCHS
        start, end = ends[begin], ends[place]
        assert start.file == end.file
        range_ = (f"--start-position={start.position}", f"--stop-position={end.position}")
        path = f"{context.folder}/p11-log/binlog/{start.file}"
        text = mysqlbinlog("--disable-log-bin", "--database=d", *range_, path)
        began = time.perf_counter()
        server.sql(text)
        return time.perf_counter() - began

    return run
