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
