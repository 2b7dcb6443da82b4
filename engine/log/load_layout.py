"""Bulk load: manifests, and the records of load files.

Load files have the blocks of spool files (`engine/log/spool_layout.py`), with the job's number as the transaction id.
"""

from __future__ import annotations

import numpy as np

from tidemark.engine.sealed.sealed_layout import SEAL_FIELDS

LOAD_MANIFEST_WORDS = 16
LOAD_UNIT_WORDS_MIN = 64  # xxh3 is fastest, and its kernel simplest, above 240 bytes
LOAD_RUN = 32  # rows of one insert record

LOAD_MANIFEST = np.dtype(
    [
        *SEAL_FIELDS,
        ("job", "<u8"),
        ("body_bytes", "<u8"),
        ("reserved", "<u8", (9,)),
    ]
)

assert LOAD_MANIFEST.itemsize == LOAD_MANIFEST_WORDS * 8
assert LOAD_MANIFEST.fields is not None and LOAD_MANIFEST.fields["job"][1] == 40
