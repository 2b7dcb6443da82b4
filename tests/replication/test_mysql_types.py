"""Every column type at its extremes at every peer of a served store: servers, mysqlbinlog, and readers of events."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest

import tidemark as tm
from tests.cli.support import json_lines
from tests.replication.mariadb_rig import Server
from tests.replication.mysql_port_rig import (
    HOST,
    SECRET,
    USERS,
    catch_up,
    follow,
    library_reader,
    remote,
    replica_status,
    served_end,
    store,
)
from tests.replication.mysql_rig import MySqlServer
from tests.replication.mysql_types_rig import (
    ROOM,
    Everything,
    Reader,
    assert_same_at,
    library_changes,
    stream_change,
    stream_value,
)
from tests.replication.test_mysql_peers import peer
from tests.replication.test_mysql_semi_sync import KINDS
from tests.replication.test_stock_tools import library_value
from tidemark.replication.mysql_source.flavors import FLAVORS, MARIADB
from tidemark.replication.mysql_source.gtids import Gtids

STATEMENTS = ("INSERT INTO", "UPDATE", "DELETE FROM")


@pytest.mark.parametrize("kind, given", KINDS.values(), ids=KINDS)
def test_replica_has_every_value_after_each_step(kind: type[Server], given: dict[str, str], tmp_path: Path) -> None:
    with store(tmp_path, log_gtids=bool(given), **ROOM) as db, peer(kind) as (server, flavor):
        everything = Everything(db)
        with tm.serve_mysql(db, f"{HOST}:0", USERS, flavor=flavor.name) as serving:
            follow(server, serving.address, **given)
            for step in everything.steps():
                print(step)
                file, position = catch_up(server, db)
                assert_same_at(server, everything)
        assert file == "binlog.000003"
        status = replica_status(server)
        assert (status["Relay_Source_Log_File"], status["Exec_Source_Log_Pos"]) == (file, str(position))


@pytest.mark.parametrize("kind", [Server, MySqlServer])
def test_server_fed_by_its_mysqlbinlog_from_remote_has_every_value(kind: type[Server], tmp_path: Path) -> None:
    with peer(kind) as (server, flavor):
        with store(tmp_path, log_gtids=True, **ROOM) as db:
            everything = Everything(db)
            steps = everything.steps()
            next(steps)
            next(steps)
            served_end(db)
            middle = Gtids(db.binlog.writer)  # type: ignore[union-attr]
            server_uuid, half = middle.uuid, middle.executed().by_uuid[middle.uuid][-1][1]
            for _ in steps:
                pass
            served_end(db)
            names: list[Any] = [*db.binlog.writer.index.names]  # type: ignore[union-attr]
            assert len(names) == 3
            with tm.serve_mysql(db, f"{HOST}:0", USERS, flavor=flavor.name) as serving:
                login = remote(server, serving.address)
                by_gtids = [*login[1:], "--read-from-remote-source=BINLOG-DUMP-GTIDS"]
                numbers = f"{server_uuid}:1-{half}"
                if flavor is MARIADB:  # it gets what follows a GTID, whatever file is named
                    first = ["--start-position=0-1-1", f"--stop-position=0-1-{half}"]
                    rest = [f"--start-position=0-1-{half}"]
                    parts = [[*login, "--to-last-log", *each] for each in (first, rest)]
                else:
                    parts = [[*login, f"--include-gtids={numbers}"], [*by_gtids, f"--exclude-gtids={numbers}"]]
                text = server.mysqlbinlog(*login, "--verbose", "--base64-output=decode-rows", *names)
                server.feed(names, *login)
                assert_same_at(server, everything)
                server.sql("DROP DATABASE d; DROP DATABASE shop")
                server.sql("CREATE DATABASE shop" if flavor is MARIADB else "")  # the transaction 0-1-1
                for arguments in parts:
                    server.feed(names[:1] if flavor is MARIADB else names, *arguments)
                assert_same_at(server, everything)
                server.sql("DROP DATABASE d; DROP DATABASE shop")
                raw = tmp_path / "raw"
                raw.mkdir()
                server.mysqlbinlog(*login, "--raw", f"--result-file={raw}/", *names)
        paths = sorted(raw.iterdir())
        assert [path.name for path in paths] == names
        server.feed(paths)
        assert_same_at(server, everything)
        shown = server.mysqlbinlog("--verify-binlog-checksum", "--verbose", "--base64-output=decode-rows", *paths)
        for word in STATEMENTS:
            assert text.count(f"### {word} `d`.") == shown.count(f"### {word} `d`.") > 100
        listed = _rows_listed(tmp_path / "store")
        for path in paths:
            shutil.copy(path, tmp_path / "store/binlog" / path.name)
        assert _rows_listed(tmp_path / "store") == listed and len(listed) > 100


def _rows_listed(path: Path) -> list[tuple[str, str, int]]:
    """Return table, kind and rows of each row event of users' tables that `tidemark log` lists."""
    found, tables = [], {}
    for entry in json_lines("log", path, "--binlog"):
        number, _, name = entry.get("info", "").removeprefix("table_id: ").partition(" ")
        if entry["event"] == "Table_map":
            tables[number] = name.strip("()")
        elif "rows" in entry and not tables[number].startswith("mysql."):
            found.append((tables[number], entry["event"], entry["rows"]))
    return found


