"""The structures of disk columns on disk: pages, the first page of a data file, UNDO groups and records, the
double-write file.

A *piece* is the content of one slot of a page: a word with the ROWID of its row (back reference) and flags, then words
of the row's disk part. A disk part that fits a page is one piece. A longer one (Text, Blob) is chained: its first piece
holds the words that fill no page, and links to chunks of one whole page each.

Disk part: word 0 is its total words (bits 0-31) and version (56-62); then the fixed-size disk columns, laid out like a
fixed image; then, if the table has disk columns of variable size, a var part (`engine/schema/row_layout.py`).
"""

from __future__ import annotations

import numpy as np

from tidemark.engine.base import limits
from tidemark.engine.sealed.sealed_layout import SEAL_FIELDS

PAGE_HEADER_WORDS = 16
# Words of the page header, for kernels.
DP_LSN = 5
DP_PAGE = 6
DP_OWNER = 7
DP_FREE = 8
DP_TOP = 9
DP_ENTRIES = 10
DP_FREE_ENTRY = 11
DP_USED = 12

DISK_PAGE = np.dtype(
    [
        *SEAL_FIELDS,
        ("lsn", "<u8"),  # UNDO LSN of the newest change
        ("page", "<u8"),  # data file << 32 | page in the file
        ("owner", "<u8"),  # table | fragment << 32
        ("free_words", "<u8"),  # words that are neither header, pieces nor slots
        ("top", "<u8"),  # first word after the pieces
        ("entries", "<u8"),  # words of the slot directory at the page's end
        ("free_entry", "<u8"),  # first free slot + 1, 0 none
        ("used", "<u8"),  # slots with a piece
        ("reserved", "<u8", (3,)),
    ]
)
# Slot directory word: offset (bits 0-15), words (16-31), free (32); a free slot links to the next in bits 0-15.
ENTRY_WORDS_SHIFT = 16
ENTRY_MASK = 0xFFFF
ENTRY_FREE = 1 << 32

# Piece, word 0: ROWID (bits 0-47), flags.
PIECE_HEADER_WORDS = 1
PIECE_ROWID_MASK = (1 << 48) - 1
PIECE_CHAINED = 1 << 48  # first piece of a chained disk part: two words follow, then the words that fill no page
PIECE_CHUNK = 1 << 49  # one whole page of a chained disk part: two words follow, then its words
PIECE_LINK_WORDS = 2  # reference of the next chunk (0 none); stamp, equal in all pieces of one disk part

OWNER_FRAGMENT_SHIFT = 32
OWNER_TABLE_MASK = (1 << 32) - 1

DATA_FILE_HEADER_BYTES = 4_096  # of the first page; a page may be larger, the rest is zero
DATA_FILE = np.dtype(
    [
        *SEAL_FIELDS,
        ("file_id", "<u8"),
        ("tablespace_id", "<u8"),
        ("page_bytes", "<u8"),
        ("extent_pages", "<u8"),
        ("created_us", "<u8"),
        ("reserved", "<u8", ((DATA_FILE_HEADER_BYTES - 40 - 5 * 8) // 8,)),
    ]
)

# --- UNDO log -------------------------------------------------------------------------------------
UNDO_GROUP_WORDS = 24
UNDO_GROUP_ALIGN_BYTES = 4_096
UNDO_GROUP = np.dtype(
    [
        *SEAL_FIELDS,
        ("sequence", "<u8"),  # 1, 2, 3 ... without a gap
        ("position", "<u8"),  # byte position of the group in the endless log of groups
        ("lap", "<u8"),
        ("first_lsn", "<u8"),  # records with LSNs from this one on ...
        ("next_lsn", "<u8"),  # ... and below this one are in it or were filtered
        ("records_words", "<u8"),  # words of records after this header; the rest is padding
        ("records", "<u8"),
        ("filtered", "<u8"),  # number of filtered records
        ("previous_position", "<u8"),  # of the previous group; its own if it is the first
        ("filtered_epoch", "<u8"),  # newest epoch of any filtered record
        ("reserved", "<u8", (9,)),
    ]
)
# Record: word 0 kind (bits 0-7) | words of the record (16-47); LSN; then by kind.
# An UNDO LSN is the byte position of a record in the endless log of all records, including those filtered later.
UNDO_ALLOC = 1  # reference, owner, epoch
UNDO_UPDATE = 2  # reference, owner, epoch, piece before the change, which kept its length: may be filtered
UNDO_FREE = 3  # reference, owner, epoch, piece before the change
UNDO_CREATE = 4  # table number: no older record is of this table
UNDO_DROP = 5  # table number: no newer record is of this table
UNDO_LCP = 6  # local checkpoint, its epoch: the state of the pages here belongs to this checkpoint
UNDO_RESTART = 7  # local checkpoint, LSN of its UNDO_LCP record, sequence and position of that record's group: the
# records between that record and this one have been undone; reading backward continues at that group
UNDO_KIND_MASK = 0xFF
UNDO_WORDS_SHIFT = 16
UNDO_RECORD_WORDS = 5  # of the first three kinds, before the piece
UNDO_MARK_WORDS = 6  # of the other kinds

# --- double-write file: header, then the pages in its order ----------------------------------------
DOUBLE_WRITE_PAGES_MAX = 256
DOUBLE_WRITE = np.dtype(
    [
        *SEAL_FIELDS,
        ("batch", "<u8"),
        ("pages", "<u8"),
        ("page_bytes", "<u8"),
        ("numbers", "<u8", (DOUBLE_WRITE_PAGES_MAX,)),
        ("checksums", "<u4", (DOUBLE_WRITE_PAGES_MAX,)),  # low halves; they tell pages of this batch from stale ones
        ("reserved", "<u8", (120,)),
    ]
)

# --- extent headers in a local checkpoint -----------------------------------------------------------
EXTENTS = np.dtype(
    [
        *SEAL_FIELDS,
        ("lcp_id", "<u8"),
        ("number", "<u8"),  # of the block in its file, from 0
        ("is_last", "<u8"),
        ("extents", "<u8"),  # in this block
        ("used_words", "<u8"),  # words of extents after this header; the rest is padding
        ("reserved", "<u8", (6,)),
    ]
)
EXTENT_HEADER_WORDS = 4  # table | fragment << 32, first page, pages, 0; then 16 bits of free words per page
EXTENT_FREE_BITS = 16

assert DISK_PAGE.itemsize == PAGE_HEADER_WORDS * 8
assert DISK_PAGE.fields is not None and DISK_PAGE.fields["lsn"][1] == DP_LSN * 8
assert DISK_PAGE.fields["used"][1] == DP_USED * 8
assert DATA_FILE.itemsize == DATA_FILE_HEADER_BYTES
assert UNDO_GROUP.itemsize == UNDO_GROUP_WORDS * 8
assert DOUBLE_WRITE.itemsize == 4_096
assert EXTENTS.itemsize == 16 * 8
assert limits.DISK_PAGE_RESERVED_WORDS == PAGE_HEADER_WORDS + 1 + PIECE_HEADER_WORDS
