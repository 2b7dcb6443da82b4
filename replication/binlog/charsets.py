"""Character sets of MySQL and MariaDB: their collations' ids, and their bytes as text.

Row events bring text of `CHARACTER_BYTES` alone. Statements may be in any character set of a client: of those in
`_EXACT` Python and the servers read the same characters, of those in `_WIDE` at least the same places of characters.
"""

from __future__ import annotations

import codecs

import numpy as np

from tidemark.engine.rows.row_format import Words
from tidemark.engine.types.base import Octets

UTF8MB4, UTF8MB3, LATIN1, ASCII, BINARY = "utf8mb4", "utf8mb3", "latin1", "ascii", "binary"
# Bytes of the longest character, 0 for bytes, of the character sets that row events bring.
CHARACTER_BYTES = {UTF8MB4: 4, UTF8MB3: 3, LATIN1: 1, ASCII: 1, BINARY: 0}
# MariaDB's collations without padding are 1024 higher; its newer ones have the character set in bits 8 to 10.
_MARIADB_NO_PAD = 1024
_MARIADB_UCA1400 = range(2048, 4096)
_MARIADB_CHARSETS = {0: UTF8MB3, 1: UTF8MB4}
_IDS: dict[str, tuple[int, ...]] = {
    UTF8MB4: (45, 46, *range(224, 248), *range(255, 324), 608, 609, 610),
    UTF8MB3: (33, 76, 83, *range(192, 216), 223, 576, 577, 578),
    LATIN1: (5, 8, 15, 31, 47, 48, 49, 94),
    ASCII: (11, 65),
    BINARY: (63,),
    "cp1250": (26, 34, 44, 66, 99),
    "cp1251": (14, 23, 50, 51, 52),
    "cp850": (4, 80),
    "cp852": (40, 81),
    "koi8r": (7, 74),
    "latin2": (2, 9, 21, 27, 77),
    "latin5": (30, 78),
    "latin7": (20, 41, 42, 79),
    "big5": (1, 84),
    "cp932": (95, 96),
    "eucjpms": (97, 98),
    "euckr": (19, 85),
    "gb2312": (24, 86),
    "gb18030": (248, 249, 250),
    "gbk": (28, 87),
    "sjis": (13, 88),
    "ujis": (12, 91),
}
_CHARSETS = {number: charset for charset, numbers in _IDS.items() for number in numbers}
_EXACT = {
    UTF8MB4: "utf-8",
    UTF8MB3: "utf-8",
    ASCII: "ascii",
    "cp1250": "cp1250",
    "cp1251": "cp1251",
    "cp850": "cp850",
    "cp852": "cp852",
    "koi8r": "koi8-r",
    "latin2": "iso8859-2",
    "latin5": "iso8859-9",
    "latin7": "iso8859-13",
}
_WIDE = {
    "big5": "big5",
    "cp932": "cp932",
    "eucjpms": "euc_jp",
    "euckr": "euc_kr",
    "gb2312": "gb2312",
    "gb18030": "gb18030",
    "gbk": "gbk",
    "sjis": "shift_jis",
    "ujis": "euc_jp",
}
_BMP_END = "\uffff"
_UNREADABLE = "\udc80"  # as `surrogateescape` writes a byte
_ASCII_END = 0x80
_UNKNOWN = "\ufffd"


def charset_of(collation: int) -> str:
    """Return the character set of a collation's id; its number in words if it is not known here."""
    if collation in _MARIADB_UCA1400:
        return _MARIADB_CHARSETS.get(collation >> 8 & 7, f"of collation {collation}")
    plain = collation - _MARIADB_NO_PAD if _MARIADB_NO_PAD <= collation < 2 * _MARIADB_NO_PAD else collation
    return _CHARSETS.get(plain, f"of collation {collation}")


def charset_named(name: str) -> str:
    """Return the character set that a server means by a name of a character set or of a collation."""
    found = name.lower().partition("_")[0]
    return UTF8MB3 if found == "utf8" else found


def is_latin1(collation: int | None) -> bool:
    return collation is not None and charset_of(collation) == LATIN1


# --- statements -----------------------------------------------------------------------------------
def decoded(octets: bytes, charset: str) -> str:
    """Return a client's text. Bytes whose characters are not known here become lone surrogates; quotes, backslashes and
    other ASCII are exact. Raises: UnicodeDecodeError if it is not known where characters end.
    """
    if charset == LATIN1:
        return text_of(octets)
    if charset in _EXACT:
        return octets.decode(_EXACT[charset], "surrogateescape")
    if charset in _WIDE:
        return "".join(each if each.isascii() else _UNREADABLE for each in octets.decode(_WIDE[charset]))
    return octets.decode("ascii")


def encoded(text: str, charset: str) -> bytes:
    """Return text in a character set. Raises: UnicodeEncodeError (a ValueError) if it is not exactly text of it."""
    if charset == LATIN1:
        return codecs.charmap_encode(text, "strict", _PLACES)[0]
    if charset == UTF8MB3 and any(each > _BMP_END for each in text):
        raise UnicodeEncodeError(UTF8MB3, text, 0, len(text), "characters of four bytes")
    return text.encode(_EXACT.get(charset, "ascii"))


def is_superset_of_ascii(charset: str) -> bool:
    """Whether ASCII text is surely the same text in a character set."""
    return charset in _EXACT or charset in (LATIN1, "gbk", "gb2312", "gb18030", "euckr", "big5")


# --- latin1, which is cp1252 with the C1 controls in its gaps ---------------------------------------
def _characters() -> str:
    known = bytes(range(256)).decode("cp1252", "replace")
    return "".join(chr(place) if each == _UNKNOWN else each for place, each in enumerate(known))


_CHARACTERS = _characters()
_PLACES = {ord(each): place for place, each in enumerate(_CHARACTERS)}
_UTF8_BYTES = np.array([len(each.encode()) for each in _CHARACTERS], np.int64)


def text_of(octets: bytes) -> str:
    """Return the text of bytes in latin1."""
    return codecs.charmap_decode(octets, "strict", _CHARACTERS)[0]


def as_utf8(offsets: Words, data: Octets) -> tuple[Words, Octets]:
    """Convert consecutive strings from latin1 to UTF-8; return their (offsets, data)."""
    if not data.size or int(data.max()) < _ASCII_END:
        return offsets, data
    ends = np.zeros(len(data) + 1, np.int64)
    np.cumsum(_UTF8_BYTES[data], out=ends[1:])
    return ends[offsets], np.frombuffer(text_of(data.tobytes()).encode(), np.uint8)
