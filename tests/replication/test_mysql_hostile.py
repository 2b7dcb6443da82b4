"""Hostile clients of the MySQL port: every packet of every state cut at each byte, headers that lie, clients that stop,
statements that are all quotes, random packets; and what each of them leaves behind, counted.

`python -m tests.replication.mysql_hostile` runs random packets for longer.
"""

from __future__ import annotations

import gc
import importlib.util
import random
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import tidemark as tm
from tests.planting import ROOT
from tests.replication.mysql_defects import DEFECTS, Defect
from tests.replication.mysql_hostile import ENDINGS, Target, Watch, attack, leave
from tests.replication.mysql_port_rig import HOST, SECRET, Client, dump_command, error_of, served_end
from tests.replication.mysql_talks import (
    NOTHING_LEFT,
    TALKS,
    Host,
    Talk,
    Visit,
    ack,
    by_gtids,
    login_message,
    packets_in,
    query,
    said_to,
    stream_of,
)
from tests.seeds import fresh_seeds
from tests.shares import few, some
from tidemark.replication.mysql_source import protocol_layout as p
from tidemark.replication.mysql_source.answers import COLUMNS_AGAIN_MAX, COLUMNS_MAX, answer
from tidemark.replication.mysql_source.conversation import STATEMENT_BYTES_MAX
from tidemark.replication.mysql_source.flavors import FLAVORS, MYSQL, Flavor
from tidemark.replication.mysql_source.login import LOGIN_BYTES_MAX
from tidemark.replication.mysql_source.packets import HEADER_BYTES, Refused, packets
from tidemark.replication.mysql_source.session import VARIABLES_BYTES_MAX, Session, Shown
from tidemark.replication.mysql_source.users import MysqlUser
from tidemark.replication.wire.wire import READ_BYTES

ALL = pytest.mark.parametrize("talk", TALKS, ids=lambda talk: talk.name)
BOTH = pytest.mark.parametrize("flavor", FLAVORS.values(), ids=FLAVORS)


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    host = Host()
    yield host
    host.close()


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Target]:
    with Watch() as watch, Target.opened(tmp_path) as target:
        yield target
        target.wait_left()
        served_end(target.db)
    assert watch.faults == []


def last_error(said: bytes) -> int:
    """Return the number of the error that an answer ends with, 0 if it does not."""
    begin, end = packets_in(said)[-1] if said else (0, 0)
    message = said[begin + HEADER_BYTES : end]
    return error_of(message) if message[:1] == bytes((p.ERROR,)) else 0


# --- without sockets: every byte ----------------------------------------------------------------------
@ALL
def test_conversation_that_comes_byte_by_byte_is_answered_as_a_whole_one(host: Host, talk: Talk) -> None:
    stream = stream_of(talk)
    whole = said_to(host, talk.flavor, stream)
    assert whole and last_error(whole) in (0, 1094) and SECRET not in whole
    for piece in (1, 7):
        assert said_to(host, talk.flavor, stream, piece) == whole
    assert host.left() == NOTHING_LEFT


@ALL
def test_conversation_cut_at_every_byte_is_answered_up_to_there_and_leaves_nothing(host: Host, talk: Talk) -> None:
    stream = stream_of(talk)
    whole = said_to(host, talk.flavor, stream)
    for cut in range(len(stream)):
        assert whole.startswith(said_to(host, talk.flavor, stream[:cut])), cut
        assert host.left() == NOTHING_LEFT, cut


@ALL
@pytest.mark.parametrize("seed", fresh_seeds(1))
def test_garbage_after_a_cut_is_an_error_or_waited_for(host: Host, talk: Talk, seed: int) -> None:
    rng = random.Random(seed)
    stream = stream_of(talk)
    for cut in range(len(stream)):
        said_to(host, talk.flavor, stream[:cut] + rng.randbytes(40))
        assert host.left() == NOTHING_LEFT, cut