BEGINNINGS = {
    "by position": lambda uuid: {"log_file": "binlog.000001", "log_pos": 4},
    "by GTID": lambda uuid: {"auto_position": f"{uuid}:1"},
}
MARIADB_BEGINNINGS = {**BEGINNINGS, "by GTID": lambda uuid: {"auto_position": "0-1-1", "is_mariadb": True}}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of names that the tool gives its client
@pytest.mark.parametrize("flavor", FLAVORS.values(), ids=FLAVORS)
def test_python_mysql_replication_reads_every_value(flavor: Any, tmp_path: Path) -> None:
    with store(tmp_path, log_gtids=True, **ROOM) as db:
        everything = Everything(db)
        for _ in everything.steps():
            pass
        served_end(db)
        server_uuid = Gtids(db.binlog.writer).uuid  # type: ignore[union-attr]
        with tm.serve_mysql(db, f"{HOST}:0", USERS, flavor=flavor.name) as serving:
            for beginning in (MARIADB_BEGINNINGS if flavor is MARIADB else BEGINNINGS).values():
                reader, found = (
                    library_reader(serving.address, **beginning(server_uuid)),
                    Reader(everything, library_value),
                )
                for event in reader:
                    for change in library_changes(everything, event):
                        found.take(*change)
                reader.close()
                found.assert_same()


@pytest.mark.parametrize("flavor", FLAVORS.values(), ids=FLAVORS)
def test_mysql_event_stream_reads_every_value(flavor: Any, tmp_path: Path) -> None:
    """The tool follows by GTIDs only. It is no dependency of the tests: docs/mysql.md says how this was run."""
    tool = pytest.importorskip("mysql_event_stream", reason="mysql-event-stream is not installed")
    with store(tmp_path, log_gtids=True, **ROOM) as db:
        everything = Everything(db)
        for _ in everything.steps():
            pass
        served_end(db)  # of one epoch the changes of `shop` come first
        db["shop.item"].insert((1, "the last change"))
        served_end(db)
        found = Reader(everything, stream_value)

        async def follow_to_the_end(**given: Any) -> None:
            async with tool.CdcStream(
                host=HOST, user="reader", password=SECRET.decode(), server_id=99, **given
            ) as sent:
                async for event in sent:
                    if event.database == "shop":
                        return
                    found.take(*stream_change(everything, event))

        first = "0-1-1" if flavor is MARIADB else f"{Gtids(db.binlog.writer).uuid}:1"  # type: ignore[union-attr]
        with tm.serve_mysql(db, f"{HOST}:0", USERS, flavor=flavor.name) as serving:
            asyncio.run(follow_to_the_end(port=serving.address[1], start_gtid=first))
        found.assert_same()
