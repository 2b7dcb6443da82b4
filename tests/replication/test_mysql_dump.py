"""Dumps: what a peer of MySQL gets, from which positions, and the errors that end it."""

from __future__ import annotations

import dataclasses
import gc
import random
import threading
import tracemalloc
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import tidemark as tm
from tests.replication.history import History
from tests.replication.mysql_dump_rig import REPLICA_ID, Replica, Store, added_up, dump_of, header, messages_of
from tests.replication.mysql_port_rig import ITEM, served_end, store
from tests.replication.mysql_rig import SERVERS
from tests.replication.site import DISK, WHOLE, account_site, open_site
from tests.seeds import fresh_seeds
from tests.shares import few
from tests.store.support import ACCOUNT
from tidemark.engine.base.clock import ManualClock
from tidemark.engine.base.errors import BinlogDamaged, Rejected
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles
from tidemark.replication.binlog import binlog_layout as b
from tidemark.replication.binlog import events as e
from tidemark.replication.binlog.position import Position
from tidemark.replication.binlog.table_map import MapColumn, TableMap
from tidemark.replication.binlog.types import MySqlType
from tidemark.replication.mysql_source.dump import Dump, DumpAsked, Dumps
from tidemark.replication.mysql_source.flavors import FLAVORS, MARIADB, MYSQL
from tidemark.replication.mysql_source.gtid_sets import GtidSet
from tidemark.replication.mysql_source.gtids import Gtids
from tidemark.replication.mysql_source.mariadb_events import GTID_LIST_EVENT
from tidemark.replication.mysql_source.packets import Refused
from tidemark.replication.mysql_source.screen import Screen
from tidemark.replication.mysql_source.served_events import IGNORABLE_EVENT
from tidemark.replication.settings.any_value import FLAG_READ, FLAG_REFRESH


def account(number: int, **values: Any) -> dict[str, Any]:
    return {"id": number, "owner": f"owner {number}", "balance": number, **values}


@pytest.fixture
def site() -> Any:
    made = []

    def opened(**options: Any) -> tuple[Any, Any]:
        made.append(account_site(**options))
        return made[-1]

    yield opened
    for db, _ in made:
        db.close()


def end_of(db: Any) -> tuple[str, int]:
    end = db.binlog.writer.end
    return end.file, end.position


def refused(db: Any, **given: Any) -> str:
    """Return the text of the error that ends a dump."""
    with dump_of(db, **given) as dump, pytest.raises(Refused) as error:
        list(dump.messages())
    assert error.value.code == (1236, "HY000")
    return error.value.message


# --- what is sent -----------------------------------------------------------------------------------
def test_position_that_a_replica_adds_up_is_the_end_of_the_binlog_after_every_epoch(site: Any) -> None:
    """Story: status rows were left out of a stream. A replica by position added up what it got, asked for the middle of
    an event after its next reconnection, and lost rows without an error.
    """
    db, table = site(max_binlog_size="4 KiB")
    place = ("", 4)
    for number in range(40):
        table.insert(account(number))
        if number % 3 == 2:
            table.update(number - 1, {"balance": 9_000})
            table.delete(number - 2)
        db.sync()
        place = added_up(messages_of(db, file=place[0], position=place[1]))
        assert place == end_of(db)
    assert added_up(messages_of(db)) == end_of(db)
    assert len(db.binlog.writer.index.names) > 3


def test_rows_of_the_system_database_are_shown_on_request_only(site: Any) -> None:
    db, table = site()
    for number in range(3):
        table.insert(account(number))
        db.sync()
    shown, hidden = messages_of(db, status_rows=True), messages_of(db)
    assert [len(each) for each in shown] == [len(each) for each in hidden]
    assert not any(header(each).type == IGNORABLE_EVENT for each in shown)
    assert sum(header(each).type == IGNORABLE_EVENT for each in hidden) >= 6
    assert b"ndb_apply_status" in b"".join(shown)
    assert b"ndb_apply_status" not in b"".join(hidden)


