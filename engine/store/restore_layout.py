"""What kernels of a restore know of a table, keep of a changed row, and where they have come to."""

from __future__ import annotations

CHANGE_WORDS = 1  # before the record: the epoch

# A folded row, one for each ROWID that was changed, in their order.
D_ROWID = 0
D_BASE = 1  # BASE_ABSENT, BASE_WANTED: what the backup must have there; BASE_MET: it had it
D_IMAGE = 2  # where its fixed image lies; -1: there is no row in the end
D_VAR = 3  # where its var part lies; VAR_KEPT: as in the backup; VAR_NONE: it has none
D_EPOCH = 4
D_AUTHOR = 5
D_KEY = 6  # where the key lies that the backup's row must have; -1: it was not said
D_KEY_WORDS = 7
FOLDED_WORDS = 8
BASE_ABSENT = 0
BASE_WANTED = 1
BASE_MET = 2
VAR_KEPT = -1
VAR_NONE = -2

# What the kernels know of a table and fragment.
P_FIXED = 0
P_HAS_VAR = 1  # of images as they are to be
P_VAR_SINCE = 2  # version of the definition from which on they are so
P_KEY_WORDS = 3  # 0: the key lies in the var part
P_TABLE = 4
P_FRAGMENT = 5
P_SLOTS = 6
P_LEVEL_HAS_VAR = 7  # and of a level: of the images in it
P_SINCE = 8
P_EPOCH = 9
P_IS_NEWEST = 10
SHAPE_WORDS = 11

# Where they have come to.
R_NEXT = 0  # word, change or folded row to go on from
R_USED = 1  # words, or rows, of the output
R_COUNT = 2  # changes collected; of a merge: rows taken out of the levels
R_ROWID = 3  # of the last entry of the level, -1 before the first
R_CHANGE = 4  # folded row to look at next
RESTORE_STATE_WORDS = 5
