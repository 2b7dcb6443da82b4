"""Server and session variables: one table of names, values, and what SET may make of them. Every value is true of the
store that is served, or of the session.

A variable that is not here is unknown (1193). Booleans are ON and OFF in SHOW, 1 and 0 in SELECT.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Final, NamedTuple

from tidemark.engine.base.options import parse_size
from tidemark.replication.binlog.charsets import BINARY, LATIN1, UTF8MB3, UTF8MB4, charset_named
from tidemark.replication.mysql_source import protocol_layout as p
from tidemark.replication.mysql_source.flavors import MARIADB, MYSQL
from tidemark.replication.mysql_source.packets import Refused

if TYPE_CHECKING:
    from tidemark.replication.mysql_source.session import Session, Value

STATEMENT_BYTES_MAX = 1 << 20
SILENT_SECONDS = 60  # in the middle of a message, and while a client takes nothing
SILENT_SECONDS_MAX = 3_600  # what a client may ask for: as long as a snapshot may be open
_IDLE_SECONDS = 28_800
_YEAR_SECONDS = 31_536_000
VALUE_BYTES_MAX = 4 << 10  # of a session variable that is text
_SHOWN_CHARACTERS = 80
COLLATION: Final = "utf8mb4_bin"
_BOTH = ""
_ISOLATION: Final = ("READ-UNCOMMITTED", "READ-COMMITTED", "REPEATABLE-READ", "SERIALIZABLE")
_OFFSET = re.compile(r"([+-])(\d{1,2}):(\d\d)")
_DEFAULT_MODE = "ONLY_FULL_GROUP_BY,STRICT_TRANS_TABLES,NO_ENGINE_SUBSTITUTION"
_MODE_BITS: Final = {"ANSI_QUOTES": 1 << 2, "ANSI": 1 << 2, "NO_BACKSLASH_ESCAPES": 1 << 20}


class Variable(NamedTuple):
    """value: what it is without SET. taken: returns the value that SET makes of what it is given, None if the variable
    is read-only. flavor: the only one that has it.
    """

    value: Callable[[Session], Value]
    taken: Callable[[str, Value], Value] | None = None
    flavor: str = _BOTH


# --- what SET takes -------------------------------------------------------------------------------
def wrong_value(name: str, value: Value) -> Refused:
    shown = "NULL" if value is None else str(_text(value))[:_SHOWN_CHARACTERS]
    return Refused(p.ER_WRONG_VALUE, f"Variable '{name}' can't be set to the value of '{shown}'")


def _text(value: Value) -> Value:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _seconds(most: int) -> Callable[[str, Value], Value]:
    """Return what makes a number of seconds of what is given; as at a server, others become the least or the most."""

    def taken(name: str, value: Value) -> Value:
        if not isinstance(value, int) or value < 0:
            raise wrong_value(name, value)
        return min(max(int(value), 1), most)

    return taken


def _flag(name: str, value: Value) -> Value:
    text = str(value).upper()
    if text not in ("0", "1", "ON", "OFF", "TRUE", "FALSE"):
        raise wrong_value(name, value)
    return text in ("1", "ON", "TRUE")


def _only_on(name: str, value: Value) -> Value:
    if not _flag(name, value):
        raise wrong_value(name, value)
    return True


def _only_off(name: str, value: Value) -> Value:
    if _flag(name, value):
        raise wrong_value(name, value)
    return False


def _charset(name: str, value: Value) -> Value:
    return None if value is None and name == "character_set_results" else charset_taken(name, value)


def charset_taken(name: str, value: Value) -> str:
    """Return the character set that a client may name. Statements are read, and answers written, as UTF-8. A MariaDB
    that connects again names latin1, whatever it was before: then all must be ASCII, which `Conversation` checks.
    Raises: Refused.
    """
    found = charset_named(str(value))
    if found not in (UTF8MB4, UTF8MB3, LATIN1, BINARY):
        raise wrong_value(name, value)
    return found


def _collation(name: str, value: Value) -> Value:
    _charset(name, value)
    return str(value).lower()


def _mode(name: str, value: Value) -> Value:
    if not isinstance(value, str):
        raise wrong_value(name, value)
    return ",".join(dict.fromkeys(each.strip().upper() for each in value.split(",") if each.strip()))


def _isolation(name: str, value: Value) -> Value:
    text = str(value).upper().replace(" ", "-")
    if text not in _ISOLATION:
        raise wrong_value(name, value)
    return text


def _zone(name: str, value: Value) -> Value:
    if isinstance(value, str) and (value.upper() in ("SYSTEM", "UTC") or _is_offset(value)):
        return value
    raise Refused(p.ER_UNKNOWN_TIME_ZONE, f"Unknown or incorrect time zone: '{str(value)[:80]}'")


def _is_offset(text: str) -> bool:
    found = _OFFSET.fullmatch(text)
    return found is not None and int(found[2]) * 60 + int(found[3]) <= 14 * 60 and int(found[3]) < 60


def offset_of(zone: Value) -> timedelta:
    """Return the difference of a session's time zone from UTC."""
    found = _OFFSET.fullmatch(str(zone))
    if found is None:
        return timedelta(0)
    offset = timedelta(hours=int(found[2]), minutes=int(found[3]))
    return -offset if found[1] == "-" else offset


