"""Rows of a real store, in memory and on disk: through the binlog and into another store."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tests.replication.stage import epochs_in, status_of, writer_on
from tests.replication.support import EXTREMES, every_type, extreme_rows
from tests.rows.strategies import expected_row
from tests.store.support import open_memory
from tidemark.engine.access import batch_operations
from tidemark.engine.base.errors import PageDamaged
from tidemark.engine.memory.arena_layout import VAR_WORDS_MASK
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles
from tidemark.replication.binlog import events as e
from tidemark.replication.binlog.images import RowBatch, rule_of
from tidemark.replication.binlog.reader import BinlogReader, StatementMaps, present
from tidemark.replication.binlog.row_plan import BodyReader, RowImages, TablePlans
from tidemark.replication.settings.binlog_type import binlog_type as type_of

LARGE = {"page_buffer": "512 KiB", "undo_log": "8 MiB", "redo_log": "8 MiB", "transaction_memory": "4 MiB"}


def store_with(storage):
    db = open_memory(MemoryFiles(), **LARGE)
    if storage == "disk":
        db.create_tablespace("main", size="4 MiB", page_size="8 KiB", extent="64 KiB")
    table = db.create_table("d.every", every_type(storage).columns, "id")
    return db, table


def write_scan(table, binlog_type=7, columns=None, is_alone=False):
    """Write all rows of a scan as one epoch transaction; return (files, end). is_alone: cut the scan's memory right
    after the only row.
    """
    files = MemoryFiles()
    writer = writer_on(files)
    plans = TablePlans(table.table.format)
    writer.begin([plans], status_of(1))
    for batch in batch_operations.scan(table.table, None, columns=columns):
        entries = batch.entries
        if is_alone:
            fixed = int(batch.offsets[0]) + table.table.format.fixed_words
            entries = entries[: fixed + (int(entries[fixed]) & VAR_WORDS_MASK)].copy()
        rows = RowImages(entries, None, batch.offsets[: batch.count].copy())
        writer.append(RowBatch(plans, rule_of(type_of(binlog_type)[0]), e.WRITE, rows))
    writer.commit()
    return files, writer.end


@pytest.mark.parametrize("storage", ["memory", "disk"])
def test_scanned_rows_go_through_the_binlog_into_another_store(storage):
    source, table = store_with(storage)
    rows = extreme_rows()
    with source.transaction() as txn:
        for row in rows:
            txn.insert("d.every", row)
    files, end = write_scan(table)
    target, copy = store_with(storage)
    maps = StatementMaps()
    kinds = dict(enumerate([column.type for column in copy.definition.columns]))
    for read in BinlogReader(files).events(end):
        maps.observe(read.event)
        origin = read.at
        if isinstance(read.event, e.Rows) and maps.of(read.event, origin).name == "d.every":
            types = [column.type for column in maps.of(read.event, origin).columns]
            reader = BodyReader(types, *present(read.event), targets=kinds)
            for chunk in reader.chunks(read.event.body, origin):
                batch = pa.RecordBatch.from_arrays(list(chunk.after.values()), names())
                with target.transaction() as txn:
                    txn.insert_many("d.every", batch)
    definition = copy.definition
    for row in rows:
        assert expected_row(tuple(copy.get(row[0])), definition) == expected_row(tuple(table.get(row[0])), definition)
    assert len(copy) == len(rows)
    source.close()
    target.close()


def names():
    return ["id", *(f"c{place}" for place in range(len(EXTREMES)))]


def test_entries_without_disk_parts_give_their_memory_columns_and_are_refused_for_the_others():
    source, table = store_with("disk")
    with source.transaction() as txn:
        txn.insert("d.every", extreme_rows()[0])
    with pytest.raises(PageDamaged):
        write_scan(table, columns=["id"], is_alone=True)
    files, _ = write_scan(table, binlog_type=1, columns=["id"])
    assert epochs_in(files) == [(1, [])]
    (batch,) = batch_operations.scan(table.table, None, columns=["id"])
    plans = TablePlans(table.table.format)
    writer = writer_on(MemoryFiles())
    writer.begin([plans])
    rows = RowImages(batch.entries, batch.offsets[:1].copy(), None)
    assert writer.append(RowBatch(plans, rule_of(type_of(2)[0]), e.DELETE, rows)) == 1
    writer.commit()
    source.close()
