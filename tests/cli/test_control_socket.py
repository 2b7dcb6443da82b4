"""The control socket: its file, its clients good and bad, its end; and the locator."""

from __future__ import annotations

import errno
import json
import logging
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import tidemark as tm
from tests.cli.support import ROOT, SMALL, document, held_open, run
from tests.elsewhere import in_child
from tests.other_user import STRANGER, as_stranger, needs_root, open_folder
from tests.store.support import open_memory
from tests.waiting import wait_until
from tidemark import request_port
from tidemark.control_socket import NAME, ControlSocket, ask
from tidemark.engine.base.clock import Clock, ManualClock, SystemClock
from tidemark.engine.base.limited_log import EVERY_SECONDS
from tidemark.engine.files.directory import PosixFiles
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles
from tidemark.request_port import CLIENTS_MAX, REQUEST_BYTES_MAX, SILENCE_SECONDS

OPEN: dict[str, Any] = {**SMALL, "background": True}
SAY = b'{"command": "say"}\n'
LONG_LINE = f"a line of more than {REQUEST_BYTES_MAX} bytes"


@pytest.fixture
def db(store: Path) -> Iterator[tm.Database]:
    with tm.open(store, **OPEN) as opened:
        yield opened


def connect(store: Path) -> socket.socket:
    files = PosixFiles(store)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(100)
        connection.connect(files.socket_address(NAME))
    except OSError:
        connection.close()
        raise
    finally:
        files.close_all()
    return connection


def exchange(connection: socket.socket, line: bytes) -> dict[str, Any]:
    connection.sendall(line)
    with connection.makefile("rb") as answers:
        return dict(json.loads(answers.readline()))


# --- the file -------------------------------------------------------------------------------------
def test_socket_is_there_while_the_store_is_open_in_the_background(store: Path) -> None:
    with tm.open(store, **OPEN):
        assert (store / NAME).is_socket()
    assert not (store / NAME).exists()
    with tm.open(store, **SMALL):
        assert not (store / NAME).exists()


def test_store_in_a_directory_with_a_long_path_is_asked(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 100) / ("e" * 100)
    deep.mkdir(parents=True)
    with tm.open(deep / "store", **OPEN) as db:
        assert ask(deep / "store", "status")["store"]["uuid"] == db.status()["store"]["uuid"]


def test_file_left_by_a_killed_owner_is_replaced(store: Path) -> None:
    with held_open(store) as process:
        process.kill()
        process.join()
        assert (store / NAME).is_socket()
        with pytest.raises(tm.PeerError, match="does not answer"):
            ask(store, "status")
        assert document("status", store)["store"]["state"] == "open"  # the lock is free: the command opens the store
        with tm.open(store, **OPEN) as db:
            assert ask(store, "status")["store"]["pid"] == os.getpid()
            assert db.status()["store"]["incarnation"] == 4
    assert not (store / NAME).exists()


@pytest.mark.parametrize("put", [Path.mkdir, Path.touch])
def test_something_else_in_its_place_is_reported_and_stays_and_the_store_opens(
    store: Path, caplog: pytest.LogCaptureFixture, put: Callable[[Path], None]
) -> None:
    put(store / NAME)
    with caplog.at_level(logging.WARNING, "tidemark"), tm.open(store, **OPEN) as db:
        assert len(db["test.account"]) == 9
    assert "no control socket" in caplog.text
    assert (store / NAME).exists() and not (store / NAME).is_socket()


def test_file_removed_by_another_process_does_not_disturb_close(store: Path) -> None:
    with tm.open(store, **OPEN):
        (store / NAME).unlink()
    assert document("tables", store)[0]["rows"] == 9


def test_socket_of_a_failed_store_is_removed_and_answers_until_then(store: Path) -> None:
    db = tm.open(store, **OPEN)
    db.parts.store.failure.latch(tm.IoFailed("read of a file failed; reopen the store"))
    assert ask(store, "status")["store"]["state"] == "failed"
    with pytest.raises(tm.IoFailed, match="read of a file failed"):
        ask(store, "checkpoint")
    db.close()
    assert not (store / NAME).exists()


def test_store_in_memory_has_no_socket() -> None:
    with open_memory(MemoryFiles(), background=True) as db:
        assert db.tables() == []


