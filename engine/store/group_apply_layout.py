"""State words of the kernels that apply a group of another node's log, in memory only."""

from __future__ import annotations

GA_AT = 0  # word of the next record
GA_ROW = 1  # rows prepared of the insert record there
GA_IMAGE = 3  # offset of the image of that record's next row
GA_TXN_STOP = 4  # end of the transaction's records
GA_IS_LARGE = 5  # may be applied in several steps, like a large commit: 1, which begins and ends with its records; 2
GA_IS_READY = 6  # 1: a unit is prepared and must be applied
GA_LEFT = 7  # rows this call may still prepare
GA_AHEAD = 8  # records up to here were read ahead
GA_WORDS = 16

LARGE = 1
LARGE_OF_FILES = 2  # the caller begins and ends the commit

GA_DISK = 1  # the prepared unit changes disk parts: the caller loads pages and applies it
GA_SCHEMA = 2  # the next transaction is a schema change
GA_FILES = 3  # the records of the next transaction are in files
