"""Bulk load: what kernels that write and read load files are given in arrays, never on disk."""

from __future__ import annotations

# What a load file's rows are like.
LI_FIXED = 0  # fixed words of an image
LI_VAR = 1  # 1: images have a var part
LI_DISK = 2  # 1: a disk part stands behind each image
LI_KEY_WORDS = 3  # words of the key in the fixed part; 0: it lies in the var part
LI_SLOTS = 4  # rows of a page
LI_IDENTITY = 5  # word 1 of its records: table, fragment, version
LI_FRAGMENT = 6
LI_WORDS = 8

# State of a file that is written.
LS_USED = 0  # words used in the block
LS_ROWS = 1  # rows in the file
LS_RECORD = 2  # where the last record begins in the block; 0: there is none yet
LS_WORDS = 4

# One row of a block that was read.
LR_AT = 0  # where its image is
LR_ROWID = 1
LR_TAG = 2  # of the primary index
LR_RECORD = 3  # where its record begins
LR_WORDS = 4

# Where the rows of a file go, kept between calls.
LP_FRAGMENT = 0  # handle of the fragment
LP_NUMBER = 1  # its number
LP_FORMAT = 2  # of the table for which the images were made
LP_FIRST = 3  # logical page of the file's page 0
LP_OPEN = 4  # arena page that is being filled and that nobody else takes a slot of; 0: none
LP_PROBES = 5  # 1: no row is placed any more, only keys are looked for
LP_COUNT = 6  # keys that were found then
LP_WORDS = 8
