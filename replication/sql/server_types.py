"""A column's type at a MySQL or MariaDB server, with all that decides which values it holds."""

from __future__ import annotations

from dataclasses import dataclass

from tidemark.engine.base.errors import Unsupported
from tidemark.engine.schema import types as t
from tidemark.engine.schema.types import Decimal, Enum, Floating, Integer
from tidemark.engine.schema.types_base import ColumnType
from tidemark.engine.schema.types_calendar import Calendar
from tidemark.engine.schema.types_text import Binary, Char, LongBinary, LongText, VarBinary, VarChar
from tidemark.replication.binlog.charsets import CHARACTER_BYTES, UTF8MB4
from tidemark.replication.sql.column_types import DECIMALS, GEOMETRIES, from_sql

INTEGER_BITS = {"TINYINT": 8, "SMALLINT": 16, "MEDIUMINT": 24, "INT": 32, "BIGINT": 64}
BYTES_MAX = {
    "TINYTEXT": 255,
    "TEXT": 65_535,
    "MEDIUMTEXT": (1 << 24) - 1,
    "LONGTEXT": (1 << 32) - 1,
    "JSON": (1 << 32) - 1,
    "TINYBLOB": 255,
    "BLOB": 65_535,
    "MEDIUMBLOB": (1 << 24) - 1,
    "LONGBLOB": (1 << 32) - 1,
}
TEXTS = ("CHAR", "VARCHAR", "TINYTEXT", "TEXT", "MEDIUMTEXT", "LONGTEXT", "JSON")
OCTETS = ("BINARY", "VARBINARY", "TINYBLOB", "BLOB", "MEDIUMBLOB", "LONGBLOB")
_OTHER_WORDS = {
    "INTEGER": "INT",
    "CHARACTER": "CHAR",
    "REAL": "DOUBLE",
    "GEOMCOLLECTION": "GEOMETRYCOLLECTION",
    **dict.fromkeys(DECIMALS, "DECIMAL"),
}
_FLOAT_DIGITS_MAX = 24  # FLOAT of more binary digits is DOUBLE
_YEAR_DIGITS = 4


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
        return from_sql(self.word, self.numbers, self.members, self.is_unsigned)


def server_type(
    word: str, numbers: tuple[int, ...], members: tuple[str, ...], is_unsigned: bool, has_real_as_float: bool
) -> ServerType:
    """Return the type for a word of a statement, and what follows it."""
    if word in ("BOOL", "BOOLEAN"):
        return ServerType("TINYINT", (1,))
    if word == "REAL" and has_real_as_float:
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


def check_charset(served: ServerType) -> None:
    """Check that row events can bring a column's text. Raises: Unsupported."""
    if not served.charset or CHARACTER_BYTES.get(served.charset):
        return
    if served.is_text or (served.word == "ENUM" and not all(map(str.isascii, served.members))):
        raise Unsupported(
            f"row events do not bring text in character set {served.charset}; ALTER TABLE … CONVERT TO CHARACTER SET"
            " utf8mb4 at the source"
        )


def possible_types(kind: ColumnType) -> tuple[ServerType, ...]:
    """Return types of a server, at the extremes of all those that are this type of the store. A literal that is the
    same value in all of them is that value in the column. () if that cannot be said.
    """
    if isinstance(kind, Integer):
        word = next(word for word, bits in INTEGER_BITS.items() if bits == kind.bits)
        others = {16: [ServerType("YEAR")], 64: [ServerType("BIT", (64,))]} if not kind.signed else {}
        return (ServerType(word, is_unsigned=not kind.signed), *others.get(kind.bits, []))
    if isinstance(kind, Floating):
        word = "FLOAT" if kind.bits == 32 else "DOUBLE"
        return ServerType(word), ServerType(word, (20, 0))
    if isinstance(kind, Decimal):
        return (ServerType("DECIMAL", (kind.precision, kind.scale)),)
    if isinstance(kind, Enum):
        return (ServerType("ENUM", members=kind.members),)
    if isinstance(kind, Calendar):
        word = kind.name.upper()
        return (ServerType(word),) if word == "DATE" else (ServerType(word, (0,)), ServerType(word, (6,)))
    if isinstance(kind, (Char, VarChar, Binary, VarBinary)):
        return (ServerType(type(kind).__name__.upper(), (kind.length,)),)
    if isinstance(kind, LongText):
        return (ServerType("TINYTEXT"),)
    return (ServerType("TINYBLOB"),) if isinstance(kind, LongBinary) else ()


def is_geometry(served: ServerType) -> bool:
    """Whether values are geometries, which a server checks."""
    return served.word in GEOMETRIES