@pytest.mark.parametrize("flavor", FLAVORS.values(), ids=FLAVORS)
@pytest.mark.parametrize("has_checksum", [True, False])
def test_dump_begins_with_the_place_and_the_format_of_its_flavor(site: Any, flavor: Any, has_checksum: bool) -> None:
    db, _ = site()
    rotate, described, *_ = messages_of(db, flavor=flavor, has_checksum=has_checksum)
    kinds = (b.ROTATE_EVENT, b.FORMAT_DESCRIPTION_EVENT)
    assert (header(rotate).type, header(described).type) == kinds
    assert header(rotate)[::5] == (0, b.FLAG_ARTIFICIAL) and header(rotate).end_position == 0
    assert header(rotate).event_bytes == len(rotate) and header(described).event_bytes == len(described)
    version, lengths = flavor.version.encode(), 41  # as long as in the file: peers by position add up lengths
    fixed = b.HEADER_BYTES + b.FORMAT_DESCRIPTION.itemsize
    assert described[b.HEADER_BYTES + 2 :].startswith(version + b"\0")
    assert len(described) == fixed + lengths + 1 + 4
    assert described[fixed + lengths] == has_checksum
    assert not header(described).flags & b.FLAG_IN_USE


def test_each_file_begins_with_its_place(site: Any) -> None:
    db, table = site()
    db.binlog.rotate()
    table.insert(account(1))
    db.sync()
    names = [
        e.parse(each, Position("served", 0))[1].name  # type: ignore[union-attr]
        for each in messages_of(db)
        if header(each).type == b.ROTATE_EVENT and header(each).flags & b.FLAG_ARTIFICIAL
    ]
    assert names == db.binlog.writer.index.names


@pytest.mark.parametrize("has_checksum", [True, False])
def test_real_server_takes_a_dump_strictly(server: Any, site: Any, tmp_path: Path, has_checksum: bool) -> None:
    """Story: a dump's stream is a binlog file, which each server reads and executes with its own tools."""
    flavor = MARIADB if server.client == "mariadb" else MYSQL
    db, table = site()
    for number in range(30):
        table.insert(account(number))
    db.sync()
    table.update(3, {"balance": 7_777})
    table.delete(4)
    db.sync()
    rotate, *sent = messages_of(db, flavor=flavor, has_checksum=has_checksum)
    path = tmp_path / "served"
    path.write_bytes(b.MAGIC + b"".join(sent))
    server.sql("DROP DATABASE IF EXISTS test; CREATE DATABASE test")
    server.feed([path])
    rows = server.sql("SELECT id, balance FROM test.account ORDER BY id").splitlines()
    wanted = sorted((row.id, row.balance) for row in table.scan())
    assert [tuple(map(int, each.split())) for each in rows] == wanted
    assert header(rotate).type == b.ROTATE_EVENT


@pytest.fixture(scope="module", params=SERVERS)
def server(request: pytest.FixtureRequest) -> Any:
    with SERVERS[request.param]() as running:
        yield running


# --- where it begins --------------------------------------------------------------------------------
def test_dump_continues_at_every_event_also_within_a_transaction(site: Any) -> None:
    """A replica that loses its connection within a transaction asks for the event after the last one it got."""
    db, table = site()
    for number in range(3):
        table.insert(account(number))
        db.sync()
    (file,) = db.binlog.writer.index.names
    whole = messages_of(db)[1:]
    position = 4
    for place, raw in enumerate(whole):
        first, described, *rest = messages_of(db, file=file, position=position)
        assert rest == whole[place:] if position > 4 else [described, *rest] == whole
        assert e.parse(first, Position("served", 0))[1] == e.Rotate(file, position)
        assert position == 4 or header(described).end_position == 0
        position += len(raw)
    assert len(messages_of(db, file=file, position=position)) == 2


