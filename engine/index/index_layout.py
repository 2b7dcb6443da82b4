"""Word offsets of ordered indexes in the arena: descriptor, nodes, cursors (main memory only).

See docs/internals/access.md, sections 4 and 5. Kernels freeze these constants; the kernel cache is keyed on this file.
"""

from __future__ import annotations

from tidemark.engine.base.limits import INDEXES_MAX
from tidemark.engine.memory.arena_layout import (
    BLOCK_WORDS,
    COMPACT_SLOT_BITS,
    D_GENERATION,
    PAGE_WORDS,
    TXN_WORDS,
    X_UNIQUE,
)
from tidemark.engine.rows.columns_layout import COLUMN_WORDS

# --- descriptor (a block) -----------------------------------------------------------------------
I_STATE = 0
I_WORDS = 1  # W: key words of an entry
I_IS_EXACT = 2  # 1: an entry holds the whole key
I_LEAF_CAPACITY = 3
I_INNER_CAPACITY = 4
I_ROOT = 5
I_HEIGHT = 6  # levels; 1 while the root is a leaf
I_COUNT = 7  # entries
I_FIRST_LEAF = 8
I_LAST_LEAF = 9
I_FREE = 10  # the tree's own list of free blocks, linked through word 0
I_FREE_COUNT = 11
I_RESERVED = 12  # entries reserved by open transactions
I_COLUMN_COUNT = 13
I_KEY_WORDS = 14  # maximum words of a whole key
I_NULLABLE = 15  # bit i: key column i may be NULL
I_SIDE = 16  # four scratch parts of I_SIDE_STRIDE words
I_SIDE_STRIDE = 17
I_SIDE_IS_PAGE = 18  # 1: a page, 0: a block
I_CREDIT = 19  # entries added to leaves less than half full, at most C = a leaf's capacity; an append split spends C/2
I_POOL = 20
I_VERSION = 22  # counts changes of the tree: tells a check in slices whether the tree changed between them
I_JOINS = 24
I_INSERTED = 25
I_DELETED = 26
I_BIRTH = 27  # S_INDEX_GENERATION when it was announced
I_BUILT_FRAGMENT = 28  # rows of fragments before this one, and of this one before I_BUILT_ROWID, have their entries
I_BUILT_ROWID = 29
I_SPLITS = 31  # of leaves
I_UNIQUE = 30  # hash with the entries of a unique index (engine/index/unique_layout.py); 0: ordered index
I_LEVELS = 32  # nodes of each level, leaves first
I_PATH = 64  # node and child number of each level of the last descent
I_PIECE_WORDS = 96  # words of each piece of the primary key, -1 if it begins with its length
I_COLUMNS = 128  # column words of the key columns

HEIGHT_MAX = 16
KEY_COLUMNS_MAX = 32
ENTRY_KEY_WORDS_MAX = 4
LONG_KEY_WORDS = 4  # W of an inexact index: ties read rows, a microsecond each, so they must be rare
KEY_WORDS_MAX = PAGE_WORDS // 4 - 2  # so that a page holds the four scratch parts

INDEX_BUILDING = 1
INDEX_READY = 2
INDEX_ANNOUNCED = 4  # operations reserve for it; it is empty until older transactions have ended
BUILT_WHOLLY = 1 << 62  # in I_BUILT_FRAGMENT

# --- list of a table's indexes (a block) ----------------------------------------------------------
XL_COUNT = 0
LISTED_MAX = 2 * INDEXES_MAX  # a unique index that is ordered has two descriptors
XL_FIRST = 1  # descriptors, in order of creation
XL_UNIQUES = 72  # how many of them are of hashes
XL_TAGS = 128  # for each, during an operation: tag of the entry the operation has taken, -1 if none

# scratch parts, in units of I_SIDE_STRIDE
SIDE_TARGET = 0  # whole key of the entry being added or removed
SIDE_OTHER = 1  # whole key of the row it is compared with
SIDE_VALUE = 2  # a value copied from a chained var part
SIDE_CONSTANTS = 3  # defaults of absent var columns

