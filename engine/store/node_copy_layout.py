"""Copying a fragment to a joiner: a word of its descriptor, and the form of a slice (docs/internals/node-group.md).

A slice is a run of items in ROWID order: rows and ranges of empty slots. A row is an entry as in a local checkpoint; in
tables with disk columns, its disk part follows. The first word of a range is the complement of its first ROWID, which
no entry has; the second is the ROWID after its last.
"""

from __future__ import annotations

from tidemark.engine.memory.arena_layout import F_CAPTURE, F_VAR_LISTS, ROWID_MASK

F_UNCOPIED = 56  # first ROWID whose slot is still to be copied from a live node, plus 1; 0: none
RANGE_WORDS = 2
DELETED_WORDS = 2  # words of an entry of the delete log as it is sent: DE_PLACE and DE_ROWS
ROWID_END = ROWID_MASK + 1  # past every ROWID

assert F_CAPTURE < F_UNCOPIED < F_VAR_LISTS

# State words of these kernels.
N_POSITION = 0  # scan: ROWID to continue from; joiner: first ROWID of the slice, or of the part not copied yet
N_USED = 1  # words of the output in use
N_ROWS = 2  # rows written, or found
N_RANGES = 3
N_RUN = 4  # scan: offset of the range that the next empty slot may extend, -1: none
N_NEXT = 5  # current word of the input
N_LOOKED = 6  # slots visited; a missing page counts as one
NODE_COPY_STATE_WORDS = 8
