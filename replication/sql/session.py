"""The session in which a server's statement was written: its sql_mode, time zone and character sets.

They are in the status block of the statement's event, and decide what its text means.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta

from tidemark.replication.binlog.charsets import UTF8MB4, charset_of, decoded, encoded, is_superset_of_ascii
from tidemark.replication.binlog.cursor import Cursor
from tidemark.replication.binlog.position import Position

# Bits of sql_mode.
_REAL_AS_FLOAT, _ANSI_QUOTES, _ORACLE, _MAXDB = 1 << 0, 1 << 2, 1 << 9, 1 << 12
_NO_AUTO_VALUE_ON_ZERO, _NO_BACKSLASH_ESCAPES = 1 << 19, 1 << 20
_STRICT = 1 << 21 | 1 << 22
_EMPTY_STRING_IS_NULL, _TIME_ROUND_FRACTIONAL = 1 << 32, 1 << 34
_MYSQL_TIME_TRUNCATE_FRACTIONAL = 1 << 32
_EXPLICIT_TIMESTAMP = 1 << 24  # MariaDB's bit of the flags
# Status variables: code, bytes.
_FLAGS, _SQL_MODE, _CHARSET, _TIME_ZONE = 0, 1, 4, 5
_SIZES = {_FLAGS: 4, _SQL_MODE: 8, 3: 4, _CHARSET: 6, 7: 2, 8: 2, 9: 8, 10: 4, 13: 3, 16: 1, 17: 8, 18: 2, 19: 1, 20: 1}
_SIZES |= {128: 3, 129: 8}
_CATALOG_OLD, _CATALOG, _INVOKER, _DATABASES = 2, 6, 11, 12
_DATABASES_TOO_MANY = 254
_MYSQL_EXPLICIT_TIMESTAMP = 16
_OFFSET = re.compile(r"([+-])(\d\d):(\d\d)\Z")


@dataclass(frozen=True)
class Session:
    """What a statement's text means. charset: of the statement; connection: of its string literals; server: of new
    databases that name none, "" if it is not known. time_zone is None if the event does not say it.
    has_explicit_timestamp: whether a TIMESTAMP column is like any other.
    """

    sql_mode: int = 0
    time_zone: str | None = None
    charset: str = UTF8MB4
    connection: str = UTF8MB4
    has_explicit_timestamp: bool = True
    server: str = ""
    is_mariadb: bool = True

    @property
    def has_ansi_quotes(self) -> bool:
        """Whether double quotes enclose names."""
        return bool(self.sql_mode & _ANSI_QUOTES)

    @property
    def has_backslashes(self) -> bool:
        """Whether a backslash escapes in strings."""
        return not self.sql_mode & _NO_BACKSLASH_ESCAPES

    @property
    def is_strict(self) -> bool:
        """Whether the server refuses a change of the schema that a row does not survive."""
        return bool(self.sql_mode & _STRICT)

    @property
    def is_foreign(self) -> bool:
        """Whether the words of types have the meaning of another vendor's server."""
        return bool(self.sql_mode & (_ORACLE | _MAXDB))

    @property
    def has_real_as_float(self) -> bool:
        return bool(self.sql_mode & _REAL_AS_FLOAT)

    @property
    def rounds_time(self) -> bool:
        """Whether fractions of a second are rounded and not truncated."""
        if not self.is_mariadb:
            return not self.sql_mode & _MYSQL_TIME_TRUNCATE_FRACTIONAL
        return bool(self.sql_mode & _TIME_ROUND_FRACTIONAL)

    @property
    def has_empty_null(self) -> bool:
        """Whether '' is NULL."""
        return self.is_mariadb and bool(self.sql_mode & _EMPTY_STRING_IS_NULL)

    @property
    def keeps_zero_numbers(self) -> bool:
        """Whether an AUTO_INCREMENT column may hold 0."""
        return bool(self.sql_mode & _NO_AUTO_VALUE_ON_ZERO)

    @property
    def utc_offset(self) -> timedelta | None:
        """The difference from UTC, None if it is unknown or changes in the year."""
        if self.time_zone == "UTC":
            return timedelta(0)
        found = _OFFSET.match(self.time_zone or "")
        if found is None:
            return None
        offset = timedelta(hours=int(found[2]), minutes=int(found[3]))
        return -offset if found[1] == "-" else offset

    def text(self, octets: bytes) -> str | None:
        """Return a statement's text, with lone surrogates for characters that are not known here. None if it is not
        known where characters end.
        """
        try:
            return decoded(octets, self.charset)
        except UnicodeDecodeError:
            return None

    def literal_bytes(self, text: str) -> bytes:
        """Return the bytes of a string literal in the connection's character set. Raises: ValueError if the server may
        take it for other text.
        """
        if text.isascii() and is_superset_of_ascii(self.connection):
            return text.encode()
        if self.charset == self.connection == UTF8MB4:
            return text.encode("utf-8", "surrogateescape")  # bytes as they are in the statement
        return encoded(text, self.connection)


def session_of(status: bytes, origin: Position, is_mariadb: bool = True) -> Session:
    """Return the session that a status block describes. A variable that is not known ends the reading: those used here
    come first. Raises: BinlogDamaged.
    """
    cursor = Cursor(status, origin)
    found: dict[int, bytes] = {}
    while cursor.left:
        code = cursor.byte()
        if code in _SIZES:
            found[code] = cursor.take(_SIZES[code])
        elif code in (_CATALOG, _TIME_ZONE):
            found[code] = cursor.take(cursor.byte())
        elif code == _CATALOG_OLD:
            cursor.take(cursor.byte() + 1)
        elif code == _INVOKER:
            cursor.take(cursor.byte())
            cursor.take(cursor.byte())
        elif code == _DATABASES:
            count = cursor.byte()
            for _ in range(0 if count == _DATABASES_TOO_MANY else count):
                while cursor.byte():
                    pass
        else:
            break
    charsets = found.get(_CHARSET, b"\x2d\0\x2d\0\0\0")
    zone = found.get(_TIME_ZONE)
    is_explicit = bool(int.from_bytes(found.get(_FLAGS, b""), "little") & _EXPLICIT_TIMESTAMP)
    return Session(
        int.from_bytes(found.get(_SQL_MODE, b""), "little"),
        None if zone is None else zone.decode("ascii", "replace"),
        charset_of(int.from_bytes(charsets[:2], "little")),
        charset_of(int.from_bytes(charsets[2:4], "little")),
        is_explicit or any(found.get(_MYSQL_EXPLICIT_TIMESTAMP, b"")),
        charset_of(int.from_bytes(charsets[4:], "little")) if _CHARSET in found else "",
        is_mariadb,
    )
