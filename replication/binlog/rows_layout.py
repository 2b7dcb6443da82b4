"""Row plans: the words by which kernels turn row images into MySQL's row bodies and back. Main memory only.

A plan that reads images has the form of an interpreted program (`program_layout.py`), so that the same helpers find
columns in images: header, column words, four words for each column in the place of instructions, constants. A plan that
reads row bodies has only those four words for each column. Kernels freeze these constants.
"""

from __future__ import annotations

from tidemark.engine.programs.program_layout import INSTRUCTION_WORDS

ROW_CODE_WORDS = INSTRUCTION_WORDS
RW_CODE = 0
RW_SIZE = 1  # bytes of the value; strings: bytes of the length prefix; decimals: the precision
RW_SCALE = 2  # decimals: the scale; calendar: digits of the fraction of a second; enums: number of members
RW_WIDTH = 3  # bytes of the value in the store, 0 for strings of variable size

ROW_UNSIGNED = 0  # little-endian; floats too
ROW_SIGNED = 1
ROW_ENUM = 2  # counted from 1
ROW_STRING = 3
ROW_DECIMAL = 4
ROW_DATE = 5
ROW_TIME = 6
ROW_DATETIME = 7
ROW_TIMESTAMP = 8
ROW_YEAR = 9  # only read
ROW_BIT = 10  # big-endian; only read

# A cell: offset of a value in a body << CELL_SIZE_BITS | its bytes; CELL_NULL for NULL.
CELL_SIZE_BITS = 31
CELL_SIZE_MASK = (1 << CELL_SIZE_BITS) - 1
CELL_NULL = -1
# The most bytes of a body read at once, so that a cell stays a non-negative int64.
BODY_BYTES_MAX = (1 << 31) - 1

assert ROW_CODE_WORDS == RW_WIDTH + 1
