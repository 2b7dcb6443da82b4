"""Sealed units: every unit on disk begins with a checksum over the rest of it, and with its identity.

A unit with a good checksum at the wrong place must not pass, so the checksum covers kind, version, store and the kind's
own identity. `seal`, `seal_units` and `is_sealed` write and check checksums; the page cache checks the pages that it
reads in its own kernels.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidemark.engine.sealed.checksums_kernels import WORDS_MIN, xxh3_signed, xxh3_signed_of_units

FORMAT_VERSION = 1
FORMAT_VERSION_OLDEST = 1

# Kinds of sealed units.
KIND_GROUP = 0x5447  # REDO group
KIND_SYSFILE = 0x5953
KIND_LCP_BLOCK = 0x424C
KIND_LCP_CONTROL = 0x434C
KIND_CATALOG_VALUE = 0x5643
KIND_CATALOG_SEAL = 0x5343
KIND_DISK_PAGE = 0x5044
KIND_DATA_FILE = 0x4644  # first page of a data file
KIND_UNDO_GROUP = 0x5547
KIND_DOUBLE_WRITE = 0x5744
KIND_EXTENTS = 0x5845  # block of extent headers in a local checkpoint
KIND_SPOOL = 0x5053  # block of a spool file
KIND_BACKUP_LEVEL = 0x564C
KIND_BACKUP_MANIFEST = 0x4D42
KIND_ARCHIVE = 0x5241  # segment of archived REDO groups
KIND_LOAD_MANIFEST = 0x4D4C
KIND_VIEW = 0x5749  # view of a node group

SEAL_FIELDS: list[tuple[str, str]] = [
    ("checksum", "<u8"),  # XXH3-64 over everything after this field
    ("kind", "<u2"),
    ("version", "<u2"),
    ("words", "<u4"),  # 8-byte words of the whole unit, this header included
    ("store_low", "<u8"),  # store UUID
    ("store_high", "<u8"),
    ("incarnation", "<u8"),  # raised each time the store is opened for writing
]
SEAL = np.dtype(SEAL_FIELDS)
SEAL_WORDS = SEAL.itemsize // 8

assert SEAL.itemsize == 40
assert SEAL.fields is not None and SEAL.fields["store_low"][1] == 16
assert [SEAL.fields[name][1] for name in ("checksum", "kind", "version", "words")] == [0, 8, 10, 12]

Words = NDArray[np.int64]


def header_of(words: Words, layout: np.dtype[Any]) -> Any:
    """Return the header record at the start of an int64 array, as a writable view."""
    return words[: layout.itemsize // 8].view(layout)[0]


def write_seal(header: Any, kind: int, words: int, store: bytes, incarnation: int) -> None:
    """Fill the common fields of a header record; `seal` adds the checksum last."""
    header["kind"] = kind
    header["version"] = FORMAT_VERSION
    header["words"] = words
    header["store_low"], header["store_high"] = store_halves(store)
    header["incarnation"] = incarnation


def store_halves(store: bytes) -> tuple[int, int]:
    """Return a store UUID as the two words of a seal."""
    return int.from_bytes(store[:8], "little"), int.from_bytes(store[8:], "little")


def seal(words: Words, count: int) -> None:
    """Put the checksum of words[1:count] into word 0. count >= 32."""
    words[0] = xxh3_signed(words, 1, count - 1)


def seal_units(words: Words, units: list[tuple[int, int]]) -> None:
    """Do `seal` for several units (start, count) of one array."""
    sums = xxh3_signed_of_units(words, [(start + 1, count - 1) for start, count in units])
    for (start, _), checksum in zip(units, sums, strict=True):
        words[start] = checksum


def is_sealed(words: Words, kind: int, available: int) -> bool:
    """Whether the array begins with an intact unit of this kind that ends within `available` words."""
    if available < SEAL_WORDS:
        return False
    # Words, not record fields: this runs for every page read, and a field access costs 1 µs.
    word = int(words[1])
    count = word >> 32 & 0xFFFFFFFF
    if word & 0xFFFF != kind or count <= WORDS_MIN or count > available:
        return False
    return int(words[0]) == xxh3_signed(words, 1, count - 1)


def disk_page_word(page_words: int) -> int:
    """Return word 1 of every page of disk columns: kind, version and words."""
    return KIND_DISK_PAGE | FORMAT_VERSION << 16 | page_words << 32


def store_of(words: Words) -> bytes:
    """Return the store UUID of a unit."""
    return words[2:4].tobytes()
