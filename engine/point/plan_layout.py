"""Words of plans: how images become rows, and how keys become words. Main memory only; a plan never changes.

Compiled kernels contain these constants, so this file is part of the kernel cache's key.
"""

from __future__ import annotations

# --- plan of rows ---------------------------------------------------------------------------------
U_COLUMNS = 0
U_CLASS = 1  # address of the class of its rows
U_FIXED_WORDS = 2
U_HAS_VAR = 3  # 1: images have a var part
U_PIECES = 4  # offset of the words of each piece of a key in the var part, -1 for one that begins with its length
U_DATE = 5  # address of the class `date`
U_DATE_NEW = 6  # and of its function in C
U_TIME = 7
U_TIME_NEW = 8
U_DATETIME = 9
U_DATETIME_NEW = 10
U_NONE = 11  # address of None
U_UTC = 12  # address of the time zone of timestamps
U_DECIMAL = 13  # address of the class `Decimal`
# --- of the table, 0 in a plan of some columns ---------------------------------------------------
U_HANDLE = 14
U_VERSION = 15  # version of its definition
U_KEY = 16  # offset of the plan of the key that calls give: the primary one, or that of a unique index
U_STAMP = 17  # version of its images, in the bits of a mode above the mode
U_GENERATION = 18  # S_INDEX_GENERATION whose indexes it knows; -1: changes are left to the general path
U_VALUES = 19  # offset of how the values of its columns are read, VALUE_WORDS each
U_KEY_COLUMNS = 20  # offset of the positions of its key columns
U_KEY_IN_VAR = 21  # 1: the key is in the var part
U_VAR_COLUMNS = 22  # columns in the var part
U_VAR_LIST = 23  # offset of their positions
U_IS_PUT = 24  # 1: kernels can read whole rows
U_ROWS = 25  # for each column:
COLUMN_WORDS = 4
UC_PLACE = 0  # kind << 56 | part << 48 | bytes << 24 | byte offset in the fixed image, or ordinal of the var column
UC_NULL = 1  # byte of the fixed image << 8 | bit; 0: never NULL there
UC_MISSING = 2  # address of the value of a row whose var part lacks the column
UC_DETAIL = 3  # address of an Enum's members or of a type's parts, a tuple; digits of a Decimal after the point
KIND_SHIFT = 56
PART_SHIFT = 48
PART_MASK = 0xFF
SIZE_SHIFT = 24
SIZE_MASK = AT_MASK = (1 << 24) - 1

PART_FIXED = 0
PART_VAR = 1
PART_KEY = 2  # a piece of the key in the var part

# From PADDED_TEXT to BYTES, and from UUID on, the bytes in a var part vary in number (`is_varying`).
INT_64 = 1
INT_32 = 2
INT_16 = 3
INT_8 = 4
UINT_64 = 5
UINT_32 = 6
UINT_16 = 7
UINT_8 = 8
FLOAT_64 = 9
FLOAT_32 = 10
BOOL = 11
PADDED_TEXT = 12  # without the zeros at its end
PADDED_BYTES = 13
TEXT = 14
BYTES = 15
DATE_32 = 16
DATE_64 = 17
TIME = 18
DATETIME = 19
TIMESTAMP = 20
ENUM_16 = 21
ENUM_64 = 22
DECIMAL = 23
WIDE_DECIMAL = 24  # of more than 18 digits
UUID = 25
JSON = 26

# --- plan of a key --------------------------------------------------------------------------------
UK_COLUMNS = 0
UK_HANDLE = 1  # of the unique index; 0: a primary key
UK_FIRST = 2  # for each column:
KEY_WORDS = 5
KC_KIND = 0
KC_BYTES = 1  # width of padded values, most bytes of others
KC_LEAST = 2  # of integers; most code points or bytes; digits after the point; address of a time zone
KC_GREATEST = 3  # of integers; most digits
KC_CLASS = 4  # address of the class of its values; of the places of an Enum's members, a dict; of a type's parts

