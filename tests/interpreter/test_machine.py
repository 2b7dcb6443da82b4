"""Random programs over random rows: the vector engine, the row engine and plain Python agree in every word."""

from __future__ import annotations

import random

import numpy as np
import pytest

from tests.interpreter.generate import Batch, Writer, definition_of
from tests.interpreter.machine import Machine, Result, accumulator, float_sum, order
from tidemark.engine import types as t
from tidemark.engine.jit.kernel import kernel
from tidemark.engine.programs import program_layout as p
from tidemark.engine.programs.interpreter import Assembler, Program, bits_float
from tidemark.engine.programs.vm_batch_kernels import run_batch
from tidemark.engine.programs.vm_run_kernels import run_rows
from tidemark.engine.schema.column import Column
from tidemark.engine.schema.definition import TableDefinition

ROWS = np.zeros(p.ROWS_WORDS, dtype=np.int64)


def run(program: Program, batch: Batch, flags: int | None = None) -> tuple[int, np.ndarray, np.ndarray]:
    """(status, out, work) of a batch; `flags` makes a forward program run row by row."""
    words = program.words.copy()
    if flags is not None:
        words[p.H_FLAGS] = flags
    count = len(batch.rows)
    out = np.zeros((2 + len(program.outputs) * p.OUTPUT_PLANES) * count, dtype=np.int64)
    work = program.new_work()
    used = int(program.words[p.H_PARAMETERS]) * count
    status = run_batch(batch.entries, batch.offsets, count, batch.parameters[:used].copy(), words, ROWS, work, out)
    return int(status), out, work


def outputs_of(program: Program, out: np.ndarray, count: int, row: int) -> dict[int, object]:
    """The outputs of a row that were written, as numbers."""
    found: dict[int, object] = {}
    for number in range(len(program.outputs)):
        low, high, null = (int(out[(2 + number * 3 + plane) * count + row]) for plane in range(3))
        if null == p.OUT_UNWRITTEN:
            continue
        kind = program.definition.columns[program.outputs[number]].type
        value: object = (high << 64) + low % 2**64
        if repr(kind).startswith("Float"):
            value = bits_float(low)
        found[number] = None if null else value
    return found


def same(one: object, other: object) -> bool:
    return one is other or (type(one) is type(other) and order(one, other) == 0)


def check_accumulators(machine: Machine, work: np.ndarray, accumulators: set[str]) -> None:
    for number, values in enumerate(machine.values):
        count, low, high = accumulator(work, number)
        assert count == len(values)
        if not values or len({opcode for opcode, _ in values}) > 1:
            continue
        opcode, numbers = values[0][0], [value for _, value in values]
        is_float = isinstance(numbers[0], float)
        found: object = bits_float(low) if is_float else (high << 64) + low % 2**64
        if opcode == p.OP_SUM and is_float:
            total, rest = float_sum(numbers)
            assert same(found, total) and same(bits_float(high), rest)
        elif opcode == p.OP_SUM:
            assert (found - sum(numbers)) % 2**128 == 0  # type: ignore[operator]
        elif opcode != p.OP_COUNT:
            best = numbers[0]
            for each in numbers[1:]:
                if order(each, best) == (1 if opcode == p.OP_MAX else -1):
                    best = each
            assert same(found, best)
        accumulators.add(str(opcode))


def check(program: Program, batch: Batch, flags: int | None = None) -> list[Result]:
    status, out, work = run(program, batch, flags)
    machine = Machine(program)
    expected = machine.run(batch.rows)
    count = len(batch.rows)
    found = [(int(out[row]), int(out[count + row])) for row in range(count)]
    assert found == [(each.verdict, each.code) for each in expected]
    for row, each in enumerate(expected):
        if each.verdict in (p.VERDICT_OK, p.VERDICT_LAST):
            written = outputs_of(program, out, count, row)
            assert written.keys() == each.outputs.keys()
            assert all(same(written[number], each.outputs[number]) for number in written)
    verdicts = {each.verdict for each in expected}
    if p.VERDICT_ERROR not in verdicts:
        check_accumulators(machine, work, set())
    assert status == (
        p.RUN_ERROR if p.VERDICT_ERROR in verdicts else p.RUN_LAST if p.VERDICT_LAST in verdicts else p.RUN_OK
    )
    return expected


