"""Words of the lists that the log follower builds from records, in main memory only (docs/internals/replication.md)."""

from __future__ import annotations

# --- one record --------------------------------------------------------------------------------------
RC_KIND = 0
RC_FLAGS = 1  # of the record | of its before-image << RC_BEFORE_SHIFT
RC_IDENTITY = 2  # words 1, 2, 3 of the record
RC_ROWS = 3
RC_TAIL = 4
RC_TXID = 5
RC_AT = 6  # start of its images, or of its body
RC_STOP = 7  # end of the record
RC_BEFORE = 8  # start of its before-image; -1: it has none
RC_BEFORE_STOP = 9
RECORD_LIST_WORDS = 10
RC_BEFORE_SHIFT = 8

# --- one row: where the parts of its images start ------------------------------------------------------
RW_KIND = 0
RW_IS_AGAIN = 1  # the transaction has already changed the row
RW_PLACE = 2  # fragment << 48 | ROWID
RW_TAIL = 3
RW_TXID = 4
RW_AFTER = 5  # fixed part
RW_AFTER_VAR = 6
RW_AFTER_DISK = 7
RW_BEFORE = 8
RW_BEFORE_VAR = 9
RW_BEFORE_DISK = 10
ROW_LIST_WORDS = 11

PART_NONE = -1
PART_EMPTY = -2  # a var part without values: the image predates the table's var parts

# --- state between calls -----------------------------------------------------------------------------
LS_AT = 0  # word of the records where the next call continues
LS_COUNT = 1  # entries listed
LS_TXID = 2  # transaction whose records are being read
LS_BEFORE = 3  # before-image of the next record, -1: none
LS_BEFORE_STOP = 4
LS_BEFORE_FLAGS = 5
LIST_STATE_WORDS = 6

# --- shape of a table's images -----------------------------------------------------------------------
SH_FIXED_WORDS = 0
SH_HAS_VAR = 1
SH_HAS_DISK = 2
SH_VAR_SINCE = 3  # images of older versions have no var part; 0: all have
SHAPE_WORDS = 4

assert RC_BEFORE_STOP < RECORD_LIST_WORDS and RW_BEFORE_DISK < ROW_LIST_WORDS and LS_BEFORE_FLAGS < LIST_STATE_WORDS