@pytest.mark.parametrize("seed", [3, *fresh_seeds(few(3, 40))])
def test_replica_that_loses_its_connection_anywhere_ends_equal(seed: int) -> None:
    """Any history, with disk columns, kills of the store, rotations and purge: each replica continues where it is,
    strictly, with nothing prepared.
    """
    print("seed", seed)
    rng = random.Random(seed)
    options = {**DISK, **WHOLE, "max_binlog_size": rng.choice(("4 KiB", "64 KiB")), "log_gtids": rng.random() < 0.5}
    options["log_empty_epochs"] = rng.random() < 0.3
    files: Any = MemoryFiles()
    db = open_site(files, **options)
    history = History(db, rng, with_disk=True)
    replicas = [Replica(flavor) for flavor in FLAVORS.values()]
    for turn in range(5):
        history.run(8)
        for replica in replicas:
            while not replica.follow(db, rng.choice((3, 5, 9, 40, None))):
                pass
            assert (replica.file, replica.position) == end_of(db)
        if turn == 2:
            db.binlog.purge(to=db.binlog.writer.end.file)
        if rng.random() < 0.5:
            files = files.kill()
            history.db = db = open_site(files, **options)
    for replica in replicas:
        assert {name: rows for name, rows in replica.tables.items() if rows} == {
            name: rows for name, rows in history.tables.items() if rows
        }
    db.close()


def test_positions_that_cannot_be_are_refused_in_the_words_of_mysql(site: Any) -> None:
    db, table = site()
    table.insert(account(1))
    db.sync()
    (file,) = db.binlog.writer.index.names
    end = db.binlog.writer.end.position
    assert "position < 4" in refused(db, file=file, position=3)
    assert "position > file size" in refused(db, file=file, position=end + 1)
    assert "position > file size" in refused(db, file=file, position=1 << 32)
    for unknown in ("binlog.000009", "other.000001", f"./{file}", "binlog", "binlog.index"):
        assert refused(db, file=unknown) == "Could not find first log file name in binary log index file"
    starts = set()
    position = 4
    for raw in messages_of(db)[1:]:
        starts.add(position)
        position += len(raw)
    wrong = [each for each in range(4, end) if each not in starts]
    for each in (*wrong[:40], *wrong[-40:]):
        assert f"'{file}' at {each} does not begin there" in refused(db, file=file, position=each)


def test_purged_position_is_refused(site: Any) -> None:
    db, table = site()
    first = db.binlog.writer.index.names[0]
    db.binlog.rotate()
    table.insert(account(1))
    db.sync()
    db.binlog.purge(to=db.binlog.writer.end.file)
    assert "Could not find first log file name" in refused(db, file=first)
    assert added_up(messages_of(db)) == end_of(db)


def test_damage_ends_the_dump_and_is_not_sent(site: Any) -> None:
    db, table = site()
    table.insert(account(1, owner="a name to be damaged"))
    db.sync()
    (file,) = db.binlog.writer.index.names
    files = db.parts.files
    place = bytes(files.snapshot()[f"binlog/{file}"]).index(b"a name to be damaged")
    opened = files.open(f"binlog/{file}", writable=True)
    files.pwrite(opened, place, b"b")
    files.close(opened)
    assert "fails its checksum" in refused(db, has_checksum=False)


def test_own_server_id_is_refused(site: Any) -> None:
    db, _ = site()
    assert "equal MySQL server ids" in refused(db, server_id=1)


def test_gtids_without_log_gtids_are_refused(site: Any) -> None:
    db, _ = site()
    assert "no GTIDs" in refused(db, gtids=GtidSet())
    assert "no GTIDs" in refused(db, gtids="0-1-5")


# --- GTIDs ------------------------------------------------------------------------------------------
def numbered(site: Any, count: int = 8, **options: Any) -> tuple[Any, Any, Gtids]:
    """Return a site with GTIDs, its table of that many rows, one a transaction, and its numbers."""
    db, table = site(log_gtids=True, **options)
    for number in range(count):
        table.insert(account(number))
        db.sync()
    return db, table, Gtids(db.binlog.writer)


def numbers_in(messages: list[bytes]) -> list[int]:
    """Return the numbers of the transactions in messages, in MySQL's or in MariaDB's form."""
    found = []
    for raw in messages:
        if header(raw).type == b.GTID_EVENT:
            found.append(e.parse(raw, Position("served", 0))[1].number)  # type: ignore[union-attr]
        elif header(raw).type == b.MARIADB_GTID_EVENT:
            found.append(int.from_bytes(raw[b.HEADER_BYTES : b.HEADER_BYTES + 8], "little"))
    return found


