"""State words of kernels that write and read entries of rows: backups, node copies, digests."""

from __future__ import annotations

B_NEXT = 0  # row, or word, to continue from
B_USED = 1  # words of the output in use
B_ENTRIES = 2  # entries written, or placed
BACKUP_STATE_WORDS = 3

SUM_WORDS = 3  # rows, sum of lane 0, sum of lane 1
