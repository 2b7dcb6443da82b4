"""The login of the MySQL port, without sockets and with a real client: who gets in, and what stops all others."""

from __future__ import annotations

import hashlib
import random
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tidemark.engine.base.errors import SchemaInvalid
from tidemark.replication.mysql_source import protocol_layout as p
from tidemark.replication.mysql_source.flavors import FLAVORS, MARIADB, MYSQL, Flavor, flavor_of
from tidemark.replication.mysql_source.login import LOGIN_BYTES_MAX, Login, Port, State
from tidemark.replication.mysql_source.packets import PacketReader, Refused, length_of, ok, packets
from tidemark.replication.mysql_source.users import MysqlUser, by_name, nonce_of

SECRET = b"a secret of the tests"
SEED = 51_026
NONCE = nonce_of(random.Random(SEED).randbytes(p.NONCE_BYTES))
BOTH = pytest.mark.parametrize("flavor", FLAVORS.values(), ids=FLAVORS)


def port_of(flavor: Flavor, **given: Any) -> Port:
    chosen = {"has_tls": False, "needs_tls": False, **given}
    return Port(flavor, by_name([MysqlUser("repl", SECRET)]), b"the secret of no user", **chosen)


def proof_of(plugin: str, secret: bytes, nonce: bytes = NONCE) -> bytes:
    """Return a client's proof, written again from the plugins' documents."""
    if plugin == p.NATIVE:
        first = hashlib.sha1(secret).digest()
        second = hashlib.sha1(nonce + hashlib.sha1(first).digest()).digest()
    else:
        first = hashlib.sha256(secret).digest()
        second = hashlib.sha256(hashlib.sha256(first).digest() + nonce).digest()
    return bytes(a ^ b for a, b in zip(first, second, strict=True))


def response(name: str = "repl", proof: bytes = b"", plugin: str = "", flags: int = 0) -> bytes:
    offered = p.PROTOCOL_41 | p.SECURE_CONNECTION | p.PLUGIN_AUTH | p.PLUGIN_AUTH_LENGTHS | flags
    head = offered.to_bytes(4, "little") + (1 << 24).to_bytes(4, "little") + bytes((p.CHARSET_UTF8MB4,)) + bytes(23)
    return head + name.encode() + b"\0" + length_of(len(proof)) + proof + plugin.encode() + b"\0"


def login_of(flavor: Flavor, **given: Any) -> Login:
    return Login(port_of(flavor, **given), 7, NONCE, "localhost")


def refused_of(login: Login, data: bytes) -> int:
    """Return the number of the error that ends a login."""
    with pytest.raises(Refused) as caught:
        login.receive(data)
    assert login.state is State.REFUSED and login.user is None and not login.is_done
    return caught.value.code[0]


# --- packets ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("size", [0, 1, p.PACKET_BYTES_MAX - 1, p.PACKET_BYTES_MAX, p.PACKET_BYTES_MAX + 1])
def test_messages_of_any_length_come_back(size: int) -> None:
    message = bytes(size)
    reader = PacketReader(size)
    reader.feed(packets(message, 0))
    assert reader.next() == message and reader.is_empty and reader.next() is None


def test_long_message_is_refused_by_its_header() -> None:
    reader = PacketReader(4_096)
    reader.feed(b"\xff\xff\xff\0")
    with pytest.raises(Refused, match="max_allowed_packet"):
        reader.next()
    reader = PacketReader(p.PACKET_BYTES_MAX + 10)
    reader.feed(packets(bytes(p.PACKET_BYTES_MAX), 0)[:-4] + b"\x0b\0\0\1")
    with pytest.raises(Refused, match="max_allowed_packet"):
        reader.next()


def test_packets_out_of_order_are_refused() -> None:
    reader = PacketReader(100)
    reader.feed(packets(b"x", 1))
    with pytest.raises(Refused, match="out of order"):
        reader.next()