@pytest.mark.parametrize("has", [[], [(1, 1)], [(1, 4)], [(1, 2), (5, 6)], [(1, 3), (5, 5), (7, 8)], [(1, 8)]])
def test_set_gets_each_transaction_that_it_lacks_and_the_true_position_after_what_it_has(site: Any, has: Any) -> None:
    """Story: after skipped transactions a replica stood at a position that was none, and its acks named it."""
    db, _, gtids = numbered(site, max_binlog_size="4 KiB")
    last = gtids.executed().by_uuid[gtids.uuid][-1][1]
    asked = GtidSet.of((gtids.uuid, first, end) for first, end in has)
    sent = messages_of(db, served_gtids=gtids, gtids=asked)
    assert numbers_in(sent) == [each for each in range(1, last + 1) if (gtids.uuid, each) not in asked]
    file, position = "", 0
    for raw in sent:
        found = header(raw)
        if found.type == b.ROTATE_EVENT:
            rotate = e.parse(raw, Position("served", 0))[1]
            assert isinstance(rotate, e.Rotate)
            file, position = rotate.name, rotate.position
        elif found.type == b.HEARTBEAT_EVENT:
            assert found.end_position >= position
            position = found.end_position
        elif found.end_position:
            assert found.end_position == position + found.event_bytes
            position = found.end_position
    assert (file, position) == end_of(db)


def test_dump_by_set_makes_mysql_roll_back_the_transaction_that_it_has_in_part(site: Any) -> None:
    """Story: MySQL 9.7 ended with std::bad_alloc when it connected again after a link that broke within a transaction.
    It rolls such a transaction back at a description with a position, and here it had none. (`tests.kills.peers`.)
    """
    db, _, gtids = numbered(site)
    asked = GtidSet.of([(gtids.uuid, 1, 4)])
    rotate, described, heartbeat, first, *_ = messages_of(db, served_gtids=gtids, gtids=asked)
    place = e.parse(rotate, Position("served", 0))[1]
    assert isinstance(place, e.Rotate) and place.position == b.FIRST_POSITION
    assert header(described).end_position == b.FIRST_POSITION + len(described)
    format_ = e.parse(described, Position("served", 0))[1]
    assert isinstance(format_, e.FormatDescription) and format_.created_s == 0
    assert header(heartbeat).type == b.HEARTBEAT_EVENT
    assert header(first).type == b.GTID_EVENT
    assert header(first).end_position == header(heartbeat).end_position + header(first).event_bytes


def test_file_and_set_begin_in_the_file_and_skip_the_set(site: Any) -> None:
    """mysqlbinlog asks so, with --exclude-gtids."""
    db, _, gtids = numbered(site)
    last = gtids.executed().by_uuid[gtids.uuid][-1][1]
    asked = GtidSet.of([(gtids.uuid, 3, 3)])
    sent = messages_of(db, served_gtids=gtids, gtids=asked, file=db.binlog.writer.index.names[0])
    assert numbers_in(sent) == [1, 2, *range(4, last + 1)]


def test_mariadb_gets_its_own_gtids_after_its_position(site: Any) -> None:
    db, _, gtids = numbered(site)
    last = gtids.executed().by_uuid[gtids.uuid][-1][1]
    for after in (1, 5, last):
        file = db.binlog.writer.index.names[0]  # of no meaning in MariaDB's form
        sent = messages_of(db, flavor=MARIADB, served_gtids=gtids, gtids=f"0-1-{after}", file=file)
        assert numbers_in(sent) == list(range(after + 1, last + 1))
        assert not any(header(raw).type == b.GTID_EVENT for raw in sent)
        # mysqlbinlog takes the first list that it sees for the state before all that follows, and refused a later one.
        assert (header(sent[2]).type, header(sent[2]).end_position) == (GTID_LIST_EVENT, 0)
    assert "not in the master's binlog" in refused(db, flavor=MARIADB, served_gtids=gtids, gtids=f"0-1-{last + 1}")


def test_unknown_transactions_of_a_set_are_refused(site: Any) -> None:
    db, _, gtids = numbered(site)
    asked = GtidSet.of([(gtids.uuid, 1, 900)])
    assert "has more GTIDs than" in refused(db, served_gtids=gtids, gtids=asked)


