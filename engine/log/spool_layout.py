"""Spool files: the records of one transaction larger than memory, in sealed blocks. No record spans two blocks.

A block is this header, records as in the REDO log (`engine/log/redo_layout.py`), and zeros up to 4 KiB. The file is
named after the transaction and becomes valid by a KIND_FILES record in the log.
"""

from __future__ import annotations

import numpy as np

from tidemark.engine.sealed.sealed_layout import SEAL_FIELDS

SPOOL_HEADER_WORDS = 16
SPOOL_ALIGN_WORDS = 512
# A file's digest is over these zero words and then the checksums of all its blocks: XXH3 needs at least 31 words.
DIGEST_PAD_WORDS = 64

SPOOL_BLOCK = np.dtype(
    [
        *SEAL_FIELDS,
        ("txid", "<u8"),
        ("number", "<u8"),  # number of the block in its file, from 0
        ("start_word", "<u8"),  # place of its first record in the transaction's buffer
        ("records_words", "<u8"),  # words of records after the header; the rest is padding
        ("reserved", "<u8", (7,)),
    ]
)

assert SPOOL_BLOCK.itemsize == SPOOL_HEADER_WORDS * 8
assert SPOOL_BLOCK.fields is not None and SPOOL_BLOCK.fields["txid"][1] == 40