@ALL
def test_headers_that_lie_end_the_connection_or_are_waited_for(host: Host, talk: Talk) -> None:
    stream = stream_of(talk)
    for number, (begin, end) in enumerate(packets_in(stream)):
        head, size, sequence = stream[:begin], end - begin - HEADER_BYTES, stream[begin + 3]
        known = said_to(host, talk.flavor, head)
        is_dump = any(each[:1] in (b"\x12", b"\x1e") for each in talk.commands[: max(0, number - 1)])
        for length, other in ((0xFFFFFF, sequence), (size, sequence + 1), (size, 0xFF)):
            changed = head + length.to_bytes(3, "little") + bytes((other & 0xFF,)) + stream[begin + HEADER_BYTES :]
            said = said_to(host, talk.flavor, changed)
            said_more = said[len(known) :] if not is_dump else said
            wanted = 1153 if length == 0xFFFFFF else 1156
            assert last_error(said_more) == wanted, (number, length, other)
        for length in (0, max(0, size - 1), size + 1):
            said_to(
                host,
                talk.flavor,
                head + length.to_bytes(3, "little") + bytes((sequence,)) + stream[begin + HEADER_BYTES :],
            )
        assert host.left() == NOTHING_LEFT


@BOTH
def test_empty_message_is_an_unknown_command_or_a_bad_handshake(host: Host, flavor: Any) -> None:
    assert last_error(said_to(host, flavor, packets(b"", 1))) == 1043
    assert last_error(said_to(host, flavor, login_message(flavor) + packets(b"", 0))) == 1047


def test_command_that_is_shorter_than_its_fields_is_malformed_and_begins_no_dump(host: Host) -> None:
    talks = {each.name: each for each in TALKS}
    shortest = {p.COM_REGISTER_SLAVE: 4, p.COM_BINLOG_DUMP: 10, p.COM_BINLOG_DUMP_GTID: 22}
    found = set()
    for talk in (talks["dump by position"], talks["dump by GTID"]):
        for number, command in enumerate(talk.commands):
            found.add(command[0])
            for cut in range(shortest.get(command[0], 0)):
                stream = login_message(talk.flavor)
                stream += b"".join(packets(each, 0) for each in (*talk.commands[:number], command[: 1 + cut]))
                with closing(Visit(host, talk.flavor)) as visit:
                    assert last_error(visit.take(stream)) == 1835 and visit.talk is not None and visit.talk.dump is None
    assert found >= set(shortest)


@BOTH
@pytest.mark.parametrize("name", ["reader", "stranger"])
def test_refused_login_is_answered_by_nothing_more(host: Host, flavor: Any, name: str) -> None:
    """Story: a server of the same protocol answered statements after a login that had failed."""
    right = login_message(flavor)
    statement = packets(query("SELECT 1"), 0)
    for first in (
        login_message(flavor, name=name, secret=b"another secret of the tests"),
        packets(right[HEADER_BYTES:], 2),
        packets(b"", 1),
        b"\xff\xff\xff\1",
    ):
        with closing(Visit(host, flavor)) as visit:
            assert last_error(visit.take(first)) in (1043, 1045, 1153, 1156)
            for after in (right, packets(right[HEADER_BYTES:], 3), statement):
                assert visit.take(after) == b"" and visit.talk is None


def test_what_cannot_be_read_ends_a_conversation(host: Host) -> None:
    with closing(Visit(host, MYSQL)) as visit:
        visit.take(login_message(MYSQL))
        assert last_error(visit.take(packets(query("SELECT 1"), 1))) == 1156
        assert visit.take(packets(query("SELECT 1"), 0)) == b""


def test_ack_of_what_was_not_sent_ends_the_dump(host: Host) -> None:
    talk = next(each for each in TALKS if each.name == "semi-sync")
    begun = talk.commands[: next(n for n, each in enumerate(talk.commands) if each[0] == p.COM_BINLOG_DUMP) + 1]
    for wrong in (
        ack(1 << 40),
        ack(5, b"binlog.000002"),
        ack(5, b"x" * 300),
        ack(5, b""),
        b"\xef",
        b"\xee" * 20,
    ):
        stream = login_message(talk.flavor) + b"".join(packets(each, 0) for each in (*begun, wrong))
        assert last_error(said_to(host, talk.flavor, stream)) == 1236, wrong
        assert host.left() == NOTHING_LEFT