@pytest.mark.parametrize("flavor", FLAVORS.values(), ids=FLAVORS)
def test_last_message_of_a_transaction_wants_the_ack_in_both_forms(site: Any, flavor: Any) -> None:
    db, table, gtids = numbered(site)
    table.insert(account(50))
    db.sync()
    db.create_table("test.more", ACCOUNT, "id")
    db.sync()
    received: list[int] = []
    dumps = Dumps(db.endpoint.clock, note_received=lambda server_id, epoch: received.append(epoch))
    with dump_of(db, dumps, flavor, gtids, is_semi_sync=True) as dump:
        raws = list(map(b"".join, dump.messages()))
        wanted = [raw[3:] for raw in raws if raw[2]]
        for raw in wanted:
            _, event = e.parse(raw, Position("served", 0))
            assert isinstance(event, e.Query) and event.statement != "BEGIN"
            place = header(raw).end_position.to_bytes(8, "little")
            dump.acknowledge(b"\xef" + place + db.binlog.writer.end.file.encode())
    assert len(wanted) == len(numbers_in([raw[3:] for raw in raws]))
    assert received == sorted(received) and received[-1] == db.binlog.newest_epoch


# --- the end of a statement -------------------------------------------------------------------------
def table_map(number: int, name: str) -> e.Event:
    database, _, table = name.partition(".")
    return TableMap(number, database, table, (MapColumn(MySqlType(b.TYPE_LONG), False, "id"),))


def rows(number: int, is_end: bool, flags: int = 0) -> e.Event:
    body = b"\0\x07\0\0\0"
    return e.Rows(e.WRITE, number, 1, None, b"\1", body, b.ROWS_STATEMENT_END * is_end, conflict_flags=flags)


HIDDEN, SHOWN = (1, "mysql.ndb_apply_status"), (2, "d.t")
MAPS = (table_map(*HIDDEN), table_map(*SHOWN))
STATEMENTS = {
    "hidden first": (*MAPS, rows(1, False), rows(2, True)),
    "hidden last": (*MAPS, rows(1, False), rows(2, False), rows(1, True)),
    "several hidden last": (*MAPS, rows(2, False), rows(2, False), rows(1, False), rows(1, True)),
    "hidden between": (*MAPS, rows(2, False), rows(1, False), rows(2, True)),
    "hidden alone": (MAPS[0], rows(1, True)),
    "sent again last": (*MAPS, rows(1, False), rows(2, False), rows(2, True, FLAG_REFRESH)),
    "only read last": (*MAPS, rows(1, False), rows(2, False), rows(2, True, FLAG_READ)),
    "two statements": (MAPS[1], rows(2, True), MAPS[0], rows(1, True), MAPS[1], rows(2, True)),
}


@pytest.mark.parametrize("events", STATEMENTS.values(), ids=STATEMENTS)
def test_last_row_event_shown_ends_its_statement(events: Any) -> None:
    """Story: a server keeps its tables locked and open until the mark, which was on an event that it did not see."""
    at, screen, shown, raws = 400, Screen(False, lambda file, table: False), [], {}
    for event in (e.Gtid(1, 0), e.Query("BEGIN"), *events, e.Query("COMMIT")):
        raw = raws[at] = e.frame(event, at, timestamp_s=1, server_id=1)
        shown += screen.take(Position("f", at), raw)
        at += len(raw)
    assert [each.at for each in shown[1:]] == [each.end for each in shown[:-1]]
    sent = []
    for each in shown:
        own = [raw for place, raw in raws.items() if each.at.position <= place < each.end.position]
        assert each.raw in (None, own[0])
        sent += [b"".join(each.event(raw)) for raw in own]
    assert [len(each) for each in sent] == [len(raw) for raw in raws.values()]
    assert [each.ends_transaction for each in shown] == [False] * (len(shown) - 1) + [True]
    assert [header(each).end_position for each in sent] == [place + len(raw) for place, raw in raws.items()]
    parsed = [e.parse(each, Position("f", 0))[1] for each in sent]
    open_rows = 0
    for event in parsed:
        if isinstance(event, e.Rows):
            assert event.table_id == SHOWN[0] and not event.conflict_flags
            open_rows = 0 if event.is_statement_end else open_rows + 1
        elif isinstance(event, e.Query):
            assert not open_rows
    count = sum(isinstance(each, e.Rows) and each.table_id == 2 and not each.conflict_flags for each in events)
    assert sum(isinstance(each, e.Rows) for each in parsed) == count


