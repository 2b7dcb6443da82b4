"""The source's side: where a replica continues, and that nothing is sent that must not be."""

from __future__ import annotations

import errno

import pytest

from tests.replication.channel_rig import Source, pieces
from tidemark.engine.base.errors import EpochGap, PeerError, PositionLost
from tidemark.recovery.crash_harness.disks.faults import FaultFiles, Rule
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles
from tidemark.replication.binlog.binlog_layout import FIRST_POSITION
from tidemark.replication.binlog.position import Position
from tidemark.replication.channel.receiver import is_transient
from tidemark.replication.channel.source import SourceBinlog
from tidemark.replication.wire.messages import Start


def test_files_come_whole_one_after_another():
    source = Source()
    source.write(*range(1, 20))
    assert len(source.writer.index.names) > 3
    held: dict[str, bytes] = {}
    for events in pieces(source, 777):
        held[events.at.file] = held.get(events.at.file, b"") + events.data
    disk = source.files.snapshot()
    assert {f"binlog/{name}": disk[f"binlog/{name}"][:4] + data for name, data in held.items()} == {
        name: data for name, data in disk.items() if name[-1].isdigit()
    }


def test_one_file_is_open_at_a_time(monkeypatch):
    """Story: a mutant kept every file open that it had read, and no test noticed. A source would run out of
    descriptors.
    """
    source, open_now = Source(), []
    opened, closed = source.files.open, source.files.close
    monkeypatch.setattr(source.files, "open", lambda *given: open_now.append(opened(*given)) or open_now[-1])
    monkeypatch.setattr(source.files, "close", lambda file: (closed(file), file in open_now and open_now.remove(file)))
    source.write(*range(1, 20))
    open_now.clear()  # those of the writer
    for _ in pieces(source, 777):
        assert len(open_now) <= 1


def test_file_is_closed_once_however_often_a_binlog_is_closed(monkeypatch):
    """Story: no test noticed a mutant that did not forget a closed file. It closed a descriptor twice, which may belong
    to another file by then.
    """
    source, closes = Source(), []
    source.write(1)
    binlog = source.binlog()
    assert binlog.read(binlog.locate(Start()), 1_000) is not None
    closed = source.files.close
    monkeypatch.setattr(source.files, "close", lambda file: closes.append(file) or closed(file))
    binlog.close()
    binlog.close()
    assert len(closes) == 1


def test_nothing_past_the_synced_end_is_served():
    source = Source(sync_binlog=0, file_bytes=1 << 20)
    source.write(1)
    source.writer.sync()
    end = source.writer.synced
    source.write(2, 3)
    assert source.writer.end != end
    last = list(pieces(source, 1 << 20))[-1]
    assert last.end == end.position
    assert source.binlog().newest() == (1, Position(*end))
    source.writer.sync()
    assert list(pieces(source, 1 << 20))[-1].end == source.writer.end.position


@pytest.mark.parametrize("keeps_rows", [True, False])
def test_epoch_is_found_by_its_row_or_in_the_files(keeps_rows):
    source = Source(keeps_rows=keeps_rows)
    source.write(*range(2, 30, 2))
    for epoch, end in source.epochs:
        at = source.binlog().locate(Start(epoch=epoch))
        assert at == Position(*end)
    assert source.binlog().locate(Start()) == Position("binlog.000001", FIRST_POSITION)


def test_epoch_without_a_transaction_is_found_after_the_one_before():
    source = Source()
    source.write(10, 20, 30)
    assert source.binlog().locate(Start(epoch=25)) == Position(*source.epochs[1][1])


def test_schema_change_after_the_last_epoch_is_not_left_out():
    source = Source()
    source.write(10)
    source.writer.statement("DROP TABLE d.t", "d")
    assert source.binlog().locate(Start(epoch=10)) == Position(*source.epochs[0][1])


def test_epoch_ahead_of_the_binlog_is_a_gap_unless_the_store_closed_it():
    source = Source()
    source.write(10, 20)
    with pytest.raises(EpochGap, match="epoch 21"):
        source.binlog().locate(Start(epoch=21))
    ahead = SourceBinlog(source.files, 1, source.end, closed_epoch=lambda: 30)
    assert ahead.locate(Start(epoch=21)) == Position(*source.epochs[1][1])


def test_epoch_that_another_node_decided_may_come_yet():
    """Story: a replica went from one node of a group to another, and was one epoch ahead of that node's binlog. The
    error said that this is another binlog than the one it followed, and advised to copy everything anew.
    """
    source = Source()
    source.write(10, 20)
    member = SourceBinlog(source.files, 1, source.end, closed_epoch=lambda: 20, may_lag=lambda: True)
    with pytest.raises(PeerError, match="does not have epoch 21 yet.*try again") as reported:
        member.locate(Start(epoch=21))
    assert is_transient(reported.value)
    assert member.locate(Start(epoch=20)) == Position(*source.epochs[1][1])


def test_positions_of_the_binlog_are_continued_from():
    source = Source()
    source.write(*range(1, 9))
    for epoch, end in source.epochs:
        assert source.binlog().locate(Start(epoch=epoch, file=end.file, position=end.position)) == Position(*end)


