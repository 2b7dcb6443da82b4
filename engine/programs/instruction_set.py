"""The instructions of interpreted programs: names, operands, types. Assembler, verifier and listing use one table.

What each instruction does is in docs/internals/access.md, section 2, and in `tests/interpreter/machine.py`.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from tidemark.engine.programs import program_layout as p

# Types of registers. NULL fits every one of them.
INTEGER = "integer"
FLOAT = "float"
WIDE = "wide"
NULL = "null"
BY_FLAGS = "by flags"
TYPES: Final = {p.TYPE_INTEGER: INTEGER, p.TYPE_FLOAT: FLOAT, p.TYPE_WIDE: WIDE}
TYPE_FLAGS: Final = {name: flag for flag, name in TYPES.items()}


class Instruction(NamedTuple):
    """One opcode: its name, the types of the registers it reads (some of a, b, c) and writes, its other fields.

    `reads` maps register fields to types; `writes` is the type written to register a. `fields` names the contents of
    words 1 to 3 and of the flags: column, other, pseudo, parameter, code, accumulator, immediate, constant, condition,
    target, part.
    """

    name: str
    reads: tuple[tuple[str, str], ...] = ()
    writes: str | None = None
    fields: tuple[str, ...] = ()
    flags: int = 0  # flags that are allowed
    ends: bool = False  # it never continues at the next instruction


def _three(name: str, type_: str, flags: int = 0) -> Instruction:
    return Instruction(name, (("b", type_), ("c", type_)), type_, (), flags)


def _two(name: str, source: str, target: str) -> Instruction:
    return Instruction(name, (("b", source),), target)


def _compare(name: str) -> Instruction:
    return Instruction(name, (("a", BY_FLAGS), ("b", BY_FLAGS)), None, ("target",), p.TYPE_MASK)


_TARGET = ("target",)
_AGGREGATE = (("a", BY_FLAGS),)

INSTRUCTIONS: Final[dict[int, Instruction]] = {
    p.OP_READ_ATTR: Instruction("read", (), BY_FLAGS, ("column",)),
    p.OP_WRITE_ATTR: Instruction("write", (("a", BY_FLAGS),), None, ("column",)),
    p.OP_LOAD_NULL: Instruction("load_null", (), NULL),
    p.OP_LOAD_CONST16: Instruction("load_const16", (), INTEGER, ("immediate",)),
    p.OP_LOAD_CONST32: Instruction("load_const32", (), INTEGER, ("immediate",)),
    p.OP_LOAD_CONST64: Instruction("load_const64", (), INTEGER, ("immediate",)),
    p.OP_ADD: _three("add", INTEGER),
    p.OP_SUB: _three("sub", INTEGER),
    p.OP_BRANCH: Instruction("branch", (), None, _TARGET, 0, True),
    p.OP_BRANCH_REG_EQ_NULL: Instruction("branch_null", (("a", NULL),), None, _TARGET),
    p.OP_BRANCH_REG_NE_NULL: Instruction("branch_not_null", (("a", NULL),), None, _TARGET),
    p.OP_BRANCH_EQ: _compare("branch_eq"),
    p.OP_BRANCH_NE: _compare("branch_ne"),
    p.OP_BRANCH_LT: _compare("branch_lt"),
    p.OP_BRANCH_LE: _compare("branch_le"),
    p.OP_BRANCH_GT: _compare("branch_gt"),
    p.OP_BRANCH_GE: _compare("branch_ge"),
    p.OP_EXIT_OK: Instruction("exit_ok", ends=True),
    p.OP_EXIT_REFUSE: Instruction("exit_refuse", fields=("code",), ends=True),
    p.OP_CALL: Instruction("call", fields=("target",)),
    p.OP_RETURN: Instruction("return", ends=True),
    p.OP_EXIT_OK_LAST: Instruction("exit_last", ends=True),
    p.OP_BRANCH_ATTR_OP_ARG: Instruction(
        "branch_column", (), None, ("condition", "column", "constant", "target"), p.FL_SQL | p.FL_OCTETS | p.FL_PADDED
    ),
    p.OP_BRANCH_ATTR_EQ_NULL: Instruction("branch_column_null", (), None, ("column", "target")),
    p.OP_BRANCH_ATTR_NE_NULL: Instruction("branch_column_not_null", (), None, ("column", "target")),
    p.OP_BRANCH_ATTR_OP_PARAM: Instruction(
        "branch_parameter", (), None, ("condition", "column", "parameter", "target"), p.FL_SQL
    ),
    p.OP_BRANCH_ATTR_OP_ATTR: Instruction(
        "branch_columns", (), None, ("condition", "column", "other", "target"), p.FL_SQL | p.FL_PADDED
    ),
    p.OP_ADD_EXACT: _three("add_exact", INTEGER),
    p.OP_SUB_EXACT: _three("sub_exact", INTEGER),
    p.OP_MUL: _three("mul", INTEGER),
    p.OP_MUL_EXACT: _three("mul_exact", INTEGER),
    p.OP_FLOORDIV: _three("floordiv", INTEGER, p.FL_ZERO_NULL),
    p.OP_MOD: _three("mod", INTEGER, p.FL_ZERO_NULL),
    p.OP_FLOAT_ADD: _three("float_add", FLOAT),
    p.OP_FLOAT_SUB: _three("float_sub", FLOAT),
    p.OP_FLOAT_MUL: _three("float_mul", FLOAT),
    p.OP_FLOAT_DIV: _three("float_div", FLOAT, p.FL_ZERO_NULL),
    p.OP_FLOAT_FLOORDIV: _three("float_floordiv", FLOAT, p.FL_ZERO_NULL),
    p.OP_FLOAT_MOD: _three("float_mod", FLOAT, p.FL_ZERO_NULL),
    p.OP_AND: _three("and", INTEGER),
    p.OP_OR: _three("or", INTEGER),
    p.OP_XOR: _three("xor", INTEGER),
    p.OP_NOT: _two("not", INTEGER, INTEGER),
    p.OP_SHIFT_LEFT: _three("shift_left", INTEGER),
    p.OP_SHIFT_RIGHT: _three("shift_right", INTEGER),
    p.OP_SHIFT_RIGHT_ZEROS: _three("shift_right_zeros", INTEGER),
    p.OP_INTEGER_TO_FLOAT: _two("integer_to_float", INTEGER, FLOAT),
    p.OP_INTEGER_TO_WIDE: _two("integer_to_wide", INTEGER, WIDE),
    p.OP_WIDE_TO_FLOAT: _two("wide_to_float", WIDE, FLOAT),
    p.OP_WIDE_TO_INTEGER: _two("wide_to_integer", WIDE, INTEGER),
    p.OP_FLOAT_TO_INTEGER: _two("float_to_integer", FLOAT, INTEGER),
    p.OP_MOVE: Instruction("move", (("b", NULL),), BY_FLAGS),
    p.OP_LOAD_FLOAT: Instruction("load_float", (), FLOAT, ("immediate",)),
    p.OP_LOAD_WIDE: Instruction("load_wide", (), WIDE, ("constant",)),
    p.OP_LOAD_PARAM: Instruction("load_parameter", (), BY_FLAGS, ("parameter",), p.TYPE_FLOAT),
    p.OP_COUNT: Instruction("count", (("a", NULL),), None, ("accumulator",)),
    p.OP_SUM: Instruction("sum", _AGGREGATE, None, ("accumulator",), p.TYPE_MASK),
    p.OP_MIN: Instruction("min", _AGGREGATE, None, ("accumulator",), p.TYPE_MASK),
    p.OP_MAX: Instruction("max", _AGGREGATE, None, ("accumulator",), p.TYPE_MASK),
    p.OP_KEY: Instruction("key", _AGGREGATE, None, ("part",), p.TYPE_MASK),
    p.OP_KEY_BYTES: Instruction("key_bytes", (), None, ("column", "part")),
    p.OP_GROUP: Instruction("group"),
    p.OP_MIN_BYTES: Instruction("min_bytes", (), None, ("column", "accumulator")),
    p.OP_MAX_BYTES: Instruction("max_bytes", (), None, ("column", "accumulator")),
    p.OP_WIDE_ADD_EXACT: _three("wide_add_exact", WIDE),
    p.OP_WIDE_SUB_EXACT: _three("wide_sub_exact", WIDE),
}
OPCODES: Final = {instruction.name: opcode for opcode, instruction in INSTRUCTIONS.items()}
CONDITIONS: Final = (
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
    "like",
    "not_like",
    "and_eq_mask",
    "and_ne_mask",
    "and_eq_zero",
    "and_ne_zero",
)
PSEUDO_COLUMNS: Final = {
    p.PSEUDO_FRAGMENT: ("fragment", p.NEED_FRAGMENT),
    p.PSEUDO_ROWID: ("rowid", p.NEED_ROWID),
    p.PSEUDO_GCI: ("gci", p.NEED_EPOCH),
    p.PSEUDO_EPOCH: ("epoch", p.NEED_EPOCH),
    p.PSEUDO_AUTHOR: ("author", p.NEED_AUTHOR),
}
AGGREGATES: Final = (p.OP_COUNT, p.OP_SUM, p.OP_MIN, p.OP_MAX)
BYTES_AGGREGATES: Final = (p.OP_MIN_BYTES, p.OP_MAX_BYTES)
OF_BYTES: Final = (p.OP_KEY_BYTES, *BYTES_AGGREGATES)  # they read columns of bytes
OF_GROUPS: Final = (p.OP_KEY, p.OP_GROUP, *OF_BYTES)


class Fields(NamedTuple):
    """The fields of an instruction."""

    opcode: int
    a: int
    b: int
    c: int
    condition: int
    flags: int
    place: int
    value: int
    target: int


def split(head: int, place: int, value: int, target: int) -> Fields:
    """Return the fields of an instruction's four words."""
    mask = p.FIELD_MASK
    return Fields(
        head & mask,
        head >> p.A_SHIFT & mask,
        head >> p.B_SHIFT & mask,
        head >> p.C_SHIFT & mask,
        head >> p.CONDITION_SHIFT & mask,
        head >> p.FLAGS_SHIFT & mask,
        place,
        value,
        target,
    )


def join(fields: Fields) -> tuple[int, int, int, int]:
    """Return the four words of an instruction."""
    head = (
        fields.opcode
        | fields.a << p.A_SHIFT
        | fields.b << p.B_SHIFT
        | fields.c << p.C_SHIFT
        | fields.condition << p.CONDITION_SHIFT
        | fields.flags << p.FLAGS_SHIFT
    )
    return head, fields.place, fields.value, fields.target


def accumulator_of(fields: Fields) -> int:
    """Return the accumulator of an aggregate."""
    return fields.target if fields.opcode in BYTES_AGGREGATES else fields.place


def part_of(fields: Fields) -> int:
    """Return the number of the key part that an instruction makes."""
    return fields.target if fields.opcode == p.OP_KEY_BYTES else fields.place


def part_words(fields: Fields) -> int:
    """Return the words of a key part: of a wide number both, of bytes their place and length."""
    return 1 if fields.opcode == p.OP_KEY and fields.flags & p.TYPE_MASK != p.TYPE_WIDE else 2
