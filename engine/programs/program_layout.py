"""Words of an interpreted program, of the rows it runs over, and of the memory it works in.

Main memory only (docs/internals/access.md, section 2). Kernels freeze these constants; the kernel cache is keyed on
this file. Opcodes up to 27 and the error codes below 900 have the numbers they have in NDB.
"""

from __future__ import annotations

PROGRAM_MAGIC = 0x54_4D_50_52_4F_47  # "TMPROG"
PROGRAM_VERSION = 2
PROGRAM_STEPS_MAX = 8_000
PROGRAM_INSTRUCTIONS_MAX = PROGRAM_STEPS_MAX
VECTOR_ROWS = 512
REGISTERS = 16
CALLS_MAX = 32
PARAMETERS_MAX = 4
ACCUMULATORS_MAX = 64
REFUSE_CODE_MAX = 0xFFFF
REFUSE_CODE_DEFAULT = 626

# --- header ---------------------------------------------------------------------------------------
PROGRAM_HEADER_WORDS = 16
H_MAGIC = 0  # magic << 8 | version
H_WORDS = 1
H_COLUMNS = 2  # column words follow the header
H_INSTRUCTIONS = 3  # they follow the column words
H_MAIN = 4  # instructions from here on are subroutines
H_CONSTANTS = 5  # words of constants, after the instructions
H_NEEDS = 6
H_FLAGS = 7
H_OUTPUTS = 8
H_ACCUMULATORS = 9
H_FIXED_WORDS = 10  # of the table's fixed image, disk reference included
H_HAS_VAR = 11
H_DISK_FIXED_WORDS = 12  # 0 without disk columns
H_DISK_HAS_VAR = 13
H_PARAMETERS = 14
H_KEY_WORDS = 15  # of the key of a group, its NULL bits included; 0: the program has no groups

PF_FORWARD = 1  # no backward branch, no call, no LAST together with aggregates: may run as a vector
PF_UPDATES = 2  # may write columns

# --- instructions ---------------------------------------------------------------------------------
INSTRUCTION_WORDS = 4  # the first is its head: operation, registers A, B and C, condition, flags
I_PLACE = 1  # column number, pseudo-column, parameter, refuse code, accumulator, or number of a key part
I_VALUE = 2  # immediate, offset of the constant in words, number of the other column, or offset in the key
# Target instruction of a branch; of WRITE_ATTR the offset of its limits; of KEY_BYTES the number of the key part; of
# MIN_BYTES and MAX_BYTES the accumulator.
I_TARGET = 3
A_SHIFT = 8
B_SHIFT = 16
C_SHIFT = 24
CONDITION_SHIFT = 32
FLAGS_SHIFT = 40
FIELD_MASK = 0xFF
HEAD_BITS = 48

TYPE_INTEGER = 0
TYPE_FLOAT = 1
TYPE_WIDE = 2
TYPE_MASK = 3
FL_SQL = 4  # a column branch with NULL is not taken
FL_ZERO_NULL = 8  # dividing by zero gives NULL
FL_OCTETS = 16  # `_` in LIKE matches one byte, not one code point
FL_PADDED = 32  # values of fixed size have all their bytes, the zero bytes at the end too

# A pattern is a constant of tokens of 16 bits: a byte, or one of these.
TOKEN_ANY = 0x100  # _
TOKEN_MANY = 0x200  # %
TOKEN_MASK = 0xFFFF
TOKEN_BYTES = 2
# What matching may take: a `_` between two letters, between two %, may have both lengths multiplied.
MATCH_STEPS = 4_096
MATCH_STEPS_PER_BYTE = 64
# All comparisons of bytes of a program in one row: some ten seconds, which only rows of hundreds of MiB can reach.
ROW_MATCH_STEPS_MAX = 1 << 34

