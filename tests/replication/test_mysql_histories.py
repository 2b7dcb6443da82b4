"""Real replicas are refused once a history or a timeline is over; a copy of a snapshot continues from its numbers."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tidemark as tm
from tests.replication.mariadb_rig import Server
from tests.replication.mysql_port_rig import (
    HOST,
    ITEM,
    OPTIONS,
    USERS,
    follow,
    library_reader,
    remote,
    replica_status,
    served_end,
    wait_equal,
    wait_refused,
)
from tests.replication.mysql_rig import MySqlServer
from tests.replication.test_mysql_peers import REPLICA, change, peer
from tidemark.replication.mysql_source.flavors import MARIADB, Flavor
from tidemark.replication.mysql_source.gtids import Gtids
from tidemark.replication.mysql_source.snapshot import ServedSnapshots

NUMBERED: dict[str, Any] = {**OPTIONS, "log_gtids": True}


class MariaDbByGtid(Server):
    options = (*REPLICA, "--gtid-strict-mode=ON")


class MySqlByGtid(MySqlServer):
    options = ("--gtid-mode=ON", "--enforce-gtid-consistency=ON", "--relay-log=relay")


class MySqlByPosition(MySqlServer):
    options = ("--gtid-mode=OFF", "--enforce-gtid-consistency=OFF", "--relay-log=relay")


class MySqlOfBoth(MySqlServer):
    """It takes transactions with numbers and without."""

    options = ("--gtid-mode=OFF_PERMISSIVE", "--enforce-gtid-consistency=ON", "--relay-log=relay")


def made(path: Path, options: dict[str, Any] = NUMBERED) -> None:
    with tm.open(path, **options) as db:
        db.create_table("shop.item", ITEM, "id")
        change(db, 0)


def _copied(path: Path, options: dict[str, Any]) -> Path:
    shutil.copytree(path, path.parent / "copy")
    return path.parent / "copy"


def _older(path: Path, options: dict[str, Any]) -> Path:
    shutil.rmtree(path)
    shutil.copytree(path.parent / "kept", path)
    return path


def _restored(path: Path, options: dict[str, Any]) -> Path:
    with tm.open(path, **options) as db:
        db.backup(path.parent / "backups")
    tm.restore(path.parent / "backups", path.parent / "restored")
    return path.parent / "restored"


def _begun_anew(path: Path, options: dict[str, Any]) -> Path:
    shutil.rmtree(path / "binlog")
    return path


def _without_numbers(path: Path, options: dict[str, Any]) -> Path:
    with tm.open(path, **{**options, "log_gtids": False}) as db:
        db["shop.item"].insert({"id": 99_999, "v": "without a number"})
    return path


def _purged(path: Path, options: dict[str, Any]) -> Path:
    with tm.open(path, **options) as db:
        assert db.binlog is not None
        db.binlog.rotate()
        change(db, 2_000)
        db.checkpoint()
        assert db.binlog.purge(to=served_end(db)[0])
    return path


# Each takes the folder of a store, which has a copy of its start beside it, and its options; it returns the folder of
# another future.
FUTURES: list[Callable[[Path, dict[str, Any]], Path]] = [_copied, _older, _restored, _begun_anew]
BREAKS = [*FUTURES, _without_numbers]


def _leave(server: Any) -> None:
    """Make a server a new one."""
    if server.client == "mariadb":
        server.sql("STOP SLAVE; RESET SLAVE ALL; DROP DATABASE shop")
        server.sql("RESET MASTER; SET GLOBAL gtid_slave_pos=''")
    else:
        server.sql("STOP REPLICA; RESET REPLICA ALL; DROP DATABASE shop")
        server.sql("RESET BINARY LOGS AND GTIDS")


def stays_refused(
    server: Any, flavor: Flavor, given: dict[str, str], ends: Any, folder: Path, options: dict[str, Any]
) -> None:
    """Let a server follow a store and stop; then the store ends, another future goes on at its address, and the server
    is refused and keeps its rows.
    """
    word = "SLAVE" if flavor is MARIADB else "REPLICA"
    path = folder / "store"
    folder.mkdir()
    made(path, options)
    shutil.copytree(path, folder / "kept")
    with tm.open(path, **options) as db, tm.serve_mysql(db, f"{HOST}:0", USERS, flavor=flavor.name) as serving:
        address = serving.name
        follow(server, serving.address, **given)
        change(db, 1_000)
        wait_equal(server, db)
        server.sql(f"STOP {word}")
    rows = server.sql("SELECT * FROM shop.item ORDER BY 1")
    with tm.open(ends(path, options), **options) as db:
        for first in (3_000, 4_000, 5_000):  # more transactions than the replica has
            change(db, first)
        with tm.serve_mysql(db, address, USERS, flavor=flavor.name):
            server.sql(f"START {word}")
            assert "1236" in wait_refused(server), ends.__name__
            assert server.sql("SELECT * FROM shop.item ORDER BY 1") == rows, ends.__name__
            assert replica_status(server)["Replica_SQL_Running"] == "Yes"


@pytest.mark.parametrize("kind", [MariaDbByGtid, MySqlByGtid])
def test_replica_of_a_history_that_is_over_stops_with_1236(kind: Any, tmp_path: Path) -> None:
    with peer(kind) as (server, flavor):
        given = {"USE_GTID": "slave_pos"} if flavor is MARIADB else {"AUTO_POSITION": "1"}
        for place, ends in enumerate(BREAKS):
            stays_refused(server, flavor, given, ends, tmp_path / str(place), NUMBERED)
            _leave(server)


@pytest.mark.parametrize(
    ("kind", "has_gtids"),
    [(MariaDbByGtid, False), (MariaDbByGtid, True), (MySqlByPosition, False), (MySqlByGtid, True)],
)
def test_replica_by_position_of_another_future_stops_with_1236(kind: Any, has_gtids: bool, tmp_path: Path) -> None:
    """Story: an older folder was put back. Its binlog went on to the file and position at which a replica was, which
    continued without an error and lacked rows.
    """
    with peer(kind) as (server, flavor):
        for place, ends in enumerate([*FUTURES, _purged]):
            stays_refused(server, flavor, {}, ends, tmp_path / str(place), {**OPTIONS, "log_gtids": has_gtids})
            _leave(server)


@pytest.mark.parametrize("kind", [MariaDbByGtid, MySqlOfBoth])
def test_replica_by_position_continues_over_a_time_without_numbers(kind: Any, tmp_path: Path) -> None:
    with peer(kind) as (server, flavor):
        address = f"{HOST}:0"
        for first, has_gtids in enumerate([True, False, True, False]):
            with (
                tm.open(tmp_path / "store", **{**OPTIONS, "log_gtids": has_gtids}) as db,
                tm.serve_mysql(db, address, USERS, flavor=flavor.name) as serving,
            ):
                if "shop.item" not in db:
                    db.create_table("shop.item", ITEM, "id")
                    address = serving.name
                    follow(server, serving.address)
                change(db, 1_000 * first)
                wait_equal(server, db)


@pytest.mark.parametrize("kind", [MariaDbByGtid, MySqlByGtid])
def test_copy_of_a_snapshot_continues_from_its_numbers(kind: Any, tmp_path: Path) -> None:
    """A later history counts all lower numbers as purged, so a replica begins with a copy and the set of its moment."""
    made(tmp_path / "first")
    shutil.copytree(tmp_path / "first", tmp_path / "copy")
    with peer(kind) as (server, flavor), tm.open(tmp_path / "copy", **NUMBERED) as db:
        assert db.binlog is not None
        change(db, 1_000)
        gtids = Gtids(db.binlog.writer)
        copied = ServedSnapshots(db.parts.store, db.binlog).begin()
        rows = ", ".join(f"({row.id}, {'NULL' if row.v is None else repr(row.v)})" for row in db["shop.item"].scan())
        change(db, 2_000)
        columns = "id BIGINT PRIMARY KEY, v VARCHAR(50) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
        server.sql(f"CREATE DATABASE shop; CREATE TABLE shop.item ({columns}); INSERT INTO shop.item VALUES {rows}")
        if flavor is MARIADB:
            server.sql(f"RESET MASTER; SET GLOBAL gtid_slave_pos='{gtids.domain_position(copied.place)}'")
            given = {"USE_GTID": "slave_pos"}
        else:
            server.sql(f"RESET BINARY LOGS AND GTIDS; SET GLOBAL gtid_purged='{copied.executed}'")
            given = {"AUTO_POSITION": "1"}
        copied.close()
        with tm.serve_mysql(db, f"{HOST}:0", USERS, flavor=flavor.name) as serving:
            follow(server, serving.address, **given)
            for first in (3_000, 4_000):
                wait_equal(server, db)
                change(db, first)
            wait_equal(server, db)
            if flavor is not MARIADB:
                executed = server.sql("SELECT @@global.gtid_executed").replace("\\n", "")
                assert str(gtids.executed()) in executed


@pytest.mark.parametrize("kind", [MariaDbByGtid, MySqlByPosition])
def test_tools_read_files_of_an_earlier_timeline_and_do_not_follow_from_them(kind: Any, tmp_path: Path) -> None:
    made(tmp_path / "store", OPTIONS)
    shutil.copytree(tmp_path / "store", tmp_path / "copy")
    with peer(kind) as (server, flavor), tm.open(tmp_path / "copy", **OPTIONS) as db:
        change(db, 1_000)
        present, _ = served_end(db)
        with tm.serve_mysql(db, f"{HOST}:0", USERS, flavor=flavor.name) as serving:
            login = remote(server, serving.address)
            said = server.mysqlbinlog(*login, "--to-last-log", "-v", "--base64-output=decode-rows", "binlog.000001")
            assert "value 19" in said and "value 1019" in said and f"Rotate to {present}" in said
            server.feed(["binlog.000001", present], *login)
            assert len(server.sql("SELECT id FROM shop.item").splitlines()) == len(db["shop.item"])
            own_id = "--stop-never-slave-server-id=99" if flavor is MARIADB else "--connection-server-id=99"
            with pytest.raises(AssertionError, match="binlog.000001 is of an earlier timeline"):
                server.mysqlbinlog(*login, "--stop-never", own_id, "binlog.000001")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of names that the tool gives its client
@pytest.mark.parametrize("blocking", [False, True])
def test_library_does_not_follow_from_an_earlier_timeline(blocking: bool, tmp_path: Path) -> None:
    made(tmp_path / "store", OPTIONS)
    shutil.copytree(tmp_path / "store", tmp_path / "copy")
    with tm.open(tmp_path / "copy", **OPTIONS) as db, tm.serve_mysql(db, f"{HOST}:0", USERS) as serving:
        change(db, 1_000)
        present, _ = served_end(db)
        reader = library_reader(serving.address, log_file=present, log_pos=4, blocking=blocking)
        assert reader.fetchone() is not None
        reader.close()
        reader = library_reader(serving.address, log_file="binlog.000001", log_pos=4, blocking=blocking)
        with pytest.raises(Exception, match="binlog.000001 is of an earlier timeline") as error:
            reader.fetchone()
        assert error.value.args[0] == 1236
        reader.close()