# --- logins ----------------------------------------------------------------------------------------
@BOTH
def test_client_with_the_secret_gets_in_directly_and_by_a_switch_of_plugins(flavor: Flavor) -> None:
    proof = proof_of(flavor.plugin, SECRET)
    done = packets(ok(), 2) if flavor is MARIADB else packets(b"\1\3", 2) + packets(ok(), 3)
    direct = login_of(flavor)
    assert direct.receive(packets(response("repl", proof, flavor.plugin), 1)) == done
    assert direct.is_done and direct.user is not None and direct.user.name == "repl"
    switched = login_of(flavor)
    other = next(each.plugin for each in FLAVORS.values() if each is not flavor)
    asked = switched.receive(packets(response("repl", proof_of(other, SECRET), other), 1))
    assert asked == packets(b"\xfe" + flavor.plugin.encode() + b"\0" + NONCE + b"\0", 2)
    assert not switched.is_done
    assert switched.receive(packets(proof, 3))[-len(ok()) :] == ok() and switched.is_done


@BOTH
def test_wrong_and_unknown_get_the_same_messages_and_nothing_after_them(flavor: Flavor) -> None:
    said = []
    for name, secret in (
        ("repl", b"another secret of the tests"),
        ("unknown", SECRET),
        ("unknown", b"the secret of no user"),
    ):
        login = login_of(flavor)
        with pytest.raises(Refused) as caught:
            login.receive(packets(response(name, proof_of(flavor.plugin, secret), flavor.plugin), 1))
        assert caught.value.code == p.ER_ACCESS_DENIED
        said.append(login.refusal(caught.value).replace(name.encode(), b"?")[4:])
        # Story: a library for such servers answered statements after a wrong password.
        assert refused_of(login, packets(b"\3SELECT 1", 0)) == p.ER_HANDSHAKE[0]
    assert len(set(said)) == 1


@BOTH
@pytest.mark.parametrize("proof", [b"", b"x", bytes(20), bytes(32), SECRET])
def test_no_other_proof_is_taken(flavor: Flavor, proof: bytes) -> None:
    login = login_of(flavor)
    answer = None
    try:
        answer = login.receive(packets(response("repl", proof, flavor.plugin), 1))
    except Refused as refused:
        assert refused.code == p.ER_ACCESS_DENIED
    if answer is not None:  # an empty proof is asked for again
        assert not proof and refused_of(login, packets(proof, 3)) == p.ER_ACCESS_DENIED[0]
    assert not login.is_done


@BOTH
def test_client_without_tls_is_refused_before_its_proof_is_looked_at(flavor: Flavor) -> None:
    login = login_of(flavor, has_tls=True, needs_tls=True)
    right = packets(response("repl", proof_of(flavor.plugin, SECRET), flavor.plugin), 1)
    assert refused_of(login, right) == p.ER_SECURE_TRANSPORT_REQUIRED[0]


@BOTH
def test_nothing_sent_in_clear_counts_as_sent_in_tls(flavor: Flavor) -> None:
    """Story: other servers took statements that an attacker had sent with the request for TLS."""
    request = packets((p.PROTOCOL_41 | p.SECURE_CONNECTION | p.SSL).to_bytes(4, "little") + bytes(28), 1)
    login = login_of(flavor, has_tls=True)
    assert refused_of(login, request + packets(response(), 2)) == p.ER_HANDSHAKE[0]
    login = login_of(flavor, has_tls=True)
    assert login.receive(request) == b"" and login.state is State.TLS
    assert refused_of(login, packets(response(), 2)) == p.ER_HANDSHAKE[0]
    login = login_of(flavor)
    assert refused_of(login, request) == p.ER_HANDSHAKE[0]


@BOTH
def test_statement_sent_with_the_proof_is_refused(flavor: Flavor) -> None:
    login = login_of(flavor)
    proof = packets(response("repl", proof_of(flavor.plugin, SECRET), flavor.plugin), 1)
    assert refused_of(login, proof + packets(b"\3SELECT 1", 0)) in (p.ER_HANDSHAKE[0], p.ER_PACKETS_OUT_OF_ORDER[0])


@BOTH
def test_login_cut_at_every_byte_waits_and_gets_in_byte_by_byte(flavor: Flavor) -> None:
    sent = packets(response("repl", proof_of(flavor.plugin, SECRET), flavor.plugin), 1)
    login = login_of(flavor)
    for place in range(len(sent) - 1):
        assert login.receive(sent[place : place + 1]) == b"" and not login.is_done
    assert login.receive(sent[-1:])[-len(ok()) :] == ok()


def test_login_of_too_many_bytes_is_refused() -> None:
    assert refused_of(login_of(MYSQL), packets(bytes(LOGIN_BYTES_MAX), 1)) == p.ER_PACKET_TOO_LARGE[0]
    assert refused_of(login_of(MYSQL), b"\xff\xff\xff\1") == p.ER_PACKET_TOO_LARGE[0]


