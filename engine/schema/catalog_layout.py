"""Sealed values of the catalog, and the seal over its whole file."""

from __future__ import annotations

import numpy as np

from tidemark.engine.sealed.sealed_layout import SEAL_FIELDS

# A sealed unit has at least 32 words, so small values are padded.
UNIT_WORDS_MIN = 32

CATALOG_VALUE = np.dtype(
    [
        *SEAL_FIELDS,
        ("table_id", "<u8"),
        ("body_bytes", "<u8"),  # JSON of the table definition after this header, zero-padded to words
        ("reserved", "<u8"),
    ]
)
CATALOG_SEAL = np.dtype(
    [
        *SEAL_FIELDS,
        ("lsn", "<u8"),  # the catalog reflects the log up to this LSN
        ("file_bytes", "<u8"),  # size of data.mdb
        ("file_digest", "<u8"),  # XXH3-64 over data.mdb
        ("tables", "<u8"),
        ("tables_digest", "<u8"),  # of the XXH3-64 of each sealed value, mixed in order of table number
        ("reserved", "<u8", (22,)),
    ]
)

assert CATALOG_VALUE.itemsize == 64
assert CATALOG_SEAL.itemsize == UNIT_WORDS_MIN * 8 == 256