@pytest.mark.parametrize("seed", range(40))
def test_random_programs_over_random_rows_vector_row_by_row_and_naive_agree(seed: int) -> None:
    print("seed", seed)
    r = random.Random(seed)
    definition = definition_of(r)
    batch = Batch(definition, r, r.choice([1, 7, 40]))
    for number in range(50):
        program = Writer(definition, r, with_loops=number % 4 == 3, updates=number % 2 == 0).program()
        check(program, batch)
        if program.is_forward:
            check(program, batch, int(program.words[p.H_FLAGS]) & ~p.PF_FORWARD)


def test_random_programs_over_many_vectors_agree() -> None:
    r = random.Random(7)
    definition = definition_of(r)
    batch = Batch(definition, r, 1_300)
    for _ in range(8):
        check(Writer(definition, r, with_loops=False, updates=True).program(), batch)


@kernel("int64(int64[::1], int64[::1], int64, int64[::1], int64[::1])")
def run_program(data, rows, count, program, work):  # type: ignore[no-untyped-def]
    """Run a program over the rows of one vector; see `run_rows`."""
    return run_rows(data, rows, count, program, work)


def test_program_over_given_addresses_judges_as_over_entries_and_memory_of_a_wrong_size_is_refused() -> None:
    """What live scans do: the planes are filled by the caller, and images lie anywhere in one array."""
    definition = TableDefinition(1, 1, "t", (Column("id", t.Int64), Column("version", t.UInt32)), ("id",))
    asm = Assembler(definition)
    asm.load_parameter(1, 0)
    asm.read(2, "version")
    asm.branch_registers("gt", 1, 2, "ok")
    asm.exit_refuse(9_999)
    asm.label("ok")
    asm.exit_ok()
    program, count = asm.finish(), 300
    batch = Batch(definition, random.Random(4), count)
    planes, start = np.zeros(p.ROWS_WORDS, dtype=np.int64), p.R_PARAMETERS * p.VECTOR_ROWS
    planes[:count], planes[start : start + count] = batch.offsets, batch.parameters[:count]
    work = program.new_work()
    assert run_program(batch.entries, planes, count, program.words, work) == p.RUN_OK
    found = work[p.W_VERDICT : p.W_VERDICT + count].tolist()
    assert found == [each.verdict for each in check(program, batch)] and len(set(found)) == 2
    data, words = batch.entries, program.words
    assert run_program(data, planes, 1, words, np.zeros(10, dtype=np.int64)) == p.RUN_BROKEN
    assert run_program(data, planes[:-1].copy(), 1, words, program.new_work()) == p.RUN_BROKEN
    assert run_program(data, planes, p.VECTOR_ROWS + 1, words, program.new_work()) == p.RUN_BROKEN
    assert run_program(data, planes, 1, words[:-4].copy(), program.new_work()) == p.RUN_BROKEN


@pytest.mark.parametrize(("one", "other"), [(-(2**63), -(2**63)), (2**62, 2), (-(2**63), -1), (3037000500, 3037000500)])
def test_exact_product_past_64_bits_is_an_error(one: int, other: int) -> None:
    """Story: products were checked by dividing them again. numba tells LLVM that its products do not overflow, so LLVM
    removed the check, and the product of the least integer with itself was 0, without an error.
    """
    definition = TableDefinition(1, 1, "t", (Column("id", t.Int64),), ("id",))
    asm = Assembler(definition)
    asm.load_const(0, one)
    asm.load_const(1, other)
    asm.operate("mul_exact", 0, 0, 1)
    asm.exit_ok()
    (result,) = check(asm.finish(), Batch(definition, random.Random(1), 1))
    assert (result.verdict, result.code) == (p.VERDICT_ERROR, p.PE_OVERFLOW)
