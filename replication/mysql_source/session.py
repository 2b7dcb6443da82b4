"""A connection after its login, as statements see it, and the two kinds of answers that they get."""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Final, NamedTuple

from tidemark.engine.schema.names import DEFAULT_DATABASE
from tidemark.replication.mysql_source import row_texts as f
from tidemark.replication.mysql_source.packets import Message, Refused, length_of
from tidemark.replication.mysql_source.protocol_layout import (
    ER_NO_DATABASE,
    ER_OUT_OF_MEMORY,
    ER_TRUNCATED,
    ER_UNKNOWN_DATABASE,
)
from tidemark.replication.mysql_source.row_texts import FieldType

if TYPE_CHECKING:
    from tidemark.engine.schema.definition import TableDefinition
    from tidemark.replication.binlog.position import Position
    from tidemark.replication.mysql_source.flavors import Flavor
    from tidemark.replication.mysql_source.gtid_sets import GtidSet
    from tidemark.replication.mysql_source.served import Served
    from tidemark.replication.mysql_source.snapshot import ServedSnapshot
    from tidemark.replication.mysql_source.users import MysqlUser

Value = str | bytes | int | float | Decimal | datetime | timedelta | None

INFORMATION_SCHEMA: Final = "information_schema"
VARIABLES_BYTES_MAX = 1 << 20
_VARIABLE_BYTES = 100  # of a variable, beside its name and its value
LOCK, TRANSACTION = "lock", "transaction"  # what holds a snapshot
_REPEATABLE: Final = ("REPEATABLE-READ", "SERIALIZABLE")
# Of a column's packet, after its names: collation, length, type, flags, decimals.
_FIXED_FIELDS: Final = struct.Struct("<HIBHBxx")


class Shown(NamedTuple):
    """Rows as an answer: the names and types of their columns, and for each row its texts, None for NULL."""

    names: Sequence[str | bytes]
    types: Sequence[FieldType]
    rows: Iterable[Sequence[bytes | None]]

    def definitions(self) -> Iterator[Message]:
        """Yield the packet of each column."""
        for name, kind in zip(self.names, self.types, strict=True):
            label = text_of(name) or b""
            yield (
                b"\3def\0\0\0" + length_of(len(label)),
                label,
                bytes((0, _FIXED_FIELDS.size)),
                _FIXED_FIELDS.pack(kind.collation, kind.length, kind.code, kind.flags, kind.decimals),
            )


class Done(NamedTuple):
    """A statement that was carried out, without rows."""

    affected: int = 0


class Warned(NamedTuple):
    """What SHOW WARNINGS tells of the last statement."""

    level: str
    code: int
    message: str


