"""Word offsets of unique indexes in the arena (main memory only; docs/internals/access.md, 6).

The descriptor is that of ordered indexes, with other meanings for its words about nodes. I_UNIQUE points to a block in
the form of a fragment descriptor, in which only the words of the hash index are used.
"""

from __future__ import annotations

from tidemark.engine.index.index_layout import I_COLUMNS, I_LEVELS, I_PATH, I_PIECE_WORDS
from tidemark.engine.memory.arena_layout import TXN_WORDS, X_UNIQUE

U_SEED = I_LEVELS  # of the hash over key words
U_TAKES = I_LEVELS + 1  # transactions of this generation or newer take entries
U_SUSPECTS = I_LEVELS + 2  # operations that found their key in another row during the build
U_VERSION = I_LEVELS + 3  # counts entries taken and removed
U_EVIDENCE = I_PATH  # stands in for a transaction descriptor in a walk outside transactions
TAKES_NEVER = 1 << 62

# --- state of a check in slices, besides CK_FAULT and CK_EVIDENCE ----------------------------------
CU_DIRECTORY = 8  # position in the directory
CU_PART = 9  # block of the segment there; after the blocks, its overflow list
CU_ENTRIES = 10
CU_WORDS = 16

assert U_VERSION < I_PATH
assert U_EVIDENCE + TXN_WORDS <= I_PIECE_WORDS < I_COLUMNS
assert X_UNIQUE < TXN_WORDS
