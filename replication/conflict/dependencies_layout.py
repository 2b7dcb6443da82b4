"""Words of the tables in which dependencies between transactions of one epoch are tracked. Main memory only."""

from __future__ import annotations

# --- state ------------------------------------------------------------------------------------------
D_TRANSACTIONS = 0  # transactions numbered so far
D_KEYS = 1
D_KEY_WORDS = 2  # words of `keys` in use
D_EDGES = 3
D_MARKED = 4
D_PARTS = 5  # number of parts in which keys are tracked, by hash: a power of two; 0 counts as 1
D_PART = 6  # the part whose keys are tracked
D_SEED = 7  # seed of the hashes
DEPENDENCY_STATE_WORDS = 8

# --- one transaction ----------------------------------------------------------------------------------
TRANSACTION_WORDS = 3
T_ID = 0
T_FIRST = 1  # 1 + number of its newest edge, 0 without one
T_MARK = 2

# --- an edge to the transaction that wrote a key next --------------------------------------------------
EDGE_WORDS = 2
E_TO = 0
E_NEXT = 1

# --- a key ----------------------------------------------------------------------------------------------
K_HEAD = 0  # table << KEY_TABLE_SHIFT | words of the key after these two
K_OWNER = 1  # number of the transaction that wrote it last
K_DATA = 2
KEY_TABLE_SHIFT = 32
KEY_LENGTH_MASK = (1 << KEY_TABLE_SHIFT) - 1

PART_SHIFT = 40  # the bits of a key's hash from here on select its part, lower ones its slot

DEPENDENCY_BROKEN = -1  # sizes that contradict each other

assert D_SEED + 1 == DEPENDENCY_STATE_WORDS
assert T_MARK + 1 == TRANSACTION_WORDS
