"""Semi-synchronous replicas of MySQL and MariaDB: their acks say that they have received, and nothing about applied."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

import tidemark as tm
from tests.replication.mariadb_rig import Server
from tests.replication.mysql_port_rig import (
    HOST,
    PATIENCE_S,
    USERS,
    catch_up,
    follow,
    replica_status,
    served_end,
    store,
    wait_equal,
)
from tests.replication.mysql_rig import MySqlServer
from tests.replication.offline_reader import events_of
from tests.replication.test_mysql_peers import peer
from tests.waiting import wait_until
from tidemark.replication.mysql_source.acks import Acks
from tidemark.replication.mysql_source.flavors import MARIADB
from tidemark.replication.mysql_source.gtids import Gtids

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


@pytest.mark.parametrize("kind, given", KINDS.values(), ids=KINDS)
def test_wait_for_received_ends_with_the_ack_and_wait_for_applied_does_not(
    kind: type[Server], given: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both wait before the replica connects. The time between ack and return is printed, and decides nothing."""
    came: list[tuple[str, float]] = []
    receive = Acks.receive

    def noted(self: Acks, message: bytes) -> None:
        came.append(("ack", time.monotonic()))
        receive(self, message)

    def wait(name: str, call: Any, timeout_ms: int) -> None:
        try:
            call(epoch, timeout_ms, at=[REPLICA_ID])
            came.append((name, time.monotonic()))
        except tm.PeerTimeout:
            came.append((f"{name} timed out", time.monotonic()))

    monkeypatch.setattr(Acks, "receive", noted)
    with store(tmp_path, log_gtids=bool(given)) as db, peer(kind) as (server, flavor):
        server.sql(ON[server.client])
        db["shop.item"].insert({"id": 1, "v": "one"})
        epoch = db.sync()
        with tm.serve_mysql(db, f"{HOST}:0", USERS, flavor=flavor.name) as serving:
            waits = [
                threading.Thread(target=wait, args=each)
                for each in (("received", db.wait_received, WAIT_MS), ("applied", db.wait_applied, 4_000))
            ]
            for each in waits:
                each.start()
            follow(server, serving.address, **given)
            for each in waits:
                each.join()
            wait_equal(server, db)
    names = [name for name, _ in came]
    assert "ack" in names[: names.index("received")] and names.index("received") >= 1
    assert "applied timed out" in names and "applied" not in names
    at = dict(reversed(came))
    received = at["received"] - max(moment for name, moment in came[: names.index("received")] if name == "ack")
    print(f"wait_received returned {received * 1e3:.1f} ms after the last ack before it")


EPOCHS = [
    pytest.param(12, id="twelve epochs"),
    pytest.param(1_000, id="1,000 epochs", marks=[pytest.mark.soak, pytest.mark.timeout(3_000)]),
]


@pytest.mark.parametrize("epochs", EPOCHS)
@pytest.mark.parametrize("kind, given", KINDS.values(), ids=KINDS)
def test_position_that_a_replica_says_it_has_read_is_the_end_after_every_epoch(
    kind: type[Server], given: dict[str, str], epochs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Story: where events were left out of a stream, a replica by position stood before the end, and asked for the
    middle of an event at its next connection; after skipped transactions acks named positions that were none.
    """
    acked: set[tuple[str, int]] = set()
    receive = Acks.receive

    def noted(self: Acks, message: bytes) -> None:
        acked.add((message[9:].rstrip(b"\0").decode(), int.from_bytes(message[1:9], "little")))
        receive(self, message)

    monkeypatch.setattr(Acks, "receive", noted)
    with peer(kind) as (server, flavor):
        server.sql(ON[server.client])
        word = "SLAVE" if flavor is MARIADB else "REPLICA"
        skipped: set[int] = set()
        with store(tmp_path, log_gtids=bool(given)) as db:
            table = db["shop.item"]
            with tm.serve_mysql(db, f"{HOST}:0", USERS, flavor=flavor.name) as serving:
                follow(server, serving.address, **given)
                for number in range(epochs):
                    table.insert({"id": number, "v": f"value {number}"})
                    if number % 3 == 2 and number - 1 not in skipped:
                        table.update(number - 1, {"v": None})
                        table.delete(number - 2) if number - 2 not in skipped else None
                    if number % 7 == 3:
                        assert db.binlog is not None
                        db.binlog.rotate()
                    if given and number % 6 == 5:
                        server.sql(f"STOP {word}")
                        wait_until(lambda: serving.status()["dumps"] == [])
                        for more in (0.25, 0.5, 0.75):
                            table.insert({"id": int(10_000 * (number + more)), "v": "skipped"})
                            served_end(db)
                        _skip(server, db)
                        server.sql(f"START {word}")
                    _wait_at(server, catch_up(server, db))
            ends = _ends_of_transactions(tmp_path / "store/binlog")
    assert len(acked) >= epochs / 2 and acked <= ends


def _skip(server: Server, db: tm.Database) -> None:
    """Let a replica that has stopped have all numbers of the store, without their rows."""
    gtids = Gtids(db.binlog.writer)  # type: ignore[union-attr]
    if server.client == "mariadb":
        server.sql(f"SET GLOBAL gtid_slave_pos='{gtids.domain_position()}'")
        return
    lacking = server.sql(f"SELECT GTID_SUBTRACT('{gtids.executed()}', @@GLOBAL.gtid_executed)").strip()
    server_uuid, _, numbers = lacking.partition(":")
    first, _, last = numbers.partition("-")
    statements = [
        f"SET GTID_NEXT='{server_uuid}:{each}'; BEGIN; COMMIT;" for each in range(int(first), int(last or first) + 1)
    ]
    server.sql("".join(statements))


def _wait_at(server: Server, end: tuple[str, int]) -> None:
    """Wait until a replica says that it has read and executed all up to the end."""
    names = ("Source_Log_File", "Read_Source_Log_Pos", "Relay_Source_Log_File", "Exec_Source_Log_Pos")
    wanted = [end[0], str(end[1])] * 2

    def is_there() -> bool:
        status = replica_status(server)
        return [status[name] for name in names] == wanted

    wait_until(is_there)


def _ends_of_transactions(folder: Path) -> set[tuple[str, int]]:
    """Return where transactions end in the files of a binlog, as another library reads them."""
    found = set()
    for path in folder.glob("binlog." + 6 * "[0-9]"):
        for event in events_of(path.read_bytes()):
            if type(event).__name__ == "QueryEvent" and event.query != "BEGIN":
                found.add((path.name, event.packet.log_pos))
    return found
