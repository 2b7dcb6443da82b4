"""A binlog with GTIDs as MariaDB gets it, read by its own mysqlbinlog, and both forms fed to real servers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.replication.mariadb_rig import mysqlbinlog
from tests.replication.mysql_rig import SERVERS
from tests.replication.offline_reader import events_of
from tests.replication.site import WHOLE, open_site
from tests.replication.test_served_events import raw_events
from tidemark.engine import types as t
from tidemark.engine.schema.column import Column
from tidemark.replication.binlog import binlog_layout as b
from tidemark.replication.binlog import events as e
from tidemark.replication.binlog.position import Position
from tidemark.replication.mysql_source import served_events as s
from tidemark.replication.mysql_source.flavors import MARIADB
from tidemark.replication.mysql_source.gtids import Gtids
from tidemark.replication.mysql_source.mariadb_events import GTID_LIST_EVENT, MariadbEvents


@pytest.fixture(scope="module")
def written() -> tuple[list[bytes], str, int]:
    """Return two files, the UUID of their numbers, and how many transactions they have."""
    db = open_site(**WHOLE, log_gtids=True, server_id=9)
    table = db.create_table("d.t", [Column("id", t.Int64), Column("name", t.VarChar(9))], "id")
    for number in range(3):
        table.insert({"id": number, "name": "BEGIN"})
        db.sync()
    db.binlog.rotate()
    table.update(1, {"name": "x"})
    db.sync()
    table.delete(2)
    db.sync()
    gtids = Gtids(db.binlog.writer)
    server = gtids.uuid
    ((_, count),) = gtids.executed().by_uuid[server]
    db.close()
    files = db.parts.files.kill().snapshot()
    return (
        [bytes(files[name]) for name in sorted(files) if re.fullmatch(r"binlog/binlog\.\d+", name)],
        str(server),
        count,
    )


def translated(content: bytes) -> list[bytes]:
    form = MariadbEvents(MARIADB.version)
    return [b"".join(sent) for raw in raw_events(content) for sent in form.translate((raw,))]


def test_pairs_become_one_event_and_positions_stay(written: tuple[list[bytes], str, int]) -> None:
    contents, _, count = written
    found, lists = [], []
    for content in contents:
        own = [e.parse_header(raw, Position("f", 4)) for raw in raw_events(content)]
        sent = translated(content)
        heads = [e.parse(raw, Position("f", 4))[0] for raw in sent]  # with a good checksum
        assert [each.event_bytes for each in heads] == list(map(len, sent))
        ends = [each.end_position for each in heads]
        assert ends == sorted(ends) and ends[-1] == own[-1].end_position
        assert {each.end_position for each in own} >= set(ends[1:])
        assert ends[0] == 0
        assert not {b.GTID_EVENT, b.PREVIOUS_GTIDS_EVENT} & {each.type for each in heads}
        for raw, head in zip(sent, heads, strict=True):
            body = raw[b.HEADER_BYTES : -b.CHECKSUM_BYTES]
            if head.type == b.MARIADB_GTID_EVENT:
                number, domain, flags = int.from_bytes(body[:8], "little"), body[8:12], body[12]
                assert (domain, head.server_id, len(body)) == (bytes(4), 9, 19)
                found.append((number, flags))
            elif head.type == GTID_LIST_EVENT:
                lists.append(body)
    assert [number for number, _ in found] == list(range(1, count + 1))
    flags = [each for _, each in found]
    assert set(flags) == {1, 4} and flags.count(1) == 1 + 1  # CREATE DATABASE, CREATE TABLE
    before = next(number for number, _ in found[::-1] if number <= count - 2)
    assert lists[0] == bytes(4)
    assert lists[1] == (1).to_bytes(4, "little") + bytes(4) + (9).to_bytes(4, "little") + before.to_bytes(8, "little")


def test_mysqlbinlog_of_mariadb_reads_its_form(written: tuple[list[bytes], str, int], tmp_path: Path) -> None:
    contents, _, count = written
    for place, content in enumerate(contents):
        path = tmp_path / f"served.00000{place}"
        path.write_bytes(b.MAGIC + b"".join(translated(content)))
    said = mysqlbinlog("--verify-binlog-checksum", "--base64-output=DECODE-ROWS", "-v", *sorted(tmp_path.iterdir()))
    assert re.findall(r"GTID (0-9-\d+)", said) == [f"0-9-{number}" for number in range(1, count + 1)]
    assert "Gtid list [0-9-" in said and MARIADB.version in said
    assert said.count("### INSERT INTO `d`.`t`") == 3 and said.count("### DELETE FROM `d`.`t`") == 1


def test_dump_from_the_middle_is_translated_too(written: tuple[list[bytes], str, int], tmp_path: Path) -> None:
    first, *others = raw_events(written[0][0])
    begins = [place for place, raw in enumerate(others) if raw[4] == b.GTID_EVENT]
    form = MariadbEvents(MARIADB.version)
    sent = [b"".join(each) for each in form.translate((s.description(first, False),))]
    assert e.parse_header(sent[0], Position("f", 4)).end_position == 0
    sent += [each for raw in others[begins[-2] :] for each in map(b"".join, form.translate((raw,)))]
    path = tmp_path / "served"
    path.write_bytes(b.MAGIC + b"".join(sent))
    said = mysqlbinlog("--verify-binlog-checksum", "--base64-output=DECODE-ROWS", "-v", path)
    assert said.count("### INSERT INTO `d`.`t`") == 2 and said.count("GTID 0-9-") == 2


@pytest.fixture(scope="module", params=SERVERS)
def server(request: pytest.FixtureRequest) -> Any:
    with SERVERS[request.param]() as running:
        yield running


def test_files_with_gtids_are_read_and_fed(server: Any, written: tuple[list[bytes], str, int], tmp_path: Path) -> None:
    contents, own, count = written
    paths = []
    for place, content in enumerate(contents):
        paths.append(tmp_path / f"binlog.00000{place + 1}")
        paths[-1].write_bytes(content)
    said = server.mysqlbinlog("--verify-binlog-checksum", "--base64-output=DECODE-ROWS", "-v", *paths)
    if is_mysql(server):
        assert re.findall(rf"GTID_NEXT= '{own}:(\d+)'", said) == [str(each) for each in range(1, count + 1)]
        assert f"# {own}:1-" in said  # Previous-GTIDs of the second file
    assert said.count("### INSERT INTO `d`.`t`") == 3
    server.sql("DROP DATABASE IF EXISTS d; CREATE DATABASE d")
    server.feed(paths, "--database=d")
    assert server.sql("SELECT id, name FROM d.t ORDER BY id").split() == ["0", "BEGIN", "1", "x"]


def is_mysql(server: Any) -> bool:
    return "MariaDB" not in server.sql("SELECT VERSION()")


def test_gtids_are_executed_by_a_mysql_with_gtid_mode(
    server: Any, written: tuple[list[bytes], str, int], tmp_path: Path
) -> None:
    if not is_mysql(server):
        pytest.skip("sets with UUIDs are MySQL's")
    contents, own, count = written
    for place, content in enumerate(contents):
        (tmp_path / f"binlog.00000{place + 1}").write_bytes(content)
    server.sql("DROP DATABASE IF EXISTS d; CREATE DATABASE d")
    paths = sorted(tmp_path.iterdir())
    given = ("--idempotent", "--rewrite-db=mysql->elsewhere")
    server.sql(
        "CREATE DATABASE IF NOT EXISTS elsewhere; CREATE TABLE IF NOT EXISTS elsewhere.ndb_apply_status"
        " (server_id INT UNSIGNED PRIMARY KEY, epoch BIGINT UNSIGNED, log_name VARCHAR(255) CHARACTER SET latin1"
        " COLLATE latin1_bin, start_pos BIGINT UNSIGNED, end_pos BIGINT UNSIGNED)"
    )
    server.sql(server.mysqlbinlog("--verify-binlog-checksum", *given, *paths))
    assert f"{own}:1-{count}" in server.sql("SELECT @@global.gtid_executed")
    assert server.sql("SELECT id, name FROM d.t ORDER BY id").split() == ["0", "BEGIN", "1", "x"]


def test_mysql_replication_reads_the_numbers(written: tuple[list[bytes], str, int]) -> None:
    contents, own, count = written
    found = [event.gtid for content in contents for event in events_of(content) if type(event).__name__ == "GtidEvent"]
    assert found == [f"{own}:{number}" for number in range(1, count + 1)]
