"""Transactions that are ended from outside: idle clients, `kill`, and what names the holder of a lock."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import tidemark as tm
from tests.elsewhere import beside, elsewhere
from tests.waiting import wait_until

SECRET = b"sixteen bytes or more"
OPTIONS: dict[str, Any] = {"data_memory": "64 MiB", "redo_log": "16 MiB", "lock_timeout_ms": 100}
COLUMNS = [tm.Column("id", tm.Int64), tm.Column("n", tm.Int64), tm.Column("s", tm.Text, nullable=True)]


class Served:
    """A store that is served, and a client in this process."""

    def __init__(self, path: Path, **options: Any) -> None:
        self.db = tm.open(path, **{**OPTIONS, **options})
        self.serving = tm.serve_calls(self.db, "127.0.0.1:0", SECRET)
        self.db.create_table("t", COLUMNS, "id")
        self.db["t"].insert_many([(1, 1, "x"), (2, 2, "x")])
        self.client = tm.connect([self.serving.address], SECRET)

    def holders(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.db.status()["transactions"]["holders"]
        return found

    def is_free(self) -> bool:
        """Whether no transaction is open, and row 1 is not locked."""
        return not self.holders() and self.db["t"].update(1, {"n": 5})

    def close(self) -> None:
        self.client.close()
        self.serving.close()
        self.db.close()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    made = Served(tmp_path / "store")
    yield made
    made.close()


@pytest.fixture
def quick(tmp_path: Path) -> Iterator[Served]:
    """The same with a short limit for idle transactions."""
    made = Served(tmp_path / "store", idle_transaction_ms=200)
    yield made
    made.close()


@contextmanager
def client(served: Served, code: str) -> Iterator[Any]:
    """A process that has changed row 1 in a transaction, and then runs this code."""
    begun = (
        "import os, signal, tidemark as tm\n"
        f"txn = tm.connect([{served.serving.address!r}], {SECRET!r}).transaction()\n"
        "txn.update('t', 1, {'n': 2})\n"
        "print('in', flush=True)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", begun + code], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None and child.stdout.readline() == "in\n"
        yield child
    finally:
        child.kill()
        child.communicate()


# --- idle clients ---------------------------------------------------------------------------------
def test_client_that_hangs_in_a_transaction_loses_it(tmp_path: Path) -> None:
    """Story: a client process was stopped in a debugger with a transaction open. Its rows stayed locked until it was
    killed: each update of them ended with LockTimeout, and no index could be built.
    """
    served = Served(tmp_path / "store", idle_transaction_ms=500)
    code = (
        "os.kill(os.getpid(), signal.SIGSTOP)\n"
        "try:\n"
        "    txn.commit()\n"
        "except tm.TransactionKilled as error:\n"
        "    print(error, flush=True)\n"
    )
    with client(served, code) as child:
        with pytest.raises(tm.LockTimeout):
            served.db["t"].update(1, {"n": 3})
        wait_until(served.is_free)
        served.db.create_index("t", "by_n", ["n"])
        os.kill(child.pid, signal.SIGCONT)
        text = child.stdout.readline()
        assert "was rolled back: its client made no call for 500 ms (idle_transaction_ms)" in text
        assert served.db["t"][1].n == 5
    served.close()


def test_idle_transaction_is_rolled_back_and_its_next_call_says_so(quick: Served) -> None:
    txn = quick.client.transaction()
    txn.update("t", 1, {"n": 2})
    wait_until(quick.is_free)
    with pytest.raises(tm.TransactionKilled, match="made no call for 200 ms") as caught:
        txn.get("t", 1)
    assert isinstance(caught.value, tm.TransactionEnded) and not isinstance(caught.value, tm.Retryable)
    assert caught.value.evidence["txid"] == txn.txid and quick.db.outcome(txn.txid) == "aborted"
    with pytest.raises(tm.TransactionEnded):
        txn.commit()
    with quick.client.transaction() as another:  # the link continues
        another.update("t", 1, {"n": 6})
    assert quick.db["t"][1].n == 6


def test_client_that_makes_calls_is_not_idle(quick: Served) -> None:
    waited = threading.Event()
    with quick.client.transaction() as txn:
        txn.update("t", 1, {"n": 2})
        for _ in range(6):
            waited.wait(0.08)
            txn.get("t", 2)
    assert quick.db["t"][1].n == 2


def test_client_that_stops_while_it_takes_a_large_answer_loses_its_transaction(quick: Served) -> None:
    """Story: the thread of the link waited for the client to take the rows, so it never counted as idle."""
    quick.db["t"].insert((3, 3, "x" * (16 << 20)))
    code = "wire = txn.link.opened.wire\nwire.receive = lambda: os.kill(os.getpid(), signal.SIGSTOP)\ntxn.get('t', 3)\n"
    with client(quick, code):
        wait_until(quick.is_free)


def test_limit_of_0_sets_none(tmp_path: Path) -> None:
    served = Served(tmp_path / "store", idle_transaction_ms=0)
    with served.client.transaction() as txn:
        txn.update("t", 1, {"n": 2})
        assert served.holders()[0]["idle_ms"] is not None
        threading.Event().wait(0.1)
    assert served.db["t"][1].n == 2
    served.close()


# --- holders of locks -----------------------------------------------------------------------------
def test_holder_of_a_lock_is_named_with_its_client(served: Served) -> None:
    with served.client.transaction() as txn:
        txn.update("t", 1, {"n": 2})
        [holder] = served.holders()
        with pytest.raises(tm.LockTimeout) as caught:
            served.db["t"].update(1, {"n": 3})
        assert (caught.value.evidence["holder"], caught.value.evidence["client"]) == (txn.txid, holder["client"])
        assert f"transaction {txn.txid:#x} of client {holder['client']} has held locks" in caught.value.message
        assert (holder["txid"], holder["waits"]) == (txn.txid, False)
        assert 0 <= holder["idle_ms"] <= holder["held_ms"] + 1
        assert holder["client"].startswith("127.0.0.1:")
        for unique in (False, True):
            with pytest.raises(tm.LockTimeout, match=rf"begun before index by_n.*{txn.txid:#x} of client") as building:
                served.db.create_index("t", "by_n", ["n"], unique=unique)
            assert building.value.evidence["holders"] == [txn.txid]
    assert served.holders() == []


def test_transactions_of_this_process_are_listed_by_thread(served: Served) -> None:
    with served.db.transaction() as txn:
        assert served.holders() == []  # it has no locks yet
        txn.update("t", 1, {"n": 2})
        [holder] = served.holders()
        assert (holder["txid"], holder["client"], holder["idle_ms"]) == (txn.txid, None, None)
        assert holder["thread"] == threading.current_thread().name


# --- kill -----------------------------------------------------------------------------------------
def test_killed_transaction_of_a_client_frees_its_locks_at_once(served: Served) -> None:
    txn = served.client.transaction()
    txn.update("t", 1, {"n": 2})
    assert served.db.kill(txn.txid)
    assert served.is_free()
    with pytest.raises(tm.TransactionKilled, match="it was killed"):
        txn.update("t", 1, {"n": 3})
    with pytest.raises(tm.Rejected, match="is not open"):
        served.db.kill(txn.txid)


def test_client_kills_a_transaction_of_another_one(served: Served) -> None:
    txn = served.client.transaction()
    txn.update("t", 1, {"n": 2})
    with tm.connect([served.serving.address], SECRET) as other:
        with pytest.raises(tm.LockTimeout) as caught:
            other["t"].update(1, {"n": 3})
        assert other.kill(caught.value.evidence["holder"])
        assert other["t"].update(1, {"n": 3})
    with pytest.raises(tm.TransactionKilled):
        txn.commit()


def test_killed_client_loses_its_link_and_its_transaction(served: Served) -> None:
    txn = served.client.transaction()
    txn.update("t", 1, {"n": 2})
    client = served.holders()[0]["client"]
    assert served.db.kill(client)
    assert served.is_free()
    with pytest.raises(tm.PrimaryLost):
        txn.commit()
    with pytest.raises(tm.Rejected, match="no client"):
        served.db.kill(client)
    assert served.client["t"][1].n == 5  # by another link


@pytest.mark.parametrize("wrong", [None, 1.5, True, b"x"])
def test_what_cannot_be_killed_is_refused(served: Served, wrong: Any) -> None:
    with pytest.raises(tm.SchemaInvalid, match="kill takes"):
        served.db.kill(wrong)


class Other:
    """A thread that begins a transaction, waits, and goes on."""

    def __init__(self, db: tm.Database, then: Callable[[Any], None], by_run: bool = False) -> None:
        self.db, self.then = db, then
        self.txids: list[int] = []
        self.begun, self.go = threading.Event(), threading.Event()
        self.error: tm.Error | None = None
        self.thread = threading.Thread(target=self._run, args=(by_run,))
        self.thread.start()
        assert self.begun.wait(60)

    def _work(self, txn: Any) -> None:
        self.txids.append(txn.txid)
        txn.update("t", 1, {"n": 2})
        self.begun.set()
        assert self.go.wait(60)
        self.then(txn)

    def _run(self, by_run: bool) -> None:
        try:
            if by_run:
                self.db.run(self._work)
            else:
                with self.db.transaction() as txn:
                    self._work(txn)
        except tm.Error as error:
            self.error = error

    def end(self) -> tm.Error | None:
        self.go.set()
        self.thread.join(60)
        return self.error


@pytest.mark.parametrize("by_run", [False, True])
@pytest.mark.parametrize("then", ["call", "commit", "savepoint", "scan", "rollback"])
def test_killed_thread_gets_the_error_at_its_next_call(served: Served, then: str, by_run: bool) -> None:
    """The thread is between two calls, and hangs: its locks are free when `kill` returns."""

    def savepoint(txn: Any) -> None:
        with txn.savepoint():
            raise AssertionError

    calls: dict[str, Callable[[Any], None]] = {
        "call": lambda txn: txn.update("t", 2, {"n": 7}),
        "commit": lambda txn: None,
        "savepoint": savepoint,
        "scan": lambda txn: txn.scan("t").to_arrow(),
        "rollback": lambda txn: txn.rollback(),
    }
    other = Other(served.db, calls[then], by_run)
    assert served.db.kill(other.txids[0])
    assert served.is_free()
    error = other.end()
    assert (error is None) if then == "rollback" else isinstance(error, tm.TransactionKilled), error
    assert len(other.txids) == 1, "it was not run again"
    assert [served.db["t"][key].n for key in (1, 2)] == [5, 2]


def test_kill_in_an_open_savepoint_undoes_everything_once(served: Served) -> None:
    inside, go = threading.Event(), threading.Event()
    errors: list[tm.Error] = []
    txids: list[int] = []

    def work() -> None:
        try:
            with served.db.transaction() as txn:
                txids.append(txn.txid)
                txn.update("t", 1, {"n": 2})
                with txn.savepoint():
                    txn.update("t", 2, {"n": 3})
                    inside.set()
                    assert go.wait(60)
                    raise tm.Rejected("undo the savepoint")
        except tm.Error as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    assert inside.wait(60)
    assert served.db.kill(txids[0])
    assert served.is_free() and served.db["t"].update(2, {"n": 6})
    go.set()
    thread.join(60)
    assert errors[0].message == "undo the savepoint"
    assert [served.db["t"][key].n for key in (1, 2)] == [5, 6]
    assert served.db.check()["problems"] == []


def test_kill_wakes_a_thread_that_waits_for_a_lock(tmp_path: Path) -> None:
    with tm.open(tmp_path / "store", **{**OPTIONS, "lock_timeout_ms": 60_000}) as db:
        db.create_table("t", COLUMNS, "id").insert_many([(1, 1, None), (2, 2, None)])
        with db.transaction() as holder:
            holder.update("t", 2, {"n": 9})
            other = Other(db, lambda txn: txn.update("t", 2, {"n": 8}))
            other.go.set()
            wait_until(lambda: db.status()["locks"]["waiting"] == 1)
            assert [each["waits"] for each in db.status()["transactions"]["holders"]].count(True) == 1
            assert db.kill(other.txids[0])
            assert isinstance(other.end(), tm.TransactionKilled)
        assert [db["t"][key].n for key in (1, 2)] == [1, 9]


def test_call_under_way_completes_before_its_transaction_is_rolled_back(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidemark.engine.txn.transactions.KILL_SECONDS", 0.1)
    inside, go = threading.Event(), threading.Event()

    def hold(*_: Any) -> None:
        inside.set()
        assert go.wait(60)

    rows = [(key, key, None) for key in range(10, 3_000)]
    other = Other(served.db, lambda txn: txn.insert_many("t", rows, hold))
    other.go.set()
    assert inside.wait(60)
    assert not served.db.kill(other.txids[0])
    assert served.holders()[0]["txid"] == other.txids[0]
    go.set()
    assert isinstance(other.end(), tm.TransactionKilled)
    assert served.is_free() and len(served.db["t"]) == 2


def test_killed_transaction_of_a_thread_that_has_ended(served: Served) -> None:
    def work() -> Any:
        txn = served.db.transaction()
        txn.update("t", 1, {"n": 2})
        return txn

    assert served.db.kill(elsewhere(work).txid)
    assert served.is_free()


def test_kills_at_any_moment_leave_whole_transactions(tmp_path: Path) -> None:
    """Threads move amounts between rows, and another thread kills them: the sum stays, no lock is left, and no commit
    that was acknowledged is lost.
    """
    options = {**OPTIONS, "durability": "epoch", "lock_timeout_ms": 5_000}
    with tm.open(tmp_path / "store", **options) as db:
        db.create_table("t", COLUMNS, "id").insert_many([(key, 0, None) for key in range(20)])
        stop = threading.Event()
        done = [0] * 3
        killed = [0] * 3

        def move(number: int) -> None:
            key = number
            while not stop.is_set():
                key = (key * 7 + 3) % 20
                try:
                    with db.transaction() as txn:
                        for each in sorted({key, (key + 5) % 20}):
                            txn.update("t", each, {"n": tm.col("n") + (1 if each == key else -1)})
                        txn.insert("t", (100 + number * 1_000_000 + done[number], 0, None))
                    done[number] += 1
                except tm.TransactionKilled:
                    killed[number] += 1
                except tm.Retryable:
                    pass

        with beside(stop, move, range(3)):
            while min(killed) < 30:
                for place in db.parts.store.locks.open_now():
                    with suppress(tm.Rejected):
                        db.kill(place.txid)
        assert db["t"].scan(where=tm.col("id") < 100).sum("n") == 0
        assert len(db["t"]) == 20 + sum(done)
        assert db.status()["transactions"]["open"] == 0
        assert db.check()["problems"] == []