KEY_INT = 1
KEY_FLOAT = 2
KEY_SINGLE = 3
KEY_BOOL = 4
KEY_DECIMAL = 5
KEY_WIDE_DECIMAL = 6
KEY_ENUM = 7
KEY_DATE = 8
KEY_TIME = 9
KEY_DATETIME = 10
KEY_TIMESTAMP = 11
KEY_UNSIGNED = 12  # may be greater than KC_GREATEST
# Of a column that is in no key: NaN and -0.0 are values.
VALUE_FLOAT = 13
VALUE_SINGLE = 14
KEY_UUID = 15  # a number of 16 bytes
LAST_NUMBER = 15
KEY_PADDED_TEXT = 16
KEY_PADDED_BYTES = 17
KEY_TEXT = 18
KEY_BYTES = 19
KEY_UNREAD = 20  # the general path reads all values

# --- how a value of a column is read --------------------------------------------------------------
VALUE_WORDS = 10
V_NAME = 0  # address of its name, interned
V_PLACE = 1  # byte of the fixed image; ordinal in the var part
V_PART = 2
V_NULL = 3  # byte of the fixed image << 8 | bit, or 1 in the var part; 0: never NULL
V_CHANGE = 4  # how an update changes it
V_READ = 5  # as a column of a key, but KC_BYTES is the size in the image

CHANGE_NEVER = 0  # a column of the primary key
CHANGE_IN_PLACE = 1
CHANGE_BY_IMAGE = 2  # the record has the whole image

# --- trees of expressions that kernels know --------------------------------------------------------
T_COUNT = 0
T_FIRST = 1  # then for each: words of its head, its patterns, its constants, its program
TREE_WORDS = 10
T_WORDS = 0  # of all of it
T_MODE = 1  # MODE_UPDATE or MODE_DELETE
T_HAS_WHERE = 2
T_CHANGES = 3  # of an update: after the condition's pattern each has its column's number, and the pattern or T_PLAIN
T_CONSTANTS = 4  # of its program
T_CONSTANTS_AT = 5  # from the tree's start
T_PROGRAM_AT = 6
T_PROGRAM_WORDS = 7  # without constants of any length
T_POOL = 8  # where constants begin in the program
T_HAS_OCTETS = 9  # 1: constants of any length end it
T_PLAIN = 0
# A node of a pattern, and those of its children after it:
N_CLASS = 0  # address of its class
N_VALUE = 1  # offset of the value of a constant, 0 for another node
N_WANTED = 2  # that many (offset, word) pairs follow, a word being equal; of a constant: the class of its value
N_TEXT = 3  # offset of a text, 0 for none
N_IS = 4  # address of the text
N_CHILDREN = 5  # that many offsets of children are at the end
NODE_WORDS = 6
# A constant of a program:
C_NUMBER = 0  # of the constant among those of the tree
C_PLACE = 1  # word of the program
C_SIZE = 2
C_READ = 3  # how its value is read, as a column of a key
CONSTANT_WORDS = C_READ + KEY_WORDS
SIZE_WORD = 0
SIZE_WIDE = 1
SIZE_OCTETS = 2  # a count of bytes, then the bytes, after the program
NODES_MAX = 60  # of a pattern
PROGRAM_WORDS = 1_024  # with all constants; the general path binds larger ones

UUID_BYTES = 16
EPOCH_LAST = (1 << 63) - 1  # what a reader has seen that found no row
# Words of a key on the stack of a kernel; the general path reads longer ones.
STACK_WORDS = 128
IMAGE_WORDS = 2_048  # largest image of a row that is put by a kernel
REDO_WORDS = 4_608  # what a transaction reserves when it begins

# Flags of a select: of its bounds, and of its order.
LOW_ABOVE = 1
HIGH_BELOW = 2
REVERSE = 4

# Days from 1 March of the year 0 to 1 January 1970, and what Python's dates hold, counted from 1970.
DAYS_BEFORE_1970 = 719_468
DAY_LEAST = -719_162
DAY_GREATEST = 2_932_896
DAY_MICROSECONDS = 86_400_000_000

assert (
    U_IS_PUT < U_ROWS
    and V_READ + KEY_WORDS == VALUE_WORDS
    and UC_DETAIL + 1 == COLUMN_WORDS
    and KC_CLASS + 1 == KEY_WORDS
)
