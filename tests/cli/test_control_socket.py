"""The control socket: its file, its clients good and bad, its end; and the locator."""

from __future__ import annotations

import json
import logging
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tidemark as tm
from engine.file_doubles.memory import MemoryFiles
from engine.files import PosixFiles
from tests.cli.support import ROOT, SMALL, document, held_open, run
from tests.store.support import open_memory
from tidemark import control_socket
from tidemark.control_socket import CLIENTS_MAX, NAME, REQUEST_BYTES_MAX, ask
from tidemark.locator import Locator

OPEN: dict[str, Any] = {**SMALL, "background": True}


@pytest.fixture
def db(store: Path) -> Iterator[tm.Database]:
    with tm.open(store, **OPEN) as opened:
        yield opened


def connect(store: Path) -> socket.socket:
    files = PosixFiles(store)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(20)
    connection.connect(files.socket_address(NAME))
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
        assert document("status", store)["store"]["state"] == "open"  # nobody holds the lock: opened here
        with tm.open(store, **OPEN) as db:
            assert ask(store, "status")["store"]["pid"] == os.getpid()
            assert db.status()["store"]["incarnation"] == 4
    assert not (store / NAME).exists()


def test_something_else_in_its_place_is_reported_and_the_store_opens(
    store: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (store / NAME).mkdir()
    with caplog.at_level(logging.WARNING, "tidemark"), tm.open(store, **OPEN) as db:
        assert len(db["test.account"]) == 9
    assert "no control socket" in caplog.text
    assert (store / NAME).is_dir()


def test_file_removed_by_somebody_does_not_disturb_close(store: Path) -> None:
    with tm.open(store, **OPEN):
        (store / NAME).unlink()
    assert document("tables", store)[0]["rows"] == 9


def test_socket_of_a_failed_store_is_removed_and_answers_until_then(store: Path) -> None:
    db = tm.open(store, **OPEN)
    db.parts.store.fail(tm.IoFailed("read of a file failed; reopen the store"))
    assert ask(store, "status")["store"]["state"] == "failed"
    with pytest.raises(tm.IoFailed, match="read of a file failed"):
        ask(store, "checkpoint")
    db.close()
    assert not (store / NAME).exists()


def test_regular_file_of_its_name_is_not_removed(store: Path) -> None:
    (store / NAME).write_text("mine")
    with tm.open(store, **OPEN) as db:
        assert len(db["test.account"]) == 9
    assert (store / NAME).read_text() == "mine"


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
        assert answer["error"] == "PeerError" and "checkpoint, report, status" in answer["message"]
        assert exchange(connection, b'{"command": "status"}\n')["result"]["store"]["pid"] == os.getpid()


def test_line_without_an_end_is_cut_off(db: tm.Database, store: Path) -> None:
    with connect(store) as connection:
        connection.sendall(b"x" * (REQUEST_BYTES_MAX + 1))
        assert connection.recv(1) == b""
    assert ask(store, "status")["store"]["state"] == "open"


def test_silent_client_is_cut_off(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_socket, "SILENCE_SECONDS", 0.01)
    with tm.open(store, **OPEN), connect(store) as silent:
        assert silent.recv(1) == b""


def test_client_that_hangs_or_leaves_disturbs_nobody(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_socket, "SILENCE_SECONDS", 10_000.0)
    db = tm.open(store, **OPEN)
    with connect(store) as silent, connect(store) as half:
        half.sendall(b'{"comm')
        connect(store).close()
        with connect(store) as hasty:
            hasty.sendall(b'{"command": "status"}\n')
        assert ask(store, "status")["store"]["state"] == "open"
        assert document("checkpoint", store)["lcp_id"] >= 2
        db.close()  # does not wait for the silent ones
        assert silent.recv(1) == b""
        assert half.recv(1) == b""


def test_more_clients_than_places_are_turned_away_and_places_come_free(db: tm.Database, store: Path) -> None:
    crowd = [connect(store) for _ in range(CLIENTS_MAX)]
    for connection in crowd:
        # An answer each: all have their place now.
        assert "error" in exchange(connection, b"x\n")
    with connect(store) as late:
        assert late.recv(1) == b""
    for connection in crowd:
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(1) == b""
        connection.close()
    assert ask(store, "status")["store"]["state"] == "open"


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
    begun, go_on = threading.Event(), threading.Event()
    assert db.parts.control is not None
    checkpoint = db.checkpoint

    def slow() -> dict[str, Any]:
        begun.set()
        assert go_on.wait(20)
        return checkpoint()

    monkeypatch.setattr(db.parts.control, "commands", {"checkpoint": slow})
    with connect(store) as connection:
        connection.sendall(b'{"command": "checkpoint"}\n')
        assert begun.wait(20)
        closing = threading.Thread(target=db.close)
        closing.start()
        go_on.set()
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
    failures: list[BaseException] = []

    def ask_often() -> None:
        try:
            for _ in range(30):
                ask(store, "status")
        except BaseException as error:
            failures.append(error)
            raise

    asking = threading.Thread(target=ask_often)
    asking.start()
    for number in range(20):
        db.create_table(f"t{number}", [tm.Column("id", tm.Int64)], "id")
    asking.join(60)
    assert failures == [] and not asking.is_alive()


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
        timeout=60,
        check=True,
    )
    assert done.stdout == "9\n"


def test_owner_that_is_stopped_is_given_up(store: Path) -> None:
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
    """Lists in lists without end left `ask` as RecursionError."""
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
    child = os.fork()
    if child == 0:
        try:
            db.close()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert (store / NAME).is_socket()
    assert ask(store, "status")["store"]["pid"] == os.getpid()


# --- locator --------------------------------------------------------------------------------------
def test_locator_travels_and_opens_the_store(store: Path) -> None:
    with tm.open(store, **SMALL) as db:
        locator = pickle.loads(pickle.dumps(db.locator))
    assert locator == Locator(str(store))
    with tm.open(locator, **SMALL) as again:
        assert len(again["test.account"]) == 9


def test_database_does_not_pickle_and_says_what_does(store: Path) -> None:
    with tm.open(store, **SMALL) as db, pytest.raises(tm.Unsupported, match="db.locator"):
        pickle.dumps(db)


def test_store_in_memory_has_no_locator() -> None:
    with open_memory() as db, pytest.raises(tm.Unsupported, match="no directory"):
        db.locator  # noqa: B018