@pytest.mark.parametrize("limit", [LOGIN_BYTES_MAX, STATEMENT_BYTES_MAX])
def test_messages_in_pieces_take_no_more_than_the_limit(host: Host, limit: int) -> None:
    """Packets that say that they are part of a message of 16 MiB, and whose lengths are true."""
    with closing(Visit(host, MYSQL)) as visit:
        sequence = 1
        if limit == STATEMENT_BYTES_MAX:
            visit.take(login_message(MYSQL))
            sequence = 0
        said = visit.take(packets(bytes((1 << 24) + 5), sequence)[: limit + 100])
        assert last_error(said) == 1153 and visit.is_over


# --- with sockets: how a client ends ------------------------------------------------------------------
def cuts() -> list[tuple[Talk, int, int]]:
    """Return (talk, number of its packet, byte in it) for each byte of each packet after the login."""
    return [
        (talk, number, cut)
        for talk in TALKS
        for number, command in enumerate(talk.commands)
        for cut in range(HEADER_BYTES + len(command))
    ]


@pytest.mark.parametrize("ending", ENDINGS[:3])
def test_client_that_ends_anywhere_leaves_nothing(target: Target, ending: str) -> None:
    rng = random.Random(51)
    for number, (talk, packet, cut) in enumerate(some(cuts(), 0.1)):
        client = Client(target.port_of(talk.flavor.name), "reader")
        assert client.log_in()[0] == p.OK
        whole = [packets(each, 0) for each in talk.commands[: packet + 1]]
        with suppress(OSError):
            client.send(b"".join(whole[:-1]) + whole[-1][:cut])
        leave(client, ending, rng)
        target.db["shop.item"].insert((1_000_000 + number, ending))


@pytest.mark.parametrize("ending", ENDINGS[:3])
def test_stranger_that_ends_anywhere_leaves_nothing(target: Target, ending: str) -> None:
    rng = random.Random(51)
    size = len(login_message(MYSQL))
    for cut in some(range(size), 0.3):
        client = Client(target.port_of("mysql"), "reader")
        client.send(login_message(MYSQL, client.nonce)[:cut])
        leave(client, ending, rng)


def test_client_that_stops_within_a_message_is_cut_after_the_time_that_it_asked_for(target: Target) -> None:
    """Story: `net_read_timeout` and `net_write_timeout` could be set, and 60 s counted all the same."""
    with ExitStack() as stack:
        for talk, packet, cut in some([each for each in cuts() if each[2]], few(40, 400) / len(cuts())):
            client = stack.enter_context(closing(Client(target.port_of(talk.flavor.name), "reader")))
            client.log_in()
            assert client.query("SET net_read_timeout = 1, net_write_timeout = 1, wait_timeout = 1")[0] == p.OK
            whole = [packets(each, 0) for each in talk.commands[: packet + 1]]
            if any(each[:1] in (b"\x12", b"\x1e") for each in talk.commands[:packet]):
                continue  # a peer that follows the binlog may be silent
            client.send(b"".join(whole[:-1]) + whole[-1][:cut])
        target.wait_left()


READS = {
    "SELECT": ("SELECT * FROM shop.item",),
    "snapshot": ("START TRANSACTION WITH CONSISTENT SNAPSHOT", "SELECT * FROM shop.item"),
    "dump": ("SET @master_binlog_checksum = 'CRC32'", ""),
}


