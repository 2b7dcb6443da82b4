"""State of the kernels that apply a group of another node's log and tell changed slots, in memory only."""

from __future__ import annotations

GA_AT = 0  # word of the next record
GA_ROW = 1  # rows of the insert record there that are prepared
GA_TOUCHED = 2  # of no meaning; see `look_ahead_of_replay`
GA_IMAGE = 3  # where the image of its next row begins
GA_TXN_STOP = 4  # where the transaction's records end
GA_IS_LARGE = 5  # 1: may be applied in several steps, as a large commit is
GA_IS_READY = 6  # 1: prepared, to be applied
GA_LEFT = 7  # rows this call may still prepare
GA_AHEAD = 8  # records up to here were looked at ahead
GA_ROWS = 9  # rows changed so far
GA_WORDS = 16

GA_DISK = 1  # the unit that is prepared changes disk parts: the caller brings pages and applies it
GA_SCHEMA = 2  # the next transaction is a schema change
GA_FILES = 3  # the next transaction has its records in files
