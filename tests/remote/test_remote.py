"""A store of another process, called over TCP: the calls of a Database; transactions that end with their link."""

from __future__ import annotations

import logging
import random
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import tidemark as tm
from tests.attempts import Attempts
from tests.elsewhere import at_once
from tests.store.support import ACCOUNT, SECRET, client_of
from tests.store.test_trouble import every_call
from tests.waiting import wait_until
from tidemark.engine.base.clock import ManualClock, SystemClock
from tidemark.remote.database import RemoteDatabase
from tidemark.remote.executor import Executor
from tidemark.remote.links import Links
from tidemark.remote.serving import Alone
from tidemark.replication.calls import conversation
from tidemark.replication.wire.server import Server
from tidemark.replication.wire.wire import OpenLink, Wake, Wire


@pytest.fixture
def db(tmp_path: Any) -> Iterator[tm.Database]:
    with tm.open(tmp_path / "store", data_memory="16 MiB", redo_log="8 MiB", lock_timeout_ms=300) as made:
        made.create_table("test.account", ACCOUNT, "id")
        yield made


@pytest.fixture
def serving(db: tm.Database) -> Iterator[tm.CallServing]:
    with tm.serve_calls(db, "127.0.0.1:0", SECRET) as made:
        yield made


@pytest.fixture
def remote(serving: tm.CallServing) -> Iterator[tm.RemoteDatabase]:
    # A second was not enough for an answer on a busy machine.
    with tm.connect([serving.address], SECRET, timeout_ms=60_000) as made:
        yield made


