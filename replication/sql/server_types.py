"""A column's type at a MySQL or MariaDB server, with all that decides which values it holds, and what it becomes here:
a server's shorter types of text and bytes become Text or Blob.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tidemark.engine import types as t
from tidemark.engine.base.errors import Unsupported
from tidemark.engine.types import ColumnType
from tidemark.replication.binlog.charsets import BINARY, CHARACTER_BYTES, UTF8MB4
from tidemark.replication.sql.session import Session

_INTEGERS = {
    "TINYINT": (t.Int8, t.UInt8),
    "SMALLINT": (t.Int16, t.UInt16),
    "MEDIUMINT": (t.Int32, t.UInt32),
    "INT": (t.Int32, t.UInt32),
    "INTEGER": (t.Int32, t.UInt32),
    "BIGINT": (t.Int64, t.UInt64),
}
GEOMETRIES = (
    *("GEOMETRY", "POINT", "LINESTRING", "POLYGON", "MULTIPOINT", "MULTILINESTRING", "MULTIPOLYGON"),
    *("GEOMETRYCOLLECTION", "GEOMCOLLECTION"),
)
_PLAIN: dict[str, ColumnType] = {
    "BOOL": t.Bool,
    "BOOLEAN": t.Bool,
    "FLOAT": t.Float32,
    "DOUBLE": t.Float64,
    "REAL": t.Float64,
    "DATE": t.Date,
    "TIME": t.Time,
    "DATETIME": t.DateTime,
    "TIMESTAMP": t.Timestamp,
    **dict.fromkeys(["TINYTEXT", "TEXT", "MEDIUMTEXT", "LONGTEXT"], t.Text),
    "JSON": t.JSON,
    "UUID": t.UUID,
    **dict.fromkeys(["TINYBLOB", "BLOB", "MEDIUMBLOB", "LONGBLOB"], t.Blob),
    "YEAR": t.UInt16,
    # Types in which replication/binlog/types.py reads the values: the bits of a SET, SRID and WKB of a geometry.
    **dict.fromkeys(["SET", "BIT"], t.UInt64),
    **dict.fromkeys(GEOMETRIES, t.Blob),
}
_SIZED: dict[str, Callable[[int], ColumnType]] = {
    "CHAR": t.Char,
    "CHARACTER": t.Char,
    "VARCHAR": t.VarChar,
    "BINARY": t.Binary,
    "VARBINARY": t.VarBinary,
}
DECIMALS = ("DECIMAL", "DEC", "NUMERIC", "FIXED")
KNOWN = frozenset({*_INTEGERS, *_PLAIN, *_SIZED, *DECIMALS, "ENUM"})  # words that `from_sql` reads
INTEGER_BITS = {"TINYINT": 8, "SMALLINT": 16, "MEDIUMINT": 24, "INT": 32, "BIGINT": 64}
_SIZES = {"TINY": 1, "": 2, "MEDIUM": 3, "LONG": 4}  # bytes of the length of a TEXT or BLOB
BYTES_MAX = {size + kind: (1 << 8 * width) - 1 for kind in ("TEXT", "BLOB") for size, width in _SIZES.items()}
BYTES_MAX["JSON"] = BYTES_MAX["LONGTEXT"]
TEXTS = ("CHAR", "VARCHAR", "TINYTEXT", "TEXT", "MEDIUMTEXT", "LONGTEXT", "JSON")
OCTETS = ("BINARY", "VARBINARY", "TINYBLOB", "BLOB", "MEDIUMBLOB", "LONGBLOB")
_OTHER_WORDS = {
    "INTEGER": "INT",
    "CHARACTER": "CHAR",
    "REAL": "DOUBLE",
    "GEOMCOLLECTION": "GEOMETRYCOLLECTION",
    **dict.fromkeys(DECIMALS, "DECIMAL"),
}
# Other words of a server for these.
ALIASES = {
    "INT1": "TINYINT",
    "INT2": "SMALLINT",
    "INT3": "MEDIUMINT",
    "MIDDLEINT": "MEDIUMINT",
    "INT4": "INT",
    "INT8": "BIGINT",
    "FLOAT4": "FLOAT",
    "FLOAT8": "DOUBLE",
    "VARCHARACTER": "VARCHAR",
}
# What a text type is in the character set binary.
_AS_OCTETS = {
    "CHAR": "BINARY",
    "VARCHAR": "VARBINARY",
    **{size + "TEXT": size + "BLOB" for size in _SIZES},
}
_FLOAT_DIGITS_MAX = 24  # FLOAT of more binary digits is DOUBLE
_YEAR_DIGITS = 4


def from_sql(word: str, numbers: tuple[int, ...], members: tuple[str, ...], is_unsigned: bool) -> ColumnType:
    """Return the column type for a word of MySQL, the numbers or members in parentheses after it, and UNSIGNED.

    Raises: Unsupported; SchemaInvalid for a size that is invalid here.
    """
    if word == "TINYINT" and numbers == (1,) and not is_unsigned:
        return t.Bool
    if word in _INTEGERS:
        return _INTEGERS[word][is_unsigned]
    if word == "FLOAT" and numbers[:1] > (_FLOAT_DIGITS_MAX,):
        return t.Float64
    if word in _PLAIN:
        return _PLAIN[word]
    if word in _SIZED:
        return _SIZED[word](numbers[0] if numbers else 1)
    if word in DECIMALS:
        precision, scale = (*numbers, *(10, 0)[len(numbers) :])[:2]
        return t.Decimal(precision, scale)
    if word == "ENUM":
        return t.Enum(*members)
    raise Unsupported(f"columns of type {word} are not replicated; leave the table out with a filter", type=word)


@dataclass(frozen=True)
class ServerType:
    """A type in the words of a server. word: one word for types with several names. numbers: length, or precision and
    scale; () if there are none. charset: "" if it is not known or the type has none.
    """

    word: str
    numbers: tuple[int, ...] = ()
    members: tuple[str, ...] = ()
    is_unsigned: bool = False
    charset: str = ""

    @property
    def text(self) -> str:
        """The type as in a statement."""
        inner = ",".join(map(str, self.numbers) if self.numbers else map(repr, self.members))
        return self.word + (f"({inner})" if inner else "") + (" UNSIGNED" if self.is_unsigned else "")

    @property
    def is_text(self) -> bool:
        """Whether values are characters in a character set."""
        return self.word in TEXTS

    @property
    def digits(self) -> int:
        """Digits of the fraction of a second."""
        return self.numbers[0] if self.numbers else 0

    @property
    def integers(self) -> tuple[int, int] | None:
        """The least and the greatest integer of a numeric type without a fraction, None for other types."""
        if self.word in INTEGER_BITS:
            bits = INTEGER_BITS[self.word]
            return (0, (1 << bits) - 1) if self.is_unsigned else (-(1 << bits - 1), (1 << bits - 1) - 1)
        if self.word == "BIT":
            return 0, (1 << (self.numbers[0] if self.numbers else 1)) - 1
        return None

    @property
    def bytes_max(self) -> int | None:
        """The most bytes of a value of a TEXT or BLOB, None for other types. The length of TEXT(n) chooses among the
        four, and the least that it may choose counts.
        """
        limit = BYTES_MAX.get(self.word)
        if limit is None or not self.numbers:
            return limit
        return min(limit, next(each for each in sorted(BYTES_MAX.values()) if each >= min(self.numbers[0], limit)))

    def stored(self) -> ColumnType:
        """Return the store's type that holds every value. Raises: Unsupported, SchemaInvalid."""
        if self.word == "TINYINT":
            return t.UInt8 if self.is_unsigned else t.Int8
        if self.word == "YEAR" and self.numbers not in ((), (_YEAR_DIGITS,)):
            raise Unsupported("YEAR(2) shows two digits of its values; make it YEAR at the source")
        if self.word == "UUID":
            raise Unsupported("row events bring the bytes of a UUID in another order; make it BINARY(16) at the source")
        return from_sql(self.word, self.numbers, self.members, self.is_unsigned)