# --- node (a block) -----------------------------------------------------------------------------
N_LEVEL = 0  # 0: leaf; on the list of free blocks this word is the link
N_COUNT = 1  # entries, or children
N_PREVIOUS = 2  # leaves only
N_NEXT = 3
N_INDEX = 4  # descriptor
NODE_HEADER_WORDS = 8
NODE_ROOM = BLOCK_WORDS - NODE_HEADER_WORDS
LEAF_CAPACITY_MIN = 4
INNER_CAPACITY_MIN = 8

# --- key words ----------------------------------------------------------------------------------
PLACE_SHIFT = COMPACT_SLOT_BITS
PLACE_SLOT_MASK = (1 << COMPACT_SLOT_BITS) - 1
PLACE_BELOW = -1  # sorts before every entry with the same words
PLACE_ABOVE = (1 << 62) - 1

# --- target: the key of a search, and the position of a scan -------------------------------------
TG_PLACE = 0
TG_WORDS = 1
TG_KEY = 2

# --- state of a check in slices ------------------------------------------------------------------
CK_ENTRIES = 0
CK_LEAVES = 1
CK_FAULT = 2
CK_EVIDENCE = 3
CK_LEVELS = 8  # nodes seen on each level, without leaves
CK_WORDS = CK_LEVELS + HEIGHT_MAX
FAULT_ORDER = 1
FAULT_ROW = 2  # the place of an entry has no LIVE row
FAULT_KEY = 3  # the words of an entry differ from its row's
FAULT_NODE = 4  # level, count or fill of a node
FAULT_LINK = 5
FAULT_SEPARATOR = 6
FAULT_COUNT = 7
FAULT_FREE = 8  # the list of free blocks
FAULT_MISSING = 9  # a row has no entry
FAULT_TWICE = 10  # two rows have one key, or a row two entries

# --- unique indexes ------------------------------------------------------------------------------
# The words of the descriptor about nodes have other meanings. I_UNIQUE points to a block in the form of a fragment
# descriptor, in which only the words of the hash index are used.
U_SEED = I_LEVELS  # of the hash over key words
U_TAKES = I_LEVELS + 1  # transactions of this generation or newer take entries
U_SUSPECTS = I_LEVELS + 2  # operations that found their key in another row during the build
U_VERSION = I_LEVELS + 3  # counts entries taken and removed
U_EVIDENCE = I_PATH  # stands in for a transaction descriptor in a walk outside transactions
TAKES_NEVER = 1 << 62

# --- state of a check in slices, besides CK_FAULT and CK_EVIDENCE ----------------------------------
CU_DIRECTORY = 8  # position in the directory
CU_PART = 9  # number of the next block of the segment there; past its last block, the overflow list is next
CU_ENTRIES = 10
CU_WORDS = 16


def leaf_capacity(words: int) -> int:
    """Return the capacity of a leaf in entries."""
    return NODE_ROOM // (words + 1) & ~1


def inner_capacity(words: int) -> int:
    """Return the capacity of an inner node in children."""
    return NODE_ROOM // (words + 2) & ~1


assert I_VERSION < D_GENERATION < I_JOINS and I_SPLITS < I_LEVELS
assert I_LEVELS + HEIGHT_MAX <= I_PATH
assert I_PATH + 2 * HEIGHT_MAX <= I_PIECE_WORDS
assert I_PIECE_WORDS + KEY_COLUMNS_MAX <= I_COLUMNS
assert I_COLUMNS + KEY_COLUMNS_MAX * COLUMN_WORDS <= BLOCK_WORDS
assert N_INDEX < NODE_HEADER_WORDS
assert leaf_capacity(ENTRY_KEY_WORDS_MAX) >= 64 and inner_capacity(ENTRY_KEY_WORDS_MAX) >= 64
assert 4 * (KEY_WORDS_MAX + 2) <= PAGE_WORDS
assert XL_FIRST + LISTED_MAX <= XL_UNIQUES < XL_TAGS and XL_TAGS + LISTED_MAX <= BLOCK_WORDS
assert U_VERSION < I_PATH
assert U_EVIDENCE + TXN_WORDS <= I_PIECE_WORDS < I_COLUMNS
assert X_UNIQUE < TXN_WORDS
