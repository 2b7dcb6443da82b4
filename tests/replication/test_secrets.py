"""Which secrets links accept: another host must not be able to guess a secret from a recorded handshake."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tidemark as tm
from tidemark.replication.wire.wire import check_secret_at, client_tls, is_this_host, server_tls

SHORT = b"sixteen bytes..."
KEY = bytes(range(32))
TLS = ssl.create_default_context()


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost", "LOCALHOST"])
def test_loopback_is_this_host(host: str) -> None:
    assert is_this_host(host)
    check_secret_at((host, 1), SHORT, None)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "fe80::1%eth0", "db.example", "localhost.example"])
def test_other_hosts_take_a_key_or_tls(host: str) -> None:
    """Story: 16 bytes of text were accepted everywhere: an attacker with one recorded handshake could try words
    offline.
    """
    assert not is_this_host(host)
    with pytest.raises(tm.SchemaInvalid, match="32 random bytes"):
        check_secret_at((host, 1), SHORT, None)
    check_secret_at((host, 1), KEY, None)
    check_secret_at((host, 1), SHORT, TLS)
    with pytest.raises(tm.SchemaInvalid, match="16 bytes or more"):
        check_secret_at((host, 1), SHORT[:15], TLS)


def test_secret_is_bytes() -> None:
    """Story: a text of 16 characters was accepted. The link then failed by a defect of ours, and its caller timed
    out.
    """
    secret: Any = "sixteen characters"
    with pytest.raises(tm.SchemaInvalid, match="must be bytes, got str; encode it"):
        check_secret_at(("127.0.0.1", 1), secret, None)


FAR = "192.0.2.1:7306"  # an address reserved for documentation: no host has it
GROUP = f"1=127.0.0.1:7306,2={FAR},arbitrator=127.0.0.1:7308"
CALLS: dict[str, Callable[[Path, Any], object]] = {
    "serve": lambda path, db: tm.serve(db, "0.0.0.0:0", SHORT),
    "serve_calls": lambda path, db: tm.serve_calls(db, "0.0.0.0:0", SHORT),
    "connect": lambda path, db: tm.connect(["127.0.0.1:1", FAR], SHORT),
    "Channel": lambda path, db: tm.Channel(FAR, db, secret=SHORT),
    "other_sources": lambda path, db: tm.Channel(
        "127.0.0.1:1", db, secret=SHORT, other_sources=[FAR], failover_after_ms=1_000, heartbeat_from=1
    ),
    "NodeGroup": lambda path, db: tm.NodeGroup(path / "node", 2, GROUP, SHORT, "127.0.0.1:0"),
    "peer of a node": lambda path, db: tm.NodeGroup(path / "node", 1, GROUP, SHORT, "127.0.0.1:0"),
    "calls": lambda path, db: tm.NodeGroup(path / "node", 1, GROUP, SHORT, "0.0.0.0:0", listen="127.0.0.1:0"),
    "replicas": lambda path, db: tm.NodeGroup(
        path / "node", 1, GROUP, SHORT, "127.0.0.1:0", listen="127.0.0.1:0", replicas="0.0.0.0:0", server_id=1,
        log_bin="log",
    ),
    "channel of a node": lambda path, db: tm.NodeGroup(
        path / "node", 1, GROUP, KEY, "127.0.0.1:0", channel={"source": FAR, "secret": SHORT}, server_id=1
    ),
    "Arbitrator": lambda path, db: tm.Arbitrator(path / "arbitrator", f"1=127.0.0.1:1,arbitrator={FAR}", SHORT),
    "peer of the arbitrator": lambda path, db: tm.Arbitrator(path / "arbitrator", GROUP, SHORT),
}  # fmt: skip


@pytest.mark.parametrize("call", CALLS)
def test_every_call_that_links_hosts_refuses_a_short_secret(call: str, tmp_path: Path) -> None:
    with tm.open(tmp_path / "store", data_memory="16 MiB", redo_log="8 MiB", server_id=2, log_bin="log") as db:
        with pytest.raises(tm.SchemaInvalid, match="without TLS a link to another host"):
            CALLS[call](tmp_path, db)


def test_tls_of_links_is_1_3_so_that_what_was_recorded_stays_secret(tmp_path: Path) -> None:
    trustme = pytest.importorskip("trustme")
    pem = str(tmp_path / "source.pem")
    trustme.CA().issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(pem)
    for context in (server_tls(pem, pem), client_tls()):
        assert context.minimum_version is ssl.TLSVersion.TLSv1_3
