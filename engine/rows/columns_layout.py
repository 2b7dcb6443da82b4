"""Column words: the description by which a kernel reads a column from a row image.

Main memory only (docs/internals/access.md, section 1). Compiled kernels contain these constants, so this file is part
of the kernel cache's key.
"""

from __future__ import annotations

COLUMN_WORDS = 8
CW_PART = 0
CW_AT = 1  # fixed parts: byte offset in the part; else ordinal of the var column or of the piece of the key
CW_BYTES = 2  # width of fixed-size types; else the maximum bytes
CW_CLASS = 3
CW_NULL_BYTE = 4  # byte in the fixed words of its part; -1 if there is no null bit
CW_NULL_MASK = 5  # the null bit; for a column in a var part, VAR_NULLABLE and VAR_PADDED
# Offset among the constants of an absent var column's default, -1 for NULL. For a piece of a key: offset of the word
# counts of the key's pieces up to and including this one; -1 stands for a piece of variable size, which begins with a
# length word.
CW_MISSING = 6
CW_MISSING_BYTES = 7

VAR_NULLABLE = 1
VAR_PADDED = 2  # the value is stored without the zero bytes at its end

PART_FIXED = 0
PART_VAR = 1
PART_KEY = 2  # a piece of a canonical key in the var part
PART_DISK = 3
PART_DISK_VAR = 4

CLASS_SIGNED = 0
CLASS_UNSIGNED = 1  # up to 32 bits, so it fits a signed word
CLASS_FLOAT32 = 2
CLASS_FLOAT64 = 3
CLASS_WIDE = 4  # 128 bits, signed, low word first
CLASS_WIDE_UNSIGNED = 5  # 64 bits of UInt64, read as a wide value
CLASS_BYTES = 6  # zero-padded in fixed parts

assert CW_MISSING_BYTES + 1 == COLUMN_WORDS