class OneFile:
    """A binlog of one file, as `SourceBinlog` serves it."""

    def __init__(self, events: Iterable[e.Event]) -> None:
        self.data = b.MAGIC
        for event in (e.FormatDescription(), e.PreviousGtids(), *events):
            self.data += e.frame(event, len(self.data), timestamp_s=1, server_id=1)

    def names(self) -> list[str]:
        return ["f.000001"]

    def size(self, name: str) -> int:
        return len(self.data)

    def newest(self) -> tuple[int, Position]:
        return 0, Position("f.000001", len(self.data))

    def read(self, at: Position, bytes_max: int) -> tuple[Position, bytes] | None:
        found = self.data[at.position : at.position + bytes_max]
        return (at, found) if found else None

    def close(self) -> None:
        pass


LARGE = 3 << 20


def large_rows(number: int, fill: int, is_end: bool, flags: int = 0) -> e.Event:
    return dataclasses.replace(rows(number, is_end, flags), body=bytes((fill,)) * LARGE)


@pytest.mark.parametrize("given", [{}, {"has_checksum": False}, {"is_semi_sync": True}], ids=str)
@pytest.mark.parametrize("flavor", [MYSQL, MARIADB], ids=lambda flavor: flavor.name)
def test_large_events_that_wait_are_read_again_and_one_is_in_memory(flavor: Any, given: dict[str, Any]) -> None:
    """Story: what a peer is not shown was kept up to the end of its statement, as many zeros as it had bytes."""
    hidden = [large_rows(2, 7, number == 3, FLAG_REFRESH) for number in range(4)]
    shown = [large_rows(2, 5, False), large_rows(2, 6, False)]
    events = [e.Gtid(1, 0), e.Query("BEGIN"), MAPS[1], rows(2, False), *shown, *hidden, e.Query("COMMIT")]
    binlog = OneFile(events)
    asked = DumpAsked(server_id=7, is_non_blocking=True, gtids="" if flavor is MARIADB else None, **given)
    served: Any = Store(1, SimpleNamespace(domain_place=lambda text: Position("f.000001", 4)))
    clock: Any = SimpleNamespace(monotonic=lambda: 0.0)

    def messages() -> Iterator[Any]:
        with Dump(served, binlog, asked, flavor, Dumps(clock)) as dump:  # type: ignore[arg-type]
            yield from dump.messages()

    gc.collect()
    tracemalloc.start()
    for message in messages():
        del message
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < LARGE + (2 << 20)
    raws = [b"".join(each)[3 if asked.is_semi_sync else 1 :] for each in messages()]
    parsed = [e.parse(raw, Position("sent", 0), asked.has_checksum)[1] for raw in raws if len(raw) > LARGE]
    assert [(each.kind, each.is_statement_end) for each in parsed[:2] if isinstance(each, e.Rows)] == [
        (e.WRITE, False),
        (e.WRITE, True),
    ]
    assert [set(each.body) for each in parsed if isinstance(each, (e.Rows, e.Other))] == [{5}, {6}, {0}, {0}, {0}, {0}]
    assert [each.type for each in parsed[2:]] == [IGNORABLE_EVENT] * 4


def test_rows_without_their_table_are_damage() -> None:
    screen = Screen(False, lambda file, table: False)
    with pytest.raises(BinlogDamaged, match="no TABLE_MAP announced"):
        screen.take(Position("f", 4), e.frame(rows(2, True), 4, timestamp_s=1, server_id=1))


# --- waiting ----------------------------------------------------------------------------------------
class Waits:
    """Waits of a dump, under the control of a test."""

    def __init__(self, clock: ManualClock, then: Any = None) -> None:
        self.clock = clock
        self.asked: list[float | None] = []
        self.then = then

    def __call__(self, seconds: float | None) -> None:
        self.asked.append(seconds)
        if self.then is not None:
            self.then()
        elif seconds is not None:
            self.clock.sleep(seconds)