def test_link_whose_other_side_dies_after_the_handshake_leaves_no_socket_open(
    serving: tm.CallServing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node was killed between the handshake and the first call; the garbage collector found the socket."""
    opened: list[Wire] = []
    mine = threading.get_ident()
    wait_long = Wire.wait_long

    def dead(wire: Wire) -> None:
        if threading.get_ident() != mine:
            return wait_long(wire)
        opened.append(wire)
        raise tm.PeerError("planted")

    monkeypatch.setattr(Wire, "wait_long", dead)
    with pytest.raises(tm.PeerError, match="planted"):
        conversation.CallLink(serving.address, SECRET, None, SystemClock())
    assert opened[0].connection.fileno() == -1


def accounts(count: int) -> list[tuple[int, str, float, None]]:
    return [(number, f"owner {number}", float(number), None) for number in range(count)]


def test_rows_are_sent_in_batches_and_an_error_in_a_later_one_names_the_row_and_leaves_nothing(
    db: tm.Database, remote: tm.RemoteDatabase
) -> None:
    table, here = remote["test.account"], db["test.account"]
    rows = accounts(20_000)
    rows[17_000] = rows[3]
    with pytest.raises(tm.DuplicateKey) as caught:
        table.insert_many(rows)
    assert caught.value.row == 17_000 and len(table) == 0
    reported: list[int] = []
    told = {"progress": lambda done, total, unit: reported.append(done)}
    assert table.insert_many(accounts(20_000), **told) == 20_000
    assert reported[-1] == 20_000 and len(reported) > 1
    assert table.to_arrow().sort_by("id").equals(here.to_arrow().sort_by("id"))
    assert table.delete_where(tm.col("id") >= 10) == 19_990 and len(here) == 10


def test_abandoned_scan_frees_its_link_and_many_are_read_at_once(db: tm.Database, remote: tm.RemoteDatabase) -> None:
    db["test.account"].insert_many(accounts(1_000))
    scans = [iter(remote["test.account"].scan()) for _ in range(5)]
    assert [next(scan).id for scan in scans] == [0] * 5
    for scan in scans:
        scan.close()  # type: ignore[attr-defined]
    assert sum(len(links) for links in remote.links.spares.values()) == 5


def test_link_that_breaks_rolls_its_transaction_back_and_says_so(db: tm.Database, remote: tm.RemoteDatabase) -> None:
    txn = remote.transaction()
    txn.insert("test.account", (1, "ann", 1.0, None))
    txn.link.opened.wire.connection.shutdown(socket.SHUT_RDWR)
    with pytest.raises(tm.PrimaryLost):
        txn.insert("test.account", (2, "bob", 1.0, None))
    wait_until(lambda: db.status()["transactions"]["open"] == 0)
    assert db.status()["transactions"]["open"] == 0 and len(db["test.account"]) == 0


@pytest.mark.parametrize("is_carried_out", [True, False])
def test_commit_whose_answer_is_lost_is_found_out(
    db: tm.Database, remote: tm.RemoteDatabase, monkeypatch: pytest.MonkeyPatch, is_carried_out: bool
) -> None:
    txn = remote.transaction()
    txn.insert("test.account", (1, "ann", 1.0, None))
    link = txn.link

    def broken(what: Any) -> Any:
        if is_carried_out:
            type(link).ask(link, what)
        link.opened.wire.close()
        link.is_broken = True
        raise tm.PeerError("the link broke; connect again")

    monkeypatch.setattr(link, "ask", broken)
    if is_carried_out:
        txn.commit()
    else:
        with pytest.raises(tm.PrimaryLost):
            txn.commit()
    assert len(db["test.account"]) == is_carried_out


def test_commit_of_unknown_outcome_says_so(serving: tm.CallServing) -> None:
    # The client's pauses take no time, so the calls before may take as long as they need.
    with RemoteDatabase(Links([serving.address], SECRET, None, ManualClock(), 60_000)) as remote:
        txn = remote.transaction()
        txn.insert("test.account", (1, "ann", 1.0, None))
        serving.close()
        with pytest.raises((tm.CommitUnanswered, tm.PrimaryLost)) as caught:
            txn.commit()
        assert caught.value.txid == txn.txid


def test_run_does_work_again_when_the_server_went_away_for_a_while(
    db: tm.Database, serving: tm.CallServing, remote: tm.RemoteDatabase
) -> None:
    attempts = []

    def work(txn: Any) -> None:
        attempts.append(txn.txid)
        txn.write("test.account", (1, "ann", float(len(attempts)), None))
        if len(attempts) == 1:
            serving.close()
            again.append(tm.serve_calls(db, serving.address, SECRET))

    again: list[tm.CallServing] = []
    remote.run(work)
    again[0].close()
    assert len(attempts) == 2 and db["test.account"][1].balance == 2.0


def test_closed_connection_answers_no_call(db: tm.Database, remote: tm.RemoteDatabase) -> None:
    """Story: after `close`, `status`, `outcome`, `sync`, `where` and the calls of a table connected again, and an open
    transaction continued.
    """
    table = remote["test.account"]
    table.insert_many(accounts(1_000))
    scan, txn = iter(table.scan()), remote.transaction()
    next(scan)
    txn.update("test.account", 1, {"balance": 5.0})
    calls = every_call(remote, txn)
    remote.close()
    others = [remote.status, remote.check, remote.where, remote.tablespaces, lambda: table.definition]
    for call in (*calls.values(), *others):
        with pytest.raises(tm.StoreClosed, match="the connection is closed"):
            call()
    with pytest.raises(tm.StoreClosed):
        list(scan)
    txn.rollback()
    remote.close()
    wait_until(lambda: db.status()["transactions"]["open"] == 0)
    assert db["test.account"][1].balance == 1.0


def test_client_that_leaves_in_order_is_no_warning(
    db: tm.Database, serving: tm.CallServing, caplog: pytest.LogCaptureFixture
) -> None:
    """Story: a client that closed its connection with a transaction or a scan open was reported as a broken link."""
    with tm.connect([serving.address], SECRET) as remote:
        remote["test.account"].insert((1, "ann", 1.0, None))
        txn, scan = remote.transaction(), iter(remote["test.account"].scan())
        txn.get("test.account", 1)
        next(scan)
    wait_until(lambda: serving.status()["connections"]["served"] == 0)
    assert [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING] == []
    assert db.status()["transactions"]["open"] == 0


def test_close_ends_a_call_that_waits_in_another_thread(db: tm.Database, remote: tm.RemoteDatabase) -> None:
    """Story: `close` left links in use open, with the transactions and locks of their threads."""
    remote["test.account"].insert((1, "ann", 1.0, None))
    ended: list[BaseException] = []
    begun = threading.Event()

    def wait_for_lock() -> None:
        try:
            with remote.transaction() as txn:
                begun.set()
                while True:
                    try:
                        txn.get("test.account", 1, lock="shared")
                    except tm.LockTimeout:
                        txn = remote.transaction()
        except tm.Error as error:
            ended.append(error)

    with db.transaction() as holder:
        holder.get("test.account", 1, lock="exclusive")
        waiter = threading.Thread(target=wait_for_lock)
        waiter.start()
        begun.wait()
        remote.close()
        waiter.join()
    assert isinstance(ended[0], (tm.PrimaryLost, tm.StoreClosed))
    wait_until(lambda: db.status()["transactions"]["open"] == 0)


def test_strangers_are_refused(serving: tm.CallServing) -> None:
    """Story: a wrong secret was tried again for ten seconds, and then no node had answered."""
    clock = ManualClock()
    for nodes in ([serving.address], [("127.0.0.1", 1), serving.address]):
        begun = clock.monotonic()
        with pytest.raises(tm.PeerUnauthenticated, match="has another secret than this client; compare both"):
            RemoteDatabase(Links(nodes, b"another secret, long", None, clock, None))
        assert clock.monotonic() == begun
    with pytest.raises(tm.SchemaInvalid):
        tm.connect([serving.address], b"short")
    with pytest.raises(tm.PeerTimeout):
        tm.connect("127.0.0.1:1", SECRET, timeout_ms=100)


@pytest.mark.parametrize(
    ("call", "error", "why"),
    [
        (None, tm.FrameRejected, "not a call of this version"),
        ([], tm.FrameRejected, "not a call of this version"),
        (["nothing"], tm.FrameRejected, "not a call of this version"),
        (["txn", "__class__", [], {}], tm.FrameRejected, "a transaction has no call '__class__'"),
        (["txn", "savepoint", [], {}], tm.FrameRejected, "a transaction has no call 'savepoint'"),
        (["table", "test.account", "_alone", [], {}], tm.FrameRejected, "a table has no call '_alone'"),
        (["store", "close", [], {}], tm.FrameRejected, "a store has no call 'close'"),
        (["of_scan", "test.account", False, {}, "to_arrow", [], {}], tm.FrameRejected, "a scan has no call 'to_arrow'"),
        (["table", "test.account", "get", [], {}], tm.Rejected, "call table has invalid arguments"),
        (["store", "tables", [1, 2, 3], {}], tm.Rejected, "call store has invalid arguments"),
        (["next"], tm.Rejected, "call next has invalid arguments"),
    ],
)
def test_call_that_is_none_is_refused_and_the_store_continues(
    remote: tm.RemoteDatabase, call: Any, error: type[tm.Error], why: str
) -> None:
    link = remote.links.take(remote.links.primary())
    with pytest.raises(error, match=why) as caught:
        link.ask(call)
    assert type(caught.value) is error
    remote.links.put_back(remote.links.primary(), link)
    assert remote.tables() == ["test.account"]


def test_call_or_answer_that_is_too_long_is_refused_and_the_link_continues(
    remote: tm.RemoteDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = remote["test.account"]
    table.insert_many([(number, "ann", 1.0, "x" * 900) for number in range(200)])
    monkeypatch.setattr(conversation, "MESSAGE_BYTES_MAX", 100_000)
    with pytest.raises(tm.LimitExceeded, match="split it"):
        table.get(b"x" * 200_000)
    with pytest.raises(tm.LimitExceeded, match="ask for less"):
        table.get_many(list(range(200)))
    assert len(table.get_many([1, 2])) == 2


def test_scan_that_is_refused_or_only_asked_for_its_schema_gives_its_link_back(remote: tm.RemoteDatabase) -> None:
    table = remote["test.account"]
    for _ in range(20):  # more than the limit of open scans on a link
        with pytest.raises(tm.NoSuchColumn):
            list(table.scan(columns=["none"]))
        assert table.scan().schema().names[0] == "id"
    assert sum(len(links) for links in remote.links.spares.values()) == 1


def test_commit_that_its_node_may_not_make_any_more_leaves_no_lock(db: tm.Database) -> None:
    class Handed(Alone):
        is_open = True

        def writing(self) -> None:
            if not self.is_open:
                raise tm.NotPrimary("another node executes transactions; ask it")

    gate = Handed(db)
    executor = Executor(gate)
    executor.answer(["begin"])
    executor.answer(["txn", "insert", ["test.account", (1, "ann", 1.0, None)], {}])
    gate.is_open = False
    with pytest.raises(tm.NotPrimary):
        executor.answer(["commit"])
    assert db.status()["transactions"]["open"] == 0
    db["test.account"].insert((1, "bob", 1.0, None))


def test_threads_share_a_connection(tmp_path: Any) -> None:
    """Story: locks were waited for 300 ms, and a thread of a busy machine may need that for its next step: the count
    had attempts that only the timeout had ended. Now only deadlocks end one.
    """
    options: dict[str, Any] = {"data_memory": "16 MiB", "redo_log": "8 MiB", "lock_timeout_ms": 60_000}
    with tm.open(tmp_path / "store", **options) as db, client_of(db, 200_000) as remote:
        db.create_table("test.account", ACCOUNT, "id").insert_many(accounts(10))
        print("seeds 8 to 11")
        attempts = Attempts(per_transaction=5)

        def transfer(number: int) -> None:
            draw = random.Random(8 + number)
            for _ in range(20):
                one, other = draw.sample(range(10), 2)

                def work(txn: Any, one: int = one, other: int = other) -> None:
                    txn.update("test.account", one, {"balance": tm.col("balance") - 1})
                    txn.update("test.account", other, {"balance": tm.col("balance") + 1})

                attempts.run(remote, work)

        at_once(transfer, range(4))
        assert remote["test.account"].scan().sum("balance") == sum(range(10))
        attempts.check()


def test_more_links_than_replicas_may_have_are_served(remote: tm.RemoteDatabase) -> None:
    transactions = [remote.transaction() for _ in range(100)]
    for number, txn in enumerate(transactions):
        txn.insert("test.account", (number, "ann", 1.0, None))
    for txn in transactions:
        txn.commit()
    assert len(remote["test.account"]) == 100


@pytest.mark.parametrize("is_silent_after_proof", [False, True])
def test_connect_times_out_whatever_takes_the_link(
    is_silent_after_proof: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Story: `connect(timeout_ms=3000)` took ten seconds, and for ever if the store was stopped after the handshake.
    Here a handshake has unlimited time, and the test ends all the same."""
    monkeypatch.setattr("tidemark.remote.links.HANDSHAKE_SECONDS", 1e6)
    monkeypatch.setattr("tidemark.replication.wire.admission.HANDSHAKE_SECONDS", 1e6)
    stopped = threading.Event()

    def serve(one: OpenLink, wake: Wake) -> None:
        stopped.wait()

    server = Server(("127.0.0.1", 0), conversation.Client("ab" * 16), SECRET, None, SystemClock(), serve)
    if is_silent_after_proof:
        server.start()
    try:
        with pytest.raises(tm.PeerTimeout, match="no node answered within"):
            tm.connect([server.address], SECRET, timeout_ms=200)
    finally:
        stopped.set()
        server.close()
