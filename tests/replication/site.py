"""A store with a binlog over files in memory, and the content of its binlog as plain values."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import Any

from tests.replication.stage import end_of
from tests.store.support import ACCOUNT, SMALL
from tidemark.database import Database
from tidemark.engine.base.clock import ManualClock
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles
from tidemark.replication.binlog import events as e
from tidemark.replication.binlog.position import Position
from tidemark.replication.binlog.reader import BinlogReader, StatementMaps
from tidemark.replication.mysql_source.gtid_sets import GtidSet
from tidemark.replication.settings.options import split_keywords

WHOLE = {"log_updated_only": False, "log_update_as_write": False}
DISK = {"page_buffer": "512 KiB", "undo_log": "8 MiB", "redo_log": "8 MiB"}
KINDS = {e.WRITE: "WRITE_ROW", e.UPDATE: "UPDATE_ROW", e.DELETE: "DELETE_ROW"}


def open_site(files: Any = None, through: int | None = None, clock: Any = None, **options: Any) -> Database:
    """Open a database on simulated files, driven by hand, with a binlog unless `log_bin` is None."""
    given = {**SMALL, "server_id": 1, "log_bin": "binlog", **options}
    parsed, replication = split_keywords(given)
    clock = clock or ManualClock(seed=given["server_id"])  # a new store gets its UUID from it
    return Database(files or MemoryFiles(), parsed, clock, None, through, None, replication)


def account_site(files: Any = None, **options: Any) -> tuple[Database, Any]:
    """Open a site that logs whole images, with a table of accounts; return (database, table)."""
    db = open_site(files, **{**WHOLE, **options})
    if "test.account" not in db:
        db.create_table("test.account", ACCOUNT, "id")
        db.sync()
    return db, db["test.account"]


@dataclass
class Row:
    """A row of a row event: `before` and `after` by column name, None if there is no such image."""

    table: str
    kind: str
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    server_id: int
    flags: int
    transaction_id: int | None


@dataclass
class Epoch:
    """A transaction of the binlog. A statement or an incident has `epoch` 0, and `statement` or `incident`."""

    epoch: int = 0
    rows: list[Row] = field(default_factory=list)
    statement: str | None = None
    incident: str | None = None


def transactions_in(files: Any, start: Any = None, end: Any = None, base: str = "binlog") -> list[Epoch]:
    """Return everything in a binlog, in order."""
    reader = BinlogReader(files, base=base, start=start)
    maps = StatementMaps()
    found: list[Epoch] = []
    current = Epoch()
    for read in reader.events(end or end_of(files)):
        event = read.event
        maps.observe(event)
        if isinstance(event, e.Query) and event.statement not in ("BEGIN", "COMMIT"):
            current.statement = event.statement
        if isinstance(event, e.Incident):
            current.incident = event.message
        if isinstance(event, e.Rows):
            for row in _rows(maps, read):
                if row.table == "mysql.ndb_apply_status" and not current.epoch:
                    current.epoch = row.after["epoch"]
                    assert (row.after["log_name"], row.after["start_pos"], row.after["end_pos"]) == ("", 0, 0)
                    assert row.kind == "WRITE_ROW" and row.after["server_id"] == row.server_id
                else:
                    assert current.epoch, "rows before the epoch is known"
                    current.rows.append(row)
        if read.is_boundary and (current.epoch or current.statement or current.incident):
            found.append(current)
            current = Epoch()
    reader.close()
    assert not current.rows and not current.epoch
    return found


def _rows(maps, read):
    event = read.event
    origin = read.at
    table = maps.of(event, origin)
    names = [column.name for column in table.columns]
    for chunk in maps.reader(event, origin).chunks(event.body, origin):
        for number in range(chunk.count):
            images = [
                {names[place]: column[number].as_py() for place, column in image.items()}
                if present is not None
                else None
                for present, image in ((event.before, chunk.before), (event.after, chunk.after))
            ]
            yield Row(
                table.name,
                KINDS[event.kind],
                *images,
                read.header.server_id,
                event.conflict_flags,
                event.transaction_id,
            )


def epochs_in(files: Any) -> list[Epoch]:
    """Return the epoch transactions of a binlog."""
    return [each for each in transactions_in(files) if each.epoch]


def numbers_in(files: Any) -> list[tuple[uuid.UUID, int]]:
    """Return the GTIDs of the transactions in all files, and check each file's set of earlier ones."""
    found: list[tuple[uuid.UUID, int]] = []
    last: dict[uuid.UUID, int] = {}
    with BinlogReader(files) as reader:
        for read in reader.events(end_of(files)):
            if isinstance(read.event, e.PreviousGtids):
                before = GtidSet.unpack(read.event.sets)
                for server, intervals in before.by_uuid.items():
                    ((first, number),) = intervals
                    assert first == 1 and last.get(server, number) == number
                    last[server] = number
            elif isinstance(read.event, e.Gtid) and read.event.number:
                server = uuid.UUID(bytes=read.event.source)
                assert read.event.number == last.get(server, 0) + 1, "a number is missing or given twice"
                last[server] = read.event.number
                found.append((server, read.event.number))
    return found


def starts_in(files: Any) -> list[Position]:
    """Return where each transaction begins."""
    with BinlogReader(files) as reader:
        return [read.at for read in reader.events(end_of(files)) if isinstance(read.event, e.Gtid)]


def replayed(files: Any) -> dict[str, dict[Any, dict[str, Any]]]:
    """Return the tables that result if whole images are applied strictly, by name and key (`id`)."""
    tables: dict[str, dict[Any, dict[str, Any]]] = {}
    for each in epochs_in(files):
        for row in each.rows:
            rows = tables.setdefault(row.table, {})
            if row.kind == "WRITE_ROW":
                assert row.after["id"] not in rows
            else:
                assert rows.pop(row.before["id"]) == row.before
            if row.after is not None:
                rows[row.after["id"]] = row.after
    return tables


def index_rows(db: Database) -> list[dict[str, Any]]:
    """Return the rows of `ndb_binlog_index`, by epoch."""
    rows = [row._asdict() for row in db["mysql.ndb_binlog_index"].scan()]
    return sorted(rows, key=lambda row: (row["epoch"], row["orig_server_id"], row["orig_epoch"]))
