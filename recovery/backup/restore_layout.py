"""Words of restore kernels: the shape of a table, a changed row, the progress."""

from __future__ import annotations

CHANGE_WORDS = 1  # before the record: the epoch

# A folded row, one for each changed ROWID, in ROWID order.
D_ROWID = 0
D_BASE = 1  # BASE_ABSENT or BASE_WANTED: whether the backup must have the row; BASE_FOUND: it has
D_IMAGE = 2  # offset of its fixed image; -1: the final state has no row
D_VAR = 3  # offset of its var part; VAR_KEPT: as in the backup; VAR_NONE: none
D_EPOCH = 4
D_AUTHOR = 5
D_KEY = 6  # offset of the key that the backup's row must have; -1: unknown
D_KEY_WORDS = 7
FOLDED_WORDS = 8
BASE_ABSENT = 0
BASE_WANTED = 1
BASE_FOUND = 2
VAR_KEPT = -1
VAR_NONE = -2

# The shape of a table and fragment.
P_FIXED = 0
P_HAS_VAR = 1  # of restored images
P_VAR_SINCE = 2  # schema version from which on images have it
P_KEY_WORDS = 3  # 0: the key is in the var part
P_TABLE = 4
P_FRAGMENT = 5
P_SLOTS = 6
P_LEVEL_HAS_VAR = 7  # from here on, the shape of a level
P_SINCE = 8
P_EPOCH = 9
SHAPE_WORDS = 10

# A row of a level, beside its image.
ROW_ID = 0
ROW_EPOCH = 1
ROW_AUTHOR = 2
ROW_VALUES = 3  # how many values of its var part were stored; -1: all
ROW_WORDS = 4

# The progress.
R_NEXT = 0  # word, change or folded row to continue from
R_USED = 1  # words, or rows, of the output
R_COUNT = 2  # changes collected; in a merge: rows taken from the levels
R_ROWID = 3  # of the last entry of the level, -1 before the first
R_CHANGE = 4  # next folded row
RESTORE_STATE_WORDS = 5