@dataclass(kw_only=True)
class Session:
    """One connection. One thread at a time may call it; `close` it after the last statement.

    variables: what SET has given; user variables by their names in small letters with an @ before them, session
    variables by their names; `set`, `unset` and `restore` change it. kill: ends another connection of the same user,
    by its number; returns whether there was one. tls: version and cipher, empty in clear. shows_status: whether it
    sees the table of the status rows, as dumps then have them.
    """

    flavor: Flavor
    user: MysqlUser
    host: str
    connection_id: int
    served: Served
    kill: Callable[[int], bool]
    database: str = ""
    variables: dict[str, Value] = field(default_factory=dict)
    snapshot: ServedSnapshot | None = None
    warnings: list[Warned] = field(default_factory=list)
    tls: tuple[str, str] = ("", "")
    shows_status: bool = False
    holders: set[str] = field(default_factory=set)
    _variables_bytes: int = field(default=0, init=False)

    # --- databases --------------------------------------------------------------------------------
    def definitions(self) -> dict[str, TableDefinition]:
        """Return the definitions of the tables by qualified name."""
        return self.served.definitions(self.snapshot, self.shows_status)

    def databases(self) -> list[str]:
        """Return the names of the databases that have tables, and of the two that always exist."""
        found = {name.partition(".")[0] for name in self.definitions()}
        return sorted(found | {DEFAULT_DATABASE, INFORMATION_SCHEMA})

    def use(self, name: str) -> None:
        """Make a database the default. Raises: Refused if there is none of this name."""
        self.database = self.existing(name)

    def existing(self, name: str) -> str:
        """Return the name of a database that exists. Raises: Refused."""
        found = INFORMATION_SCHEMA if name.lower() == INFORMATION_SCHEMA else name
        if found not in self.databases():
            raise Refused(ER_UNKNOWN_DATABASE, f"Unknown database '{name}'")
        return found

    def named_database(self, name: str | None = None) -> str:
        """Return a database that exists: the named one, else the default. Raises: Refused."""
        if name is None and not self.database:
            raise Refused(ER_NO_DATABASE, "No database selected")
        return self.existing(self.database if name is None else name)

    # --- snapshots --------------------------------------------------------------------------------
    def hold(self, holder: str) -> None:
        """Take a snapshot for a lock or a transaction, unless there is one. Raises: Refused, Error."""
        if self.snapshot is None:
            self.snapshot = self.served.snapshots.begin(self.user.name)
        self.holders.add(holder)
        self.snapshot.is_locked = LOCK in self.holders

    def hold_for_read(self) -> None:
        """Begin a transaction if a read of rows does so here: without autocommit, and where all reads of a transaction
        must see one state. Raises: as `hold`.
        """
        if not self.variables.get("autocommit", True) and self.variables.get("transaction_isolation") in _REPEATABLE:
            self.hold(TRANSACTION)

    def release(self, *holders: str) -> None:
        """End a lock or a transaction; the snapshot ends with the last of them."""
        self.holders.difference_update(holders)
        if self.snapshot is not None:
            self.snapshot.is_locked = LOCK in self.holders
        if not self.holders and self.snapshot is not None:
            self.snapshot.close()
            self.snapshot = None

    def close(self) -> None:
        """Release the snapshot. A second call does nothing."""
        self.release(LOCK, TRANSACTION)

    # --- the binlog ---------------------------------------------------------------------------------
    def end_and_executed(self) -> tuple[Position, GtidSet | None]:
        """Return the end of the binlog, of the snapshot while there is one, and the GTIDs before it. Raises: Refused,
        PeerError, StoreFailed.
        """
        if self.snapshot is None:
            return self.served.end_and_executed()
        self.snapshot.check()
        return self.snapshot.place, self.snapshot.executed

    # --- variables --------------------------------------------------------------------------------
    def set(self, name: str, value: Value) -> None:
        """Keep the value of a variable. Raises: Refused if all of them take too much memory."""
        taken = self._variables_bytes + _kept_bytes(name, value)
        if name in self.variables:
            taken -= _kept_bytes(name, self.variables[name])
        if taken > VARIABLES_BYTES_MAX:
            raise Refused(ER_OUT_OF_MEMORY, f"The variables of a session take at most {VARIABLES_BYTES_MAX} bytes")
        self.variables[name] = value
        self._variables_bytes = taken

    def unset(self, name: str) -> None:
        """Forget the value of a variable."""
        if name in self.variables:
            self._variables_bytes -= _kept_bytes(name, self.variables.pop(name))

    def restore(self, before: Mapping[str, Value]) -> None:
        """Give all variables the values that they had."""
        self.variables.clear()
        self.variables.update(before)
        self._variables_bytes = sum(_kept_bytes(name, each) for name, each in before.items())

    def name_charset(self, charset: str) -> None:
        """Set the character set of what the client sends and reads, as SET NAMES does. Raises: Refused."""
        for name in ("character_set_client", "character_set_connection", "character_set_results"):
            self.set(name, charset)

    def warn(self, message: str) -> None:
        """Note for SHOW WARNINGS that a value was taken as another one."""
        self.warnings.append(Warned("Warning", ER_TRUNCATED[0], message))

    # --- time -------------------------------------------------------------------------------------
    def now(self) -> datetime:
        """Return the present moment in UTC."""
        return datetime.fromtimestamp(0, UTC) + timedelta(microseconds=self.served.clock.wall_us())


def shown(names: Sequence[str | bytes], rows: Iterable[Sequence[Value]], types: Sequence[FieldType] = ()) -> Shown:
    """Return an answer of rows that are made as they are read; without `types`, all columns are text."""
    return Shown(names, types or [f.TEXT] * len(names), ([text_of(each) for each in row] for row in rows))


def _kept_bytes(name: str, value: Value) -> int:
    return sys.getsizeof(name) + sys.getsizeof(value) + _VARIABLE_BYTES


def size_of(value: Value) -> int:
    """Return about how many bytes a value takes."""
    return len(value) if isinstance(value, (str, bytes)) else 16


def type_of(value: Value) -> FieldType:
    if isinstance(value, int):
        return f.INTEGER
    if isinstance(value, float):
        return f.FLOATING
    if isinstance(value, Decimal):
        return f.DECIMAL
    if isinstance(value, datetime):
        return f.MOMENT._replace(decimals=_digits(value))
    if isinstance(value, timedelta):
        return f.DURATION
    return f.TEXT


def _digits(value: datetime) -> int:
    return 6 if value.microsecond else 0


def text_of(value: Value) -> bytes | None:
    """Return a value as the text of a row, None for NULL."""
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape")
    return plain_text(value).encode()


def plain_text(value: int | float | Decimal | datetime | timedelta) -> str:
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, datetime):
        return value.replace(tzinfo=None).isoformat(" ")
    if isinstance(value, timedelta):
        seconds, micros = divmod(abs(value) // timedelta(microseconds=1), 1_000_000)
        sign = "-" if value < timedelta(0) else ""
        fraction = f".{micros:06}" if micros else ""
        return f"{sign}{seconds // 3_600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}{fraction}"
    return str(value)
