"""What the verification of disk pages finds, and the words of its state."""

from __future__ import annotations

DISK_PLACE = 1  # the page is another one
DISK_OWNER = 2  # its owner is not its extent's
DISK_DIRECTORY = 3  # header and slot directory disagree
DISK_FREE = 4  # free words are not those its extent counts
DISK_ROW = 5  # a piece of a row that does not lead to it
DISK_LENGTH = 6  # a piece that is not as long as its disk part says
DISK_LOST = 7  # a row whose piece is not there
DISK_CHAIN = 8  # a chunk that is not there

# Places in the state of `check_disk_page`.
CD_SLOT = 0  # slot to go on from; 0: the page itself first
CD_PIECES = 1  # first pieces seen
CD_CHUNKS = 2  # words used in `chunks`: reference and ROWID of each chunk
CD_CHAINS = 3  # words used in `chains`: ROWIDs of chained parts
CD_WHERE = 4  # ROWID the faulty piece tells
CD_LSN = 5  # of the page
CD_BUSY = 6  # 1 if the page is dirty or being written: what is on disk is older
CD_WORDS = 7