def test_silence_is_filled_with_heartbeats_at_the_true_position(site: Any) -> None:
    db, table = site()
    waits = Waits(db.endpoint.clock)
    with dump_of(db, is_non_blocking=False, heartbeat_ns=5_000_000_000, wait=waits) as dump:
        sent = map(b"".join, dump.messages())
        beats = [raw for raw in (next(sent)[1:] for _ in range(60)) if header(raw).type == b.HEARTBEAT_EVENT]
        assert len(beats) > 3
        file, position = end_of(db)
        for raw in beats:
            assert header(raw)[0] == 0 and header(raw).end_position == position
            assert raw[b.HEADER_BYTES : -4] == file.encode()
        assert all(each is not None and 0 < each <= 5 for each in waits.asked)
        table.insert(account(1))
        db.sync()
        more = []
        while not more or header(more[-1]).type != b.HEARTBEAT_EVENT:
            more.append(next(sent)[1:])
        assert header(more[-1]).end_position == end_of(db)[1] > position


def test_dump_waits_for_the_next_epoch_and_ends_when_it_is_stopped(site: Any) -> None:
    db, table = site()
    dumps = Dumps.of(db.endpoint)
    db.binlog.on_written.append(dumps.notify)
    got: list[bytes] = []
    has_row, ended = threading.Event(), threading.Event()

    def follow() -> None:
        with dump_of(db, dumps, is_non_blocking=False) as dump:
            for raw in map(b"".join, dump.messages()):
                got.append(raw)
                if b"owner 5" in raw:
                    has_row.set()
        ended.set()

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    table.insert(account(5))
    db.sync()
    assert has_row.wait(60)
    assert not ended.is_set()
    dumps.stop()
    assert ended.wait(60)
    assert dumps.running() == []


def test_second_dump_of_a_server_ends_the_first(site: Any) -> None:
    db, _ = site()
    one, other = uuid.UUID(int=1), uuid.UUID(int=2)
    for first, second, is_same in (
        ({"server_id": 5}, {"server_id": 5}, True),
        ({"server_id": 5}, {"server_id": 6}, False),
        ({"server_id": 0}, {"server_id": 0}, False),
        ({"server_id": 5, "uuid": one}, {"server_id": 6, "uuid": one}, True),
        ({"server_id": 5, "uuid": one}, {"server_id": 5, "uuid": other}, False),
        ({"server_id": 5, "uuid": one}, {"server_id": 5}, True),
    ):
        dumps = Dumps.of(db.endpoint)
        with dump_of(db, dumps, **first) as old, dump_of(db, dumps, **second) as new:
            messages = old.messages()
            next(messages)
            next(new.messages())
            if is_same:
                with pytest.raises(Refused, match="same server_uuid/server_id as this slave"):
                    list(messages)
                assert dumps.running() == [new]
            else:
                assert list(messages) and dumps.running() == [old, new]


# --- purge ------------------------------------------------------------------------------------------
def test_file_of_a_dump_is_kept_up_to_a_limit_and_then_the_dump_ends(site: Any) -> None:
    """Story: a replica that stands still must not fill the disk of the source."""
    db, table = site(max_binlog_size="4 KiB", mysql_purge_bytes="12 KiB")
    first = db.binlog.writer.index.names[0]
    dumps = Dumps.of(db.endpoint)
    with dump_of(db, dumps) as dump:
        messages = dump.messages()
        next(messages)
        next(messages)
        for number in range(5):
            table.insert(account(number))
            db.sync()
            db.binlog.purge(bytes_max=1)
            assert first in db.binlog.writer.index.names
        for number in range(5, 60):
            table.insert(account(number))
            db.sync()
            db.binlog.purge(bytes_max=1)
        assert first not in db.binlog.writer.index.names
        with pytest.raises(Refused, match="Could not find first log file name"):
            list(messages)
    assert db.binlog.pins == {}
    db.binlog.set_option("mysql_purge_bytes", "1 MiB")
    with pytest.raises(Rejected):
        db.binlog.set_option("mysql_purge", 1)