def server_type(
    word: str, numbers: tuple[int, ...], members: tuple[str, ...], is_unsigned: bool, session: Session
) -> ServerType:
    """Return the type for a word of a statement, and what follows it."""
    if word in ("BOOL", "BOOLEAN"):
        return ServerType("TINYINT", (1,))
    if word == "JSON" and session.is_mariadb:  # its other name for a text
        return ServerType("LONGTEXT", charset=UTF8MB4)
    if word == "REAL" and session.has_real_as_float:
        word = "FLOAT"
    word = _OTHER_WORDS.get(word, word)
    if word == "FLOAT" and len(numbers) == 1:
        word, numbers = "DOUBLE" if numbers[0] > _FLOAT_DIGITS_MAX else "FLOAT", ()
    if word == "DECIMAL":
        numbers = (*numbers, *(10, 0)[len(numbers) :])[:2]
    if word in ("ENUM", "SET"):
        members = tuple(each.rstrip(" ") for each in members)  # as a server does
    if word in ("CHAR", "BINARY", "BIT") and not numbers:
        numbers = (1,)
    return ServerType(word, numbers, members, is_unsigned, UTF8MB4 if word == "JSON" else "")


def in_charset(served: ServerType, charset: str) -> ServerType:
    """Return a type in another character set: a text of bytes is another type."""
    if charset == BINARY and served.word in _AS_OCTETS:
        return replace(served, word=_AS_OCTETS[served.word], charset="")
    return replace(served, charset=charset)


def check_charset(served: ServerType) -> None:
    """Check that row events can bring a column's text. Raises: Unsupported."""
    if not served.charset or CHARACTER_BYTES.get(served.charset):
        return
    if served.is_text or (served.word == "ENUM" and not all(map(str.isascii, served.members))):
        raise Unsupported(
            f"row events do not bring text in character set {served.charset}; ALTER TABLE … CONVERT TO CHARACTER SET"
            " utf8mb4 at the source"
        )
