"""Files of a backup that are not Parquet: level files, and the manifest that makes them a backup (docs/backup.md).

Both are one sealed unit: header, then a JSON body. A segment of the archive is a header followed by groups of the REDO
log, as they were sealed in the log.
"""

from __future__ import annotations

import numpy as np

from tidemark.engine.sealed.sealed_layout import SEAL_FIELDS

BACKUP_UNIT_WORDS = 16
ARCHIVE_WORDS = 512  # one sector of the log: groups after it stay aligned
BACKUP_UNIT_WORDS_MIN = 32

BACKUP_UNIT = np.dtype(
    [
        *SEAL_FIELDS,
        ("backup", "<u8"),
        ("epoch", "<u8"),
        ("body_bytes", "<u8"),
        ("reserved", "<u8", (8,)),
    ]
)
ARCHIVE_SEGMENT = np.dtype(
    [
        *SEAL_FIELDS,
        ("timeline", "<u8"),
        ("start_lsn", "<u8"),
        ("end_lsn", "<u8"),
        ("start_sequence", "<u8"),
        ("groups", "<u8"),
        ("first_epoch", "<u8"),
        ("last_epoch", "<u8"),
        ("first_wall_us", "<u8"),  # wall clock when the first and the last group were sealed
        ("last_wall_us", "<u8"),
        ("reserved", "<u8", (ARCHIVE_WORDS - 5 - 9,)),
    ]
)

assert BACKUP_UNIT.itemsize == BACKUP_UNIT_WORDS * 8
assert ARCHIVE_SEGMENT.itemsize == ARCHIVE_WORDS * 8
assert BACKUP_UNIT.fields is not None and BACKUP_UNIT.fields["backup"][1] == 40
