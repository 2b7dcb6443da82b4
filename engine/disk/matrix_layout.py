"""Words of the reports on a tablespace: its search matrix, and the findings of a verification."""

from __future__ import annotations

from tidemark.engine.memory.arena_layout import DISK_CLASSES, MATRIX_ROWS

# Places in the result of `matrix_of`, after the two numbers of each list: extents, free words.
MATRIX_LISTS = MATRIX_ROWS * DISK_CLASSES
MX_FREE = MATRIX_LISTS
MX_CURRENT = 2 * MATRIX_LISTS  # 1 if there is a current extent
MX_CURRENT_FREE = MX_CURRENT + 1
MX_EXTENTS = MX_CURRENT + 2
MX_DIRTY = MX_CURRENT + 3  # open pages that are dirty
MX_RESERVED = MX_CURRENT + 4  # open pages that are only reserved
MX_RESERVED_WORDS = MX_CURRENT + 5
MX_FILL = MX_CURRENT + 6  # 10 counts of pages, by tenths of their fill
FILL_STEPS = 10
MATRIX_WORDS = MX_FILL + FILL_STEPS

# Findings of `check_space`, which stops at the first.
SPACE_CLASSES = 1  # counts of pages by class
SPACE_FREE = 2  # sum of free words
SPACE_POSITION = 3  # the extent is in the wrong list of the matrix
SPACE_LINKS = 4  # the links of its list
SPACE_OPEN = 5  # an open page's cell does not belong to the page, or is in the wrong list
SPACE_OPEN_LINKS = 6
SPACE_WORDS = 7  # a page with an impossible number of words
SPACE_EXTENT = 8  # an extent that is not where its first page number says
