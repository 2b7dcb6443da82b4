"""Faults that the verification of disk pages finds, and the words of its state."""

from __future__ import annotations

DISK_PLACE = 1  # the header has another page number
DISK_OWNER = 2  # the page has another owner than its extent
DISK_DIRECTORY = 3  # header and slot directory disagree
DISK_FREE = 4  # the page's free words differ from those its extent counts
DISK_ROW = 5  # a piece whose row does not refer to it
DISK_LENGTH = 6  # a piece whose length differs from that of its disk part
DISK_LOST = 7  # the piece of a row is missing
DISK_CHAIN = 8  # a chunk is missing

# Places in the state of `check_disk_page`.
CD_SLOT = 0  # 1 + the slot at which to continue; 0: the page's header first
CD_PIECES = 1  # first pieces seen
CD_CHUNKS = 2  # words used in `chunks`: reference and ROWID of each chunk
CD_CHAINS = 3  # words used in `chains`: ROWIDs of chained parts
CD_WHERE = 4  # ROWID in the faulty piece
CD_LSN = 5  # LSN of the page
CD_BUSY = 6  # 1 if the page is dirty or being written: the copy on disk is older
CD_WORDS = 7
