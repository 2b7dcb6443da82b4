"""Programs as text, one line per instruction: the calls of the assembler, with numbers in place of labels."""

from __future__ import annotations

from collections.abc import Callable

from tidemark.engine.programs import program_layout as p
from tidemark.engine.programs.instruction_set import (
    AGGREGATES,
    CONDITIONS,
    INSTRUCTIONS,
    PSEUDO_COLUMNS,
    TYPES,
    Fields,
    accumulator_of,
    part_of,
)
from tidemark.engine.programs.interpreter import Program, bits_float
from tidemark.engine.programs.patterns import pattern_of, tokens_at
from tidemark.engine.rows import columns_layout as c


def listing(program: Program) -> str:
    """Return the program's instructions, numbered; `->` names the target of a branch."""
    code = program.instructions
    targets = {each.target for each in code if "target" in INSTRUCTIONS[each.opcode].fields}
    main = int(program.words[p.H_MAIN])
    lines = []
    for number, each in enumerate(code):
        if number == main:
            lines.append("subroutines")
        mark = ":" if number in targets else " "
        lines.append(f"{number:5}{mark} {_instruction(program, each)}")
    return "\n".join(lines)


def _instruction(program: Program, each: Fields) -> str:
    known = INSTRUCTIONS[each.opcode]
    used = {field for field, _ in known.reads} | ({"a"} if known.writes is not None else set())
    words = [f"r{register}" for field, register in zip("abc", (each.a, each.b, each.c), strict=True) if field in used]
    shown: dict[str, Callable[[], str]] = {
        "column": lambda: _place(program, each),
        "condition": lambda: CONDITIONS[each.condition],
        "other": lambda: _column(program, each.value),
        "parameter": lambda: f"parameter {each.value if 'column' in known.fields else each.place}",
        "constant": lambda: _constant(program, each),
        "immediate": lambda: repr(bits_float(each.value)) if each.opcode == p.OP_LOAD_FLOAT else str(each.value),
        "code": lambda: str(each.place),
        "accumulator": lambda: str(accumulator_of(each)),
        "part": lambda: f"part {part_of(each)}",
    }
    words += [text() for field, text in shown.items() if field in known.fields]
    is_typed = p.OP_BRANCH_EQ <= each.opcode <= p.OP_BRANCH_GE or each.opcode in (*AGGREGATES, p.OP_KEY)
    if is_typed or each.opcode == p.OP_LOAD_PARAM:
        words.append(TYPES[each.flags & p.TYPE_MASK])
    names = ((p.FL_SQL, "sql"), (p.FL_ZERO_NULL, "zero_null"), (p.FL_OCTETS, "octets"), (p.FL_PADDED, "padded"))
    words += [name for flag, name in names if each.flags & flag]
    if "target" in known.fields:
        words.append(f"-> {each.target}")
    return " ".join([known.name, *words])


def _column(program: Program, number: int) -> str:
    return program.definition.columns[program.columns[number]].name


def _place(program: Program, each: Fields) -> str:
    if each.opcode == p.OP_READ_ATTR and each.place in PSEUDO_COLUMNS:
        return f"${PSEUDO_COLUMNS[each.place][0]}"
    return _column(program, each.place)


def _constant(program: Program, each: Fields) -> str:
    constants = program.constants.tobytes()
    at = each.value * 8
    kind = c.CLASS_WIDE
    if each.opcode != p.OP_LOAD_WIDE:
        kind = int(program.words[p.PROGRAM_HEADER_WORDS + each.place * c.COLUMN_WORDS + c.CW_CLASS])
    if kind in (c.CLASS_WIDE, c.CLASS_WIDE_UNSIGNED):
        return str(int.from_bytes(constants[at : at + 16], "little", signed=True))
    if kind == c.CLASS_BYTES:
        if each.condition in (p.COND_LIKE, p.COND_NOT_LIKE):
            return repr(pattern_of(tokens_at(program.constants, each.value)))
        length = int.from_bytes(constants[at : at + 8], "little")
        return repr(constants[at + 8 : at + 8 + length])
    return repr(bits_float(each.value)) if kind in (c.CLASS_FLOAT32, c.CLASS_FLOAT64) else str(each.value)
