"""A binlog as a stream of bytes cut anywhere: the ends of transactions are found, and no damaged byte passes."""

from __future__ import annotations

import random

import pytest

from tests.replication.stage import rows_of, write_epoch, writer_on
from tidemark.engine.base.errors import BinlogDamaged, LimitExceeded
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles
from tidemark.replication.binlog import binlog_layout as b
from tidemark.replication.binlog.position import Position
from tidemark.replication.binlog.stream import EventStream

SEED = 7_300_411


def history(files=None, epochs=(3, 5, 9)):
    """Return the bytes of one file, and [(start, end, epoch)] of its transactions."""
    files = files or MemoryFiles()
    writer = writer_on(files)
    written = []
    for epoch in epochs:
        written.append((*(at.position for at in write_epoch(writer, epoch, rows_of(epoch))), epoch))
    at = writer.statement("CREATE TABLE d.u (id INT PRIMARY KEY)", "d")
    written.append((at.start.position, at.end.position, 0))
    at = writer.incident("the log was full")
    written.append((at.start.position, at.end.position, 0))
    return files.snapshot()["binlog/binlog.000001"], written


def boundaries_of(data, cut, start=b.FIRST_POSITION):
    stream = EventStream("binlog.000001", start, 1)
    found = []
    for at in range(start, len(data), cut):
        found += stream.feed(data[at : at + cut])
    assert stream.position == len(data)
    return stream, [each for each in found if each.is_transaction]


@pytest.mark.parametrize("cut", [1, 7, 18, 19, 20, 100, 1 << 20])
def test_transactions_are_found_wherever_the_bytes_are_cut(cut):
    data, written = history()
    stream, found = boundaries_of(data, cut)
    assert [(each.start, each.end, each.epoch) for each in found] == written
    assert not stream.is_incomplete and stream.whole == len(data) and stream.newest_epoch == 9
    assert found[3].statement.statement.startswith("CREATE TABLE d.u") and found[3].statement.database == "d"
    assert found[4].incident == "the log was full"
    assert [each.statement for each in found[:3]] == [None] * 3
    assert all(each.server_id == 1 and each.commit_us for each in found[:4])


def test_stream_continues_between_two_transactions():
    data, written = history()
    _, found = boundaries_of(data, 50, start=written[1][1])
    assert [each.epoch for each in found] == [9, 0, 0]


def test_end_within_a_transaction_is_known():
    data, written = history()
    stream = EventStream("binlog.000001", b.FIRST_POSITION, 1)
    stream.feed(data[b.FIRST_POSITION : written[1][1] - 1])
    assert stream.is_incomplete and stream.whole == written[0][1]


def test_epoch_is_that_of_the_server_asked_for():
    data, _ = history()
    stream = EventStream("binlog.000001", b.FIRST_POSITION, 44)
    assert {each.epoch for each in stream.feed(data[b.FIRST_POSITION :])} == {0}


def test_no_damaged_byte_passes_a_boundary():
    """One bit of every byte of a file is flipped: the boundary after it is never reached. The one exception is the
    in-use flag of the format description, which changes in place and is not part of the checksum.
    """
    print("seed", SEED)
    rng = random.Random(SEED)
    data, written = history(epochs=(3, 5))
    passed = []
    for at in range(b.FIRST_POSITION, len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 1 << rng.randrange(8)
        stream = EventStream("binlog.000001", b.FIRST_POSITION, 1)
        try:
            stream.feed(damaged[b.FIRST_POSITION :])
        except (BinlogDamaged, LimitExceeded) as error:
            assert error.evidence["file"] == "binlog.000001"
            assert stream.whole <= at
            continue
            # A length that grew swallows the bytes after it, and the stream waits for more.
        if stream.is_incomplete and stream.whole <= at:
            continue
        passed.append(at)
    assert set(passed) <= {b.FIRST_POSITION + b.FLAGS_OFFSET}
    assert len(written) == 4


def test_damage_is_named_where_the_bytes_stand():
    data, written = history()
    start = written[0][1]
    stream = EventStream("binlog.000001", start, 1, Position("relay.000002", 500))
    damaged = bytearray(data[start:])
    damaged[40] ^= 1
    with pytest.raises(BinlogDamaged, match=r"relay\.000002 at 500"):
        stream.feed(damaged)


@pytest.mark.parametrize(
    ("kind", "size", "error"),
    [
        (b.QUERY_EVENT, 1 << 30, LimitExceeded),
        (b.ROTATE_EVENT, 1 << 20, LimitExceeded),
        (b.WRITE_ROWS, 22, BinlogDamaged),
        (b.FORMAT_DESCRIPTION_EVENT, 100, BinlogDamaged),
    ],
)
def test_header_that_cannot_be_is_refused_before_its_body_comes(kind, size, error):
    at = 400
    header = b.packer(b.EVENT_HEADER).pack(0, kind, 1, size, at + size & 0xFFFFFFFF, 0)
    with pytest.raises(error):
        EventStream("binlog.000001", at, 1).feed(header)


def test_file_must_begin_with_its_format():
    data, written = history()
    with pytest.raises(BinlogDamaged):
        EventStream("binlog.000001", b.FIRST_POSITION, 1).feed(data[written[0][0] :])
