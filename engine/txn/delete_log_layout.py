"""Word offsets of the delete log in the arena (docs/internals/node-group.md, *The delete log*); main memory only.

Its region: a descriptor, then a ring of entries. Kernels freeze these constants.
"""

from __future__ import annotations

from tidemark.engine.log.redo_layout import FRAGMENT_MASK, FRAGMENT_SHIFT, TABLE_MASK

# --- descriptor ---------------------------------------------------------------------------------
DL_CAPACITY = 0  # capacity of the ring in entries
DL_HEAD = 1  # entries ever appended: position of the next one
DL_NEXT = 2  # address of the next entry
DL_LAST = 3  # address of the newest entry
DL_END = 4  # address after the ring
DL_CUT = 5  # deletes of this epoch and older ones may be missing
DL_WORDS = 8

# --- entry: rows at consecutive slots of one page, deleted in one epoch --------------------------
DE_PLACE = 0  # table | fragment << FRAGMENT_SHIFT, as in word 1 of a record, without the version
DE_ROWS = 1  # first ROWID | count << COUNT_SHIFT, as in word 2 of a record
DE_EPOCH = 2
DELETE_ENTRY_WORDS = 3

PLACE_MASK = TABLE_MASK | FRAGMENT_MASK << FRAGMENT_SHIFT
