"""Every maximum, once, with its unit and the reason for its value (D14)."""

from __future__ import annotations

# Names: as in MySQL, so that replicated names always fit.
NAME_CHARACTERS_MAX = 64
# Columns of a table: the var part counts its columns in 12 bits; 1,024 leaves room for added ones.
COLUMNS_MAX = 1_024
# Columns of a primary key, as in NDB.
KEY_COLUMNS_MAX = 32
# Canonical key bytes: the var part counts key words in 12 bits.
KEY_BYTES_MAX = 3_072
# Fixed image of a row: at least four rows share a 32 KiB page.
FIXED_BYTES_MAX = 8_000
# Var part of a row, Text and Blob not counted: one chunk of a var page.
VAR_BYTES_MAX = 32_000
# One Text or Blob value: end offsets are 31 bits and a row may have several.
LOB_BYTES_MAX = 1 << 30
# The whole var part of one row: end offsets are 31 bits.
VAR_PART_BYTES_MAX = (1 << 31) - 4_096
# Declared length of Char, Binary, VarChar and VarBinary.
CHAR_LENGTH_MAX = 255
BINARY_LENGTH_MAX = 255
VARCHAR_LENGTH_MAX = 8_000
VARBINARY_LENGTH_MAX = 32_000
# Enum members: two bytes on disk.
ENUM_MEMBERS_MAX = 65_535
# Fragments of a table.
FRAGMENTS_MAX = 4_096
# Values in all lists of a table: searched in main memory, and all written into every schema record.
PARTITION_VALUES_MAX = 16_384
# Schema changes of a table: a REDO record has the version it was written with in 16 bits.
SCHEMA_VERSION_MAX = 65_535
# Tables ever created: table numbers are never reused and take 31 bits in a REDO record.
TABLE_ID_MAX = (1 << 31) - 1
# Indexes of a table: a commit keeps in one word which of them a change touches.
INDEXES_MAX = 32
# Columns of an index: its descriptor is one block of the arena.
INDEX_COLUMNS_MAX = 32
# Decimal digits: 128-bit integers.
DECIMAL_PRECISION_MAX = 38
# Pattern of LIKE: a client sends at most 16 MiB for an expression.
PATTERN_BYTES_MAX = 8 << 20
# Transactions open at once: row locks keep the transaction slot in 30 bits.
TRANSACTIONS_OPEN_MAX = 65_536
# Snapshots open at once: a commit that needs room looks at the oldest, and every read searches their list for its own.
SNAPSHOTS_OPEN_MAX = 512
VIEWS_OPEN_MAX = 1_024  # snapshots, and scans that are under way
# Groups of one aggregate with their keys: they are in memory at once, and are moved as they grow.
GROUPS_BYTES_MAX = 1 << 30
GROUP_COLUMNS_MAX = 32  # as of an index
# Openings of a store that write: a transaction id is a non-negative int64, incarnation << 40 | counter.
INCARNATION_MAX = (1 << 23) - 1
# GCI: the epoch is a non-negative int64, GCI << 32 | micro GCI.
GCI_MAX = (1 << 31) - 1

# Smallest sizes that work, in bytes.
DATA_MEMORY_BYTES_MIN = 1 << 20
REDO_LOG_BYTES_MIN = 1 << 20
UNDO_LOG_BYTES_MIN = 1 << 20
PAGE_BUFFER_BYTES_MIN = 64 << 10
SNAPSHOT_MEMORY_BYTES_MIN = 64 << 10
DELETE_LOG_BYTES_MIN = 4 << 10

# Words of a page that a disk part (Text and Blob not counted) cannot use: page header, one slot word, a piece's header.
DISK_PAGE_RESERVED_WORDS = 18


def disk_part_words_max(page_bytes: int) -> int:
    """Return the largest disk part, in words, that is one piece of a page of `page_bytes`."""
    return page_bytes // 8 - DISK_PAGE_RESERVED_WORDS