def test_position_of_another_history_is_a_gap():
    source = Source(file_bytes=1 << 20)
    source.write(10, 20, 30)
    (_, first), (_, second), (_, third) = source.epochs
    for start in (
        Start(epoch=10, file="binlog.000007", position=4),
        Start(epoch=10, file="other.000001", position=4),
        Start(epoch=30, file=third.file, position=third.position + 1),
        Start(epoch=10, file=first.file, position=first.position + 3),
        Start(epoch=25, file=first.file, position=first.position),
    ):
        with pytest.raises(EpochGap):
            source.binlog().locate(start)
    assert source.binlog().locate(Start(epoch=20, file=second.file, position=second.position)) == Position(*second)


def test_purged_positions_are_lost():
    source = Source()
    source.write(*range(1, 20))
    names = list(source.writer.index.names)
    source.writer.index.purge_to(names[2])
    for start in (Start(), Start(epoch=1), Start(epoch=1, file=names[0], position=4)):
        with pytest.raises(PositionLost):
            source.binlog().locate(start)
    epoch, end = next((epoch, end) for epoch, end in source.epochs if end.file == names[2])
    assert source.binlog().locate(Start(epoch=epoch)) == Position(*end)


def test_file_that_is_purged_while_it_is_read_is_read_to_its_end_and_no_further():
    source = Source()
    source.write(*range(1, 20))
    names = list(source.writer.index.names)
    size = source.files.size(f"binlog/{names[0]}")
    binlog = source.binlog()
    at, data = binlog.read(Position(names[0], 4), 10)
    source.writer.index.purge_to(names[2])
    at, data = binlog.read(Position(names[0], 14), 1 << 20)
    assert at.position + len(data) == size
    with pytest.raises(PositionLost, match=f"the file after {names[0]} is no longer"):
        binlog.read(Position(names[0], size), 10)
    binlog.close()


def test_purge_between_index_and_files_is_read_again():
    """The writer replaces the index, then removes the files: a reader of the old index finds some of them missing."""
    source = Source()
    source.write(*range(1, 12))
    names = list(source.writer.index.names)
    binlog = source.binlog()
    old, opened = source.files.snapshot()["binlog/binlog.index"], []

    class Racing(FaultFiles):
        def open(self, name, writable=False):
            file = super().open(name, writable)
            if name.endswith(".index") and not opened:
                opened.append(name)
                source.writer.index.purge_to(names[1])
            return file

    binlog.files = Racing(source.files, [])
    assert old != b""
    assert binlog.locate(Start(epoch=source.epochs[-1][0])) == Position(*source.epochs[-1][1])
    assert opened


def test_other_sites_epochs_show_where_to_continue():
    """A→B→C, and B's binlog says what of A it contains: C changes from A to B, or the other way round."""
    source = Source()
    source.write(100, 110, 120)
    for (epoch, end), theirs in zip(source.epochs, (7, 8, 9), strict=True):
        row = source.found_rows("epoch", epoch)[0]
        source.rows.append(row | {"orig_server_id": 3, "orig_epoch": theirs})
        assert end
    at = source.binlog().locate(Start(epoch=8, origin=3))
    assert at == Position(*source.epochs[0][1]), "at the transaction that brought epoch 8: others stand in it"
    assert source.binlog().locate(Start(epoch=110, origin=1)) == Position(*source.epochs[1][1])


def test_own_rows_win_over_rows_of_origins():
    source = Source()
    source.write(50)
    gone = {"File": "binlog.000009", "next_file": "binlog.000009", "next_position": 9}
    source.rows.insert(0, source.rows[0] | gone | {"orig_server_id": 3, "orig_epoch": 50})
    assert source.binlog().locate(Start(epoch=50)) == Position(*source.epochs[0][1])


def test_damaged_binlog_is_reported_and_fails_nothing():
    source = Source(keeps_rows=False, file_bytes=1 << 20)
    source.write(1, 2)
    disk = source.files.snapshot()
    data = bytearray(disk["binlog/binlog.000001"])
    data[400] ^= 1
    disk["binlog/binlog.000001"] = bytes(data)
    files = MemoryFiles.from_snapshot(disk)
    binlog = SourceBinlog(files, 1, source.end)
    with pytest.raises(PeerError, match=r"binlog\.000001 at") as raised:
        binlog.locate(Start(epoch=1))
    assert type(raised.value) is PeerError
    assert files.failure.first is None


def test_read_error_is_reported_and_fails_nothing():
    source = Source()
    source.write(1)
    files = FaultFiles(source.files, [Rule("pread", "binlog/binlog.0*", error=errno.EIO)])
    binlog = SourceBinlog(files, 1, source.end)
    with pytest.raises(PeerError, match="a read failed"):
        binlog.read(Position("binlog.000001", 4), 100)
    assert files.failure.first is None
    assert binlog.read(Position("binlog.000001", 4), 100) is not None


def test_binlog_without_files_yet_has_nothing():
    files = MemoryFiles()
    binlog = SourceBinlog(files, 1, lambda: (0, Position("binlog.000001", 4)))
    files.make_directory("binlog")
    with pytest.raises(PositionLost):
        binlog.locate(Start())
