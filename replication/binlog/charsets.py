"""Decode MySQL's latin1: Windows-1252, in which the five undefined bytes are control characters. It was the default of
MySQL before 8.0 and of MariaDB before 11.6.
"""

from __future__ import annotations

import codecs

import numpy as np
from numpy.typing import NDArray

from tidemark.engine.rows.row_format import Words

Octets = NDArray[np.uint8]
# MariaDB numbers its NO PAD collations 1024 higher.
_COLLATIONS = frozenset(each + more for each in (5, 8, 15, 31, 47, 48, 49, 94) for more in (0, 1024))
_ASCII_END = 0x80
_UNKNOWN = "\ufffd"


def _characters() -> str:
    known = bytes(range(256)).decode("cp1252", "replace")
    return "".join(chr(place) if each == _UNKNOWN else each for place, each in enumerate(known))


_CHARACTERS = _characters()
_UTF8_BYTES = np.array([len(each.encode()) for each in _CHARACTERS], np.int64)


def is_latin1(collation: int | None) -> bool:
    """Whether text of a collation is latin1."""
    return collation in _COLLATIONS


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
