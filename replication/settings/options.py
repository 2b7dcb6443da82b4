"""The options of replication: one table with name, type, default, scope, and when a new value takes effect.

Options that the server also has keep its names, without the prefix `ndb_`; older names (`slave` for `replica`) are not
accepted. This module only defines options: binlog, channels and applier read those that they need.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any, Final

from tidemark.engine.base.errors import SchemaInvalid, Unsupported
from tidemark.engine.base.options import OptionKeywords, Options, Size, format_size, no_such_option, parse_size
from tidemark.engine.log.redo_layout import AUTHOR_MASK
from tidemark.replication.settings.conflict_function import Role


class Scope(Enum):
    """What an option belongs to."""

    STORE = "store"
    TRANSACTION = "transaction"  # of the store; any transaction may have another value
    CHANNEL = "channel"


class Effect(Enum):
    """When a new value takes effect."""

    OPEN = "when the store is opened"
    SET_UP = "when a table is set up: made, opened, or first used by a channel"
    EPOCH = "with the next epoch"
    TRANSACTION = "with the next transaction"
    ROTATION = "with the next file"
    START = "when the channel is started"
    AT_ONCE = "at once"


@dataclass(frozen=True)
class Option:
    """One option. kind: bool, int, str, "size" (bytes, or text with a unit), "ids" (server ids) or Role. minimum,
    maximum: inclusive bounds of a number or a size. If the default is None, None may be given.
    """

    name: str
    kind: Any
    default: Any
    scope: Scope
    effect: Effect
    meaning: str
    minimum: int = 0
    maximum: int = 0


_SIZE = "size"
_IDS = "ids"
_S, _C, _T = Scope.STORE, Scope.CHANNEL, Scope.TRANSACTION
SERVER_ID_MAX = AUTHOR_MASK  # applied rows carry the id of their source as author

OPTIONS: Final = (
    Option("server_id", int, 0, _S, Effect.OPEN, "id of this site; 0: it does not replicate", 0, SERVER_ID_MAX),
    Option("log_bin", str, None, _S, Effect.OPEN, "base name of binlog files; None: no binlog"),
    Option("log_rows", bool, True, _S, Effect.EPOCH, "off: the binlog has schema statements only"),
    Option("log_load_rows", bool, True, _S, Effect.EPOCH, "off: a mark stands for the rows of a bulk load"),
    Option("sync_binlog", int, 1, _S, Effect.AT_ONCE, "sync after this many epochs; 0: never", 0, 1 << 31),
    Option("binlog_cache_size", _SIZE, "1 MiB", _S, Effect.EPOCH, "memory for one epoch", 4 << 10, 1 << 40),
    Option(
        "max_binlog_size", _SIZE, "1 GiB", _S, Effect.AT_ONCE, "size at which the next file begins", 4 << 10, 1 << 30
    ),
    Option(
        "binlog_expire_s", int, 2_592_000, _S, Effect.ROTATION, "age at which files are purged; 0: never", 0, 1 << 32
    ),
    Option(
        "mysql_purge_bytes", _SIZE, "10 GiB", _S, Effect.AT_ONCE, "binlog kept for a connected MySQL peer", 0, 1 << 50
    ),
    Option("log_updated_only", bool, True, _S, Effect.SET_UP, "images hold key and changed columns only"),
    Option("log_update_as_write", bool, True, _S, Effect.SET_UP, "updates are logged as writes"),
    Option("log_update_as_minimal", bool, False, _S, Effect.SET_UP, "updates have minimal images"),
    Option("log_apply_status", bool, False, _S, Effect.EPOCH, "positions applied from a source are logged"),
    Option("log_orig", bool, False, _S, Effect.EPOCH, "ndb_binlog_index has origins"),
    Option("log_binlog_index", bool, True, _S, Effect.OPEN, "ndb_binlog_index is written"),
    Option("log_transaction_id", bool, False, _S, Effect.EPOCH, "row events carry transaction ids"),
    Option("log_empty_epochs", bool, False, _S, Effect.EPOCH, "epochs without logged rows are written"),
    Option("log_empty_update", bool, False, _S, Effect.EPOCH, "updates that change nothing are logged"),
    Option("log_exclusive_reads", bool, False, _T, Effect.TRANSACTION, "reads with exclusive lock are tracked"),
    Option("log_replica_updates", bool, False, _S, Effect.EPOCH, "applied changes are logged again"),
    Option("log_bin_use_v1_row_events", bool, False, _S, Effect.ROTATION, "row events without transaction ids"),
    Option("log_gtids", bool, False, _S, Effect.ROTATION, "transactions of the binlog have numbers"),
    Option(
        "row_slice_count", int, 1, _S, Effect.SET_UP, "number of slices in which rows of a table are logged", 1, 1 << 16
    ),
    Option("row_slice_id", int, 0, _S, Effect.SET_UP, "slice this site logs", 0, (1 << 16) - 1),
    Option("extra_logging", int, 1, _S, Effect.AT_ONCE, "logged by the process; 1: files, 2: epochs too", 0, 99),
    Option("conflict_role", Role, Role.NONE, _S, Effect.AT_ONCE, "role for NDB$EPOCH2; the applier must be stopped"),
    Option("ignore_server_ids", _IDS, (), _C, Effect.START, "servers whose events are skipped"),
    Option("replica_allow_batching", bool, True, _C, Effect.START, "changes are applied in batches"),
    Option("replica_batch_size", _SIZE, "2 MiB", _C, Effect.START, "bytes of rows in a batch", 1, 1 << 30),
    Option("replica_transaction_retries", int, 10, _C, Effect.START, "tries after temporary errors", 0, 1 << 31),
    Option(
        "max_relay_log_size",
        _SIZE,
        "64 MiB",
        _C,
        Effect.START,
        "size at which the next relay file begins",
        4 << 10,
        1 << 30,
    ),
    Option("clear_apply_status", bool, True, _C, Effect.AT_ONCE, "a reset empties ndb_apply_status"),
    Option("allow_skip_epoch", bool, False, _C, Effect.START, "a missing epoch is logged, not refused"),
)
BY_NAME: Final = {option.name: option for option in OPTIONS}
# Options with which a store is opened; the others are options of channels.
OF_STORE: Final = tuple(option.name for option in OPTIONS if option.scope is not Scope.CHANNEL)
OF_BINLOG: Final = OF_STORE[OF_STORE.index("log_bin") : OF_STORE.index("extra_logging") + 1]

# Options that determine the contents of events and the outcome of conflicts: they must be equal at all nodes of a group
# (docs/node-group.md).
OF_SITE: Final = (
    "server_id",
    "conflict_role",
    *(
        name
        for name in OF_BINLOG
        if name.startswith(("log_", "row_slice")) and name not in ("log_bin", "log_binlog_index", "log_gtids")
    ),
)


class OpenKeywords(OptionKeywords, total=False):
    """Every option of a store as a keyword, those of the engine and those of replication."""

    server_id: int
    log_bin: str | None
    log_rows: bool
    log_load_rows: bool
    sync_binlog: int
    binlog_cache_size: Size
    max_binlog_size: Size
    binlog_expire_s: int
    mysql_purge_bytes: Size
    log_updated_only: bool
    log_update_as_write: bool
    log_update_as_minimal: bool
    log_apply_status: bool
    log_orig: bool
    log_binlog_index: bool
    log_transaction_id: bool
    log_empty_epochs: bool
    log_empty_update: bool
    log_exclusive_reads: bool
    log_replica_updates: bool
    log_bin_use_v1_row_events: bool
    log_gtids: bool
    row_slice_count: int
    row_slice_id: int
    extra_logging: int
    conflict_role: Role | str | int


def _refuse(option: Option, value: object, wanted: str) -> SchemaInvalid:
    return SchemaInvalid(f"option {option.name} is {value!r}; give {wanted}", option=option.name)


def _ids(option: Option, value: object) -> tuple[int, ...]:
    values = value if isinstance(value, (tuple, list, set, frozenset)) else (value,)
    is_fine = all(isinstance(each, int) and not isinstance(each, bool) and 0 < each <= SERVER_ID_MAX for each in values)
    if not is_fine:
        raise _refuse(option, value, f"server ids, each 1 to {SERVER_ID_MAX}")
    return tuple(sorted(set(values)))


def _role(option: Option, value: object) -> Role:
    if isinstance(value, str) and value.upper() in Role.__members__:
        return Role[value.upper()]
    if isinstance(value, int) and not isinstance(value, bool) and value in list(Role):
        return Role(value)
    raise _refuse(option, value, "one of " + ", ".join(Role.__members__))


def validate(name: str, value: object) -> Any:
    """Return the value in the form in which it is stored: sizes as the shortest text, ids sorted. Raises:
    SchemaInvalid; for an unknown name, the message suggests a similar one or lists all.
    """
    option = BY_NAME.get(name)
    if option is None:
        raise no_such_option(name, BY_NAME)
    if value is None and option.default is None:
        return None
    if option.kind is bool:
        if not isinstance(value, bool):
            raise _refuse(option, value, "True or False")
        return value
    if option.kind is str:
        if not isinstance(value, str) or not value or "/" in value or "\0" in value:
            raise _refuse(option, value, "a file name without directory")
        return value
    if option.kind is Role:
        return _role(option, value)
    if option.kind == _IDS:
        return _ids(option, value)
    number = parse_size(name, value) if option.kind == _SIZE else value
    if not isinstance(number, int) or isinstance(number, bool) or not option.minimum <= number <= option.maximum:
        shown = format_size if option.kind == _SIZE else "{:,}".format
        raise _refuse(option, value, f"{shown(option.minimum)} to {shown(option.maximum)}")
    return format_size(number) if option.kind == _SIZE else number


def parse_text(name: str, text: str) -> Any:
    """Return the value of an option that is given as text, as on a command line: ON, off, 1, 64 MiB, "1,3".

    Raises: SchemaInvalid.
    """
    option = BY_NAME.get(name)
    if option is None:
        return validate(name, text)
    value: object = text.strip()
    upper = text.strip().upper()
    if option.default is None and upper in ("", "NONE"):
        value = None
    elif option.kind is bool and upper in ("ON", "OFF", "1", "0", "TRUE", "FALSE"):
        value = upper in ("ON", "1", "TRUE")
    elif option.kind == _IDS:
        pieces = [piece.strip() for piece in text.split(",") if piece.strip()]
        value = [int(piece) if piece.isascii() and piece.isdigit() else piece for piece in pieces]
    elif option.kind in (int, Role, _SIZE) and upper.isascii() and upper.isdigit():
        value = int(upper)
    return validate(name, value)


def settings(given: Mapping[str, object]) -> dict[str, Any]:
    """Return every option with its value, given or default, in the order of the table. Raises: SchemaInvalid."""
    values = {option.name: validate(option.name, option.default) for option in OPTIONS}
    values.update({name: validate(name, value) for name, value in given.items()})
    if values["row_slice_id"] >= values["row_slice_count"]:
        raise _refuse(BY_NAME["row_slice_id"], values["row_slice_id"], "a slice below row_slice_count")
    if re.search(r"-[0-9a-f]{8}\Z", values["log_bin"] or ""):
        raise _refuse(BY_NAME["log_bin"], values["log_bin"], "a name without - and 8 hexadecimal digits at its end")
    if values["log_transaction_id"] and values["log_bin_use_v1_row_events"]:
        raise SchemaInvalid(
            "row events of version 1 cannot carry transaction ids; turn log_transaction_id or"
            " log_bin_use_v1_row_events off",
            option="log_transaction_id",
        )
    return values


def check_of_node(values: Mapping[str, Any]) -> None:
    """Check the options of a node of a group. Raises: Unsupported for one that nodes cannot have."""
    if values["log_gtids"]:
        raise Unsupported(
            "each node of a group has files of its own, whose transactions have no common numbers; leave log_gtids off",
            option="log_gtids",
        )


def split_keywords(keywords: Mapping[str, object]) -> tuple[Options, dict[str, Any]]:
    """Divide the keywords with which a store is opened; return the options of the engine and those of replication.

    Raises: SchemaInvalid for an invalid value, or an unknown name.
    """
    known = [*(each.name for each in fields(Options) if each.init), *OF_STORE]
    for name in keywords:
        if name not in known:
            raise no_such_option(name, known)
    engine = {name: value for name, value in keywords.items() if name not in OF_STORE}
    given = settings({name: value for name, value in keywords.items() if name in OF_STORE})
    if given["log_bin"] is not None and not given["server_id"]:
        raise SchemaInvalid(
            "a binlog needs a server_id of 1 or more, by which other sites know this one", option="server_id"
        )
    return Options.from_keywords(engine), given
