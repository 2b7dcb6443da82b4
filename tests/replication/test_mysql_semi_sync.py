"""Semi-synchronous replicas of MySQL and MariaDB: their acks say that they have received, and nothing about applied."""

from __future__ import annotations

from pathlib import Path

import pytest

import tidemark as tm
from tests.replication.mariadb_rig import Server
from tests.replication.mysql_port_rig import HOST, PATIENCE_S, USERS, follow, store, wait_equal
from tests.replication.mysql_rig import MySqlServer
from tests.replication.test_mysql_peers import peer
from tidemark.replication.mysql_source.flavors import MARIADB

REPLICA_ID = 77
WAIT_MS = 1_000 * PATIENCE_S
ON = {
    "mariadb": "SET GLOBAL rpl_semi_sync_slave_enabled=1",
    "mysql": "INSTALL PLUGIN rpl_semi_sync_replica SONAME 'semisync_replica.so';"
    " SET GLOBAL rpl_semi_sync_replica_enabled=1",
}


class _MySQL(MySqlServer):
    """One without GTIDs; it refuses a source with them."""

    options = ("--gtid-mode=OFF", "--enforce-gtid-consistency=OFF", "--relay-log=relay")


class _Numbered(MySqlServer):
    options = ("--gtid-mode=ON", "--enforce-gtid-consistency=ON", "--relay-log=relay")


class _MariaDB(Server):
    options = ("--relay-log=relay", "--slave-exec-mode=STRICT")


KINDS: dict[str, tuple[type[Server], dict[str, str]]] = {
    "MariaDB by position": (_MariaDB, {}),
    "MariaDB by GTID": (_MariaDB, {"USE_GTID": "slave_pos"}),
    "MySQL by position": (_MySQL, {}),
    "MySQL by GTID": (_Numbered, {"AUTO_POSITION": "1"}),
}


@pytest.mark.parametrize("kind, given", KINDS.values(), ids=KINDS)
def test_ack_of_a_replica_says_that_it_has_received_and_not_applied(
    kind: type[Server], given: dict[str, str], tmp_path: Path
) -> None:
    """Story: an ack that counted as applied would promise rows that the replica does not show."""
    with peer(kind) as (server, flavor):
        word = "SLAVE" if flavor is MARIADB else "REPLICA"
        server.sql(ON[server.client])
        address = f"{HOST}:0"
        with store(tmp_path, log_gtids=bool(given)) as db:
            table = db["shop.item"]
            with tm.serve_mysql(db, address, USERS, flavor=flavor.name) as serving:
                follow(server, serving.address, **given)
                for number in range(20):
                    table.insert({"id": number, "v": f"value {number}"})
                    epoch = db.sync()
                    db.wait_received(epoch, WAIT_MS, at=[REPLICA_ID])
                    db.wait_received(epoch, WAIT_MS)
                assert serving.status()["dumps"][0]["semi_sync"]
                wait_equal(server, db)
                with pytest.raises(tm.PeerTimeout, match="server 77 has not connected"):
                    db.wait_applied(epoch, 0, at=[REPLICA_ID])
                with pytest.raises(tm.Rejected, match="no replica has connected"):
                    db.wait_applied(epoch, 0)
                shown = db.status()["replication"]["lag"][f"to server {REPLICA_ID}"]
                assert shown["stations"].keys() == {"received"} and shown["lag_epochs"] == 0
                server.sql(f"STOP {word} SQL_THREAD")
                table.insert({"id": 100, "v": "received alone"})
                epoch = db.sync()
                db.wait_received(epoch, WAIT_MS, at=[REPLICA_ID])
                assert server.sql("SELECT COUNT(*) FROM shop.item WHERE id = 100").strip() == "0"
                server.sql(f"STOP {word}")
                table.insert({"id": 101, "v": "late"})
                with pytest.raises(tm.PeerTimeout, match="server 77 is at epoch"):
                    db.wait_received(db.sync(), 100, at=[REPLICA_ID])
                server.sql(f"START {word}")
                db.wait_received(db.sync(), WAIT_MS, at=[REPLICA_ID])
                wait_equal(server, db)
                address = serving.name
        with store(tmp_path, log_gtids=bool(given)) as db, tm.serve_mysql(db, address, USERS, flavor=flavor.name):
            # Nothing is sent that could be acknowledged: the replica has asked for what follows.
            db.wait_received(db.sync(), WAIT_MS, at=[REPLICA_ID])
            db["shop.item"].insert({"id": 102, "v": "after the restart"})
            db.wait_received(db.sync(), WAIT_MS, at=[REPLICA_ID])
            wait_equal(server, db)
