"""The port of metrics: what it answers, and what strangers cannot do to it."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import tidemark as tm
from tests.node_group.site import Site, site_of
from tests.store.support import ACCOUNT, open_memory
from tests.waiting import wait_until
from tidemark.monitoring import port
from tidemark.monitoring.port import MetricsServing

GET = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture
def db() -> Iterator[tm.Database]:
    with open_memory() as opened:
        opened.create_table("test.account", ACCOUNT, "id").insert((1, "ann", 1.0, None))
        yield opened


@pytest.fixture
def serving(db: tm.Database) -> Iterator[MetricsServing]:
    with tm.serve_metrics(db, "127.0.0.1:0") as made:
        yield made


def connect(serving: MetricsServing) -> socket.socket:
    return socket.create_connection(serving.address, timeout=100)


def everything(connection: socket.socket) -> bytes:
    """What comes until the other side closes."""
    received = b""
    try:
        while piece := connection.recv(65_536):
            received += piece
    except ConnectionResetError:
        pass
    return received


def asked(serving: MetricsServing, request: bytes) -> tuple[str, bytes]:
    """The status and the body of the answer to a request."""
    with connect(serving) as connection:
        connection.sendall(request)
        head, _, body = everything(connection).partition(b"\r\n\r\n")
    return head.split(b"\r\n")[0].decode(), body


def test_metrics_are_answered_and_the_connection_ends(serving: MetricsServing, db: tm.Database) -> None:
    status, body = asked(serving, GET)
    assert status == "HTTP/1.1 200 OK"
    assert b'tidemark_table_rows{table="test.account"} 1.0' in body
    assert body.decode().splitlines()[-1].startswith("tidemark_")
    assert asked(serving, b"HEAD /metrics HTTP/1.0\r\n\r\n") == ("HTTP/1.1 200 OK", b"")
    assert asked(serving, GET.replace(b"/metrics", b"/metrics?name=x"))[0] == "HTTP/1.1 200 OK"


def test_the_port_itself_has_a_link_to_the_metrics(serving: MetricsServing) -> None:
    """Story: who opened the address that the command had printed saw 404."""
    status, body = asked(serving, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert status == "HTTP/1.1 200 OK" and b'<a href="/metrics">' in body
    assert asked(serving, b"HEAD / HTTP/1.1\r\n\r\n") == ("HTTP/1.1 200 OK", b"")
    assert repr(serving) == f"<tidemark metrics at {serving.name}>"


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET /other HTTP/1.1\r\n\r\n", "HTTP/1.1 404 Not Found"),
        (b"POST / HTTP/1.1\r\n\r\n", "HTTP/1.1 405 Method Not Allowed"),
        (b"GET /metrics/../../etc/passwd HTTP/1.1\r\n\r\n", "HTTP/1.1 404 Not Found"),
        (b"POST /metrics HTTP/1.1\r\nContent-Length: 3\r\n\r\n", "HTTP/1.1 405 Method Not Allowed"),
        (b"DELETE /metrics HTTP/1.1\r\n\r\n", "HTTP/1.1 405 Method Not Allowed"),
        (b"GET /metrics\r\n\r\n", "HTTP/1.1 400 Bad Request"),
        (b"\x16\x03\x01\x02\x00\r\n\r\n", "HTTP/1.1 400 Bad Request"),
        (b"\r\n\r\n", "HTTP/1.1 400 Bad Request"),
        (b"PRI * HTTP/2.0\r\n\r\n", "HTTP/1.1 400 Bad Request"),
    ],
)
def test_nothing_else_is_answered(serving: MetricsServing, request_: bytes, status: str) -> None:
    assert asked(serving, request_)[0] == status
    assert asked(serving, GET)[0] == "HTTP/1.1 200 OK"


def test_request_without_an_end_is_cut_off_at_its_limit(serving: MetricsServing) -> None:
    with connect(serving) as connection:
        try:
            for _ in range(100):
                connection.sendall(b"X-Header: x\r\n" * 100)
        except OSError:
            pass
        assert everything(connection) == b""
    assert asked(serving, GET)[0] == "HTTP/1.1 200 OK"


def test_few_requests_are_answered_at_once(
    serving: MetricsServing, monkeypatch: pytest.MonkeyPatch, db: tm.Database
) -> None:
    begun, resume = threading.Semaphore(0), threading.Event()

    def slow(_: object) -> str:
        begun.release()
        assert resume.wait(100)
        return "done\n"

    monkeypatch.setattr(port, "metrics", slow)
    with ExitStack() as stack:
        waiting = [stack.enter_context(connect(serving)) for _ in range(port.ANSWERS_MAX)]
        for each in waiting:
            each.sendall(GET)
            assert begun.acquire(timeout=100)
        assert asked(serving, GET)[0] == "HTTP/1.1 503 Service Unavailable"
        resume.set()
        assert all(everything(each).endswith(b"done\n") for each in waiting)


def test_status_that_fails_is_an_answer(
    serving: MetricsServing, monkeypatch: pytest.MonkeyPatch, db: tm.Database
) -> None:
    def failed(_: object) -> str:
        raise tm.StoreFailed("planted")

    monkeypatch.setattr(port, "metrics", failed)
    assert asked(serving, GET) == ("HTTP/1.1 503 Service Unavailable", b"StoreFailed: planted\n")


def test_closed_store_is_reported_and_closed_port_ends(db: tm.Database) -> None:
    with tm.serve_metrics(db, "127.0.0.1:0") as serving:
        db.close()
        assert b"tidemark_open 0.0" in asked(serving, GET)[1]
    with pytest.raises(OSError):
        connect(serving)
    names = {thread.name for thread in threading.enumerate()}
    assert "tidemark-metrics" not in names


def test_wrong_address_is_refused(db: tm.Database, serving: MetricsServing) -> None:
    with pytest.raises(tm.PeerError, match="choose another port"):
        tm.serve_metrics(db, serving.address)
    with pytest.raises(tm.SchemaInvalid, match="host:port"):
        tm.serve_metrics(db, "9308")


def test_port_that_other_hosts_reach_is_a_warning(db: tm.Database, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "tidemark"), tm.serve_metrics(db, "0.0.0.0:0") as serving:
        assert asked(serving, GET)[0] == "HTTP/1.1 200 OK"
    assert "every host that reaches this port reads names of tables" in caplog.text


def test_port_of_ip_version_6(db: tm.Database) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    with tm.serve_metrics(db, "[::1]:0") as serving:
        wait_until(lambda: asked(serving, GET)[0] == "HTTP/1.1 200 OK")


def test_a_node_serves_metrics_of_its_store_and_while_it_has_none(tmp_path: Path) -> None:
    """`tidemark serve` had --metrics, and a node of a group had no metrics at all."""
    with site_of(tmp_path, 1, metrics="127.0.0.1:0") as site:
        with site.nodes[1].connect() as db:
            db.create_table("t", [tm.Column("id", tm.Int64)], "id").insert((1,))
        head, answer = asked(site.nodes[1].metrics, GET)
        assert head.startswith("HTTP/1.1 200") and b'tidemark_table_rows{table="main.t"} 1.0' in answer
    (tmp_path / "alone").mkdir()
    alone = Site(tmp_path / "alone", 2, metrics="127.0.0.1:0")  # node 2 waits for node 1
    try:
        _, answer = asked(alone.begin(2).metrics, GET)
        assert b"tidemark_open 0.0" in answer and b"tidemark_epoch" not in answer
    finally:
        alone.end()