OP_READ_ATTR = 1
OP_WRITE_ATTR = 2
OP_LOAD_NULL = 3
OP_LOAD_CONST16 = 4
OP_LOAD_CONST32 = 5
OP_LOAD_CONST64 = 6
OP_ADD = 7
OP_SUB = 8
OP_BRANCH = 9
OP_BRANCH_REG_EQ_NULL = 10
OP_BRANCH_REG_NE_NULL = 11
OP_BRANCH_EQ = 12
OP_BRANCH_NE = 13
OP_BRANCH_LT = 14
OP_BRANCH_LE = 15
OP_BRANCH_GT = 16
OP_BRANCH_GE = 17
OP_EXIT_OK = 18
OP_EXIT_REFUSE = 19
OP_CALL = 20
OP_RETURN = 21
OP_EXIT_OK_LAST = 22
OP_BRANCH_ATTR_OP_ARG = 23
OP_BRANCH_ATTR_EQ_NULL = 24
OP_BRANCH_ATTR_NE_NULL = 25
OP_BRANCH_ATTR_OP_PARAM = 26
OP_BRANCH_ATTR_OP_ATTR = 27
OP_ADD_EXACT = 28
OP_SUB_EXACT = 29
OP_MUL = 30
OP_MUL_EXACT = 31
OP_FLOORDIV = 32
OP_MOD = 33
OP_FLOAT_ADD = 34
OP_FLOAT_SUB = 35
OP_FLOAT_MUL = 36
OP_FLOAT_DIV = 37
OP_FLOAT_FLOORDIV = 38
OP_FLOAT_MOD = 39
OP_AND = 40
OP_OR = 41
OP_XOR = 42
OP_NOT = 43
OP_SHIFT_LEFT = 44  # by 0 to 63: the low six bits of the second operand
OP_SHIFT_RIGHT = 45  # keeps the sign
OP_SHIFT_RIGHT_ZEROS = 46
OP_INTEGER_TO_FLOAT = 47
OP_INTEGER_TO_WIDE = 48
OP_WIDE_TO_FLOAT = 49
OP_WIDE_TO_INTEGER = 50
OP_FLOAT_TO_INTEGER = 51  # towards zero
OP_MOVE = 52
OP_LOAD_FLOAT = 53
OP_LOAD_WIDE = 54
OP_LOAD_PARAM = 55
OP_COUNT = 56
OP_SUM = 57
OP_MIN = 58
OP_MAX = 59
OP_WIDE_ADD_EXACT = 60
OP_WIDE_SUB_EXACT = 61
OP_KEY = 62  # a register becomes a part of the row's key
OP_KEY_BYTES = 63  # and a column of bytes
OP_GROUP = 64  # find the group of the key, or add it
OP_MIN_BYTES = 65
OP_MAX_BYTES = 66
OPCODES_END = 67

# --- conditions -----------------------------------------------------------------------------------
COND_EQ = 0
COND_NE = 1
COND_LT = 2
COND_LE = 3
COND_GT = 4
COND_GE = 5
COND_LIKE = 6
COND_NOT_LIKE = 7
COND_AND_EQ_MASK = 8
COND_AND_NE_MASK = 9
COND_AND_EQ_ZERO = 10
COND_AND_NE_ZERO = 11
CONDITIONS_END = 12

# --- pseudo-columns, by the numbers they have in NDB ------------------------------------------------
PSEUDO_FRAGMENT = 0xFFFE
PSEUDO_ROWID = 0xFFF6
PSEUDO_GCI = 0xFFF5
PSEUDO_EPOCH = 0xFFE7
PSEUDO_AUTHOR = 0xFFE6

# --- rows a program runs over: planes of VECTOR_ROWS words -------------------------------------------
R_FIXED = 0  # word address of the fixed image
R_VAR = 1  # of the var part, 0 if there is none
R_DISK = 2  # of the disk part, 0 if there is none
R_EPOCH = 3
R_AUTHOR = 4
R_ROWID = 5
R_FRAGMENT = 6
R_PARAMETERS = 7
ROW_PLANES = R_PARAMETERS + PARAMETERS_MAX
ROWS_WORDS = ROW_PLANES * VECTOR_ROWS

# Planes a program needs, as bits of H_NEEDS.
NEED_FIXED = 1 << R_FIXED
NEED_VAR = 1 << R_VAR
NEED_DISK = 1 << R_DISK
NEED_EPOCH = 1 << R_EPOCH
NEED_AUTHOR = 1 << R_AUTHOR
NEED_ROWID = 1 << R_ROWID
NEED_FRAGMENT = 1 << R_FRAGMENT

