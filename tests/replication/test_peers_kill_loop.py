"""SIGKILL of a served store and of the MariaDB and MySQL that follow it: a short loop, and what it must find."""

from __future__ import annotations

import json
import multiprocessing
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.kills.peers.planted import DEFECTS
from tests.kills.peers.proxy import HOST, forward
from tests.kills.peers.replicas import KINDS, Replica, ahead_of
from tests.replication.mariadb_rig import need_mariadb
from tests.replication.mysql_rig import PACKAGES
from tests.seeds import fresh_seeds
from tidemark.recovery.crash_harness.program import Violation

ROOT = Path(__file__).parents[2]
PATIENCE_S = 60


def looped(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run a loop in a process of its own, which forks the store."""
    need_mariadb()
    PACKAGES.need()
    command = [sys.executable, "-m", "tests.kills.peers", str(folder), "--json", *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize("seed", fresh_seeds(1))
def test_replicas_that_are_killed_like_their_store_end_equal(seed: int, tmp_path: Path) -> None:
    ran = looped(tmp_path, "--minutes", "0.2", "--rate", "500", "--kills", "1", "--seed", str(seed))
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert set(found["kills"].values()) == {1}
    assert found["commits"] > 500 and found["acknowledged"] > 0 and found["rows"] > 100


@pytest.mark.soak
@pytest.mark.parametrize("defect", DEFECTS)
def test_loop_finds_a_defect_of_a_dump(defect: str, tmp_path: Path) -> None:
    ran = looped(tmp_path, "--minutes", "0.5", "--rate", "500", "--kills", "1", "--defect", defect)
    assert ran.returncode == 1, ran.stdout
    assert "seed 1, at " in ran.stderr


# --- what the loop judges ---------------------------------------------------------------------------
FILES = [("binlog.000003", 900), ("binlog.000004", 500)]


@pytest.mark.parametrize(
    "read", [None, ("binlog.000004", 500), ("binlog.000003", 900), ("binlog.000003", 4), ("binlog.000002", 9_999)]
)
def test_replica_that_has_less_than_the_store_is_not_ahead(read: Any) -> None:
    assert ahead_of(read, FILES) == ""


@pytest.mark.parametrize("read", [("binlog.000004", 501), ("binlog.000003", 901), ("binlog.000005", 4)])
def test_replica_that_has_more_than_the_store_is_ahead(read: Any) -> None:
    assert ahead_of(read, FILES) == (f"it has received up to {read[0]}:{read[1]}, and the store has binlog.000004:500")


class Asked(Replica):
    """A replica without a server: `rows` are its status at each look."""

    def __init__(self, name: str, *rows: dict[str, Any]) -> None:
        super().__init__(name, KINDS[name], None)  # type: ignore[arg-type]
        self.rows = list(rows)
        self.said: list[str] = []

    def _log(self) -> str:
        return "its log"

    def ask(self, statement: str) -> list[dict[str, Any]]:
        if "STATUS" in statement:
            return [self.rows.pop(0)]
        self.said.append(statement)
        return []


def status(position: int = 4, io: str = "Yes", sql: str = "Yes", io_errno: int = 0, sql_errno: int = 0) -> Any:
    return {
        "Relay_Master_Log_File": "binlog.000001",
        "Exec_Master_Log_Pos": position,
        "Master_Log_File": "binlog.000001",
        "Read_Master_Log_Pos": 1_000,
        "Slave_IO_Running": io,
        "Last_IO_Errno": io_errno,
        "Last_IO_Error": "why",
        "Slave_SQL_Running": sql,
        "Last_SQL_Errno": sql_errno,
        "Last_SQL_Error": "why",
    }


def test_replica_that_reads_no_more_is_found() -> None:
    replica = Asked("mysql-gtid", status(io="Connecting"), status(io="No"), status(), status(io="No", io_errno=1236))
    for _ in range(3):  # one look may come before its threads have started
        replica.look()
    with pytest.raises(Violation, match="reads no more at .*: 1236 why; its log"):
        replica.look()
    replica = Asked("mysql-gtid", status(io="No"), status(io="No"))
    replica.look()
    with pytest.raises(Violation, match="reads no more"):
        replica.look()


def test_replica_whose_thread_the_loop_has_stopped_is_no_finding() -> None:
    replica = Asked("mysql-gtid", *[status(io="No")] * 3)
    replica.stop_io(True)
    for _ in range(3):
        replica.look()


def test_mariadb_by_position_that_lost_a_connection_in_a_statement_goes_on() -> None:
    replica = Asked("mariadb-position", status(io="No", io_errno=1595), status())
    replica.look()
    assert replica.said == ["START SLAVE IO_THREAD"] and replica.resumed == 1
    with pytest.raises(Violation, match="reads no more"):
        Asked("mariadb-gtid", status(io="No", io_errno=1595)).look()


def test_transaction_that_mariadb_repeats_after_a_kill_is_passed_over_once() -> None:
    replica = Asked("mariadb-position", *[status(sql="No", sql_errno=1062)] * 2)
    replica.look()
    assert replica.said == ["SET GLOBAL sql_slave_skip_counter=1", "START SLAVE SQL_THREAD"]
    with pytest.raises(Violation, match="applies no more"):
        replica.look()


@pytest.mark.parametrize("name, errno", [("mariadb-gtid", 1062), ("mysql-gtid", 1062), ("mariadb-position", 1677)])
def test_replica_that_stops_for_another_reason_is_found(name: str, errno: int) -> None:
    with pytest.raises(Violation, match=f"applies no more at .*: {errno} why"):
        Asked(name, status(sql="No", sql_errno=errno)).look()


def test_replica_that_stops_after_it_has_applied_some_is_found() -> None:
    replica = Asked("mariadb-position", status(4), status(500, sql="No", sql_errno=1032))
    replica.look()
    with pytest.raises(Violation, match="applies no more"):
        replica.look()


# --- the proxy ----------------------------------------------------------------------------------------
class Middle:
    """A proxy in a thread, with one port, and a server that it forwards to."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        listener = socket.create_server((HOST, 0))
        self.address = listener.getsockname()
        self.server = stack.enter_context(socket.create_server((HOST, 0)))
        self.server.settimeout(PATIENCE_S)
        theirs, self.commands = multiprocessing.Pipe(duplex=False)
        stack.enter_context(theirs)
        stack.enter_context(self.commands)
        thread = threading.Thread(target=forward, args=({"one": listener}, theirs))
        thread.start()
        stack.callback(thread.join)
        stack.callback(self.say, "stop")
        self.say("target", self.server.getsockname())

    def say(self, what: str, value: Any = None) -> None:
        self.commands.send((what, "one", value))

    def connect(self) -> socket.socket:
        return self._stack.enter_context(socket.create_connection(self.address, PATIENCE_S))

    def accept(self) -> socket.socket:
        found, _ = self.server.accept()
        found.settimeout(PATIENCE_S)
        return self._stack.enter_context(found)

    def connected(self) -> tuple[socket.socket, socket.socket]:
        """Return both ends of a connection."""
        return self.connect(), self.accept()


@pytest.fixture
def middle() -> Iterator[Middle]:
    with ExitStack() as stack:
        yield Middle(stack)


def received(side: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count:
        data = side.recv(count - len(found))
        assert data
        found += data
    return found


def test_proxy_passes_bytes_both_ways_and_ends_after_the_last_one(middle: Middle) -> None:
    near, far = middle.connected()
    data = bytes(range(256)) * 4_000
    sender = threading.Thread(target=lambda: (far.sendall(data), far.close()))
    near.sendall(b"asked")
    assert received(far, 5) == b"asked"
    sender.start()
    assert received(near, len(data)) == data
    assert near.recv(1) == b""
    sender.join()


def test_proxy_that_stalls_passes_all_later(middle: Middle) -> None:
    near, far = middle.connected()
    middle.say("stall", 1e6)
    later = middle.connect()
    near.sendall(b"first")
    later.sendall(b"second")
    middle.say("stall", 0.0)
    assert received(far, 5) == b"first"
    assert received(middle.accept(), 6) == b"second"


def test_proxy_cuts_connections_and_takes_new_ones(middle: Middle) -> None:
    near, far = middle.connected()
    middle.say("cut")
    for each in (near, far):
        assert each.recv(1) == b""
    near, far = middle.connected()
    near.sendall(b"again")
    assert received(far, 5) == b"again"


def test_proxy_without_a_store_ends_connections(middle: Middle) -> None:
    middle.server.close()
    assert middle.connect().recv(1) == b""
