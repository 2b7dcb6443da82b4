"""Checks of a MySQL server's settings and tables before its row events are applied; each error names the remedy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tidemark.engine.base.errors import PeerRefused, Unsupported

# Variable, valid values in lower case, remedy. A variable that a server does not have counts as valid, unless it is
# named in `_NEEDED`.
_SETTINGS = (
    ("log_bin", ("on", "1"), "start it with --log-bin"),
    ("binlog_format", ("row",), "SET GLOBAL binlog_format=ROW and reconnect its clients"),
    ("binlog_row_metadata", ("full",), "SET GLOBAL binlog_row_metadata=FULL; FLUSH BINARY LOGS"),
    ("binlog_row_value_options", ("",), "SET GLOBAL binlog_row_value_options=''"),
    ("binlog_transaction_compression", ("off", "0"), "SET GLOBAL binlog_transaction_compression=OFF"),
    ("log_bin_compress", ("off", "0"), "SET GLOBAL log_bin_compress=OFF"),
)
_NEEDED = {
    "log_bin": "",
    "binlog_row_metadata": "it is older than MySQL 8.0.1 and MariaDB 10.5, whose events name no columns; upgrade it",
}
SERVER_ID_MAX = (1 << 32) - 1


def check_settings(shown: str, variables: Mapping[str, str], own_id: int) -> int:
    """Check a server's variables and return its id. shown: the server's name in messages.

    Raises: PeerRefused with the first invalid setting and its remedy.
    """
    for name, accepted, remedy in _SETTINGS:
        value = variables.get(name)
        if value is None and name in _NEEDED:
            raise PeerRefused(f"{shown} has no {name}: {_NEEDED[name] or remedy}", setting=name)
        if value is not None and value.lower() not in accepted:
            raise PeerRefused(f"{shown} has {name}={value or chr(39) * 2}; {remedy}", setting=name)
    server_id = int(variables.get("server_id", "0"))
    if not server_id:
        raise PeerRefused(
            f"{shown} has server id 0 and serves no replicas; SET GLOBAL server_id=1", setting="server_id"
        )
    if server_id == own_id:
        raise PeerRefused(
            f"{shown} has server id {server_id}, as this side has; give this side another one", setting="server_id"
        )
    return server_id


def check_server_id(own_id: int) -> None:
    """Check the server id of a replica. Raises: PeerRefused if it is invalid."""
    if not 1 <= own_id <= SERVER_ID_MAX:
        raise PeerRefused(f"a server id is 1 to {SERVER_ID_MAX}, got {own_id}", setting="server_id")


def check_keys(tables: Iterable[tuple[str, bool]]) -> None:
    """Check that all tables have a primary key. tables: (name, whether it has one). Raises: Unsupported."""
    without = sorted(name for name, has_key in tables if not has_key)
    if without:
        names = ", ".join(without[:5]) + (" …" if len(without) > 5 else "")
        raise Unsupported(
            f"tables without primary key cannot be ingested: {names}; give them one, or leave them out with a filter",
            tables=tuple(without),
        )


def check_engines(tables: Iterable[tuple[str, str, bool]]) -> None:
    """Check that the engines of all tables have transactions: without them, the binlog position of the rows in a
    snapshot is unknown. tables: (name, engine, whether it has transactions). Raises: Unsupported.
    """
    without = sorted(f"{name} ({engine})" for name, engine, is_transactional in tables if not is_transactional)
    if without:
        names = ", ".join(without[:5]) + (" …" if len(without) > 5 else "")
        raise Unsupported(
            f"tables of an engine without transactions cannot be copied at a position: {names}; ALTER TABLE …"
            " ENGINE=InnoDB at the source, or leave them out with a filter",
            tables=tuple(without),
        )
