"""A binlog in memory with epoch transactions of a small table, and what a reader must find in it."""

from __future__ import annotations

import numpy as np

from tests.replication.support import entries_of
from tidemark.engine import types as t
from tidemark.engine.base.clock import ManualClock
from tidemark.engine.rows.row_format import RowFormat
from tidemark.engine.schema.column import Column
from tidemark.engine.schema.definition import TableDefinition
from tidemark.replication.binlog import events as e
from tidemark.replication.binlog.images import RowBatch, rule_of
from tidemark.replication.binlog.position import Position
from tidemark.replication.binlog.reader import BinlogReader, StatementMaps
from tidemark.replication.binlog.row_plan import RowImages, TablePlans
from tidemark.replication.binlog.writer import BinlogWriter, WriterOptions
from tidemark.replication.settings.binlog_type import binlog_type as type_of

STATUS = TablePlans(
    RowFormat(
        TableDefinition(
            9_999,
            1,
            "mysql.ndb_apply_status",
            (
                Column("server_id", t.UInt32),
                Column("epoch", t.UInt64),
                Column("log_name", t.VarChar(255)),
                Column("start_pos", t.UInt64),
                Column("end_pos", t.UInt64),
            ),
            ("server_id",),
        )
    )
)
TABLE = TablePlans(
    RowFormat(
        TableDefinition(
            2, 1, "d.t", (Column("id", t.Int64), Column("a", t.VarChar(9), True), Column("b", t.Blob)), "id"
        )
    )
)


def batch_of(plans, kind, old=None, new=None, binlog_type=7, as_called=False, **marks) -> RowBatch:
    """Return a batch; `old` and `new` are Python tuples."""
    rows = [*(old or ()), *(new or ())]
    words, starts = entries_of(plans.row_format, rows)
    count = len(old or ())
    before = starts[:count].copy() if old is not None else None
    after = starts[count:].copy() if new is not None else None
    marks = {name: np.array(values, np.int64) for name, values in marks.items()}
    return RowBatch(
        plans, rule_of(type_of(binlog_type)[0]), kind, RowImages(words, before, after), as_called=as_called, **marks
    )


def status_of(epoch, server_id=1) -> RowBatch:
    return batch_of(STATUS, e.WRITE, new=[(server_id, epoch, "", 0, 0)], as_called=True)


def writer_on(files, **options) -> BinlogWriter:
    durable = options.pop("durable", None)
    return BinlogWriter(files, ManualClock(), options=WriterOptions(**options), durable=durable)


def write_epoch(writer, epoch, rows):
    """Write one epoch transaction that inserts rows into d.t."""
    writer.begin([TABLE], status_of(epoch))
    if rows:
        writer.append(batch_of(TABLE, e.WRITE, new=rows))
    return writer.commit()


def rows_of(epoch, count=3, size=10):
    return [(epoch * 1000 + number, f"r{number}", bytes([number % 256]) * size) for number in range(count)]


def epochs_in(files, end=None, start=None) -> list[tuple[int, list[int]]]:
    """Return (epoch, ids) of every epoch transaction; statements are (0, text)."""
    reader = BinlogReader(files, start=start)
    maps = StatementMaps()
    found, current, ids = [], None, []
    end = end or end_of(files)
    for read in reader.events(end):
        event = read.event
        maps.observe(event)
        origin = read.at
        if isinstance(event, e.Query) and event.statement not in ("BEGIN", "COMMIT"):
            found.append((0, event.statement))
        if isinstance(event, e.Rows):
            name = maps.of(event, origin).name
            for chunk in maps.reader(event, origin).chunks(event.body, origin):
                if name == "mysql.ndb_apply_status":
                    current = chunk.after[1].to_pylist()[0]
                else:
                    ids += chunk.after[0].to_pylist()
        if read.is_boundary and current is not None:
            found.append((current, ids))
            current, ids = None, []
    assert current is None, "the binlog ends within a transaction"
    reader.close()
    return found


def end_of(files) -> Position:
    """Return the end of the newest file on disk."""
    names = [name for name in files.list("binlog") if name[-1].isdigit()]
    newest = max(names, key=lambda name: int(name.rpartition(".")[2]))
    return Position(newest, files.size(f"binlog/{newest}"))
