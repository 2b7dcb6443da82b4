"""Files of a binlog: written, read, rotated, purged, recovered; and every disk fault."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from tests.replication.stage import (
    TABLE,
    batch_of,
    end_of,
    epochs_in,
    rows_of,
    status_of,
    write_epoch,
    writer_on,
)
from tidemark.engine import types as t
from tidemark.engine.base.clock import ManualClock
from tidemark.engine.base.errors import (
    BinlogDamaged,
    FileMissing,
    FileTruncated,
    Rejected,
)
from tidemark.engine.rows.row_format import RowFormat
from tidemark.engine.schema.column import Column
from tidemark.engine.schema.definition import TableDefinition
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles
from tidemark.replication.binlog import binlog_layout as b
from tidemark.replication.binlog import events as e
from tidemark.replication.binlog.images import BinlogOptions
from tidemark.replication.binlog.index import BinlogIndex
from tidemark.replication.binlog.position import Position
from tidemark.replication.binlog.reader import BinlogReader, StatementMaps, find_epoch
from tidemark.replication.binlog.row_plan import TablePlans
from tidemark.replication.binlog.scan import read_format, walk
from tidemark.replication.binlog.table_map import table_map
from tidemark.replication.binlog.writer import EVENT_ROWS_BYTES, BinlogWriter, WriterOptions

SEED = 5_310_877
GOLDEN = "e5a144a008f20a08da8d8a2cbb069a29751eb9a39caabd3e048e47bf83619ac6"


def events_of(files, start=None):
    return list(BinlogReader(files, start=start).events(end_of(files)))


def ids(rows):
    return [row[0] for row in rows]


def flags_of(files, name):
    file = files.open(f"binlog/{name}")
    return read_format(files, file, name)[0].flags


def test_epoch_transaction_has_its_events_in_order_and_one_statement_end():
    files = MemoryFiles()
    writer = writer_on(files)
    written = write_epoch(writer, 5, rows_of(5))
    kinds = [read.header.type for read in events_of(files, written.start)]
    assert kinds == [
        b.ANONYMOUS_GTID_EVENT,
        b.QUERY_EVENT,
        b.TABLE_MAP_EVENT,
        b.TABLE_MAP_EVENT,
        b.WRITE_ROWS,
        b.WRITE_ROWS,
        b.QUERY_EVENT,
    ]
    reads = events_of(files, written.start)
    assert [read.event.is_statement_end for read in reads if isinstance(read.event, e.Rows)] == [False, True]
    assert [read.is_boundary for read in reads] == [False] * 6 + [True]
    assert reads[0].at == written.start and reads[-1].next == written.end == writer.end == writer.synced
    assert epochs_in(files) == [(5, ids(rows_of(5)))]


def test_rows_of_an_event_take_eight_kilobytes_at_most_and_a_larger_row_one_of_its_own():
    files = MemoryFiles()
    writer = writer_on(files)
    rows = [*rows_of(1, 300, 100), (9, None, b"x" * 50_000), (10, "", b"")]
    write_epoch(writer, 1, rows)
    sizes = [len(read.event.body) for read in events_of(files) if isinstance(read.event, e.Rows)][1:]
    assert max(size for size in sizes if size < 50_000) <= EVENT_ROWS_BYTES
    assert len([size for size in sizes if size > 50_000]) == 1 and len(sizes) > 4
    assert epochs_in(files) == [(1, ids(rows))]


def test_epoch_larger_than_every_buffer_passes_with_bounded_memory():
    files = MemoryFiles()
    writer = writer_on(files)
    writer.begin([TABLE], status_of(3))
    kept = 0
    for number in range(40):
        rows = [(number * 1000 + each, "x", bytes(4_000)) for each in range(100)]
        assert writer.append(batch_of(TABLE, e.WRITE, new=rows)) == 100
        kept = max(kept, len(writer.buffer))
    writer.commit()
    assert files.size("binlog/binlog.000001") > 15 << 20
    assert kept <= (1 << 20) + (64 << 10)
    statements = [read.event.is_statement_end for read in events_of(files) if isinstance(read.event, e.Rows)]
    assert 10 < sum(statements) < len(statements), "a statement ends every so often, for tools that keep it in memory"
    assert len(epochs_in(files)[0][1]) == 4_000


def test_table_that_was_not_announced_begins_a_statement_with_its_map():
    files = MemoryFiles()
    writer = writer_on(files)
    writer.begin([], status_of(8))
    writer.append(batch_of(TABLE, e.WRITE, new=rows_of(8)))
    writer.commit()
    reads = [read.event for read in events_of(files)]
    assert [type(each).__name__ for each in reads[3:]] == [
        "Query",
        "TableMap",
        "Rows",
        "TableMap",
        "TableMap",
        "Rows",
    ] + ["Query"]
    assert reads[5].is_statement_end
    assert epochs_in(files) == [(8, ids(rows_of(8)))]


def test_marks_of_rows_divide_events_and_come_back():
    files = MemoryFiles()
    writer = writer_on(files, server_id=1, images=BinlogOptions(transaction_id=True))
    writer.begin([TABLE])
    rows = rows_of(1, 6)
    marks = {"transaction_ids": [7, 7, 8, 8, 8, 0], "conflict_flags": [0, 0, 0, 2, 2, 0]}
    writer.append(batch_of(TABLE, e.WRITE, new=rows, server_ids=[0, 0, 0, 0, 9, 9], **marks))
    writer.commit()
    reads = [read for read in events_of(files) if isinstance(read.event, e.Rows)]
    found = [(read.event.transaction_id, read.event.conflict_flags, read.header.server_id) for read in reads]
    assert found == [(7, 0, 1), (8, 0, 1), (8, 2, 1), (8, 2, 9), (None, 0, 9)]


def test_version_1_row_events_have_neither_ids_nor_flags():
    files = MemoryFiles()
    writer = writer_on(files, images=BinlogOptions(transaction_id=True, v1_row_events=True))
    write_epoch(writer, 1, rows_of(1))
    rows = [read.event for read in events_of(files) if isinstance(read.event, e.Rows)]
    assert {each.type for each in rows} == {b.WRITE_ROWS_V1}
    assert epochs_in(files) == [(1, ids(rows_of(1)))]


def test_transaction_rolled_back_leaves_nothing():
    files = MemoryFiles()
    writer = writer_on(files)
    write_epoch(writer, 1, rows_of(1))
    size = files.size("binlog/binlog.000001")
    writer.begin([TABLE], status_of(2))
    for _ in range(5):
        writer.append(batch_of(TABLE, e.WRITE, new=rows_of(2, 100, 10_000)))
    assert files.size("binlog/binlog.000001") > size
    writer.roll_back()
    assert files.size("binlog/binlog.000001") == size
    write_epoch(writer, 3, rows_of(3))
    assert [epoch for epoch, _ in epochs_in(files)] == [1, 3]
    gtids = [read.event.sequence_number for read in events_of(files) if isinstance(read.event, e.Gtid)]
    assert gtids == [1, 2]


def test_sync_binlog_syncs_after_so_many_transactions():
    files = MemoryFiles()
    writer = writer_on(files, sync_binlog=3)
    ends = [write_epoch(writer, epoch, rows_of(epoch)).end for epoch in range(1, 8)]
    assert writer.end == ends[-1] and writer.synced == ends[5]
    writer.sync()
    assert writer.synced == ends[-1]
    dropped = files.image(lambda piece: False)
    assert [epoch for epoch, _ in epochs_in(dropped)] == list(range(1, 8))


def test_rotation_by_size_links_files_and_reading_goes_over_them():
    files = MemoryFiles()
    writer = writer_on(files, file_bytes=2_000)
    for epoch in range(1, 12):
        write_epoch(writer, epoch, rows_of(epoch, 3, 200))
    writer.close()
    names = writer.index.names
    assert len(names) > 3
    assert epochs_in(files) == [(epoch, ids(rows_of(epoch))) for epoch in range(1, 12)]
    assert [flags_of(files, name) & b.FLAG_IN_USE for name in names] == [0] * len(names)
    lasts = []
    for name in names:
        file = files.open(f"binlog/{name}")
        lasts.append(list(walk(files, file, name))[-1].event)
    assert lasts == [*(e.Rotate(name) for name in names[1:]), e.Stop()]
    created = [read.event.created_s for read in events_of(files) if isinstance(read.event, e.FormatDescription)]
    assert created[0] > 0 and set(created[1:]) == {0}


def test_statement_and_incident_stand_between_epochs():
    files = MemoryFiles()
    writer = writer_on(files)
    write_epoch(writer, 1, [])
    writer.statement("CREATE TABLE ü (a INT)", "d")
    writer.incident("lost events")
    write_epoch(writer, 2, rows_of(2))
    assert epochs_in(files) == [(1, []), (0, "CREATE TABLE ü (a INT)"), (2, ids(rows_of(2)))]
    (incident,) = [read for read in events_of(files) if isinstance(read.event, e.Incident)]
    assert incident.event.message == "lost events" and incident.is_boundary


# --- reading ----------------------------------------------------------------------------------------
def test_reader_follows_a_file_that_grows_and_the_next_ones():
    files = MemoryFiles()
    writer = writer_on(files, file_bytes=3_000)
    reader = BinlogReader(files)
    seen = []
    for epoch in range(1, 20):
        write_epoch(writer, epoch, rows_of(epoch, 3, 100))
        seen += list(reader.events(writer.end))
        assert reader.position == writer.end
        assert list(reader.events(writer.end)) == []
    whole = events_of(files)
    assert [read.at for read in seen] == [read.at for read in whole]
    # Only the mark that a file is being written changes.
    assert [read.event for read in seen] == [read.event for read in whole]


def test_reader_from_any_boundary_reads_the_rest():
    files = MemoryFiles()
    writer = writer_on(files, file_bytes=2_500)
    for epoch in range(1, 10):
        write_epoch(writer, epoch, rows_of(epoch, 2, 100))
    whole = events_of(files)
    starts = [read.next for read in whole if read.is_boundary]
    for start in starts:
        rest = [read.raw for read in events_of(files, start)]
        assert rest == [read.raw for read in whole][len(whole) - len(rest) :]


def test_epoch_is_found_in_any_file():
    files = MemoryFiles()
    writer = writer_on(files, file_bytes=2_500)
    written = {}
    for epoch in range(10, 30, 2):
        written[epoch] = write_epoch(writer, epoch, rows_of(epoch, 2, 100))
    for epoch in range(10, 30):
        assert find_epoch(files, epoch, writer.end) == written[epoch - epoch % 2].end
    assert find_epoch(files, 99, writer.end) == written[28].end
    assert find_epoch(files, 9, writer.end) is None
    assert find_epoch(files, 15, writer.end, server_id=1) == written[14].end
    assert find_epoch(files, 15, writer.end, server_id=2) is None


def test_reading_past_the_end_and_from_a_file_that_is_gone_is_refused():
    files = MemoryFiles()
    writer = writer_on(files)
    write_epoch(writer, 1, rows_of(1))
    with pytest.raises(FileTruncated):
        list(BinlogReader(files).events(Position(writer.end.file, writer.end.position + 1)))
    with pytest.raises(Rejected):
        BinlogReader(files, start=Position("binlog.000009", 4))


def test_position_within_an_event_is_damage_and_no_other_error():
    files = MemoryFiles()
    writer = writer_on(files)
    written = write_epoch(writer, 1, rows_of(1))
    for offset in range(1, 60):
        start = Position(written.start.file, written.start.position + offset)
        try:
            list(BinlogReader(files, start=start).events(writer.end))
        except BinlogDamaged as error:
            assert error.file == written.start.file
        else:
            assert start.position in {read.at.position for read in events_of(files)}


def test_any_flipped_bit_of_a_file_is_found():
    rng = np.random.default_rng(SEED)
    files = MemoryFiles()
    writer = writer_on(files)
    write_epoch(writer, 1, rows_of(1))
    writer.close()
    content = files.snapshot()
    (name,) = writer.index.names
    for _ in range(150):
        flipped = bytearray(content[f"binlog/{name}"])
        place = int(rng.integers(len(flipped)))
        flipped[place] ^= 1 << int(rng.integers(8))
        if place == b.FIRST_POSITION + b.FLAGS_OFFSET:
            continue
        with pytest.raises(BinlogDamaged):
            events_of(MemoryFiles.from_snapshot({**content, f"binlog/{name}": bytes(flipped)}))


def test_event_that_claims_gigabytes_takes_no_memory_for_them():
    files = MemoryFiles()
    writer = writer_on(files)
    write_epoch(writer, 1, rows_of(1))
    name, position = writer.end
    path = f"binlog/{name}"
    raw = bytearray(e.frame(e.Xid(1), position, timestamp_s=1, server_id=1))
    raw[9:13] = (2**32 - 1).to_bytes(4, "little")
    file = files.open(path, writable=True)
    files.pwrite(file, position, bytes(raw))
    with pytest.raises(BinlogDamaged):
        list(BinlogReader(files, start=writer.end).events(end_of(files)))


def test_status_table_of_another_shape_names_no_epoch():
    files = MemoryFiles()
    writer = writer_on(files)
    for columns in ([Column("server_id", t.UInt32)], [Column("a", t.Text), Column("b", t.Text, True)]):
        key = columns[0].name
        if len(columns) > 1:
            columns.insert(0, Column("id", t.VarChar(9)))
            key = "id"
        definition = TableDefinition(5 + len(columns), 1, "mysql.ndb_apply_status", tuple(columns), key)
        plans = TablePlans(RowFormat(definition))
        row = (1,) if len(columns) == 1 else ("x", "not a number", None)
        writer.begin([plans], batch_of(plans, e.WRITE, new=[row], as_called=True))
        writer.commit()
    assert find_epoch(files, 5, writer.end) is None


def test_rows_without_their_table_map_are_damage():
    rows = e.Rows(e.WRITE, 77, 1, None, b"\1", b"\xfe\1")
    with pytest.raises(BinlogDamaged):
        StatementMaps().of(rows, Position("x", 4))


def test_maps_of_a_statement_end_with_it():
    maps = StatementMaps()
    first = table_map(TABLE.definition, 5)
    maps.observe(first)
    maps.observe(e.Rows(e.WRITE, 5, 3, None, b"\7", b"", flags=b.ROWS_STATEMENT_END))
    maps.observe(table_map(TABLE.definition, 6))
    with pytest.raises(BinlogDamaged):
        maps.of(e.Rows(e.WRITE, 5, 3, None, b"\7", b""), Position("x", 4))


def test_files_have_the_bytes_they_always_had():
    # MySQL's format is fixed: a change of these bytes is a mistake, or a decision about the content.
    files = MemoryFiles()
    writer = writer_on(files, images=BinlogOptions(transaction_id=True))
    write_epoch(writer, 5, rows_of(5))
    writer.statement("CREATE TABLE x (a INT)", "d")
    writer.begin([TABLE])
    marks = {"transaction_ids": [9], "conflict_flags": [2]}
    writer.append(batch_of(TABLE, e.UPDATE, [(1, "a", b"")], [(1, None, b"x")], 6, **marks))
    writer.commit()
    writer.close()
    content = b"".join(
        content for name, content in sorted(files.snapshot().items()) if name.startswith("binlog/binlog.")
    )
    assert hashlib.sha256(content).hexdigest() == GOLDEN


# --- purging ----------------------------------------------------------------------------------------
def purge_stage():
    files = MemoryFiles()
    clock = ManualClock()
    writer = BinlogWriter(files, clock, options=WriterOptions(file_bytes=2_000))
    for epoch in range(1, 12):
        write_epoch(writer, epoch, rows_of(epoch, 3, 200))
        clock.advance(10)
    return files, clock, writer


def test_purge_by_name_removes_older_files_only():
    files, _, writer = purge_stage()
    names = list(writer.index.names)
    assert writer.index.purge_to(names[2]) == names[:2]
    assert writer.index.names == names[2:]
    assert [name for name in files.list("binlog") if name[-1].isdigit()] == names[2:]
    with pytest.raises(Rejected):
        writer.index.purge_to(names[0])
    write_epoch(writer, 50, rows_of(50))
    assert epochs_in(files)[-1][0] == 50


def test_purge_by_age_keeps_what_is_needed_and_the_newest():
    files, clock, writer = purge_stage()
    index, names = writer.index, list(writer.index.names)
    now_s = clock.wall_us() // 1_000_000
    assert index.expired(now_s - 1_000, keep=writer.end.file) == names[0]
    assert index.expired(now_s + 1_000, keep=writer.end.file) == names[-1]
    assert index.expired(now_s + 1_000, keep=names[1]) == names[1]
    # The second file was ended when the third one was begun.
    file = files.open(f"binlog/{names[2]}")
    begun_s = read_format(files, file, names[2])[0].timestamp_s
    assert index.expired(begun_s + 1, keep=names[-1]) == names[2]
    assert index.expired(begun_s, keep=names[-1]) == names[1]


def test_purge_by_size_keeps_the_newest_files_that_fit():
    files, _, writer = purge_stage()
    index, names = writer.index, list(writer.index.names)
    sizes = [files.size(f"binlog/{name}") for name in names]
    assert index.oversized(sum(sizes), keep=names[-1]) == names[0]
    assert index.oversized(sum(sizes) - 1, keep=names[-1]) == names[1]
    assert index.oversized(0, keep=names[-1]) == names[-1]
    assert index.oversized(0, keep=names[1]) == names[1]


# --- recovery ---------------------------------------------------------------------------------------
def test_torn_transaction_is_cut_off_and_the_next_file_begun():
    files = MemoryFiles()
    writer = writer_on(files)
    end = write_epoch(writer, 1, rows_of(1)).end
    writer.begin([TABLE], status_of(2))
    for _ in range(3):
        writer.append(batch_of(TABLE, e.WRITE, new=rows_of(2, 100, 10_000)))
    again = writer_on(files.kill())
    assert again.recovered == end
    assert again.index.names == ["binlog.000001", "binlog.000002"]
    files = again.files
    assert flags_of(files, "binlog.000001") & b.FLAG_IN_USE == 0
    assert flags_of(files, "binlog.000002") & b.FLAG_IN_USE == 1
    write_epoch(again, 2, rows_of(2))
    assert epochs_in(files) == [(1, ids(rows_of(1))), (2, ids(rows_of(2)))]


@pytest.mark.parametrize("is_closed", [False, True])
def test_file_cut_at_any_byte_ends_at_the_transaction_before_or_is_damage(is_closed):
    files = MemoryFiles()
    writer = writer_on(files)
    ends = [writer.end.position]
    for epoch in (1, 2):
        ends.append(write_epoch(writer, epoch, rows_of(epoch, 1)).end.position)
    if is_closed:
        writer.close()
    content = files.snapshot()
    whole = content["binlog/binlog.000001"]
    for size in sorted({*range(ends[0], len(whole), 3), *ends}):
        left = MemoryFiles.from_snapshot({**content, "binlog/binlog.000001": whole[:size]})
        if is_closed:
            # Story: a cut at the end of a transaction was taken for the end of the file, which has a STOP there.
            with pytest.raises(BinlogDamaged):
                writer_on(left)
            assert left.snapshot()["binlog/binlog.000001"] == whole[:size], "a refusal changes nothing"
        else:
            assert writer_on(left).recovered.position == max(end for end in ends if end <= size)


def test_cut_before_a_durable_place_is_damage():
    files = MemoryFiles()
    writer = writer_on(files)
    write_epoch(writer, 1, rows_of(1))
    end = write_epoch(writer, 2, rows_of(2)).end
    content = files.snapshot()
    content["binlog/binlog.000001"] = content["binlog/binlog.000001"][: end.position - 1]
    with pytest.raises(BinlogDamaged):
        writer_on(MemoryFiles.from_snapshot(content), durable=end)
    with pytest.raises(FileMissing):
        writer_on(MemoryFiles(), durable=end)


def test_file_the_index_names_and_that_is_gone_is_reported():
    files = MemoryFiles()
    writer = writer_on(files)
    writer.rotate()
    content = files.snapshot()
    del content["binlog/binlog.000001"]
    with pytest.raises(FileMissing):
        writer_on(MemoryFiles.from_snapshot(content))


@pytest.mark.parametrize("text", [b"other.000001\n", b"./binlog.000001\n./binlog.000003\n", b"\xff\xfe", b"\n"])
def test_index_that_does_not_list_consecutive_files_is_damage(text):
    files = MemoryFiles()
    writer_on(files)
    with pytest.raises(BinlogDamaged):
        BinlogIndex(MemoryFiles.from_snapshot({**files.snapshot(), "binlog/binlog.index": text}), "binlog", "binlog")


def test_file_with_transactions_that_no_index_names_is_reported_and_kept():
    files = MemoryFiles()
    writer = writer_on(files)
    write_epoch(writer, 1, rows_of(1))
    content = files.snapshot()
    del content["binlog/binlog.index"]
    left = MemoryFiles.from_snapshot(content)
    with pytest.raises(BinlogDamaged):
        writer_on(left)
    assert left.exists("binlog/binlog.000001")


@pytest.mark.parametrize("base", ["", "a/b", "a.b", "x" * 65, "ü"])
def test_base_name_that_cannot_be_a_file_is_refused(base):
    with pytest.raises(Rejected):
        BinlogIndex(MemoryFiles(), "binlog", base)
