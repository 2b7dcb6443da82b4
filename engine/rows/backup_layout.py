"""Files of a backup: rows files of sealed blocks, and the manifest that makes them a backup (docs/backup.md).

A block is a header followed, depending on its content, by row entries (as in a local checkpoint, with the disk part
after the image) or by a piece of the live map, one bit for each slot. The manifest is one sealed unit: header, then a
JSON body. A segment of the archive is a header followed by groups of the REDO log, as they were sealed in the log.
"""

from __future__ import annotations

import numpy as np

from tidemark.engine.sealed.sealed_layout import SEAL_FIELDS

BACKUP_BLOCK_WORDS = 24
BACKUP_MANIFEST_WORDS = 16
ARCHIVE_WORDS = 512  # one sector of the log: groups after it stay aligned
BACKUP_UNIT_WORDS_MIN = 32

CONTENT_ROWS = 0
CONTENT_LIVE = 1

BACKUP_BLOCK = np.dtype(
    [
        *SEAL_FIELDS,
        ("backup", "<u8"),
        ("table_id", "<u4"),
        ("fragment", "<u4"),
        ("number", "<u8"),  # of the block in its file, from 0
        ("content", "<u4"),
        ("is_last", "<u4"),
        ("entries", "<u8"),  # in this block
        ("used_words", "<u8"),  # words after the header; the rest is padding
        ("total_entries", "<u8"),  # in the file, up to the end of this block
        ("epoch", "<u8"),  # the rows are as at the end of this epoch
        ("since", "<u8"),  # only rows changed after the end of this epoch; 0: all
        ("timeline", "<u8"),
        ("slots", "<u4"),  # of a page
        ("table_version", "<u4"),
        ("rows", "<u8"),  # live rows of the fragment at the end of the epoch, counted so far, changed or not
        ("reserved", "<u8", (7,)),
    ]
)
BACKUP_MANIFEST = np.dtype(
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

assert BACKUP_BLOCK.itemsize == BACKUP_BLOCK_WORDS * 8
assert BACKUP_MANIFEST.itemsize == BACKUP_MANIFEST_WORDS * 8
assert ARCHIVE_SEGMENT.itemsize == ARCHIVE_WORDS * 8
assert BACKUP_BLOCK.fields is not None and BACKUP_BLOCK.fields["backup"][1] == 40
