"""One test for each bug found: the story, then what must hold."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tidemark as tm
from tidemark.engine.programs import program_layout as p
from tidemark.engine.programs.interpreter import Assembler
from tidemark.engine.programs.vm_batch_kernels import run_batch
from tidemark.engine.schema import types as t
from tidemark.engine.schema.column import Column
from tidemark.engine.schema.definition import TableDefinition

TABLE = TableDefinition(1, 1, "t", (Column("id", t.Int64),), ("id",))


def verdict_of(write: Callable[[Assembler], None]) -> tuple[int, int]:
    """Verdict and code of one row with key 0."""
    asm = Assembler(TABLE)
    write(asm)
    program = asm.finish()
    out = np.zeros(2, dtype=np.int64)
    entries, offsets, nothing = np.zeros(4, dtype=np.int64), np.array([3], dtype=np.int64), np.zeros(0, dtype=np.int64)
    planes = np.zeros(p.ROWS_WORDS, dtype=np.int64)
    run_batch(entries, offsets, 1, nothing, program.words, planes, program.new_work(), out)
    return int(out[0]), int(out[1])


@pytest.mark.parametrize(("one", "other"), [(-(2**63), -(2**63)), (2**62, 2), (-(2**63), -1), (3037000500, 3037000500)])
def test_exact_product_past_64_bits_is_an_error(one: int, other: int) -> None:
    """Story: products were checked by dividing them again. numba tells LLVM that its products do not overflow, so LLVM
    removed the check, and the product of the least integer with itself was 0, without an error.
    """

    def write(asm: Assembler) -> None:
        asm.load_const(0, one)
        asm.load_const(1, other)
        asm.operate("mul_exact", 0, 0, 1)
        asm.exit_ok()

    assert verdict_of(write) == (p.VERDICT_ERROR, p.PE_OVERFLOW)


@pytest.mark.parametrize(("depth", "expected"), [("loop", p.PE_STEPS), ("recursion", p.PE_CALLS)])
def test_endless_programs_end_with_an_error(depth: str, expected: int) -> None:
    def write(asm: Any) -> None:
        if depth == "loop":
            asm.label("again")
            asm.branch("again")
        else:
            asm.call("sub")
            asm.exit_ok()
            asm.subroutine("sub")
            asm.call("sub")
            asm.ret()

    assert verdict_of(write) == (p.VERDICT_ERROR, expected)


def test_a_comparison_with_none_is_refused() -> None:
    """`col("v") == None` found nothing, without a word: in SQL NULL equals nothing. A user of Python means
    is_null().
    """
    column = tm.col("v")
    for compare in (operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge):
        with pytest.raises(tm.TypeMismatch, match=r"use is_null\(\) or is_not_null\(\)"):
            compare(column, None)
