"""The programs of the conflict functions against their definitions: OLD, MAX, EPOCH, EPOCH2."""

from __future__ import annotations

import random

import numpy as np

from tidemark.engine.jit.kernel import kernel
from tidemark.engine.programs import program_layout as p
from tidemark.engine.programs.interpreter import Assembler, Program
from tidemark.engine.programs.vm_batch_kernels import run_batch
from tidemark.engine.programs.vm_run_kernels import run_rows
from tidemark.engine.rows.row_format import RowFormat
from tidemark.engine.schema import types as t
from tidemark.engine.schema.column import Column
from tidemark.engine.schema.definition import TableDefinition

TABLE = TableDefinition(1, 1, "t", (Column("id", t.Int64), Column("version", t.UInt32)), ("id",))
CONFLICT = 9999


@kernel("int64(int64[::1], int64[::1], int64, int64[::1], int64[::1])")
def run_program(data, rows, count, program, work):  # type: ignore[no-untyped-def]
    """Run a program over the rows of one vector; see `run_rows`."""
    return run_rows(data, rows, count, program, work)


def epoch(applied: int) -> Program:
    """EPOCH on the primary: the row is in order if a replica wrote it, or if it is no later than the epoch applied
    there.
    """
    asm = Assembler(TABLE)
    asm.load_const(1, 0)
    asm.read_pseudo(2, "author")
    asm.branch_registers("ne", 2, 1, "ok")
    asm.load_const(1, applied)
    asm.read_pseudo(2, "epoch")
    asm.branch_registers("le", 2, 1, "ok")
    asm.exit_refuse(CONFLICT)
    asm.label("ok")
    asm.exit_ok()
    return asm.finish()


def epoch2() -> Program:
    """EPOCH2 on the secondary: what the row's own site wrote is in conflict with a reflected change."""
    asm = Assembler(TABLE)
    asm.load_const(1, 0)
    asm.read_pseudo(2, "author")
    asm.branch_registers("eq", 2, 1, "nok")
    asm.exit_ok()
    asm.label("nok")
    asm.exit_refuse(CONFLICT)
    return asm.finish()


def with_column(condition: str) -> Program:
    """OLD (eq) and MAX (gt): the value that comes with each row, a parameter, and the resolve column."""
    asm = Assembler(TABLE)
    asm.load_parameter(1, 0)
    asm.read(2, "version")
    asm.branch_registers(condition, 1, 2, "ok")
    asm.exit_refuse(CONFLICT)
    asm.label("ok")
    asm.exit_ok()
    return asm.finish()


class Rows:
    """Entries with epochs, authors, versions, and a parameter for each."""

    def __init__(self, seed: int, count: int = 1_200) -> None:
        r = random.Random(seed)
        self.count = count
        self.epochs = [r.choice([4 << 32, 5 << 32 | 0xFFFFFFFF, 5 << 32 | 3, 6 << 32]) for _ in range(count)]
        self.authors = [r.randint(0, 2) for _ in range(count)]
        self.versions = [r.choice([0, 1, 5, 2**32 - 1]) for _ in range(count)]
        self.given = np.array([r.choice([0, 1, 5, 2**32 - 1]) for _ in range(count)], dtype=np.int64)
        row_format = RowFormat(TABLE)
        words = []
        for n in range(count):
            words.append([n, self.epochs[n], self.authors[n], *row_format.encode_row((n, self.versions[n])).tolist()])
        self.stride = len(words[0])
        self.entries = np.array(words, dtype=np.int64).reshape(-1)

    def run(self, program: Program) -> list[tuple[int, int]]:
        offsets = np.arange(self.count, dtype=np.int64) * self.stride + 3
        out = np.zeros(2 * self.count, dtype=np.int64)
        planes = np.zeros(p.ROWS_WORDS, dtype=np.int64)
        status = run_batch(
            self.entries, offsets, self.count, self.given, program.words, planes, program.new_work(), out
        )
        assert status == p.RUN_OK
        return list(zip(out[: self.count].tolist(), out[self.count :].tolist(), strict=True))


def verdict(is_fine: bool) -> tuple[int, int]:
    return (p.VERDICT_OK, 0) if is_fine else (p.VERDICT_REFUSED, CONFLICT)


def test_epoch_program_refuses_own_rows_newer_than_what_was_applied() -> None:
    rows = Rows(1)
    for applied in (0, 4 << 32, 5 << 32 | 3, 5 << 32 | 0xFFFFFFFF, 1 << 62):
        expected = [verdict(a != 0 or e <= applied) for e, a in zip(rows.epochs, rows.authors, strict=True)]
        assert rows.run(epoch(applied)) == expected


def test_epoch2_program_refuses_rows_of_the_own_site() -> None:
    rows = Rows(2)
    assert rows.run(epoch2()) == [verdict(author != 0) for author in rows.authors]


def test_old_and_max_programs_compare_each_row_with_its_own_value() -> None:
    rows = Rows(3)
    given = rows.given.tolist()
    assert rows.run(with_column("eq")) == [verdict(g == v) for g, v in zip(given, rows.versions, strict=True)]
    assert rows.run(with_column("gt")) == [verdict(g > v) for g, v in zip(given, rows.versions, strict=True)]


def test_program_over_given_addresses_judges_as_over_entries() -> None:
    """What live scans do: the planes are filled by the caller, and images lie anywhere in one array."""
    rows = Rows(4, 300)
    program = with_column("eq")
    planes = np.zeros(p.ROWS_WORDS, dtype=np.int64)
    planes[: rows.count] = np.arange(rows.count) * rows.stride + 3
    start = p.R_PARAMETERS * p.VECTOR_ROWS
    planes[start : start + rows.count] = rows.given
    work = program.new_work()
    assert run_program(rows.entries, planes, rows.count, program.words, work) == p.RUN_OK
    found = work[p.W_VERDICT : p.W_VERDICT + rows.count].tolist()
    assert found == [each for each, _ in rows.run(program)]


def test_memory_of_a_wrong_size_is_refused() -> None:
    program = epoch2()
    planes = np.zeros(p.ROWS_WORDS, dtype=np.int64)
    data = np.zeros(100, dtype=np.int64)
    assert run_program(data, planes, 1, program.words, np.zeros(10, dtype=np.int64)) == p.RUN_BROKEN
    assert run_program(data, planes[:-1].copy(), 1, program.words, program.new_work()) == p.RUN_BROKEN
    assert run_program(data, planes, p.VECTOR_ROWS + 1, program.words, program.new_work()) == p.RUN_BROKEN
    assert run_program(data, planes, 1, program.words[:-4].copy(), program.new_work()) == p.RUN_BROKEN
