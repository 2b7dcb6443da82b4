"""REDO records, which a group of the log consists of. All words are int64, little-endian.

A transaction's buffer holds the same records before commit, so that commit only copies.

Word 0 of a record is kind (bits 0-7) | flags (8-15) | words of the whole record (16-62).
"""

from __future__ import annotations

GROUP_WORDS = 16  # sealed group header, see `engine/log/group_layout.py`
TRANSACTION_WORDS = 4
OPERATION_WORDS = 4
FILES_WORDS = 8  # kind, kind of files, transaction id, blocks, words of records, bytes, digest, 0

KIND_TRANSACTION = 1  # leads the records of one transaction: total words, transaction id, operations
KIND_INSERT = 2  # `count` row images at consecutive slots of one page
KIND_UPDATE = 3  # one after-image
KIND_DELETE = 4
KIND_REFRESH = 5  # row touched without change, for replication
# 6 stays unused: it was a tracked read, which is now an UPDATE that changes nothing
KIND_SCHEMA = 7  # byte length, then JSON of a schema change, zero-padded to words
KIND_FILES = 8  # commit by reference: names sealed files
KIND_NOOP = 9  # an operation that a later one of the same transaction cancelled
KIND_BEFORE = 10  # the before-image of the row that the next record changes, for the binlog
KIND_MAX = 10

FILES_SPOOL = 1  # of a KIND_FILES record: the spool file of this transaction id
FILES_LOAD = 2  # of a KIND_FILES record: load files of one job, described after the record's first words
LOAD_WORDS = 6  # kind, kind of files, transaction id, job, table, number of files
LOAD_FILE_WORDS = 10  # of a file: fragment, part, attempt, tag, rows, pages, blocks, words of records, bytes, digest
LOAD_PLACE_WORDS = 1  # of a file, after those: first page in the fragment

FLAG_VAR_KEPT = 1  # the image is the fixed part only; the var part stays
FLAG_DISK_KEPT = 2  # the image has no disk part; the one on disk stays
FLAG_AGAIN = 4  # in a table that logs before-images: the transaction has already changed this row

KIND_MASK = 0xFF
FLAGS_SHIFT = 8
FLAGS_MASK = 0xFF
WORDS_SHIFT = 16
TABLE_MASK = (1 << 32) - 1
FRAGMENT_SHIFT = 32
FRAGMENT_MASK = 0xFFF
SCHEMA_VERSION_SHIFT = 44
SCHEMA_VERSION_MASK = 0xFFFF
ROWID_MASK = (1 << 48) - 1
COUNT_SHIFT = 48
COUNT_MASK = (1 << 11) - 1
ANY_VALUE_MASK = (1 << 32) - 1
ANY_VALUE_SERVER_MAX = (1 << 31) - 1  # any-values above it are codes; 0: the change originates here
ANY_VALUE_READ = 0x8000_007C  # an UPDATE that changes nothing: the row was read with an exclusive lock
AUTHOR_SHIFT = 32
AUTHOR_MASK = 0xFFFF


def pack_kind(kind, flags, words):  # type: ignore[no-untyped-def]
    """Return word 0 of a record."""
    return kind | flags << FLAGS_SHIFT | words << WORDS_SHIFT


def pack_identity(table, fragment, version):  # type: ignore[no-untyped-def]
    """Return word 1 of an operation record: table, fragment, schema version."""
    return table | fragment << FRAGMENT_SHIFT | (version & SCHEMA_VERSION_MASK) << SCHEMA_VERSION_SHIFT


def pack_rows(rowid, count):  # type: ignore[no-untyped-def]
    """Return word 2 of an operation record: first ROWID and number of rows."""
    return rowid | count << COUNT_SHIFT


assert SCHEMA_VERSION_SHIFT + 16 <= 63 and COUNT_SHIFT + 11 <= 63 and AUTHOR_SHIFT + 16 <= 63