@BOTH
def test_random_bytes_raise_nothing_but_refusals(flavor: Flavor) -> None:
    print("seed", SEED)
    r = random.Random(SEED)
    right = response("repl", proof_of(flavor.plugin, SECRET), flavor.plugin)
    for _ in range(3_000):
        login = login_of(flavor, has_tls=r.random() < 0.5)
        try:
            for sequence in (1, 3):
                message = bytearray(right if r.random() < 0.5 else r.randbytes(r.randrange(90)))
                for _ in range(r.randrange(1, 4)):
                    if message:
                        message[r.randrange(len(message))] ^= 1 << r.randrange(8)
                login.receive(packets(bytes(message), sequence))
        except Refused:
            pass
        if login.is_done:  # a change of flags or of the character set alone
            assert login.user is not None and login.user.name == "repl"


def test_nonce_has_no_byte_that_ends_it() -> None:
    assert not {0, ord("$")} & set(nonce_of(bytes(range(256))))


@pytest.mark.parametrize(
    "given", [("", SECRET), ("a" * 33, SECRET), ("a\0b", SECRET), ("a", b"short"), ("a", "text of 16 letters")]
)
def test_user_that_cannot_be_is_refused(given: Any) -> None:
    with pytest.raises(SchemaInvalid):
        MysqlUser(*given)


def test_users_and_flavors_are_checked() -> None:
    user = MysqlUser("repl", SECRET)
    assert "secret of" not in repr(user)
    for wrong in ([], [user, MysqlUser("repl", SECRET + b"!")]):
        with pytest.raises(SchemaInvalid):
            by_name(wrong)
    with pytest.raises(SchemaInvalid, match="'mysql' or 'mariadb'"):
        flavor_of("oracle")


# --- a real client ---------------------------------------------------------------------------------
class OnePort:
    """Accepts one connection, lets it log in, and answers a ping."""

    def __init__(self, port: Port, tls: ssl.SSLContext | None = None) -> None:
        self._port, self._tls = port, tls
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.number = self._socket.getsockname()[1]
        self.login: Login | None = None
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        connection, _ = self._socket.accept()
        connection.settimeout(20)
        self.login = login = Login(self._port, 1, NONCE, "localhost")
        try:
            connection.sendall(login.greeting)
            while not login.is_done:
                connection.sendall(login.receive(connection.recv(login.reader.wanted)))
                if login.state is State.TLS:
                    assert self._tls is not None
                    connection = self._tls.wrap_socket(connection, server_side=True)
                    login.secured()
            while connection.recv(4_096)[4:5] == b"\x0e":
                connection.sendall(packets(ok(), 1))
        except Refused as refused:
            connection.sendall(login.refusal(refused))
        finally:
            connection.close()

    def close(self) -> None:
        self._thread.join()
        self._socket.close()


@pytest.fixture(scope="module")
def contexts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ssl.SSLContext, Path]]:
    import trustme

    folder = tmp_path_factory.mktemp("tls")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    yield context, folder / "ca.pem"


@BOTH
@pytest.mark.parametrize("has_tls", [False, True])
def test_pymysql_logs_in_and_is_refused(flavor: Flavor, has_tls: bool, contexts: Any) -> None:
    import pymysql

    tls, authority = contexts
    more: dict[str, Any] = {"ssl_ca": str(authority)} if has_tls else {"ssl_disabled": True}
    for secret in (SECRET, b"another secret of the tests"):
        port = OnePort(port_of(flavor, has_tls=has_tls, needs_tls=has_tls), tls)
        try:
            client = pymysql.connections.Connection(
                host="127.0.0.1", port=port.number, user="repl", password=secret, defer_connect=True, **more
            )
            client.init_command, client.autocommit_mode = None, None
            client.sql_mode = None
            try:
                _log_in(client)
                assert secret == SECRET and client.get_server_info() == flavor.version
                client.ping(reconnect=False)
            except pymysql.err.OperationalError as refused:
                assert secret != SECRET and refused.args[0] == 1045
            finally:
                if client.open:
                    client.close()
        finally:
            port.close()
        assert port.login is not None and port.login.is_done == (secret == SECRET)


def _log_in(client: Any) -> None:
    """Connect without the statements that pymysql sends after a login."""
    client.set_character_set = lambda *names: None
    client.connect()
