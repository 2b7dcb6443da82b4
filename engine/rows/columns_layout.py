"""Column words: what a kernel must know of a column to read it out of a row image (docs/access.md, section 1).

Main memory only. Kernels freeze these constants; the kernel cache is keyed on this file.
"""

from __future__ import annotations

COLUMN_WORDS = 8
CW_PART = 0
CW_AT = 1  # fixed parts: byte offset in the part; else ordinal of the var column, or of the piece of the key
CW_BYTES = 2  # width of fixed-size types; else most bytes
CW_CLASS = 3
CW_NULL_BYTE = 4  # byte of the fixed words of its part; -1 if there is no null bit
CW_NULL_MASK = 5  # the bit; of a column in a var part 1 if it is nullable
# Offset of the default of an absent var column among the constants, -1 for NULL; of a piece of a key: of the words of
# each piece up to itself, -1 for those of variable size, which begin with a word of their length.
CW_MISSING = 6
CW_MISSING_BYTES = 7

PART_FIXED = 0
PART_VAR = 1
PART_KEY = 2  # a piece of a canonical key that lies in the var part
PART_DISK = 3
PART_DISK_VAR = 4

CLASS_SIGNED = 0
CLASS_UNSIGNED = 1  # up to 32 bits, so that it fits a signed word
CLASS_FLOAT32 = 2
CLASS_FLOAT64 = 3
CLASS_WIDE = 4  # 128 bits, signed, low word first
CLASS_WIDE_UNSIGNED = 5  # 64 bits of UInt64, read as a wide value
CLASS_BYTES = 6  # zero-padded in fixed parts

assert CW_MISSING_BYTES + 1 == COLUMN_WORDS
