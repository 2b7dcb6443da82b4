"""Real servers and tools follow a served store: nothing is prepared at them, and they are strict."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme

import tidemark as tm
from tests.replication.mariadb_rig import Server, running_server
from tests.replication.mysql_port_rig import (
    HOST,
    USERS,
    follow,
    replica_status,
    served_end,
    store,
    wait_equal,
    wait_refused,
)
from tests.replication.mysql_rig import MySqlServer, running_mysql
from tests.waiting import wait_until
from tidemark.replication.mysql_source.flavors import MARIADB, MYSQL, Flavor

REPLICA = ("--slave-net-timeout=10", "--relay-log=relay", "--slave-exec-mode=STRICT")


class _MariaDB(Server):
    options = (*REPLICA, "--gtid-strict-mode=ON")


class _ByPosition(MySqlServer):
    options = ("--gtid-mode=OFF", "--enforce-gtid-consistency=OFF", "--relay-log=relay")


class _ByGtid(MySqlServer):
    options = ("--gtid-mode=ON", "--enforce-gtid-consistency=ON", "--relay-log=relay")


@contextmanager
def peer(kind: type[Server]) -> Iterator[tuple[Any, Flavor]]:
    """Run a server of a kind; yield it with the flavor that it follows."""
    if issubclass(kind, MySqlServer):
        with running_mysql(kind) as mysql:
            yield mysql, MYSQL
    else:
        with running_server(kind) as mariadb:
            yield mariadb, MARIADB


def change(db: tm.Database, first: int) -> None:
    """Insert, update and delete rows, some in one epoch."""
    table = db["shop.item"]
    for number in range(first, first + 20):
        table.insert({"id": number, "v": f"value {number}"})
    table.update(first, {"v": None})
    table.update(first + 1, {"v": "changed"})
    table.delete(first + 2)
    db.sync()
    table.insert_many([{"id": first + 100 + number, "v": None} for number in range(50)])
    table.update(first + 100, {"v": "later"})


@pytest.mark.parametrize("kind", [_MariaDB, _ByPosition])
def test_replica_follows_by_position(kind: type[Server], tmp_path: Path) -> None:
    with store(tmp_path) as db, peer(kind) as (server, flavor):
        change(db, 0)
        with tm.serve_mysql(db, f"{HOST}:0", USERS, flavor=flavor.name) as serving:
            follow(server, serving.address)
            wait_equal(server, db)
            for first in (1_000, 2_000):
                assert db.binlog is not None
                db.binlog.rotate()
                change(db, first)
                wait_equal(server, db)
            db.add_column("shop.item", tm.Column("n", tm.Int32, nullable=True))
            change(db, 3_000)
            db["shop.item"].update(3_005, {"n": -5})
            wait_equal(server, db)
            file, position = served_end(db)
            wait_until(lambda: replica_status(server)["Read_Source_Log_Pos"] == str(position))
            status = replica_status(server)
            assert (status["Source_Log_File"], status["Replica_IO_Running"]) == (file, "Yes")
            (dump,) = serving.status()["dumps"]
            assert (dump["user"], dump["server_id"], dump["position"]) == ("repl", 77, position)


@pytest.mark.parametrize("kind", [_MariaDB, _ByPosition])
def test_replica_continues_where_it_was_after_either_side_has_restarted(kind: type[Server], tmp_path: Path) -> None:
    with peer(kind) as (server, flavor):
        address = f"{HOST}:0"
        for first in (0, 1_000, 2_000):
            with store(tmp_path) as db, tm.serve_mysql(db, address, USERS, flavor=flavor.name) as serving:
                if address.endswith(":0"):
                    follow(server, serving.address)
                    address = serving.name
                change(db, first)
                wait_equal(server, db)
                word = "SLAVE" if server.client == "mariadb" else "REPLICA"
                server.sql(f"STOP {word}")
                change(db, first + 500)
                server.sql(f"START {word}")
                wait_equal(server, db)


@pytest.mark.parametrize("kind", [_MariaDB, _ByGtid])
def test_replica_follows_by_gtid(kind: type[Server], tmp_path: Path) -> None:
    with store(tmp_path, log_gtids=True) as db, peer(kind) as (server, flavor):
        change(db, 0)
        is_mariadb = flavor is MARIADB
        word, given = ("SLAVE", {"USE_GTID": "slave_pos"}) if is_mariadb else ("REPLICA", {"AUTO_POSITION": "1"})
        with tm.serve_mysql(db, f"{HOST}:0", USERS, flavor=flavor.name) as serving:
            follow(server, serving.address, **given)
            wait_equal(server, db)
            for first in (1_000, 2_000):
                server.sql(f"STOP {word}")
                change(db, first)
                assert db.binlog is not None
                db.binlog.rotate()
                server.sql(f"START {word}")
                wait_equal(server, db)


@pytest.mark.parametrize("kind", [_MariaDB, _ByPosition])
def test_purged_position_stops_a_replica(kind: type[Server], tmp_path: Path) -> None:
    with store(tmp_path) as db, peer(kind) as (server, flavor):
        change(db, 0)
        assert db.binlog is not None
        db.binlog.rotate()
        change(db, 1_000)
        db.checkpoint()
        file, _ = served_end(db)
        assert db.binlog.purge(to=file) == ["binlog.000001"]
        with tm.serve_mysql(db, f"{HOST}:0", USERS, flavor=flavor.name) as serving:
            follow(server, serving.address, LOG_FILE="'binlog.000001'", LOG_POS="4")
            assert "1236" in wait_refused(server)


def test_mysql_follows_in_tls_and_is_refused_in_clear(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    pem = str(tmp_path / "server.pem")
    authority.issue_cert(HOST).private_key_and_cert_chain_pem.write_to_path(pem)
    tls = tm.server_tls(pem, pem, version_min="1.2")
    with store(tmp_path) as db, peer(_ByPosition) as (server, _):
        change(db, 0)
        with tm.serve_mysql(db, "0.0.0.0:0", USERS, tls=tls) as serving:
            follow(server, serving.address)
            wait_until(lambda: "insecure transport" in replica_status(server)["Last_IO_Error"])
            server.sql("STOP REPLICA")
            given = {"SSL": "1", "SSL_CA": f"'{tmp_path / 'ca.pem'}'", "SSL_VERIFY_SERVER_CERT": "1"}
            follow(server, serving.address, **given)
            wait_equal(server, db)
