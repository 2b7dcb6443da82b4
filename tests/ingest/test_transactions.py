"""Events of a server as transactions: framing, positions, GTIDs, and events that must stop the ingest."""

from __future__ import annotations

import pytest

import tidemark as tm
from tests.ingest.recorded import FILE, Stream
from tidemark.replication.binlog import binlog_layout as b
from tidemark.replication.binlog import events as e
from tidemark.replication.ingest.transactions import (
    Change,
    Commit,
    Moved,
    Rollback,
    StatementText,
    TransactionReader,
)

UUID = "00010203-0405-0607-0809-0a0b0c0d0e0f"


def kinds(stream: Stream) -> list[type]:
    return [type(step) for step in stream.steps()]


def test_transactions_of_mysql_and_mariadb_end_at_their_positions_with_their_gtids() -> None:
    stream = Stream().begin().insert((1, "a", 1)).commit()
    first = stream.position
    stream.mariadb().insert((2, "b", 2)).insert((3, "c", 3)).commit()
    steps = stream.steps()
    assert [type(step) for step in steps] == [Moved, Change, Commit, Change, Change, Commit]
    assert steps[2].place[:3] == (FILE, first, f"{UUID}:1")
    assert steps[5].place[:3] == (FILE, stream.position, "0-77-2")


def test_table_of_a_change_is_the_one_its_map_names() -> None:
    change = Stream().begin().insert((1, "a", 1)).steps()[1]
    assert isinstance(change, Change)
    assert change.map.name == "d.t" and [column.name for column in change.map.columns] == ["id", "a", "n"]


def test_transaction_rolled_back_at_the_source_says_so() -> None:
    assert kinds(Stream().begin().insert((1, "a", 1)).add(e.Query("ROLLBACK", "d"))) == [Moved, Change, Rollback]


def test_file_that_ends_within_a_transaction_undoes_it() -> None:
    """A server that is killed during a write leaves the start of a transaction, which it undoes at its next start."""
    stream = Stream().begin().insert((1, "a", 1)).add(e.Rotate("master.000002"))
    steps = stream.steps()
    assert [type(step) for step in steps] == [Moved, Change, Rollback]
    assert steps[-1].place[:2] == ("master.000002", b.FIRST_POSITION)


def test_statement_alone_ends_where_it_ends_and_within_a_transaction_nowhere() -> None:
    alone = Stream().statement("CREATE TABLE x (id INT PRIMARY KEY)")
    step = alone.steps()[-1]
    assert isinstance(step, StatementText) and step.place is not None
    assert step.place[:3] == (FILE, alone.position, "0-77-1") and step.database == "d"
    inside = Stream().mariadb().add(e.Query("CREATE TABLE x (id INT PRIMARY KEY)", "d")).steps()[-1]
    assert isinstance(inside, StatementText) and inside.place is None


def test_savepoints_mean_nothing_and_a_return_to_one_stops() -> None:
    stream = Stream().begin().add(e.Query("SAVEPOINT `a`", "d"), e.Query("RELEASE SAVEPOINT `a`", "d"))
    assert kinds(stream) == [Moved]
    with pytest.raises(tm.Unsupported, match="ROLLBACK TO"):
        stream.add(e.Query("ROLLBACK TO `a`", "d")).steps()


@pytest.mark.parametrize(
    ("event", "remedy"),
    [
        (e.Query("INSERT INTO t VALUES (1)", "d"), "binlog_format=ROW"),
        (e.Query("/* app */ update t set a=1", "d"), "binlog_format=ROW"),
        (e.Other(b.XA_PREPARE_EVENT, b""), "without XA"),
        (e.Other(b.PARTIAL_UPDATE_ROWS, b""), "binlog_row_value_options"),
        (e.Other(b.TRANSACTION_PAYLOAD_EVENT, b""), "binlog_transaction_compression=OFF"),
        (e.Other(166, b""), "log_bin_compress=OFF"),
        (e.Other(18, b""), "LOAD DATA"),
        (e.Other(99, b""), "type 99"),
        (e.Incident("disk full"), "copy the tables anew"),
    ],
)
def test_what_would_lose_changes_stops_with_place_and_remedy(event: e.Event, remedy: str) -> None:
    stream = Stream().begin()
    at = stream.position
    with pytest.raises(tm.Unsupported, match=remedy) as caught:
        stream.add(event).steps()
    assert (caught.value.file, caught.value.position) == (FILE, at)


def test_file_that_was_begun_at_another_time_is_another_file() -> None:
    """RESET MASTER starts a file of the same name, in which the old position may be between transactions too."""
    stream = Stream().begin().insert((1, "a", 1)).commit()
    begun = stream.steps()[-1].place.created_s
    assert begun > 0
    for known, is_same in ((begun, True), (0, True), (begun - 1, False)):
        reader = TransactionReader(FILE, 4, known)
        if is_same:
            assert [reader.step(raw) for raw in stream.raw][-1] is not None
            continue
        with pytest.raises(tm.PositionLost, match="was reset"):
            for raw in stream.raw:
                reader.step(raw)


def test_idle_events_of_servers_change_nothing_and_marks_move_the_position() -> None:
    stream = Stream().add(e.Other(160, b"text"), e.Other(36, b""), e.Other(161, b""))
    end = stream.position
    stream.send(e.Other(200, b""), b.FLAG_IGNORABLE)
    steps = stream.steps()
    assert kinds(stream) == [Moved, Moved] and steps[-1].place.position == end


def test_distributed_transaction_of_mariadb_stops() -> None:
    with pytest.raises(tm.Unsupported, match="XA"):
        Stream().mariadb(0x40).steps()


def test_flipped_bit_in_any_event_is_damage() -> None:
    stream = Stream().begin().insert((1, "a", 1)).commit()
    for number in range(1, len(stream.raw)):
        reader = TransactionReader(FILE, 4)
        for raw in stream.raw[:number]:
            reader.step(raw)
        bad = bytearray(stream.raw[number])
        bad[-6] ^= 4
        with pytest.raises(tm.BinlogDamaged):
            reader.step(bytes(bad))


def test_rows_without_map_or_outside_a_transaction_are_damage() -> None:
    stream = Stream().begin().insert((1, "a", 1))
    del stream.raw[-2]
    with pytest.raises(tm.BinlogDamaged, match="no TABLE_MAP"):
        stream.steps()
    with pytest.raises(tm.BinlogDamaged, match="outside a transaction"):
        Stream().insert((1, "a", 1)).steps()


def test_positions_past_four_gibibytes_keep_counting() -> None:
    """A header has 32 bits of position; a transaction of several gigabytes exceeds them."""
    stream = Stream(position=(1 << 32) - 40).begin().commit()
    place = stream.steps()[-1].place
    assert place.position == stream.position > 1 << 32


def test_events_of_a_server_without_checksums_are_read() -> None:
    stream = Stream()
    described = e.frame(e.FormatDescription(checksum=0), 0, timestamp_s=0, server_id=1, flags=b.FLAG_ARTIFICIAL)
    stream.raw = [stream.raw[0], described]
    stream.begin().insert((1, "a", 1)).commit()
    plain = []
    for raw in stream.raw[2:]:
        body = bytearray(raw[:-4])
        body[9:13] = len(body).to_bytes(4, "little")
        plain.append(bytes(body))
    reader = TransactionReader(FILE, 4)
    steps = [reader.step(raw) for raw in [*stream.raw[:2], *plain]]
    assert [type(step) for step in steps if step is not None] == [Moved, Change, Commit]
