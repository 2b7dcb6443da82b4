"""JSON documents in the binary form of MySQL, as row events bring them.

A value is a byte for its type and its bytes. Objects and arrays have a table of types and offsets, small ones with
words of two bytes, large ones of four; values that fit a word stand in the table. Offsets count from the first byte of
the object or array, and lengths are checked before they are followed: bytes of a file may be anything.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable
from typing import Any

from tidemark.engine.types.json import LEVELS_MAX, double
from tidemark.replication.binlog import binlog_layout as b
from tidemark.replication.binlog.refused_values import clock_text, day_text

_SMALL_OBJECT, _LARGE_OBJECT, _SMALL_ARRAY, _LARGE_ARRAY, _LITERAL = range(5)
_INT16, _UINT16, _INT32, _UINT32, _INT64, _UINT64, _DOUBLE, _STRING, _OPAQUE = *range(5, 13), 15
_CODES = {_INT16: "h", _UINT16: "H", _INT32: "i", _UINT32: "I", _INT64: "q", _UINT64: "Q", _DOUBLE: "d"}
_LITERALS = {0: None, 1: True, 2: False}
_IN_TABLE = {2: (_LITERAL, _INT16, _UINT16), 4: (_LITERAL, _INT16, _UINT16, _INT32, _UINT32)}
_LENGTH_BYTES_MAX = 5
_GROUP_DIGITS = 9  # of a decimal, in four bytes
_GROUP_BYTES = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)  # of fewer digits
_MICROSECOND_BITS = 24


def document_of(octets: bytes) -> Any:
    """Return the document. Raises: ValueError if the bytes are not one; ValueOutOfRange for a number of more digits
    than a double has.
    """
    if not octets:
        return None  # what a server without strict mode made of NULL in a column that takes none
    try:
        return _value(octets[0], octets[1:], 1)
    except (struct.error, IndexError, KeyError) as error:
        raise ValueError("the parts of the document do not lie within it") from error


def _value(kind: int, octets: bytes, level: int) -> Any:
    if kind <= _LARGE_ARRAY:
        return _container(kind, octets, level)
    if kind == _LITERAL:
        return _LITERALS[octets[0]]
    if kind in _CODES:
        return struct.unpack_from("<" + _CODES[kind], octets)[0]
    if kind == _STRING:
        return _sized(octets).decode()
    if kind == _OPAQUE:
        return _opaque(octets[0], _sized(octets[1:]))
    raise ValueError(f"{kind} is no type of a value")


def _container(kind: int, octets: bytes, level: int) -> Any:
    if level > LEVELS_MAX:
        raise ValueError(f"a document has at most {LEVELS_MAX} levels")
    is_object, word = kind <= _LARGE_OBJECT, 4 if kind in (_LARGE_OBJECT, _LARGE_ARRAY) else 2
    code = "I" if word == 4 else "H"
    count, size = struct.unpack_from(f"<2{code}", octets)
    if size > len(octets) or count > size:
        raise ValueError("an object or array is longer than the document")
    octets = octets[:size]
    at = 2 * word
    names = []
    if is_object:
        for _ in range(count):
            start, length = struct.unpack_from(f"<{code}H", octets, at)
            names.append(_within(octets, start, length).decode())
            at += word + 2
    values = []
    for _ in range(count):
        inner = octets[at]
        if inner in _IN_TABLE[word]:
            held = octets[at + 1 : at + 1 + word]
        else:
            (start,) = struct.unpack_from(f"<{code}", octets, at + 1)
            held = _within(octets, start, 1, size)
        values.append(_value(inner, held, level + 1))
        at += 1 + word
    return dict(zip(names, values, strict=True)) if is_object else values


def _within(octets: bytes, start: int, least: int, end: int | None = None) -> bytes:
    if start + least > len(octets):
        raise ValueError("an offset is outside its object or array")
    return octets[start : start + least if end is None else end]


def _sized(octets: bytes) -> bytes:
    """Return the bytes after their length, which has seven bits in each byte, the low ones first."""
    size = 0
    for place in range(_LENGTH_BYTES_MAX):
        size |= (octets[place] & 0x7F) << 7 * place
        if octets[place] < 0x80:
            return _within(octets, place + 1, size)
    raise ValueError("a length has too many bytes")


# --- what JSON itself has not ------------------------------------------------------------------------
def _opaque(code: int, octets: bytes) -> Any:
    """Return a value of a column type within a document, as the server writes it in JSON text."""
    known: dict[int, Callable[[bytes], Any]] = {
        b.TYPE_NEWDECIMAL: _decimal,
        b.TYPE_DATE: _day,
        b.TYPE_TIME_OLD: _time,
        b.TYPE_DATETIME_OLD: _moment,
        b.TYPE_TIMESTAMP_OLD: _moment,
    }
    if code in known:
        return known[code](octets)
    return f"base64:type{code}:{base64.b64encode(octets).decode()}"


def _decimal(octets: bytes) -> int | float:
    precision, scale = octets[0], octets[1]
    held = bytearray(octets[2:])
    is_negative = not held[0] & 0x80
    held[0] ^= 0x80
    if is_negative:
        held = bytearray(each ^ 0xFF for each in held)
    groups, first = divmod(precision - scale, _GROUP_DIGITS)
    sizes = [first, *[_GROUP_DIGITS] * groups, *[_GROUP_DIGITS] * (scale // _GROUP_DIGITS), scale % _GROUP_DIGITS]
    digits, at = "", 0
    for size in sizes:
        width = _GROUP_BYTES[size]
        number = int.from_bytes(_within(bytes(held), at, width), "big")
        digits += f"{number:0{size}}" if size else ""
        at += width
    whole, fraction = digits[: precision - scale] or "0", digits[precision - scale :]
    text = ("-" if is_negative else "") + whole.lstrip("0").rjust(1, "0") + (f".{fraction}" if fraction else "")
    return double(text) if fraction else int(text)


def _packed(octets: bytes) -> tuple[int, int, str]:
    """Return (days, clock, digits of microseconds) of a packed moment that is not negative."""
    (packed,) = struct.unpack("<q", octets)
    whole = abs(packed) >> _MICROSECOND_BITS
    return whole >> 17, whole & 0x3FFFFF, f".{abs(packed) & ((1 << _MICROSECOND_BITS) - 1):06}"


def _day(octets: bytes) -> str:
    days, _, _ = _packed(octets)
    return day_text(days >> 5, days & 31, 13)


def _time(octets: bytes) -> str:
    _, clock, fraction = _packed(octets)
    return ("-" if octets[-1] & 0x80 else "") + clock_text(clock, 0x3FF) + fraction


def _moment(octets: bytes) -> str:
    _, clock, fraction = _packed(octets)
    return f"{_day(octets)} {clock_text(clock, 0x1F)}{fraction}"
