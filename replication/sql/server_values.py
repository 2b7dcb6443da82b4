"""The value that a server makes of a literal in a column of a type: one table, type by kind of literal.

A server converts nearly any literal to nearly any type. The conversions that are exact, or whose rules are these few,
are made here; every other literal is Unsupported. `tests/ingest/served_literals.py` compares all of it with a server.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import ROUND_HALF_UP, InvalidOperation
from decimal import Decimal as PythonDecimal
from typing import Any

import numpy as np

from tidemark.engine.base.errors import Unsupported
from tidemark.engine.schema.partition import MAXVALUE
from tidemark.engine.types import ColumnType
from tidemark.replication.binlog.charsets import UTF8MB3, UTF8MB4, encoded
from tidemark.replication.sql.column_types import possible_types
from tidemark.replication.sql.server_types import INTEGER_BITS, OCTETS, TEXTS, ServerType
from tidemark.replication.sql.session import Session
from tidemark.replication.sql.tokens import BITS, HEX, MAXVALUE_KIND, NULL, NUMBER, STRING, Literal

_INTEGER = re.compile(r"[+-]?\d+\Z")
_FIXED_POINT = re.compile(r"([+-]?)(\d*)\.(\d+)\Z")
_NUMBER = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?\Z")
_EXACT_DIGITS_MAX = 30  # of a literal without an exponent: a server keeps at least as many
_DATE = re.compile(r"(\d{4})-(\d{1,2})-(\d{1,2})\Z")
_DATETIME = re.compile(r"(\d{4})-(\d{1,2})-(\d{1,2})(?:[ T](\d{1,2}):(\d{1,2}):(\d{1,2})(?:\.(\d{1,9}))?)?\Z")
_TIME = re.compile(r"(\d{1,2}):(\d{2}):(\d{2})(?:\.(\d{1,9}))?\Z")
_ZERO_DATE = re.compile(r"0000-00-00(?: 00:00:00(?:\.0+)?)?\Z|0\Z")
_TIMESTAMP_MAX = datetime(2038, 1, 19, 3, 14, 7)
_EPOCH = datetime(1970, 1, 1)
YEARS = range(1901, 2156)
_MICROSECOND_DIGITS = 6


def served_value(served: ServerType, literal: Literal, session: Session) -> Any:
    """Return the value, as a column of the store has it, that a server makes of a literal. Raises: Unsupported if that
    is not known here, or if the store has no such value.
    """
    if literal.kind == NULL:
        return None
    if literal.kind == MAXVALUE_KIND:
        return MAXVALUE
    try:
        if literal.kind == STRING and not literal.text and session.has_empty_null:
            raise ValueError(literal.text)
        return _READERS[served.word](served, literal, session)
    except (KeyError, ValueError, InvalidOperation, OverflowError):
        raise Unsupported(
            f"what the server makes of {literal.kind} {literal.text[:40]!r} in a column of type {served.text} is not"
            " known here, or is no value here"
        ) from None


def value_in_store(kind: ColumnType, literal: Literal, session: Session) -> Any:
    """Return the value of a literal in a column of which only the store's type is known: the value that every type of a
    server that becomes this type gives it. Raises: Unsupported if they differ.
    """
    found = [served_value(each, literal, session) for each in possible_types(kind)]
    # Of a SET the members are not known, and bits are text to it. A number is the same: it must be a member.
    is_text_to_set = literal.kind == BITS and len(found) > 1
    if not found or is_text_to_set or any(each != found[0] or repr(each) != repr(found[0]) for each in found):
        raise Unsupported(
            f"the column's type at the server is not known here ({kind!r} stands for several), and"
            f" {literal.text[:40]!r} is not the same value in all of them"
        )
    return found[0]


def is_zero_date(served: ServerType, literal: Literal) -> bool:
    """Whether a literal is a date of zeros in a calendar column, which has no such value here."""
    is_dated = served.word in ("DATE", "DATETIME", "TIMESTAMP")
    return is_dated and literal.kind in (STRING, NUMBER) and _ZERO_DATE.match(literal.text) is not None


def implicit_value(served: ServerType) -> Any:
    """Return the value that a server gives a new NOT NULL column without a default in existing rows. Raises: KeyError
    if it is not known here, or is no value here.
    """
    if served.word == "ENUM":
        return served.members[0]
    if served.word == "BINARY":
        return bytes(served.numbers[0])
    return _IMPLICIT[served.word]


# --- numbers --------------------------------------------------------------------------------------
def _number(literal: Literal, pattern: re.Pattern[str] = _NUMBER) -> str:
    """Return the text of a literal that is a number. Raises: ValueError."""
    if literal.kind == HEX or not pattern.match(literal.text):
        raise ValueError(literal.text)
    return literal.text


def _whole(literal: Literal) -> int:
    return int(_number(literal, _INTEGER))


def _integer(served: ServerType, literal: Literal, session: Session) -> int:
    value = _whole(literal)
    limits = served.integers
    assert limits is not None
    if not limits[0] <= value <= limits[1]:
        raise ValueError(value)
    return value


def _bits(served: ServerType, literal: Literal, session: Session) -> int:
    if literal.kind == STRING:  # its bytes are the bits
        raise ValueError(literal.text)
    return _integer(served, literal, session)


def _year(served: ServerType, literal: Literal, session: Session) -> int:
    value = _whole(literal)
    # Of two digits, '0' and '00' are 2000, and the number 0 is the year 0000.
    if value in YEARS or literal.text == "0000" or (literal.kind == NUMBER and literal.text == "0"):
        return value
    raise ValueError(value)


def _decimal(served: ServerType, literal: Literal, session: Session) -> PythonDecimal:
    text = _number(literal)
    precision, scale = served.numbers
    if "e" in text.lower():
        raise ValueError(text)
    value = PythonDecimal(text).quantize(PythonDecimal(1).scaleb(-scale), ROUND_HALF_UP)
    if abs(value) >= PythonDecimal(1).scaleb(precision - scale) or (served.is_unsigned and value < 0):
        raise ValueError(text)
    return abs(value) if not value else value


def _floating(served: ServerType, literal: Literal, session: Session) -> float:
    text = _number(literal)
    has_exponent = "e" in text.lower()
    if literal.kind == NUMBER and not has_exponent and len(text) > _EXACT_DIGITS_MAX:
        raise ValueError(text)
    value = float(text)
    if not value and text.startswith("-"):
        if has_exponent or literal.kind == STRING:
            raise ValueError(text)
        value = 0.0
    if len(served.numbers) > 1:
        value = float(rounded(value, served.numbers[1]))
        if abs(value) >= 10.0 ** (served.numbers[0] - served.numbers[1]):
            raise ValueError(text)
    if served.word == "FLOAT":
        with np.errstate(over="ignore"):
            value = float(np.float32(value))
    if not math.isfinite(value) or (served.is_unsigned and value < 0):
        raise ValueError(text)
    return value


def rounded(values: Any, digits: int) -> Any:
    """Return numbers as a server rounds them for FLOAT(m,d) and DOUBLE(m,d)."""
    wide = np.asarray(values, np.float64)
    whole = np.floor(wide)
    return whole + np.rint((wide - whole) * 10.0**digits) / 10.0**digits


# --- text and bytes -------------------------------------------------------------------------------
def _characters(literal: Literal) -> str:
    """Return a number as the text that a server makes of it. Raises: ValueError."""
    if literal.kind == NUMBER and _INTEGER.match(literal.text):
        return str(int(literal.text))
    found = _FIXED_POINT.match(literal.text) if literal.kind == NUMBER else None
    if found is None or len(literal.text) > _EXACT_DIGITS_MAX or not float(literal.text):
        raise ValueError(literal.text)
    return ("-" if found[1] == "-" else "") + f"{int(found[2] or '0')}.{found[3]}"


def _text(served: ServerType, literal: Literal, session: Session) -> str:
    if literal.kind == STRING:
        session.literal_bytes(literal.text)
        text = literal.text
    elif literal.kind == HEX:
        octets = bytes.fromhex(literal.text)
        text = octets.decode("utf-8" if served.charset in (UTF8MB4, UTF8MB3) else "ascii")
    else:
        text = _characters(literal)
    if served.charset:
        encoded(text, served.charset)
    if served.word == "CHAR":
        text = text.rstrip(" ")
    limit = served.bytes_max
    if len(text.encode()) > limit if limit is not None else len(text) > served.numbers[0]:
        raise ValueError(text)
    return text


def _octets(served: ServerType, literal: Literal, session: Session) -> bytes:
    if literal.kind == HEX:
        octets = bytes.fromhex(literal.text)
    elif literal.kind == STRING:
        octets = session.literal_bytes(literal.text)
    else:
        octets = _characters(literal).encode()
    limit = served.bytes_max
    if len(octets) > (served.numbers[0] if limit is None else limit):
        raise ValueError(literal.text)
    return octets.ljust(served.numbers[0], b"\0") if served.word == "BINARY" else octets


def _member(served: ServerType, literal: Literal, session: Session) -> str:
    if literal.kind != STRING or literal.text not in served.members:
        raise ValueError(literal.text)
    return literal.text


def _set(served: ServerType, literal: Literal, session: Session) -> int:
    if literal.kind != STRING:
        raise ValueError(literal.text)
    names = literal.text.split(",") if literal.text else []
    return sum({1 << served.members.index(each) for each in names})


# --- times ----------------------------------------------------------------------------------------
def _fraction(text: str | None, served: ServerType, session: Session) -> int:
    """Return the microseconds that a column keeps of a fraction. Raises: ValueError where it is rounded."""
    text = text or ""
    if session.rounds_time and text[served.digits :].strip("0"):
        raise ValueError(text)
    return int(text[: served.digits].ljust(_MICROSECOND_DIGITS, "0"))


def _matched(pattern: re.Pattern[str], literal: Literal) -> re.Match[str]:
    found = pattern.match(literal.text) if literal.kind == STRING else None
    if found is None:
        raise ValueError(literal.text)
    return found


def _day(served: ServerType, literal: Literal, session: Session) -> date:
    found = _matched(_DATE, literal)
    return date(int(found[1]), int(found[2]), int(found[3]))


def _moment(served: ServerType, literal: Literal, session: Session) -> datetime:
    found = _matched(_DATETIME, literal)
    parts = [int(each or "0") for each in found.groups()[:6]]
    return datetime(*parts, microsecond=_fraction(found[7], served, session))  # type: ignore[misc,arg-type]


def _timestamp(served: ServerType, literal: Literal, session: Session) -> datetime:
    offset = session.utc_offset
    if offset is None:
        raise ValueError(literal.text)
    moment = _moment(served, literal, session) - offset
    if not _EPOCH + timedelta(seconds=1) <= moment <= _TIMESTAMP_MAX:
        raise ValueError(literal.text)
    return moment.replace(tzinfo=UTC)


def _clock(served: ServerType, literal: Literal, session: Session) -> time:
    found = _matched(_TIME, literal)
    return time(int(found[1]), int(found[2]), int(found[3]), _fraction(found[4], served, session))


_IMPLICIT: dict[str, Any] = {
    **dict.fromkeys([*INTEGER_BITS, "BIT", "YEAR", "SET"], 0),
    **dict.fromkeys([each for each in TEXTS if each != "JSON"], ""),
    **dict.fromkeys([each for each in OCTETS if each != "BINARY"], b""),
    "DECIMAL": PythonDecimal(0),
    "FLOAT": 0.0,
    "DOUBLE": 0.0,
    "TIME": time(0),
}
_READERS: dict[str, Callable[[ServerType, Literal, Session], Any]] = {
    **dict.fromkeys(INTEGER_BITS, _integer),
    **dict.fromkeys(TEXTS, _text),
    **dict.fromkeys(OCTETS, _octets),
    "BIT": _bits,
    "YEAR": _year,
    "DECIMAL": _decimal,
    "FLOAT": _floating,
    "DOUBLE": _floating,
    "ENUM": _member,
    "SET": _set,
    "DATE": _day,
    "DATETIME": _moment,
    "TIMESTAMP": _timestamp,
    "TIME": _clock,
}