def sql_mode_of(session: Session) -> int:
    """Return the bits of the session's sql_mode that decide what the text of a statement means."""
    bits = 0
    for each in str(session.variables.get("sql_mode", "")).split(","):
        bits |= _MODE_BITS.get(each, 0)
    return bits


# --- values ---------------------------------------------------------------------------------------
def _is(value: Value) -> Variable:
    """Return a variable of this value, which cannot be set."""
    return Variable(lambda session: value)


def _settable(value: Value, taken: Callable[[str, Value], Value]) -> Variable:
    return Variable(lambda session: value, taken)


def _option(name: str) -> Callable[[Session], Value]:
    return lambda session: session.served.option(name)


def _file_bytes(session: Session) -> Value:
    return parse_size("max_binlog_size", session.served.option("max_binlog_size"))


def _image(session: Session) -> Value:
    return "FULL" if session.served.row_image_is_full() else "MINIMAL"


def _mode_of_gtids(session: Session) -> Value:
    return "OFF" if session.served.gtids is None else "ON"


def _executed(session: Session) -> Value:
    return str(session.end_and_executed()[1] or "")


def _purged(session: Session) -> Value:
    return "" if session.served.gtids is None else str(session.served.gtids.purged())


def _domain_position(session: Session) -> Value:
    gtids = session.served.gtids
    place = None if session.snapshot is None else session.end_and_executed()[0]
    return "" if gtids is None else gtids.domain_position(place)


def _of(flavor: str, variable: Variable) -> Variable:
    return variable._replace(flavor=flavor)


_TABLE: Final[dict[str, Variable]] = {
    "auto_increment_increment": _is(1),
    "auto_increment_offset": _is(1),
    "autocommit": _settable(True, _flag),
    "binlog_annotate_row_events": _of(MARIADB.name, _is(False)),
    "binlog_checksum": _is("CRC32"),
    "binlog_expire_logs_seconds": Variable(_option("binlog_expire_s")),
    "binlog_format": _is("ROW"),
    "binlog_row_image": Variable(_image),
    "binlog_row_metadata": _is("FULL"),
    "binlog_row_value_options": _of(MYSQL.name, _is("")),
    "binlog_rows_query_log_events": _of(MYSQL.name, _is(False)),
    "binlog_transaction_compression": _of(MYSQL.name, _is(False)),
    "character_set_client": _settable(UTF8MB4, _charset),
    "character_set_connection": _settable(UTF8MB4, _charset),
    "character_set_database": _is(UTF8MB4),
    "character_set_results": _settable(UTF8MB4, _charset),
    "character_set_server": _is(UTF8MB4),
    "character_set_system": _is(UTF8MB3),
    "collation_connection": _settable(COLLATION, _collation),
    "collation_database": _is(COLLATION),
    "collation_server": _is(COLLATION),
    "enforce_gtid_consistency": _of(MYSQL.name, Variable(_mode_of_gtids)),
    "foreign_key_checks": _settable(True, _flag),
    "gtid_binlog_pos": _of(MARIADB.name, Variable(_domain_position)),
    "gtid_current_pos": _of(MARIADB.name, Variable(_domain_position)),
    "gtid_domain_id": _of(MARIADB.name, _is(0)),
    "gtid_executed": _of(MYSQL.name, Variable(_executed)),
    "gtid_mode": _of(MYSQL.name, Variable(_mode_of_gtids)),
    "gtid_owned": _of(MYSQL.name, _is("")),
    "gtid_purged": _of(MYSQL.name, Variable(_purged)),
    "gtid_slave_pos": _of(MARIADB.name, _is("")),
    "gtid_strict_mode": _of(MARIADB.name, _is(True)),
    "init_connect": _is(""),
    "interactive_timeout": _settable(_IDLE_SECONDS, _seconds(_YEAR_SECONDS)),
    "license": _is("Apache-2.0"),
    "lock_wait_timeout": _settable(_YEAR_SECONDS, _seconds(_YEAR_SECONDS)),
    "log_bin": _is(True),
    "log_bin_compress": _of(MARIADB.name, _is(False)),
    "log_replica_updates": _of(MYSQL.name, Variable(_option("log_replica_updates"))),
    "log_slave_updates": Variable(_option("log_replica_updates")),
    "lower_case_table_names": _is(0),
    "max_allowed_packet": _is(STATEMENT_BYTES_MAX),
    "max_binlog_size": Variable(_file_bytes),
    "net_read_timeout": _settable(SILENT_SECONDS, _seconds(SILENT_SECONDS_MAX)),
    "net_write_timeout": _settable(SILENT_SECONDS, _seconds(SILENT_SECONDS_MAX)),
    "performance_schema": _is(False),
    "query_cache_size": _of(MARIADB.name, _is(0)),
    "query_cache_type": _of(MARIADB.name, _is("OFF")),
    "read_only": _is(True),
    "rpl_semi_sync_master_enabled": _is(True),
    "rpl_semi_sync_source_enabled": _of(MYSQL.name, _is(True)),
    "server_id": Variable(lambda session: session.served.server_id),
    "server_uuid": _of(MYSQL.name, Variable(lambda session: str(session.served.server_uuid))),
    "sql_auto_is_null": _settable(False, _only_off),
    "sql_mode": _settable(_DEFAULT_MODE, _mode),
    "sql_notes": _settable(True, _flag),
    "sql_quote_show_create": _settable(True, _only_on),
    "sync_binlog": Variable(_option("sync_binlog")),
    "system_time_zone": _is("UTC"),
    "time_zone": _settable("SYSTEM", _zone),
    "transaction_isolation": _settable("READ-COMMITTED", _isolation),
    "transaction_read_only": _settable(True, _only_on),
    "tx_isolation": _of(MARIADB.name, _settable("READ-COMMITTED", _isolation)),
    "tx_read_only": _of(MARIADB.name, _settable(True, _only_on)),
    "unique_checks": _settable(True, _flag),
    "version": Variable(lambda session: session.flavor.version),
    "version_comment": Variable(lambda session: f"Tidemark {session.served.version}"),
    "wait_timeout": _settable(_IDLE_SECONDS, _seconds(_YEAR_SECONDS)),
    "warning_count": Variable(lambda session: len(session.warnings)),
}
# Two names of one thing.
_SAME: Final = {"tx_isolation": "transaction_isolation", "tx_read_only": "transaction_read_only"}


