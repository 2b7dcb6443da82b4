"""Words of a plan by which `values_check_kernels.py` verifies the values of row images, and what it may find.

Main memory only. A plan is a header, then VC_WORDS for each column: fixed ones in memory, pieces of a key in the var
part, var columns in memory, fixed ones on disk, var columns on disk; dropped columns included.
"""

from __future__ import annotations

# --- header ---------------------------------------------------------------------------------------
VP_FIXED_WORDS = 0
VP_HAS_VAR = 1
VP_KEY_WORDS = 2  # of the canonical key in the fixed image; 0: it is in the var part
VP_FIXED = 3  # columns of each kind
VP_KEYS = 4
VP_VAR = 5
VP_DISK_FIXED = 6
VP_DISK_VAR = 7
VP_DISK_WORDS = 8  # fixed words of the disk part; 0: it is not verified
VP_DISK_HAS_VAR = 9
VP_TAIL = 10  # of the part in memory: first byte that must be zero, the byte after the last one, last byte of NULL bits
VP_DISK_TAIL = 14
TAIL_END = 1
TAIL_NULLS = 2  # -1: there are none
TAIL_UNUSED = 3  # bits of that byte that belong to no column
VP_WORDS = 18

# --- columns --------------------------------------------------------------------------------------
VC_AT = 0  # byte offset in the fixed words of its part
VC_BYTES = 1  # width; of a column in a var part the most bytes, -1 without a limit
VC_ROOM = 2  # width with padding: whole words in keys
VC_RULE = 3
VC_LOW = 4
VC_HIGH = 5  # of RULE_WIDE the low word of the greatest magnitude, and VC_LOW the high one
VC_NULL_BYTE = 6
VC_NULL_MASK = 7  # in a var part: 1 if NULL is allowed
VC_MAY_LACK = 8  # 1: a var part may end before it
VC_CHARACTERS = 9  # the most code points; -1 without a limit
VC_WORDS = 10

RULE_ANY = 0  # every value of its bytes is valid
RULE_RANGE = 1  # a number from VC_LOW to VC_HIGH, signed if VC_LOW is negative
RULE_WIDE = 2  # 128 bits, signed
RULE_TEXT = 3  # UTF-8, padded with zeros in fixed parts
RULE_PADDED = 4  # bytes, without zeros at their end in var parts
RULE_KEY_FLOAT = 5  # neither NaN nor -0.0

# --- findings -------------------------------------------------------------------------------------
VALUE_LENGTHS = 1
VALUE_RANGE = 2
VALUE_TEXT = 3
VALUE_UNDER_NULL = 4
VALUE_NULL = 5
VALUE_PADDING = 6
VALUE_PARTITION = 7

# State of a call.
VS_ROW = 0  # where to continue; of a finding, the row after the faulty one
VS_COLUMN = 1  # number in the plan; -1: no single column
VS_WORDS = 2
