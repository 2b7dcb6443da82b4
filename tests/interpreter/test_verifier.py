"""What the verifier refuses, one kind of bad program a test; programs with flipped bits never leave their memory."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest

from tests.interpreter.generate import Batch, Writer, definition_of
from tests.interpreter.test_machine import run
from tidemark.engine.base.errors import ProgramInvalid
from tidemark.engine.programs import program_layout as p
from tidemark.engine.programs.instruction_set import FLOAT
from tidemark.engine.programs.interpreter import Assembler, Program
from tidemark.engine.schema import types as t
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


def no_end(asm: Assembler) -> None:
    asm.load_const(0, 1)


def unwritten(asm: Assembler) -> None:
    asm.add(0, 1, 1)
    asm.exit_ok()


def unwritten_on_one_path(asm: Assembler) -> None:
    asm.branch_column_null("n", "end")
    asm.load_const(1, 1)
    asm.label("end")
    asm.add(0, 1, 1)
    asm.exit_ok()


def mixed_types(asm: Assembler) -> None:
    asm.load_const(1, 1)
    asm.branch_column_null("n", "end")
    asm.load_float(1, 1.0)
    asm.label("end")
    asm.add(0, 1, 1)
    asm.exit_ok()


def float_added_as_integer(asm: Assembler) -> None:
    asm.load_float(1, 1.0)
    asm.add(0, 1, 1)
    asm.exit_ok()


def integers_compared_as_floats(asm: Assembler) -> None:
    asm.load_const(1, 1)
    asm.branch_registers("lt", 1, 1, "end", FLOAT)
    asm.label("end")
    asm.exit_ok()


def label_nowhere(asm: Assembler) -> None:
    asm.branch("nowhere")


def return_in_main(asm: Assembler) -> None:
    asm.ret()


def call_of_main(asm: Assembler) -> None:
    asm.label("here")
    asm.call("here")
    asm.exit_ok()


def branch_into_subroutine(asm: Assembler) -> None:
    asm.branch("sub")
    asm.subroutine("sub")
    asm.ret()


def branch_out_of_subroutine(asm: Assembler) -> None:
    asm.label("main")
    asm.exit_ok()
    asm.subroutine("sub")
    asm.branch("main")


def write_without_update(asm: Assembler) -> None:
    asm.load_const(0, 1)
    asm.write("n", 0)
    asm.exit_ok()


def characters_in_a_register(asm: Assembler) -> None:
    asm.read(0, "s")
    asm.exit_ok()


def like_of_a_number(asm: Assembler) -> None:
    asm.branch_stored("like", "n", 1, "end")
    asm.label("end")
    asm.exit_ok()


def mask_of_a_float(asm: Assembler) -> None:
    asm.branch_stored("and_eq_mask", "x", 1.0, "end")
    asm.label("end")
    asm.exit_ok()


def columns_of_two_types(asm: Assembler) -> None:
    asm.branch_columns("eq", "n", "x", "end")
    asm.label("end")
    asm.exit_ok()


def wide_column_and_parameter(asm: Assembler) -> None:
    asm.branch_parameter("eq", "u", 0, "end")
    asm.label("end")
    asm.exit_ok()


def refuse_code_too_large(asm: Assembler) -> None:
    asm.exit_refuse(1 << 16)


def too_long(asm: Assembler) -> None:
    for _ in range(p.PROGRAM_INSTRUCTIONS_MAX):
        asm.load_const(0, 1)
    asm.exit_ok()


def register_beyond(asm: Assembler) -> None:
    asm.load_const(16, 1)


def condition_of_registers_unknown(asm: Assembler) -> None:
    asm.branch_registers("like", 0, 1, "end")


def type_of_registers_unknown(asm: Assembler) -> None:
    asm.branch_registers("lt", 0, 1, "end", "double")


def type_of_parameter_unknown(asm: Assembler) -> None:
    asm.load_parameter(0, 0, "text")


def type_of_aggregate_unknown(asm: Assembler) -> None:
    asm.aggregate("sum", 0, 0, "double")


def aggregate_unknown(asm: Assembler) -> None:
    asm.aggregate("mean", 0, 0)


def constant_of_text(asm: Assembler) -> None:
    asm.load_parameter(0, "one")  # type: ignore[arg-type]


def wide_constant_of_text(asm: Assembler) -> None:
    asm.load_wide(0, "one")  # type: ignore[arg-type]


# Story: the first five raised a KeyError, the last two a TypeError and an AttributeError.
UNKNOWN = [
    (condition_of_registers_unknown, "conditions on registers are eq, ne, lt, le, gt, ge, got str 'like'"),
    (type_of_registers_unknown, "types of registers are integer, float, wide, got str 'double'"),
    (type_of_parameter_unknown, "types of registers are"),
    (type_of_aggregate_unknown, "types of registers are"),
    (aggregate_unknown, "aggregates are count, sum, min, max, got str 'mean'"),
    (constant_of_text, "str 'one' is not an integer of 64 bits"),
    (wide_constant_of_text, "str 'one' is not an integer of 128 bits"),
]
BAD = [
    *UNKNOWN,
    (no_end, "fall off its end"),
    (unwritten, "not written on every path"),
    (unwritten_on_one_path, "not written on every path"),
    (mixed_types, "type depends on the path"),
    (float_added_as_integer, "takes integer, but register 1 holds float"),
    (integers_compared_as_floats, "takes float"),
    (label_nowhere, "is not set"),
    (return_in_main, "outside a subroutine"),
    (call_of_main, "is not a subroutine"),
    (branch_into_subroutine, "into or out of a subroutine"),
    (branch_out_of_subroutine, "into or out of a subroutine"),
    (write_without_update, "not for updates"),
    (characters_in_a_register, "characters or bytes into a register"),
    (like_of_a_number, "condition that integer columns do not have"),
    (mask_of_a_float, "condition that float columns do not have"),
    (columns_of_two_types, "columns of different types"),
    (wide_column_and_parameter, "with a parameter"),
    (refuse_code_too_large, "codes are 0 to 65535"),
    (too_long, "8001 instructions"),
    (register_beyond, "registers are 0 to 15"),
]


def finished(write: Callable[[Assembler], None], asm: Assembler) -> Program:
    write(asm)
    return asm.finish()


@pytest.mark.parametrize(("write", "message"), BAD, ids=[write.__name__ for write, _ in BAD])
def test_bad_program_is_refused_with_its_reason(write: Callable[[Assembler], None], message: str) -> None:
    asm = Assembler(TABLE)
    with pytest.raises(ProgramInvalid, match=message):
        finished(write, asm)


def test_write_of_a_key_column_is_refused() -> None:
    asm = Assembler(TABLE, updates=True)
    asm.load_const(0, 1)
    asm.write("id", 0)
    asm.exit_ok()
    with pytest.raises(ProgramInvalid, match="key column 'id'"):
        asm.finish()


def words_of_a_filter() -> Program:
    asm = Assembler(TABLE)
    asm.branch_column("like", "s", "a%", "end")
    asm.exit_refuse()
    asm.label("end")
    asm.exit_ok()
    return asm.finish()


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


@pytest.mark.parametrize("seed", range(8))
def test_flipped_bits_are_refused_or_run_within_memory(seed: int) -> None:
    """A verdict of some kind comes back, and nothing outside the outputs is touched; out of bounds would crash."""
    print("seed", seed)
    r = random.Random(seed)
    definition = definition_of(r)
    batch = Batch(definition, r, 20)
    passed = 0
    for number in range(40):
        good = Writer(definition, r, with_loops=number % 2 == 0, updates=True).program()
        for _ in range(10):
            words = good.words.copy()
            for _ in range(r.randint(1, 2)):
                words[r.randrange(words.size)] ^= np.int64(1) << np.int64(r.randrange(63))
            try:
                changed = Program(definition, good.columns, words)
            except ProgramInvalid:
                continue
            passed += 1
            batch.parameters = np.resize(batch.parameters, p.PARAMETERS_MAX * 20)
            status, _, _ = run(changed, batch)
            assert status in (p.RUN_OK, p.RUN_LAST, p.RUN_ERROR)
    assert passed, "some flips change a constant only"


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
