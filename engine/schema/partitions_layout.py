"""Partition words, with which a kernel finds the partition of a canonical key (docs/internals/access.md, section 10).

Main memory only. A header, then entries. In the arena, the header is a block and the entries are in units (blocks or
pages); the private copy for batches is one array. Addresses of units in the header are indexes of the array that
has the header.
"""

from __future__ import annotations

SP_KIND = 0
SP_LINEAR = 1  # 1: mask and halve instead of remainder
SP_FRAGMENTS = 2  # of the hash kinds
SP_MASK = 3  # next power of two, minus one
SP_KEY_COLUMNS = 4
SP_COLUMNS = 5
SP_ENTRIES = 6
SP_STRIDE = 7  # words of an entry
SP_PER_UNIT = 8  # entries of a unit
SP_UNIT_COUNT = 9
SP_UNIT_IS_PAGE = 10
SP_SPAN = 11  # hash: number of partition columns if they are consecutive in the key; 0 if they must be gathered
SP_WIDTHS = 16  # words of each key column; 0: a word with the size in bytes, then the bytes
SP_ORDINALS = 48  # ordinal of each partition column in the key
SP_CLASSES = 80  # order of its words
SP_BOUND_WORDS = 112  # its words in an entry
SP_UNITS = 144  # address of each unit
SP_UNITS_MAX = 368
SP_WORDS = 512

# Entry: fragment number, a bit for each column that is MAXVALUE, then the ordered words of each column. Those of a
# variable column come after its size in bytes.
EN_NUMBER = 0
EN_ABOVE = 1
EN_HEADER_WORDS = 2

KIND_HASH = 1
KIND_MODULO = 2
KIND_RANGE = 3
KIND_LIST = 4

# Order of a column's words.
ORDER_SIGNED = 0
ORDER_UNSIGNED = 1
ORDER_FLOAT32 = 2
ORDER_FLOAT64 = 3
ORDER_WIDE = 4
ORDER_BYTES = 5

# A table's private hash header.
HH_FRAGMENTS = 0
HH_FIXED_WORDS = 1
HH_SEED = 2
HH_PARTITION = 3  # index of its partition words; 0: by hash of the whole key
HH_WORDS = 8

assert SP_UNITS + SP_UNITS_MAX == SP_WORDS
assert SP_WIDTHS + 32 == SP_ORDINALS and SP_BOUND_WORDS + 32 == SP_UNITS