# --- clients --------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "line",
    [
        b"\n",
        b"garbage\n",
        b"\xff\xfe\x00\n",
        b"[1, 2]\n",
        b'{"command": 7}\n',
        b'{"command": "close"}\n',
        b'{"command": ["status"]}\n',
        b"[" * 4_000 + b"\n",
    ],
)
def test_nonsense_is_answered_with_an_error_and_the_next_command_works(
    db: tm.Database, store: Path, line: bytes
) -> None:
    with connect(store) as connection:
        answer = exchange(connection, line)
        assert answer["error"] == "PeerError" and "checkpoint, kill, report, status" in answer["message"]
        assert exchange(connection, b'{"command": "status"}\n')["result"]["store"]["pid"] == os.getpid()


def test_line_without_an_end_is_cut_off(db: tm.Database, store: Path) -> None:
    with connect(store) as connection:
        connection.sendall(b"x" * (REQUEST_BYTES_MAX + 1))
        assert connection.recv(1) == b""
    assert ask(store, "status")["store"]["state"] == "open"


def test_silent_client_is_cut_off(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_port, "SILENCE_SECONDS", 0.01)
    with tm.open(store, **OPEN), connect(store) as silent:
        assert silent.recv(1) == b""


def test_client_that_hangs_or_leaves_disturbs_no_other(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_port, "SILENCE_SECONDS", 10_000.0)
    db = tm.open(store, **OPEN)
    with connect(store) as silent, connect(store) as half:
        half.sendall(b'{"comm')
        connect(store).close()
        with connect(store) as hasty:
            hasty.sendall(b'{"command": "status"}\n')
        assert ask(store, "status")["store"]["state"] == "open"
        assert document("checkpoint", store)["lcp_id"] >= 2
        db.close()  # does not wait for silent clients
        assert silent.recv(1) == b""
        assert half.recv(1) == b""


