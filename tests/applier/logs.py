"""Binlogs with hand-made epoch transactions, and a store with an applier for them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

import tidemark as tm
from tests.replication.stage import STATUS
from tests.replication.support import entries_of
from tests.store.support import open_memory
from tidemark.engine.base.clock import ManualClock
from tidemark.engine.rows.row_format import RowFormat
from tidemark.engine.schema.column import Column
from tidemark.engine.schema.definition import TableDefinition
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles
from tidemark.replication.applier.applier import Applied, Applier, ApplierOptions
from tidemark.replication.applier.transactions import EpochTransaction, LogFolder, transactions
from tidemark.replication.binlog import events as e
from tidemark.replication.binlog.images import BinlogOptions, RowBatch, rule_of
from tidemark.replication.binlog.position import Position
from tidemark.replication.binlog.row_plan import RowImages, TablePlans
from tidemark.replication.binlog.writer import BinlogWriter, WriterOptions
from tidemark.replication.settings.binlog_type import binlog_type as type_of
from tidemark.replication.settings.conflict_function import Role
from tidemark.replication.settings.setup import SiteSettings
from tidemark.replication.settings.system_tables import MADE_WITH_STORE, NDB_APPLY_STATUS, NDB_REPLICATION_TABLE

SOURCE = 7
OWN = 1
COLUMNS = (
    tm.Column("id", tm.Int64),
    tm.Column("name", tm.VarChar(20), nullable=True),
    tm.Column("stamp", tm.UInt64, default=0),
)
NAME = "d.t"
Row = tuple[Any, ...]


class Log:
    """A source's binlog under construction. Rows belong to a table, defined as the source has it."""

    def __init__(self, files: Any = None, **options: Any) -> None:
        self.files = files or MemoryFiles()
        images = BinlogOptions(transaction_id=True, empty_update=True)
        self.writer = BinlogWriter(
            self.files, ManualClock(), options=WriterOptions(**{"server_id": SOURCE, "images": images, **options})
        )
        self.plans: dict[str, TablePlans] = {}
        self.table(NAME, COLUMNS, ("id",))

    def table(self, name: str, columns: Sequence[Column], key: Sequence[str]) -> None:
        """Define a table as the source has it; a second call changes it."""
        version = self.plans[name].definition.version + 1 if name in self.plans else 1
        definition = TableDefinition(10 + len(self.plans), version, name, tuple(columns), tuple(key))
        self.plans[name] = TablePlans(RowFormat(definition))

    def begin(self, epoch: int, server_id: int = SOURCE) -> None:
        self.writer.begin((), batch_of(STATUS, e.WRITE, None, [(server_id, epoch, "", 0, 0)], as_called=True))

    def position(self, server_id: int, epoch: int, logger_id: int = SOURCE) -> None:
        row = [(server_id, epoch, "", 0, 0)]
        self.writer.append(batch_of(STATUS, e.WRITE, None, row, as_called=True, server_ids=logger_id))

    def rows(
        self,
        kind: int,
        old: Sequence[Row] | None = None,
        new: Sequence[Row] | None = None,
        name: str = NAME,
        binlog_type: int = 7,
        **marks: Any,
    ) -> None:
        self.writer.append(batch_of(self.plans[name], kind, old, new, binlog_type, **marks))

    def insert(self, *rows: Row, **marks: Any) -> None:
        self.rows(e.WRITE, None, rows, **marks)

    def update(self, *pairs: tuple[Row, Row], **marks: Any) -> None:
        self.rows(e.UPDATE, [old for old, _ in pairs], [new for _, new in pairs], **marks)

    def delete(self, *rows: Row, **marks: Any) -> None:
        self.rows(e.DELETE, rows, **marks)

    def commit(self) -> Position:
        return self.writer.commit().end

    def epoch(self, epoch: int, *rows: Row) -> Position:
        """Add an epoch that inserts rows."""
        self.begin(epoch)
        if rows:
            self.insert(*rows)
        return self.commit()

    def units(self, start: Position | None = None) -> Iterator[Any]:
        return transactions(LogFolder(self.files), start, self.writer.end)


def batch_of(
    plans: TablePlans,
    kind: int,
    old: Sequence[Row] | None,
    new: Sequence[Row] | None,
    binlog_type: int = 7,
    as_called: bool = False,
    **marks: Any,
) -> RowBatch:
    """Return a batch of rows. marks: numbers for all rows, or sequences with one for each."""
    rows = [*(old or ()), *(new or ())]
    words, starts = entries_of(plans.row_format, rows)
    count = len(old or ())
    before = starts[:count].copy() if old is not None else None
    after = starts[count:].copy() if new is not None else None
    images = RowImages(words, before, after)
    arrays = {
        name: np.full(images.count, value, np.int64) if isinstance(value, int) else np.array(value, np.int64)
        for name, value in marks.items()
    }
    return RowBatch(plans, rule_of(type_of(binlog_type)[0]), kind, images, as_called=as_called, **arrays)


def make_store(files: Any = None, function: str | None = None, binlog_type: int = 7, **options: Any) -> tm.Database:
    """Make a store with the system tables, and d.t with this conflict function."""
    db = open_memory(files, **options)
    for definition in (*MADE_WITH_STORE, NDB_REPLICATION_TABLE):
        if definition.name not in db:
            db.create_table(definition.name, definition.columns, definition.primary_key)
    if NAME not in db:
        db.create_table(NAME, COLUMNS, "id")
        with db.transaction() as txn:
            conflict_fn = None if function is None else function.encode()
            txn.insert(NDB_REPLICATION_TABLE.name, (b"d", b"t", 0, binlog_type, conflict_fn))
    return db


def applier_of(db: tm.Database, role: Role = Role.NONE, **options: Any) -> Applier:
    return Applier(db.parts.store, SiteSettings(OWN, role), ApplierOptions(**options))


def apply_all(applier: Applier, log: Log, start: Position | None = None) -> list[Applied]:
    """Apply the log from a position on."""
    done = []
    for each in log.units(start):
        assert isinstance(each, EpochTransaction)
        done.append(applier.apply(each))
    return done


def status_of(applier: Applier) -> dict[str, int]:
    """Return the values of the applier's status variables, by their names in
    `tidemark.replication.settings.status`.
    """
    return {
        **applier.counters.totals,
        "conflict_last_conflict_epoch": applier.last_conflict.last_conflict,
        "conflict_last_stable_epoch": applier.last_conflict.last_stable,
        "replica_max_replicated_epoch": applier.mre.value,
    }


def rows_in(db: tm.Database, name: str = NAME) -> dict[Any, Row]:
    return {row[0]: tuple(row) for row in db[name].scan()}


def positions_in(db: tm.Database) -> dict[int, int]:
    return {row[0]: row[1] for row in db[NDB_APPLY_STATUS].scan()}