def _known(session: Session, name: str) -> tuple[str, Variable]:
    """Return a variable of the session's flavor and its name. Raises: Refused."""
    known = name.lower()
    variable = _TABLE.get(known)
    if variable is None or variable.flavor not in (_BOTH, session.flavor.name):
        raise Refused(p.ER_UNKNOWN_VARIABLE, f"Unknown system variable '{name[:64]}'")
    return _SAME.get(known, known), variable


def _current(session: Session, name: str, variable: Variable, is_global: bool) -> Value:
    if not is_global and variable.taken is not None and name in session.variables:
        return session.variables[name]
    return variable.value(session)


def variable_value(session: Session, name: str, is_global: bool = False) -> Value:
    """Return the value of a variable. Raises: Refused."""
    return _current(session, *_known(session, name), is_global)


def set_variable(session: Session, name: str, value: Value) -> None:
    """Set a variable of the session. Raises: Refused."""
    known, variable = _known(session, name)
    if variable.taken is None:
        raise Refused(p.ER_READ_ONLY_VARIABLE, f"Variable '{known}' is a read only variable")
    if isinstance(value, (str, bytes)):
        if len(value) > VALUE_BYTES_MAX:
            raise wrong_value(known, value[: 4 * _SHOWN_CHARACTERS])
        value = _text(value)
    taken = variable.taken(known, value)
    session.set(known, taken)
    if isinstance(value, int) and taken != value:
        session.warn(f"Truncated incorrect {known} value: '{value}'")


def reset_variable(session: Session, name: str) -> None:
    """Give a variable of the session its default. Raises: Refused."""
    known, variable = _known(session, name)
    if variable.taken is None:
        raise Refused(p.ER_READ_ONLY_VARIABLE, f"Variable '{known}' is a read only variable")
    session.unset(known)


def all_variables(session: Session, is_global: bool) -> Iterator[tuple[str, str]]:
    """Yield name and text of each variable, as SHOW VARIABLES."""
    for name, variable in _TABLE.items():
        if variable.flavor in (_BOTH, session.flavor.name):
            value = _current(session, _SAME.get(name, name), variable, is_global)
            yield name, ("ON" if value else "OFF") if isinstance(value, bool) else "" if value is None else str(value)
