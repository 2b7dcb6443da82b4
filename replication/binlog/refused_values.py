"""Values of row events as text, for the message about one that the store does not hold."""

from __future__ import annotations

from tidemark.replication.binlog import binlog_layout as b
from tidemark.replication.binlog.types import MySqlType

_SHOWN_BYTES = 40
_DATETIME_ZERO = 0x8000000000
_TIME_ZERO = 0x800000


def shown_value(mysql: MySqlType, octets: bytes) -> str:
    """Return a value as its server shows it, or its bytes in hexadecimal."""
    code = mysql.real_code
    if code == b.TYPE_DATE:
        return day_text(int.from_bytes(octets, "little") >> 5, octets[0] & 31, 16)
    if code == b.TYPE_DATETIME:
        whole = int.from_bytes(octets[:5], "big") - _DATETIME_ZERO
        day = whole >> 17
        return f"{day_text(day >> 5, day & 31, 13)} {clock_text(whole & 0x1FFFF, 0x1F)}{_fraction(mysql, octets[5:])}"
    if code == b.TYPE_TIME:
        whole = int.from_bytes(octets, "big") - (_TIME_ZERO << 8 * (len(octets) - 3))
        rest = abs(whole).to_bytes(len(octets), "big")
        clock = clock_text(int.from_bytes(rest[:3], "big"), 0x3FF)
        return ("-" if whole < 0 else "") + clock + _fraction(mysql, rest[3:])
    if code == b.TYPE_TIMESTAMP and not any(octets):
        return "0000-00-00 00:00:00"
    if code == b.TYPE_ENUM:
        place = int.from_bytes(octets, "little")
        return f"member {place}" if place else "'' (the empty value, which an ENUM has for a text that is no member)"
    if code in b.CHARACTER_TYPES:
        return repr(octets[:_SHOWN_BYTES])[1:] + (" …" if len(octets) > _SHOWN_BYTES else "")
    return f"x'{octets[:_SHOWN_BYTES].hex()}'"


def day_text(months: int, day: int, months_in_year: int) -> str:
    return f"{months // months_in_year:04}-{months % months_in_year:02}-{day:02}"


def clock_text(whole: int, hours: int) -> str:
    return f"{whole >> 12 & hours:02}:{whole >> 6 & 63:02}:{whole & 63:02}"


def _fraction(mysql: MySqlType, octets: bytes) -> str:
    digits = mysql.metadata[0]
    if not digits:
        return ""
    number = int.from_bytes(octets, "big") // (10 if digits % 2 else 1)
    return f".{number % 10**digits:0{digits}}"
