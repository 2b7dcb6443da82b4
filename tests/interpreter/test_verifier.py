"""What the verifier refuses, and how programs are shown. Programs that it accepts never leave their memory: see
`test_hostile_programs.py`.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.interpreter.generate import Batch, Writer, definition_of
from tests.interpreter.test_machine import run
from tidemark.engine import types as t
from tidemark.engine.base.errors import ProgramInvalid
from tidemark.engine.programs import program_layout as p
from tidemark.engine.programs.instruction_set import FLOAT
from tidemark.engine.programs.interpreter import Assembler, Program
from tidemark.engine.programs.listing import listing
from tidemark.engine.programs.verifier import limit_bytes
from tidemark.engine.schema.column import Column
from tidemark.engine.schema.definition import TableDefinition

TABLE = TableDefinition(
    1,
    1,
    "t",
    (
        Column("id", t.Int64),
        Column("n", t.Int32, True),
        Column("x", t.Float64),
        Column("s", t.VarChar(9)),
        Column("u", t.UInt64),
    ),
    ("id",),
)
# Of each bad program: why it is refused, and the calls of an assembler that make it.
OK = ("exit_ok",)
END = (("label", "end"), OK)
BAD: dict[str, tuple[str, list[tuple[Any, ...]]]] = {
    # Story: the first five raised a KeyError, the next two a TypeError and an AttributeError.
    "condition of registers unknown": (
        "conditions on registers are eq, ne, lt, le, gt, ge, got str 'like'",
        [("branch_registers", "like", 0, 1, "end")],
    ),
    "type of registers unknown": (
        "types of registers are integer, float, wide, got str 'double'",
        [("branch_registers", "lt", 0, 1, "end", "double")],
    ),
    "type of parameter unknown": ("types of registers are", [("load_parameter", 0, 0, "text")]),
    "type of aggregate unknown": ("types of registers are", [("aggregate", "sum", 0, 0, "double")]),
    "aggregate unknown": ("aggregates are count, sum, min, max, got str 'mean'", [("aggregate", "mean", 0, 0)]),
    "constant of text": ("str 'one' is not an integer of 64 bits", [("load_parameter", 0, "one")]),
    "wide constant of text": ("str 'one' is not an integer of 128 bits", [("load_wide", 0, "one")]),
    "no end": ("fall off its end", [("load_const", 0, 1)]),
    "register not written": ("not written on every path", [("add", 0, 1, 1), OK]),
    "register not written on one path": (
        "not written on every path",
        [("branch_column_null", "n", "end"), ("load_const", 1, 1), ("label", "end"), ("add", 0, 1, 1), OK],
    ),
    "mixed types": (
        "type depends on the path",
        [
            *(("load_const", 1, 1), ("branch_column_null", "n", "end"), ("load_float", 1, 1.0)),
            *(("label", "end"), ("add", 0, 1, 1), OK),
        ],
    ),
    "float added as integer": (
        "takes integer, but register 1 holds float",
        [("load_float", 1, 1.0), ("add", 0, 1, 1), OK],
    ),
    "integers compared as floats": (
        "takes float",
        [("load_const", 1, 1), ("branch_registers", "lt", 1, 1, "end", FLOAT), *END],
    ),
    "label nowhere": ("is not set", [("branch", "nowhere")]),
    "return in main": ("outside a subroutine", [("ret",)]),
    "call of main": ("is not a subroutine", [("label", "here"), ("call", "here"), OK]),
    "branch into subroutine": (
        "into or out of a subroutine",
        [("branch", "sub"), ("subroutine", "sub"), ("ret",)],
    ),
    "branch out of subroutine": (
        "into or out of a subroutine",
        [("label", "main"), OK, ("subroutine", "sub"), ("branch", "main")],
    ),
    "write without update": ("not for updates", [("load_const", 0, 1), ("write", "n", 0), OK]),
    "characters in a register": ("characters or bytes into a register", [("read", 0, "s"), OK]),
    "like of a number": (
        "condition that integer columns do not have",
        [("branch_stored", "like", "n", 1, "end"), *END],
    ),
    "mask of a float": (
        "condition that float columns do not have",
        [("branch_stored", "and_eq_mask", "x", 1.0, "end"), *END],
    ),
    "columns of two types": ("columns of different types", [("branch_columns", "eq", "n", "x", "end"), *END]),
    "wide column and parameter": ("with a parameter", [("branch_parameter", "eq", "u", 0, "end"), *END]),
    "refuse code too large": ("codes are 0 to 65535", [("exit_refuse", 1 << 16)]),
    "too long": ("8001 instructions", [*[("load_const", 0, 1)] * p.PROGRAM_INSTRUCTIONS_MAX, OK]),
    "register beyond": ("registers are 0 to 15", [("load_const", 16, 1)]),
}


def finished(calls: list[tuple[Any, ...]], **options: Any) -> Program:
    asm = Assembler(TABLE, **options)
    for name, *arguments in calls:
        getattr(asm, name)(*arguments)
    return asm.finish()


@pytest.mark.parametrize("name", BAD)
def test_bad_program_is_refused_with_its_reason(name: str) -> None:
    message, calls = BAD[name]
    with pytest.raises(ProgramInvalid, match=message):
        finished(calls)


def test_write_of_a_key_column_is_refused() -> None:
    with pytest.raises(ProgramInvalid, match="key column 'id'"):
        finished([("load_const", 0, 1), ("write", "id", 0), OK], updates=True)


def test_write_with_limits_of_another_type_is_refused() -> None:
    """With wider limits a value would be cut when it is stored."""
    good = finished([("load_const", 0, 1), ("write", "n", 0), OK], updates=True)
    limits = limit_bytes((-(1 << 31), (1 << 31) - 1))
    at = good.words.tobytes().index(limits) // 8
    words = good.words.copy()
    words[at + 2] += 1
    with pytest.raises(ProgramInvalid, match="other limits than column 'n'"):
        Program(TABLE, good.columns, words)


def words_of_a_filter() -> Program:
    return finished([("branch_column", "like", "s", "a%", "end"), ("exit_refuse",), *END])


@pytest.mark.parametrize(
    ("word", "value"),
    [
        (p.H_MAGIC, 0),
        (p.H_WORDS, 5),
        (p.H_COLUMNS, 9),
        (p.H_INSTRUCTIONS, -1),
        (p.H_INSTRUCTIONS, 0),
        (p.H_MAIN, 0),
        (p.H_CONSTANTS, 1 << 40),
        (p.H_NEEDS, 0),
        (p.H_FLAGS, 0),
        (p.H_OUTPUTS, 1),
        (p.H_ACCUMULATORS, 65),
        (p.H_FIXED_WORDS, 1),
        (p.H_HAS_VAR, 0),
        (p.PROGRAM_HEADER_WORDS, 3),
        (p.PROGRAM_HEADER_WORDS + 8, 63),
    ],
)
def test_header_with_false_values_is_refused(word: int, value: int) -> None:
    good = words_of_a_filter()
    words = good.words.copy()
    words[word] = value
    with pytest.raises(ProgramInvalid):
        Program(TABLE, good.columns, words)


def test_constant_that_ends_past_the_program_is_refused() -> None:
    good = words_of_a_filter()
    words = good.words.copy()
    words[words.size - int(words[p.H_CONSTANTS])] = 9
    with pytest.raises(ProgramInvalid, match="constant that does not exist"):
        Program(TABLE, good.columns, words)


@pytest.mark.parametrize("seed", range(4))
def test_damaged_images_give_a_verdict_for_each_row(seed: int) -> None:
    print("seed", seed)
    r = random.Random(seed)
    definition = definition_of(r)
    programs = [Writer(definition, r, with_loops=False, updates=True).program() for _ in range(20)]
    for _ in range(20):
        batch = Batch(definition, r, 20)
        for _ in range(20):
            batch.entries[r.randrange(batch.entries.size)] = r.choice([-1, 0, 2**62, 2**31, r.randrange(2**60)])
        for program in programs:
            status, out, _ = run(program, batch)
            assert status in (p.RUN_OK, p.RUN_LAST, p.RUN_ERROR)
            assert set(out[:20].tolist()) <= set(range(p.VERDICT_NONE, p.VERDICT_ERROR + 1))


# --- programs as text --------------------------------------------------------------------------------
def test_listing_shows_registers_columns_constants_and_targets() -> None:
    asm = Assembler(TABLE)
    asm.read_pseudo(2, "epoch")
    asm.load_const(1, 7)
    asm.branch_registers("le", 2, 1, "ok")
    asm.branch_column("like", "s", "a%", "ok")
    asm.branch_column("gt", "u", 2**64 - 1, "ok", sql=False)
    asm.exit_refuse(9_999)
    asm.label("ok")
    asm.call("sub")
    asm.exit_ok()
    asm.subroutine("sub")
    asm.ret()
    assert listing(asm.finish()).splitlines() == [
        "    0  read r2 $epoch",
        "    1  load_const16 r1 7",
        "    2  branch_le r2 r1 integer -> 6",
        "    3  branch_column s like b'a%' sql -> 6",
        "    4  branch_column u gt 18446744073709551615 -> 6",
        "    5  exit_refuse 9999",
        "    6: call -> 8",
        "    7  exit_ok",
        "subroutines",
        "    8: return",
    ]


def test_every_random_program_has_a_line_for_each_instruction() -> None:
    for seed in range(20):
        r = random.Random(seed)
        program = Writer(definition_of(r), r, with_loops=False, updates=True).program()
        assert len(listing(program).splitlines()) == len(program.instructions)