@pytest.mark.parametrize("kind", READS)
def test_reader_that_stops_is_cut_and_its_snapshot_ends(target: Target, kind: str) -> None:
    items = target.db["shop.item"]
    items.insert_many({"id": range(10_000, 40_000), "v": ["x" * 50] * 30_000})
    served_end(target.db)
    with closing(Client(target.port_of("mysql"), "reader")) as client:
        client.socket.setsockopt(6, 10, 4_096)  # TCP_WINDOW_CLAMP: it takes little ahead
        client.log_in()
        assert client.query("SET net_write_timeout = 2")[0] == p.OK
        for text in READS[kind]:
            if not text:
                client.command(p.COM_BINLOG_DUMP, dump_command())
            elif text.startswith("SELECT"):
                client.command(p.COM_QUERY, text.encode())
            else:
                assert client.query(text)[0] == p.OK
        number = 0
        while target.left()["served"]:
            items.insert((50_000 + number, kind))
            number += 1
        assert number
    target.wait_left()


def test_idle_client_is_not_cut_by_a_time_that_no_poll_takes(target: Target) -> None:
    """Story: canal sets wait_timeout=9999999, which is more milliseconds than a poll takes: its connection ended with a
    traceback at its next silence.
    """
    with closing(Client(target.port_of("mysql"))) as client, closing(Client(target.port_of("mysql"))) as other:
        for each in (client, other):
            each.log_in()
        assert client.query("SET wait_timeout = 9999999")[0] == p.OK
        assert other.query("SET @master_binlog_checksum='CRC32', @master_heartbeat_period=4294967000000000")[0] == p.OK
        other.command(p.COM_BINLOG_DUMP, dump_command())
        for number in range(20):  # the server waits before most of them
            client.command(p.COM_PING)
            assert client.message()[0] == p.OK
            target.db["shop.item"].insert((9_000 + number, f"seen {number}"))
            served_end(target.db)
            while f"seen {number}".encode() not in other.message():
                pass


# --- statements that are all of one thing ---------------------------------------------------------------
def session_of(host: Host) -> Session:
    user = MysqlUser("reader", SECRET, may_read=True)
    return Session(flavor=MYSQL, user=user, host=HOST, connection_id=7, served=host.served, kill=lambda number: False)


