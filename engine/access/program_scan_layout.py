"""State of a scan that runs a program over rows in place: words shared by Python and its kernel.

Main memory only. Kernels freeze these constants; the kernel cache is keyed on this file.
"""

from __future__ import annotations

PS_ROWS = 0  # entries copied out
PS_WORDS = 1  # words they take
PS_POSITION = 2  # next ROWID
PS_STATUS = 3  # RUN_OK, RUN_LAST, RUN_ERROR or RUN_FULL
PS_CODE = 4  # of an error
PS_LOOKED = 5  # slots examined in this call
PS_END = 6  # 1: the fragment has no more pages
PS_OWN = 7  # not 0: the next row is copied before it is judged
PS_STATE_WORDS = 8
OWN = 1  # the transaction has changed it
OWN_NOT = 2  # its var part is missing or in several chunks
