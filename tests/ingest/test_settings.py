"""Addresses, filters, required settings of a server, and the command line without a server."""

from __future__ import annotations

import builtins
import re
from pathlib import Path
from typing import Any

import click
import pytest

import tidemark as tm
from tidemark.cli.channel_commands import replicate
from tidemark.replication.ingest import client
from tidemark.replication.ingest.address import Address, Filter, parse_address
from tidemark.replication.ingest.checks import check_keys, check_server_id, check_settings
from tidemark.replication.ingest.copy import tables_of
from tidemark.replication.ingest.ingest import IngestOptions

SOUND = {
    "log_bin": "ON",
    "binlog_format": "ROW",
    "binlog_row_metadata": "FULL",
    "binlog_row_image": "MINIMAL",
    "server_id": "7",
}


def test_address_names_host_port_user_or_a_socket() -> None:
    found = parse_address("mysql://me%40x@db.example:3307/", "secret")
    assert (found.host, found.port, found.user, found.password) == ("db.example", 3307, "me@x", "secret")
    assert found.shown == "db.example:3307" and "secret" not in repr(found)
    assert parse_address("mysql://localhost/?socket=/run/m.sock").shown == "/run/m.sock"


@pytest.mark.parametrize(
    "url",
    [
        "mysql://me:secret@host/",
        "mysql://",
        "http://host/",
        "mysql://host:port/",
        "mysql://host/database",
        "mysql://host/?ssl=1",
    ],
)
def test_address_that_cannot_be_meant_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(tm.SchemaInvalid) as caught:
        parse_address(url)
    assert "secret" not in str(caught.value)


def test_filters_want_what_patterns_match_and_never_a_servers_own_tables() -> None:
    wanted = Filter(("shop.%", "a_c.t"), ("shop.log%",))
    names = ["shop.item", "shop.log1", "abc.t", "ac.t", "abc.tt", "mysql.user", "SHOP.Item"]
    assert [wanted.wants(name) for name in names] == [True, False, True, False, False, False, True]
    assert not Filter().wants("mysql.user") and Filter().wants("x.y")
    with pytest.raises(tm.SchemaInvalid, match="database.table"):
        Filter(("shop",))


def test_sound_settings_give_the_servers_id() -> None:
    assert check_settings("here", SOUND, 9) == 7


@pytest.mark.parametrize(
    ("setting", "value", "remedy"),
    [
        ("log_bin", "OFF", "--log-bin"),
        ("binlog_format", "MIXED", "binlog_format=ROW"),
        ("binlog_row_metadata", "MINIMAL", "binlog_row_metadata=FULL"),
        ("binlog_row_metadata", None, "older than"),
        ("binlog_row_value_options", "PARTIAL_JSON", "binlog_row_value_options=''"),
        ("binlog_transaction_compression", "ON", "OFF"),
        ("log_bin_compress", "ON", "OFF"),
        ("server_id", "0", "server_id=1"),
        ("server_id", "9", "give this side another one"),
    ],
)
def test_setting_that_will_not_do_is_refused_with_its_remedy(setting: str, value: str | None, remedy: str) -> None:
    variables = {**SOUND, setting: value}
    given = {name: text for name, text in variables.items() if text is not None}
    with pytest.raises(tm.PeerRefused, match=remedy) as caught:
        check_settings("here", given, 9)
    assert caught.value.setting == setting


def test_tables_without_primary_key_are_named() -> None:
    check_keys([("a.b", True)])
    with pytest.raises(tm.Unsupported, match=r"a\.c, a\.d"):
        check_keys([("a.d", False), ("a.b", True), ("a.c", False)])


def test_options_that_cannot_be_are_refused() -> None:
    with pytest.raises(tm.PeerRefused):
        check_server_id(0)
    with pytest.raises(tm.PeerRefused):
        IngestOptions(server_id=1 << 32)
    with pytest.raises(tm.SchemaInvalid, match="start"):
        IngestOptions(server_id=1, start="yesterday")


def test_missing_library_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *arguments: Any) -> Any:
        if name == "pymysqlreplication":
            raise ModuleNotFoundError("gone", name=name)
        return real(name, *arguments)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(tm.Unsupported, match=r"pip install '\.\[mysql\]'"):
        client.libraries()


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (1045, tm.PeerUnauthenticated),
        (1236, tm.PositionLost),
        (2003, tm.PeerTimeout),
        (2013, tm.PeerTimeout),
        (1412, client.TableChanged),
        (1227, tm.PeerRefused),
    ],
)
def test_errors_of_the_server_become_errors_that_say_what_to_do(code: int, kind: type[tm.Error]) -> None:
    found = client.peer_error(Address("h"), RuntimeError(code, "so it\n is"))
    assert type(found) is kind and "so it is" in found.message and found.code == code
    enciphered = client.peer_error(Address("h"), RuntimeError("'cryptography' package is required"))
    assert isinstance(enciphered, tm.Unsupported) and "TLS" in enciphered.message


def test_page_for_users_names_options_that_exist_and_all_of_them() -> None:
    page = (Path(__file__).parents[2] / "docs/ingest.md").read_text(encoding="utf-8")
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", page))
    options = {text for each in replicate.params if isinstance(each, click.Option) for text in each.opts}
    assert named <= options
    of_stores = {"--secret-file", "--option", "-o", "--other-source", "--failover-after-ms", "--heartbeat-from"}
    assert options - named == {"--data-memory", "--json", *of_stores}


class Listing:
    """A server that shows its tables while they change: keys may be missing in the list, and tables gone after it."""

    def __init__(self, shown: dict[str, str]) -> None:
        self.shown = shown

    def rows(self, sql: str, *values: str) -> list[tuple[Any, ...]]:
        return [(*name.split("."), 0) for name in ("d.keyed", "d.keyless", "e.other")]

    def octets(self, sql: str) -> list[tuple[Any, ...]]:
        name = sql.split()[-1].replace("`", "")
        if name not in self.shown:
            raise client.peer_error(Address("h"), RuntimeError(1146, f"Table '{name}' doesn't exist"))
        return [(name.encode(), self.shown[name].encode())]


def test_table_without_a_key_in_the_list_is_looked_up_again() -> None:
    """Story: next to RENAME and CREATE … SELECT a copy was refused for tables "without primary key" that had one, since
    a server reads its list of tables and that of keys at different moments.
    """
    shown = {
        "d.keyed": "CREATE TABLE `keyed` (\n  `id` int(11) NOT NULL,\n  PRIMARY KEY (`id`)\n) ENGINE=InnoDB",
        "d.keyless": "CREATE TABLE `keyless` (\n  `PRIMARY KEY` int(11) NOT NULL\n) COMMENT='PRIMARY KEY'",
    }
    wanted = Filter(("d.%",))
    server: Any = Listing(shown)
    assert tables_of(server, wanted) == [("d.keyed", True), ("d.keyless", False)]
    del shown["d.keyed"]
    with pytest.raises(client.TableChanged, match="begins anew"):
        tables_of(server, wanted)
