"""Bulk load: arrays passed to the kernels that write and read load files, never on disk."""

from __future__ import annotations

# Shape of a load file's rows.
LI_FIXED = 0  # fixed words of an image
LI_VAR = 1  # 1: images have a var part
LI_DISK = 2  # 1: a disk part follows each image
LI_KEY_WORDS = 3  # words of the key in the fixed part; 0: it is in the var part
LI_SLOTS = 4  # rows in a page
LI_IDENTITY = 5  # word 1 of its records: table, fragment, version
LI_FRAGMENT = 6
LI_WORDS = 8

# State of a load file that is being written.
LS_USED = 0  # words used in the block
LS_ROWS = 1  # rows in the file
LS_RECORD = 2  # start of the last record in the block; 0: none yet
LS_WORDS = 4

# One row of a block that was read.
LR_AT = 0  # start of its image
LR_ROWID = 1
LR_TAG = 2  # of the primary index
LR_RECORD = 3  # start of its record
LR_WORDS = 4

# Where the rows of a file go, kept between calls.
LP_FRAGMENT = 0  # handle of the fragment
LP_NUMBER = 1  # its number
LP_FORMAT = 2  # format of the table for which the images were written
LP_FIRST = 3  # logical page of the file's page 0
LP_OPEN = 4  # arena page being filled, reserved for this load; 0: none
LP_PROBES = 5  # 1: rows are no longer placed, only their keys are looked up
LP_COUNT = 6  # how many of these keys were found
LP_WORDS = 8