@pytest.mark.parametrize("count", [40, CLIENTS_MAX + 3])
def test_clients_without_a_word_keep_no_other_away(
    db: tm.Database, store: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """Story: each client had one of sixteen places for ten seconds, whatever it sent. Forty silent clients kept every
    other one out, and in each of the sixteen threads one of them could drip bytes for ever.
    """
    monkeypatch.setattr(request_port, "SILENCE_SECONDS", 10_000.0)
    with ExitStack() as closing:
        crowd = [closing.enter_context(connect(store)) for _ in range(count)]
        assert ask(store, "status")["store"]["state"] == "open"
        for connection in crowd[: max(0, count - CLIENTS_MAX + 1)]:
            assert connection.recv(1) == b""  # cut off for clients that came later
        assert exchange(crowd[-1], b'{"command": "status"}\n')["result"]["store"]["pid"] == os.getpid()


@contextmanager
def listening(folder: Path, clock: Clock | None = None, **commands: Any) -> Iterator[ControlSocket]:
    """Open a control socket without a store."""
    files = PosixFiles(folder)
    control = ControlSocket(files, {"say": lambda: "said", **commands}, clock or SystemClock())
    yield control
    control.close()
    files.close_all()


def test_time_for_a_line_is_for_all_of_it_and_an_answer_begins_it_anew(tmp_path: Path) -> None:
    """Story: the limit on silence was per read, so that a byte every nine seconds kept a place for ever."""
    clock = ManualClock()
    with listening(tmp_path, clock), connect(tmp_path) as dripping, connect(tmp_path) as asking:
        assert exchange(asking, SAY) == {"result": "said"}
        for byte in b'{"':
            dripping.sendall(bytes([byte]))
            assert exchange(asking, SAY) == {"result": "said"}  # the same turn also took the dripped byte
            clock.advance(SILENCE_SECONDS / 2 + 1)
        assert exchange(asking, SAY) == {"result": "said"}
        assert dripping.recv(1) == b""


def test_accepting_continues_when_the_system_has_no_room_for_a_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wants = [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.ECONNABORTED]
    accept = socket.socket.accept

    def refused(listener: socket.socket) -> Any:
        if wants:
            raise OSError(wants.pop(0), "planted")
        return accept(listener)

    monkeypatch.setattr(socket.socket, "accept", refused)
    monkeypatch.setattr(request_port, "ACCEPT_PAUSE_SECONDS", 0.001)
    with listening(tmp_path):
        assert ask(tmp_path, "say") == "said"
    assert wants == []


def test_close_while_no_client_can_be_taken_waits_for_a_command_and_its_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, resume, failed = threading.Event(), threading.Event(), threading.Event()

    def long() -> str:
        begun.set()
        return "ended" if resume.wait(100) else "forgotten"

    def refused(_: socket.socket) -> Any:
        failed.set()
        raise OSError(errno.EMFILE, "planted")

    def is_closed() -> bool:
        try:
            connect(tmp_path).close()
        except ConnectionRefusedError:
            return True
        return False

    monkeypatch.setattr(request_port, "ACCEPT_PAUSE_SECONDS", 0.001)
    files = PosixFiles(tmp_path)
    control = ControlSocket(files, {"long": long}, SystemClock())
    with connect(tmp_path) as client:
        client.sendall(b'{"command": "long"}\n')
        assert begun.wait(60)
        monkeypatch.setattr(socket.socket, "accept", refused)
        with connect(tmp_path):
            assert failed.wait(60)
            closing = threading.Thread(target=control.close)
            closing.start()
            wait_until(is_closed)
            resume.set()
            closing.join(60)
        with client.makefile("rb") as answers:
            assert json.loads(answers.readline()) == {"result": "ended"}
    files.close_all()
    assert not closing.is_alive() and not (tmp_path / NAME).exists()


def test_bad_clients_fill_no_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Story: the log got a line for each client that was cut off, so any process that could connect could fill the
    disk.
    """
    clock = ManualClock()

    def shout() -> None:
        with connect(tmp_path) as client:
            client.sendall(b"x" * (REQUEST_BYTES_MAX + 1))
            assert client.recv(1) == b""

    with caplog.at_level(logging.WARNING, "tidemark"), listening(tmp_path, clock):
        for _ in range(5):
            shout()
        assert [each.getMessage() for each in caplog.records] == [f"control client cut off: {LONG_LINE}"]
        clock.advance(EVERY_SECONDS)
        for _ in range(3):
            shout()
    assert [each.getMessage() for each in caplog.records[1:]] == [
        f"control client cut off: {LONG_LINE} (similar lines left out before: 4)",
        "lines about bad clients that were left out: 2",
    ]


@needs_root
def test_client_of_another_user_is_not_heard_even_if_the_file_lets_it_in(caplog: pytest.LogCaptureFixture) -> None:
    """Story: any user who could write to the socket file could have backups made wherever the store's owner may
    write.
    """
    asked: list[dict[str, str]] = []

    def want_backup() -> str:
        with connect(folder) as client:
            with suppress(BrokenPipeError):  # the client may have been cut off by then
                client.sendall(b'{"command": "backup", "arguments": {"place": "/tmp/mine"}}\n')
            return client.recv(100).decode()

    with open_folder() as folder, listening(folder, backup=lambda **given: asked.append(given)):
        assert as_stranger(want_backup) == "PermissionError"
        (folder / NAME).chmod(0o666)
        assert as_stranger(want_backup) in ("", "ConnectionResetError")
        assert asked == []
        assert f"belongs to user {STRANGER}" in caplog.text
        assert ask(folder, "say") == "said"


@needs_root
def test_listener_of_another_user_in_a_directory_open_to_all_is_not_asked() -> None:
    with open_folder() as folder, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        folder.chmod(0o777)
        os.seteuid(STRANGER)
        try:
            listener.bind(str(folder / NAME))
            listener.listen()
        finally:
            os.seteuid(0)
        with pytest.raises(tm.PeerError, match=f"belongs to another user \\({STRANGER}\\)"):
            ask(folder, "status")
        os.chown(folder, STRANGER, STRANGER)  # a store of that user: root may ask for its status
        with pytest.raises(tm.PeerError, match="timed out"):
            ask(folder, "status", timeout_seconds=0.01)


@pytest.mark.parametrize(
    "arguments",
    [
        {"place": "relative/place"},
        {"place": ["/a"]},
        {"place": 7},
        {"place": "/a", "progress": "print"},
        {"place": "/a", "verify": "no"},
        {"place": "/a", "incremental": 1},
        ["/a"],
        "/a",
    ],
)
def test_arguments_that_are_none_reach_no_command(tmp_path: Path, arguments: object) -> None:
    """Story: a client's arguments were passed to `db.backup` unchecked: a list became a directory called "['/a']", and
    a relative path one of the process that has the store open.
    """
    asked: list[object] = []
    with listening(tmp_path, backup=lambda **given: asked.append(given)), connect(tmp_path) as client:
        answer = exchange(client, json.dumps({"command": "backup", "arguments": arguments}).encode() + b"\n")
        assert answer["error"] == "PeerError" and "place, incremental, verify" in answer["message"]
        assert exchange(client, b'{"command": "say", "arguments": {"place": "/a"}}\n')["error"] == "PeerError"
        right = {"place": "/a", "incremental": True, "verify": False}
        assert exchange(client, json.dumps({"command": "backup", "arguments": right}).encode() + b"\n") == {
            "result": None
        }
    assert asked == [right]


def test_commands_run_concurrently_up_to_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_port, "COMMANDS_MAX", 2)
    begun, resume = threading.Semaphore(0), threading.Event()

    def long() -> str:
        begun.release()
        return "ended" if resume.wait(100) else "forgotten"

    with listening(tmp_path, long=long), connect(tmp_path) as first, connect(tmp_path) as second:
        first.sendall(b'{"command": "long"}\n')
        assert begun.acquire(timeout=60)
        assert ask(tmp_path, "say") == "said"
        second.sendall(b'{"command": "long"}\n')
        assert begun.acquire(timeout=60)
        with pytest.raises(tm.PeerError, match="2 commands are running"):
            ask(tmp_path, "say")
        resume.set()
        for connection in (first, second):
            with connection.makefile("rb") as answers:
                assert json.loads(answers.readline()) == {"result": "ended"}
        assert ask(tmp_path, "say") == "said"


def test_lines_sent_at_once_are_answered_in_order_and_long_answers_wait_for_their_reader(tmp_path: Path) -> None:
    with listening(tmp_path, much=lambda: "m" * 4_000_000), connect(tmp_path) as slow:
        slow.sendall(b'{"command": "much"}\n' + SAY + b'{"command": "mu')
        assert ask(tmp_path, "say") == "said"  # while the long answer is being sent
        slow.sendall(b'ch"}\n')
        with slow.makefile("rb") as answers:
            for long in (4_000_000, 4, 4_000_000):
                assert len(json.loads(answers.readline())["result"]) == long


def test_command_that_breaks_cuts_its_client_off_and_no_other_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: queue.SimpleQueue[type[BaseException]] = queue.SimpleQueue()
    monkeypatch.setattr(threading, "excepthook", lambda what: reported.put(what.exc_type))

    def broken() -> None:
        raise OSError("planted")

    with listening(tmp_path, broken=broken), connect(tmp_path) as other:
        with pytest.raises(tm.PeerError, match="ended, or sent an invalid answer"):
            ask(tmp_path, "broken")
        assert exchange(other, SAY) == {"result": "said"}
        # The client sees the end of the connection before the thread has ended.
        assert reported.get(timeout=60) is OSError
    assert reported.empty()


def test_error_of_the_owner_is_the_error_of_the_client(
    db: tm.Database, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full() -> None:
        raise tm.StorageFull("the disk is full; free space")

    assert db.parts.control is not None
    monkeypatch.setattr(db.parts.control, "commands", {"checkpoint": full})
    with pytest.raises(tm.StorageFull, match="free space"):
        ask(store, "checkpoint")
    result = run("checkpoint", store)
    assert (result.exit_code, result.stderr) == (1, "Error: StorageFull: the disk is full; free space\n")


def test_close_waits_for_the_local_checkpoint_a_client_asked_for(
    db: tm.Database, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, resume = threading.Event(), threading.Event()
    assert db.parts.control is not None
    checkpoint = db.checkpoint

    def slow() -> dict[str, Any]:
        begun.set()
        assert resume.wait(100)
        return checkpoint()

    monkeypatch.setattr(db.parts.control, "commands", {"checkpoint": slow})
    with connect(store) as connection:
        connection.sendall(b'{"command": "checkpoint"}\n')
        assert begun.wait(100)
        closing = threading.Thread(target=db.close)
        closing.start()
        resume.set()
        closing.join(60)
        assert not closing.is_alive()
        with connection.makefile("rb") as answers:
            made = json.loads(answers.readline())["result"]["lcp_id"]
    assert made in [each["id"] for each in document("info", store)["local_checkpoints"]]


def test_interrupt_while_close_waits_for_a_client_gives_the_store_free(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    db = tm.open(store, **OPEN)
    assert db.parts.control is not None
    close = db.parts.control.close

    def interrupted() -> None:
        close()
        raise KeyboardInterrupt

    monkeypatch.setattr(db.parts.control, "close", interrupted)
    with pytest.raises(KeyboardInterrupt):
        db.close()
    with pytest.raises(tm.StoreClosed):
        db.tables()
    assert document("tables", store)[0]["rows"] == 9
    db.parts.clockwork.stop()


def test_concurrent_status_and_changes_of_schema_agree(db: tm.Database, store: Path) -> None:
    def ask_often() -> None:
        for _ in range(30):
            ask(store, "status")

    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask_often)
        for number in range(20):
            db.create_table(f"t{number}", [tm.Column("id", tm.Int64)], "id")
        asked.result(60)


# --- processes ------------------------------------------------------------------------------------
def test_owner_that_forgets_to_close_ends_all_the_same(store: Path) -> None:
    script = (
        "import sys, tidemark as tm\ndb = tm.open(sys.argv[1], data_memory='64 MiB')\nprint(len(db['test.account']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(store)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
        check=True,
    )
    assert done.stdout == "9\n"


def test_wait_for_a_stopped_owner_ends(store: Path) -> None:
    with held_open(store) as process:
        os.kill(process.pid, signal.SIGSTOP)
        try:
            with pytest.raises(tm.PeerError, match="does not answer"):
                ask(store, "status", timeout_seconds=0.05)
        finally:
            os.kill(process.pid, signal.SIGCONT)
        assert ask(store, "status")["store"]["pid"] == process.pid


@pytest.mark.parametrize("answer", [b"[" * 100_000, b"5", b"[]", b'{"error": 1}', b"\xff", b""])
def test_answer_that_makes_no_sense_is_a_peer_error(tmp_path: Path, answer: bytes) -> None:
    """Story: endlessly nested lists made `ask` raise RecursionError."""
    files = PosixFiles(tmp_path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(files.socket_address(NAME))
        listener.listen()

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(REQUEST_BYTES_MAX)
                connection.sendall(answer + b"\n")

        serving = threading.Thread(target=serve)
        serving.start()
        try:
            with pytest.raises(tm.PeerError):
                ask(tmp_path, "status")
        finally:
            serving.join(60)
    files.close_all()


def test_owner_killed_under_a_command_is_a_peer_error(store: Path) -> None:
    with held_open(store) as process:
        os.kill(process.pid, signal.SIGSTOP)
        errors: list[BaseException] = []

        def wait() -> None:
            try:
                ask(store, "checkpoint", None)
            except tm.PeerError as error:
                errors.append(error)

        waiting = threading.Thread(target=wait)
        waiting.start()
        process.kill()
        process.join()
        waiting.join(60)
        assert len(errors) == 1 and not waiting.is_alive()


def test_child_that_closes_does_not_silence_its_parent(db: tm.Database, store: Path) -> None:
    in_child(db.close)
    assert (store / NAME).is_socket()
    assert ask(store, "status")["store"]["pid"] == os.getpid()


# --- locator --------------------------------------------------------------------------------------


def test_store_in_memory_has_no_locator() -> None:
    with open_memory() as db, pytest.raises(tm.Unsupported, match="not in a directory"):
        db.locator  # noqa: B018


def test_command_kills_a_transaction_and_a_client_of_the_open_store(db: tm.Database, store: Path) -> None:
    db.create_table("t", [tm.Column("id", tm.Int64)], "id")
    txn = db.transaction()
    txn.insert("t", (1,))
    result = run("kill", store, f"{txn.txid:#x}")
    assert result.exit_code == 0 and result.output == f"{txn.txid:#x}: ended\n"
    with pytest.raises(tm.TransactionKilled):
        txn.commit()
    assert "is not open" in run("kill", store, txn.txid).output
    with tm.serve_calls(db, "127.0.0.1:0", b"x" * 16) as serving, tm.connect([serving.address], b"x" * 16) as client:
        remote = client.transaction()
        remote.insert("t", (1,))
        [holder] = document("status", store)["transactions"]["holders"]
        assert document("kill", store, holder["client"]) == {"target": holder["client"], "is_ended": True}
        with pytest.raises(tm.PrimaryLost):
            remote.commit()
    assert len(db["t"]) == 0


def test_kill_without_an_open_store_is_one_line(store: Path) -> None:
    tm.open(store, **OPEN).close()
    result = run("kill", store, 7)
    assert result.exit_code == 1 and "does not answer" in result.output and result.output.count("\n") == 1