# --- memory a program works in ------------------------------------------------------------------------
# State, stack and accumulators, then planes of VECTOR_ROWS words.
W_NEXT = 0  # least instruction number at which an unfinished row continues; FINISHED if there is none
W_TOP = 1  # greatest one
W_MATCHED = 2  # bytes that comparisons and patterns have examined
W_STATE_WORDS = 16
W_NULLS_SEEN = W_STATE_WORDS  # for each register and the scratch registers: 0 if no row's value is NULL
W_STACK = W_NULLS_SEEN + 32
W_ACCUMULATORS = W_STACK + CALLS_MAX
ACCUMULATOR_WORDS = 4
ACC_COUNT = 0  # values that were not NULL
ACC_LOW = 1  # integer or low word; bits of a float
ACC_HIGH = 2  # high word; of a float sum the bits of the compensation
ACC_TOP = 3  # of an integer sum the word above it: sums of 128-bit values need three words
SCRATCH = REGISTERS  # the registers after the last one: an intermediate value, and the value it is compared with
SCRATCH_OTHER = REGISTERS + 1
REGISTER_PLANES = REGISTERS + 2
W_LOW = 512  # planes of the registers and the scratch registers
W_HIGH = W_LOW + REGISTER_PLANES * VECTOR_ROWS
W_NULL = W_HIGH + REGISTER_PLANES * VECTOR_ROWS
W_RESUME = W_NULL + REGISTER_PLANES * VECTOR_ROWS  # number of the instruction at which a row continues
W_VERDICT = W_RESUME + VECTOR_ROWS
W_CODE = W_VERDICT + VECTOR_ROWS
W_COMPARED = W_CODE + VECTOR_ROWS  # less, equal, greater as -1, 0, 1; or the errors of an instruction by row
W_PADDED = W_COMPARED + VECTOR_ROWS  # two values of bytes, padded
PADDED_WORDS = 32
W_OUTPUTS = W_PADDED + 2 * PADDED_WORDS
OUT_LOW = 0
OUT_HIGH = 1
OUT_NULL = 2  # 0 a value, 1 NULL, OUT_UNWRITTEN
OUTPUT_PLANES = 3
OUT_UNWRITTEN = 2
FINISHED = 1 << 40  # the resume number of rows with a verdict

# --- groups ---------------------------------------------------------------------------------------------
# A program with groups has no outputs. In their place are the state, the group of each row, the keys of the rows, then
# the slots of a hash table, and the heap. The heap has the groups: hash, accumulators, key, bytes of the key. Addresses
# in slots, keys and accumulators are counted from its beginning, so it can be moved.
W_GROUPS = W_OUTPUTS
GS_COUNT = 0  # groups
GS_SLOTS = 1  # a power of two
GS_SLOTS_AT = 2
GS_HEAP_AT = 3
GS_TOP = 4  # words of the heap that are used
GS_SEED = 5  # of the hash
GS_FULL = 6  # 1: no room for what the row needs; the vector is run again with more
GS_NEEDED = 7  # words of the heap that it needs
GS_DONE = 8  # rows of the batch that were run before
GS_BYTES = 9  # parts of the key that are bytes
GS_BYTES_AT = 10  # their offsets in the key
KEY_PARTS_MAX = 32
GROUP_STATE_WORDS = 64
W_GROUP = W_GROUPS + GROUP_STATE_WORDS  # address of the accumulators of each row's group
W_KEYS = W_GROUP + VECTOR_ROWS  # H_KEY_WORDS of each row
# A slot: bits of the hash above, place of the group in the heap + 1 below; 0: empty.
SLOT_PLACE_MASK = (1 << 40) - 1
# A group begins with its hash; accumulators and key follow. The key begins with its NULL bits, by part. A number has a
# word, or two; bytes have their place and their length. In the key of a row the place is a byte address of the row, or
# the complement of one of the program; in a group it is a word address of the heap.
GROUP_HEADER_WORDS = 1
# The accumulator of the least or greatest bytes.
ACC_LENGTH = ACC_LOW
ACC_PLACE = ACC_HIGH
ACC_ROOM = ACC_TOP  # words at its place

# --- verdicts and errors of a row -----------------------------------------------------------------------
VERDICT_NONE = 0  # not run: after an error or a last row
VERDICT_OK = 1
VERDICT_REFUSED = 2
VERDICT_LAST = 3
VERDICT_ERROR = 4

PE_NULL = 878
PE_CALLS = 884
PE_STEPS = 886
PE_OVERFLOW = 901
PE_DIVISION = 902
PE_RANGE = 903  # a written value does not fit its column
PE_NOT_NULL = 904
PE_DAMAGED = 905  # lengths in the image contradict each other
PE_MATCH = 906  # comparing bytes and matching patterns takes too many steps

# --- return values of the kernels -------------------------------------------------------------------------
RUN_OK = 0
RUN_LAST = 1
RUN_ERROR = 2
RUN_FULL = 3  # more memory for groups is needed; nothing was added up of the rows from GS_DONE on
RUN_BROKEN = -1  # program or memory has an invalid size

assert W_ACCUMULATORS + ACCUMULATORS_MAX * ACCUMULATOR_WORDS <= W_LOW
assert REGISTER_PLANES <= W_STACK - W_NULLS_SEEN
assert GS_BYTES_AT + KEY_PARTS_MAX <= GROUP_STATE_WORDS
assert OPCODES_END <= FIELD_MASK
assert H_KEY_WORDS + 1 == PROGRAM_HEADER_WORDS
assert PROGRAM_INSTRUCTIONS_MAX < FINISHED


def work_words(outputs: int) -> int:
    """Return the words of memory for a program with `outputs` written columns."""
    return W_OUTPUTS + outputs * OUTPUT_PLANES * VECTOR_ROWS
