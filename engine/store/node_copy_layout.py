"""Copying a fragment to a node that comes back: a word of its descriptor, and what a slice is (docs/node-group.md, 4).

A slice is a run of items in the order of ROWIDs. A row is an entry as in a local checkpoint, in tables with disk
columns with its disk part behind the image. A range, at whose slots no row is, has as its first word the complement of
its first ROWID, which no entry has, and then the ROWID behind its last.
"""

from __future__ import annotations

from tidemark.engine.memory.arena_layout import F_CAPTURE, F_VAR_LISTS, ROWID_MASK

F_UNCOPIED = 56  # first ROWID whose slot is still to be copied from a live node, plus 1; 0: none is
RANGE_WORDS = 2
DELETED_WORDS = 2  # of an item of the delete log on its way: DE_PLACE and DE_ROWS
ROWID_END = ROWID_MASK + 1  # behind every ROWID

assert F_CAPTURE < F_UNCOPIED < F_VAR_LISTS

# Words of the state of these kernels.
N_POSITION = 0  # scan: ROWID to go on from; joiner: first ROWID of the slice, or of what is not copied yet
N_USED = 1  # words of the output in use
N_ROWS = 2  # rows written, or found
N_RANGES = 3
N_RUN = 4  # scan: place of the range that the next empty slot may extend, -1 none
N_NEXT = 5  # word of the input that is looked at
N_LOOKED = 6  # slots looked at, a missing page as one
NODE_COPY_STATE_WORDS = 8
