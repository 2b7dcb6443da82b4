"""Scans that judge rows in place: the state that Python and the kernels share, and filters.

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

# --- filters: up to three tests of columns, then aggregates (`engine/queries/filters.py`) ------------------
FT_FORM = 0  # which loop tests the rows
FT_ACCEPTED = 1  # bit o: rows are accepted for which the set of tests o holds
FT_AGGREGATES = 2
FT_TESTS = 4
FORM_ALL = 0  # no test
FORM_INTEGER = 1  # one test of an integer that is never NULL
FORM_NUMBER = 2  # one test of a number that is never NULL
FORM_INTEGERS = 3  # two of them
FORM_NUMBERS = 4
FORM_ANY = 5

TEST_WORDS = 8
TW_WORD = 0  # word of the row, counted from its header
TW_LEFT = 1  # shift that puts the value at the top of a word
TW_MASK = 2  # the bits that are the value's
TW_FOLD = 3  # bits that the sign of a float inverts, so that floats are in the order of integers; 0 for integers
TW_LEAST = 4  # the test holds from here on
TW_SPAN = 5  # and so far, as an unsigned number: ranges go past the end to the beginning
TW_NULL_WORD = 6  # of the row, counted from its header
TW_NULL_BIT = 7  # 0 if the column is never NULL

FT_ADDED = FT_TESTS + 3 * TEST_WORDS
AGGREGATE_WORDS = 16  # column words (`engine/rows/columns_layout.py`), then these
AG_OPCODE = 8  # OP_COUNT, OP_SUM, OP_MIN or OP_MAX
AG_TYPE = 9
AG_WAY = 10
AG_READ = 11  # 0: the column is in the register already
AG_WORD = 12  # of a sum of words: word of the fixed image
AG_NULL_WORD = 13
AG_NULL_BIT = 14  # 0 if the column is never NULL
WAY_MACHINE = 0
WAY_ROWS = 1  # count rows
WAY_INTEGERS = 2  # sum of integers of eight bytes
WAY_FLOATS = 3

# --- columns that rows are copied into (`engine/queries/column_scans.py`) ----------------------------------
CO_COLUMNS = 0
CO_CAPACITY = 1  # rows that the columns have room for
CO_FIRST = 2

CO_WORDS = 16  # of each column:
CO_KIND = 0
CO_UNIT = 1  # bytes of the elements that values are copied by; of texts, of their ends
CO_UNITS = 2  # elements of a value; of padded texts, their width in bytes
CO_AT = 3  # first element, from the fixed image on; of padded texts the byte, of var columns the ordinal
CO_TARGET = 4  # element of the output that the first value goes to; of texts, their ends
CO_NULL_WORD = 5  # of the fixed image
CO_NULL_BIT = 6  # 0 if the column is never NULL
CO_BITMAP = 7  # word of the output where the validity begins, or -1
CO_BYTES = 8  # byte of the output where texts begin
CO_ROOM = 9  # bytes of texts that there is room for
CO_NULLS = 10  # NULLs so far
CO_USED = 11  # bytes of texts so far
CO_MORE_NULLS = 12  # of the rows that are being copied
CO_MORE_USED = 13

COLUMN_FIXED = 0
COLUMN_PADDED = 1  # characters of the fixed image, without the zeros at their end
COLUMN_VAR = 2
COLUMN_ROWID = 3
