"""The sealed group of the REDO log: 16 header words, then records (`redo_layout.py`), zero-padded to 4 KiB."""

from __future__ import annotations

import numpy as np

from tidemark.engine.log.redo_layout import GROUP_WORDS
from tidemark.engine.sealed.sealed_layout import SEAL_FIELDS

GROUP_ALIGN_BYTES = 4_096
GROUP_ALIGN_WORDS = GROUP_ALIGN_BYTES // 8

GROUP = np.dtype(
    [
        *SEAL_FIELDS,
        ("sequence", "<u8"),  # 1, 2, 3 ... without a gap in the life of the store
        ("lsn", "<u8"),  # byte position in the endless log
        ("lap", "<u4"),  # how often the log had wrapped round its files
        ("transactions", "<u4"),
        ("epoch", "<u8"),  # of every transaction in it
        ("wall_us", "<u8"),  # wall clock when it was sealed; for restoring to a time, never for order
        ("next_txid", "<u8"),  # transaction ids from here on are not in this or an earlier group
        ("records_words", "<u8"),  # words of records after the header; the rest is padding
        ("unsynced", "<u8"),  # how many groups directly before it may not have been durable when it was written
        ("reserved_1", "<u8"),
        ("reserved_2", "<u8"),
        ("reserved_3", "<u8"),
    ]
)

assert GROUP.itemsize == GROUP_WORDS * 8
assert GROUP.fields is not None and GROUP.fields["sequence"][1] == 40