# --- semi-sync --------------------------------------------------------------------------------------
def test_acks_are_asked_at_the_ends_of_transactions_and_say_what_is_received(site: Any) -> None:
    db, table = site()
    received: list[tuple[int, int]] = []
    dumps = Dumps(db.endpoint.clock, note_received=lambda *each: received.append(each))
    epochs = []
    for number in range(3):
        table.insert(account(number))
        epochs.append(db.sync())
    with dump_of(db, dumps, is_semi_sync=True) as dump:
        ends = []
        for raw in map(b"".join, dump.messages()):
            assert raw[:2] == b"\0\xef" and raw[2] in (0, 1)
            if raw[2]:
                ends.append(header(raw[3:]).end_position)
                _, event = e.parse(raw[3:], Position("served", 0))
                assert isinstance(event, e.Query) and event.statement != "BEGIN"
        file, position = end_of(db)
        assert ends[-1] == position
        for wrong in (b"", b"\xef", b"\xee" + position.to_bytes(8, "little") + file.encode()):
            with pytest.raises(Refused, match="magic number"):
                dump.acknowledge(wrong)
        for name, place in ((file, position + 1), ("binlog.000009", 4), ("x", position)):
            with pytest.raises(Refused, match="was not sent"):
                dump.acknowledge(b"\xef" + place.to_bytes(8, "little") + name.encode())
        for end in ends[-3:]:
            dump.acknowledge(b"\xef" + end.to_bytes(8, "little") + file.encode())
    assert received == [(REPLICA_ID, each) for each in epochs]
    with dump_of(db, dumps) as dump, pytest.raises(Refused, match="nothing but semi-sync"):
        dump.acknowledge(b"\xef")


def test_replica_that_asks_for_what_follows_has_received_all_before(site: Any) -> None:
    """Story: a wait for an epoch that the replica had from an earlier connection would never end."""
    db, table = site()
    received: list[tuple[int, int]] = []
    dumps = Dumps(db.endpoint.clock, note_received=lambda *each: received.append(each))
    table.insert(account(1))
    epoch = db.sync()
    file, position = end_of(db)
    waits = Waits(db.endpoint.clock)
    given = {"file": file, "position": position, "is_semi_sync": True, "is_non_blocking": False}
    with dump_of(db, dumps, heartbeat_ns=1_000_000_000, wait=waits, **given) as dump:
        sent = map(b"".join, dump.messages())
        for _ in range(3):
            next(sent)
    assert set(received) == {(REPLICA_ID, epoch)}


# --- events of rows that only repeat ------------------------------------------------------------------
def _fill(db: tm.Database) -> None:
    """Make epochs of many events: of two tables, all kinds of changes, several events each."""
    db.create_table("shop.other", ITEM, "id")
    for table in (db["shop.item"], db["shop.other"]):
        for first in (0, 3_000):
            table.insert_many([{"id": first + number, "v": "x" * 40} for number in range(1_500)])
            table.update_many([{"id": first + number, "v": "y" * 30} for number in range(1_000)])
            table.delete_many(range(first, first + 700))
    served_end(db)
    db["shop.item"].insert({"id": 9_000, "v": None})
    served_end(db)


@pytest.mark.parametrize("given", [{}, {"flavor": MARIADB, "gtids": ""}, {"is_semi_sync": True}, {"status_rows": True}])
def test_events_that_only_repeat_are_sent_as_if_each_had_been_parsed(
    given: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with store(tmp_path, log_gtids=True) as db:
        _fill(db)
        repeated: list[int] = []
        take = Screen.take_repeated
        monkeypatch.setattr(Screen, "take_repeated", lambda *a: (repeated.append(len(a[1])), take(*a))[1])
        if "gtids" in given:
            given = {**given, "served_gtids": Gtids(db.endpoint.log().writer)}
        fast = messages_of(db, **given)
        monkeypatch.setattr(Screen, "repeats", lambda *_: False)
        assert fast == messages_of(db, **given)
        assert sum(repeated) > 20


def test_damage_in_an_event_that_only_repeats_ends_the_dump(tmp_path: Path) -> None:
    with store(tmp_path) as db:
        _fill(db)
        path = tmp_path / "store/binlog/binlog.000001"
        data = bytearray(path.read_bytes())
        data[data.rindex(b"y" * 30)] ^= 1
        path.write_bytes(data)
        with pytest.raises(Refused, match="fails its checksum"):
            messages_of(db)
