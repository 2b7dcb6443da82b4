"""Files of a local checkpoint: data files of sealed blocks, and the control file that makes them valid (D6).

A block is a header followed by row entries: ROWID, epoch, author | table << 16 | fragment << 47, row image.
The control file is one sealed unit: header, then a JSON body.
"""

from __future__ import annotations

import numpy as np

from tidemark.engine.sealed.sealed_layout import SEAL_FIELDS

BLOCK_HEADER_WORDS = 16
CONTROL_HEADER_WORDS = 16
UNIT_WORDS_MIN = 32

LCP_BLOCK = np.dtype(
    [
        *SEAL_FIELDS,
        ("lcp_id", "<u8"),
        ("table_id", "<u4"),
        ("fragment", "<u4"),
        ("number", "<u4"),  # of the block in its file, from 0
        ("is_last", "<u4"),
        ("entries", "<u8"),  # in this block
        ("entry_words", "<u8"),  # words of entries after the header; the rest is padding
        ("total_entries", "<u8"),  # in the file, up to the end of this block
        ("reserved", "<u8", (5,)),
    ]
)
LCP_CONTROL = np.dtype(
    [
        *SEAL_FIELDS,
        ("lcp_id", "<u8"),
        ("epoch", "<u8"),  # the content is exactly the state at the end of this epoch
        ("start_lsn", "<u8"),  # replay starts here
        ("start_sequence", "<u8"),
        ("next_table_id", "<u8"),
        ("body_bytes", "<u8"),
        ("reserved", "<u8", (5,)),
    ]
)

# Table and fragment of the file that holds the old rows copied by commits, for all fragments.
COPIES_TABLE = 0
COPIES_FRAGMENT = (1 << 32) - 1
# Table and fragment of the file of extent headers.
EXTENTS_TABLE = 0
EXTENTS_FRAGMENT = (1 << 32) - 2

# Word 2 of an entry: author, table, fragment.
ENTRY_AUTHOR_MASK = 0xFFFF
ENTRY_TABLE_SHIFT = 16
ENTRY_TABLE_MASK = (1 << 31) - 1
ENTRY_FRAGMENT_SHIFT = 47
ENTRY_FRAGMENT_MASK = 0xFFF


def pack_entry_place(author: int, table: int, fragment: int) -> int:
    """Return word 2 of an entry."""
    return author | table << ENTRY_TABLE_SHIFT | fragment << ENTRY_FRAGMENT_SHIFT


def entry_table(word: int) -> int:
    """Return the table number in word 2 of an entry."""
    return (word >> ENTRY_TABLE_SHIFT) & ENTRY_TABLE_MASK


def entry_fragment(word: int) -> int:
    """Return the fragment number in word 2 of an entry."""
    return (word >> ENTRY_FRAGMENT_SHIFT) & ENTRY_FRAGMENT_MASK


assert LCP_BLOCK.itemsize == BLOCK_HEADER_WORDS * 8
assert LCP_CONTROL.itemsize == CONTROL_HEADER_WORDS * 8