def calls_of(work: Callable[[], object]) -> int:
    """Return how many functions of Python and of C a call runs."""
    count = 0

    def note(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        with suppress(Refused):
            work()
    finally:
        sys.setprofile(None)
    return count


PIECES = (
    *(
        "'",
        "''",
        '"',
        "`",
        "``",
        "(",
        ")",
        "[",
        "]",
        ",",
        "1,",
        "/*",
        "/*!",
        "*/",
        "--",
        "-- ",
        "#",
        "\\",
        "'\\",
        "\\'",
    ),
    *(
        "@",
        "@@x,",
        ".",
        "1.",
        "0x",
        "x'",
        "b'1'",
        "SELECT ",
        "\0",
        "\xff",
        "🌊",
        "'a' 'b' ",
        "*,",
        "@a=1,",
        "NOT ",
        "{",
    ),
)


BEGINNINGS = ("SELECT ", "SET @a=", "SHOW VARIABLES WHERE ", "")


@pytest.mark.parametrize(("begin", "piece"), some([(a, b) for b in PIECES for a in BEGINNINGS], 0.12), ids=ascii)
def test_longest_statement_of_one_thing_takes_time_in_proportion(host: Host, begin: str, piece: str) -> None:
    """Story: quotes with backslashes and no end were searched for their end from each quote on: a statement of 1 MiB
    took hours.
    """
    session = session_of(host)
    texts = [
        (begin.encode() + piece.encode() * size)[:size] for size in (STATEMENT_BYTES_MAX // 4, STATEMENT_BYTES_MAX)
    ]
    less, more = (calls_of(lambda text=text: answer(session, text)) for text in texts)  # type: ignore[misc]
    assert more <= 5 * less + 100, (less, more)


def test_many_variables_take_no_more_time_each_than_few(host: Host) -> None:
    """Story: each of a statement's 4,000 variables added up the sizes of all others."""
    session = session_of(host)

    def assign(first: int) -> int:
        names = ", ".join(f"@v{number}={number}" for number in range(first, first + 500))
        return calls_of(lambda: answer(session, f"SET {names}".encode()))

    first, *_, last = (assign(500 * number) for number in range(8))
    assert last <= 1.2 * first
    with pytest.raises(Refused, match=f"at most {VARIABLES_BYTES_MAX} bytes"):
        for number in range(8, 100):
            answer(session, ("SET " + ", ".join(f"@v{number}x{each}={each}" for each in range(500))).encode())
    assert sum(map(sys.getsizeof, session.variables.values())) < VARIABLES_BYTES_MAX
    answer(session, b"SET @v1 = 'still'")


def shown(session: Session, text: bytes) -> Shown:
    found = answer(session, text)
    assert isinstance(found, Shown)
    return found


def test_answer_has_no_more_columns_than_at_a_server(host: Host) -> None:
    """Story: `SELECT *, *, *` of a wide table made millions of columns, and rows of a thousand times their size."""
    session = session_of(host)
    session.use("shop")
    assert len(shown(session, b"SELECT " + b",".join([b"1"] * COLUMNS_MAX)).names) == COLUMNS_MAX
    again = b",".join([b"id"] * (COLUMNS_AGAIN_MAX + 1))
    assert len(list(shown(session, b"SELECT " + again + b" FROM item").rows)) == 3
    for text in (
        b"SELECT " + b",".join([b"1"] * (COLUMNS_MAX + 1)),
        b"SELECT " + b",".join([b"*"] * (COLUMNS_MAX // 2)) + b" FROM item",
        b"SELECT " + b",".join([b"*"] * (COLUMNS_MAX // 2)) + b" FROM information_schema.columns",
        b"SELECT id," + again + b" FROM item",
    ):
        with pytest.raises(Refused, match="Too many columns") as caught:
            answer(session, text)
        assert caught.value.code[0] == 1117


def test_order_by_the_same_column_many_times_sorts_once(host: Host) -> None:
    session = session_of(host)
    head = "SELECT column_name FROM information_schema.columns ORDER BY "

    def calls(count: int) -> int:
        text = head + ",".join(["table_name"] * count)
        return calls_of(lambda: answer(session, text.encode()))

    few_calls, many_calls = calls(100), calls(1_000)
    assert many_calls < 11 * few_calls


# --- memory -------------------------------------------------------------------------------------------
class Measured(NamedTuple):
    """Bytes that a connection takes at most, and when it is done."""

    peak: int
    after: int


def memory_of(host: Host, commands: tuple[bytes, ...], flavor: Flavor = MYSQL) -> Measured:
    """Measure the last of some commands, whose answer is sent piece by piece."""
    with closing(Visit(host, flavor)) as visit:
        visit.take(login_message(flavor) + b"".join(packets(each, 0) for each in commands[:-1]))
        talk, data = visit.talk, packets(commands[-1], 0)
        assert talk is not None
        gc.collect()
        tracemalloc.start()
        try:
            for at in range(0, len(data), READ_BYTES):
                for piece in talk.receive(data[at : at + READ_BYTES]):
                    del piece
            if talk.dump is not None:
                for piece in talk.pieces(talk.dump.messages()):
                    del piece
            after, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    return Measured(peak, after)


CONNECTION_BYTES = 4 << 20
# What the longest statements are made of, how they begin, and how they end: refused at once, late, or answered.
BULK = (
    *(
        "'",
        "''",
        "\\'",
        "\\%",
        "1,",
        "9",
        "a",
        "é",
        "€",
        "🌊",
        "🌊 ",
        ",",
        "(",
        "`a`.",
        "`🌊`,",
        "@a,",
        "@a=1,",
        "@@version,",
    ),
    *("'a',", "'🌊',", "'a' ", "1 AS €,", "a.b,", "CONCAT('a'),", ":1", "aa,", "/*x*/", "-- \n", "NOT "),
)
HEADS = (
    *(
        "SELECT ",
        "SELECT '🌊",
        "SELECT 'a''b",
        "SELECT '\\n🌊",
        "SELECT x'",
        "SELECT `🌊",
        "SELECT 1 AS '🌊",
        "SELECT UNKNOWN",
    ),
    *(
        "SELECT CONCAT('🌊",
        "SELECT a FROM `",
        "SELECT `a`, ",
        "SET @a='🌊",
        "SET @a='",
        "SET @`",
        "SET x=",
        "SET sql_mode='",
    ),
    *(
        "SET NAMES '🌊",
        "SHOW VARIABLES LIKE '🌊",
        "SHOW TABLES LIKE '🌊",
        "SHOW VARIABLES WHERE Value = '🌊",
        "USE `🌊",
    ),
    *(
        "SHOW VARIABLES WHERE Value IN ('a', ",
        "SELECT GTID_SUBSET('', '3E11FA47-71CA-11E1-9E33-C80AA9429562:1",
        "KILL ",
        "",
    ),
)
TAILS = ("", "'", "`", "1", "')", "1)", "` = 1")
STATEMENTS = [
    (flavor, head, each, tail) for flavor in FLAVORS.values() for head in HEADS for each in BULK for tail in TAILS
]


@pytest.mark.parametrize(
    ("flavor", "head", "each", "tail"), some(STATEMENTS, few(40, 800) / len(STATEMENTS)), ids=ascii
)
def test_longest_statement_takes_four_mib_while_it_is_read_and_keeps_none(
    host: Host, flavor: Flavor, head: str, each: str, tail: str
) -> None:
    """Story: a statement of 1 MiB took 7 to 20 MiB: four bytes for each character, and an object for each token. An
    error kept the statement that it was about until the collector of garbage came.
    """
    room = STATEMENT_BYTES_MAX - 4 - len((head + tail).encode())
    text = head + each * (room // len(each.encode())) + tail
    taken = memory_of(host, (query(text),), flavor)
    print(taken)
    assert taken.peak < CONNECTION_BYTES and taken.after < 256 << 10


HALF = "x" * (STATEMENT_BYTES_MAX // 2)
LONGEST = {
    "text that is kept": (query(f"SET @a = '🌊{HALF}'"), query(f"SET @a = '🌊{HALF}'")),
    "values of functions": (query(f"SET @a = '{HALF}'"), query("SELECT CONCAT(CONCAT(@a), CONCAT('🌊'))")),
    "functions in functions": (query(f"SET @a = '{HALF}'"), query(f"SELECT {'CONCAT(' * 30}@a{')' * 30}")),
    "variable twice": (query(f"SET @a = '🌊{HALF}'"), query("SELECT @a, @a")),
    "refused": (query("SET NAMES latin1"), query(f"SELECT '🌊{HALF}{HALF[:-100]}'")),
    "name of a database": (bytes((p.COM_INIT_DB,)) + "🌊".encode() * (STATEMENT_BYTES_MAX // 4),),
    "unknown": (b"\x7f" * STATEMENT_BYTES_MAX,),
    "set of GTIDs": (
        TALKS[9].commands[0],
        by_gtids(
            (1).to_bytes(8, "little")
            + bytes(16)
            + (65_000).to_bytes(8, "little")
            + b"".join(
                (2 * each).to_bytes(8, "little") + (2 * each + 1).to_bytes(8, "little") for each in range(1, 65_001)
            )
        ),
    ),
    "domains": (
        query("SET @mariadb_slave_capability=4, @master_binlog_checksum='CRC32'"),
        query(f"SET @slave_connect_state='{'0-1-1,' * 170_000}'"),
        bytes((p.COM_BINLOG_DUMP,)) + dump_command(),
    ),
}


@BOTH
@pytest.mark.parametrize("commands", LONGEST.values(), ids=LONGEST)
def test_longest_command_takes_four_mib(host: Host, flavor: Flavor, commands: tuple[bytes, ...]) -> None:
    taken = memory_of(host, commands, flavor)
    print(taken)
    assert taken.peak < CONNECTION_BYTES and taken.after < VARIABLES_BYTES_MAX


def large(number: int, size: int) -> tuple[int, bytes]:
    """Return a row of this size, whose bytes differ from those of others."""
    return number, bytes((number, *range(255))) * (size // 256)


@pytest.fixture(scope="module")
def large_host() -> Iterator[Host]:
    """A host of large rows: one alone, and several in one transaction."""
    host = Host(data_memory="256 MiB", redo_log="192 MiB", transaction_memory="96 MiB")
    host.db.create_table("shop.blob", [tm.Column("id", tm.Int64), tm.Column("b", tm.Blob)], "id")
    host.db["shop.blob"].insert(large(1, LARGE))
    host.db.sync()
    with host.db.transaction() as txn:
        for number in (2, 3):
            txn.insert("shop.blob", large(number, LARGE))
    host.db.sync()
    yield host
    host.close()


LARGE = 12 << 20
SEMI_SYNC = query("SET @rpl_semi_sync_replica = 1, @rpl_semi_sync_slave = 1")
NO_CHECKSUM = query("SET @master_binlog_checksum = 'NONE', @source_binlog_checksum = 'NONE'")
DUMPS = [
    (talk, with_checksum, before)
    for talk in TALKS
    if talk.name.startswith("dump") and talk.name != "dump that waits"
    for with_checksum in (True, False)
    for before in ((), (SEMI_SYNC,))
]


@pytest.mark.parametrize(("talk", "with_checksum", "before"), DUMPS)
def test_dump_takes_its_largest_event_once(
    large_host: Host, talk: Talk, with_checksum: bool, before: tuple[bytes, ...]
) -> None:
    """Story: a dump had an event of 12 MiB up to six times: as it was read, cut out, after a byte of the protocol,
    in packets, joined to a piece, and while the next one was read.
    """
    commands = [*before, *talk.commands]
    if not with_checksum:
        commands = [NO_CHECKSUM if b"_binlog_checksum" in each else each for each in commands]
    taken = memory_of(large_host, tuple(commands), talk.flavor)
    print(taken)
    assert LARGE < taken.peak < LARGE + CONNECTION_BYTES and taken.after < 512 << 10


def test_largest_row_takes_twice_its_size(large_host: Host) -> None:
    """Story: a row of 12 MiB took six times as many: from the store, decoded, cut out, in packets and joined."""
    taken = memory_of(large_host, (query("SELECT id, b FROM shop.blob"),))
    print(taken)
    assert LARGE < taken.peak < 2 * LARGE + CONNECTION_BYTES and taken.after < 512 << 10


# --- random packets -----------------------------------------------------------------------------------
@pytest.mark.parametrize("seed", fresh_seeds(1))
def test_random_packets_raise_nothing_but_typed_errors(tmp_path: Path, seed: int) -> None:
    counts = attack(tmp_path, seed, connections=few(120, 2_500))
    print(counts)
    assert counts["commits"] and counts["logged_in"] and counts["tls"]


# --- planted defects ----------------------------------------------------------------------------------
# A run takes one of them, another each time; `make soak` takes all.
DRAWN = random.Random(fresh_seeds(1)[0]).sample(DEFECTS, 1)


def find(defect: Defect) -> None:
    command = [sys.executable, "-m", "tests.replication.mysql_defects", defect.name]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, f"{defect.name} was not found\n{ended.stdout[-3_000:]}{ended.stderr[-3_000:]}"


@pytest.mark.parametrize("defect", DRAWN, ids=lambda defect: defect.name)
def test_check_that_is_taken_away_is_found(defect: Defect) -> None:
    find(defect)


@pytest.mark.soak
@pytest.mark.parametrize("defect", [each for each in DEFECTS if each not in DRAWN], ids=lambda defect: defect.name)
def test_check_that_is_taken_away_and_was_not_drawn_is_found(defect: Defect) -> None:
    find(defect)


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.name)
def test_line_of_a_planted_defect_is_still_there(defect: Defect) -> None:
    source = importlib.util.find_spec(defect.module)
    assert source is not None and source.origin is not None
    assert Path(source.origin).read_text().count(defect.old) == 1
