"""P10: the EPOCH predicate over a batch of rows; peers are a Python loop over the same program, and fused code.

There are two fused versions: a kernel for this one predicate, which the goal refers to, and NumPy with three
comparisons over whole columns of the same entries.
"""

from __future__ import annotations

import numpy as np

from bench.context import Context
from bench.report import OURS, Line, at_most, line_of, times_faster
from bench.rounds import Work, interleave, timed
from tidemark.engine import types as t
from tidemark.engine.jit.kernel import kernel
from tidemark.engine.memory.arena_layout import ENTRY_WORDS
from tidemark.engine.programs import program_layout as p
from tidemark.engine.programs.compiled import compile_aggregates, compile_filter
from tidemark.engine.programs.expressions import col
from tidemark.engine.programs.interpreter import Assembler, Program
from tidemark.engine.programs.vm_batch_kernels import run_batch
from tidemark.engine.rows.lcp_layout import ENTRY_AUTHOR_MASK
from tidemark.engine.schema.column import Column
from tidemark.engine.schema.definition import TableDefinition

ROWS = 65_536
LOOP_ROWS = 4_096
APPLIED = 500 << 32
NOTHING = np.zeros(0, dtype=np.int64)
TABLE = TableDefinition(1, 1, "t", (Column("id", t.Int64), Column("b", t.Int64)), ("id",))


def epoch_program() -> Program:
    """In order if a replica wrote the row, or no later than what was applied."""
    asm = Assembler(TABLE)
    asm.load_const(1, 0)
    asm.read_pseudo(2, "author")
    asm.branch_registers("ne", 2, 1, "ok")
    asm.load_const(1, APPLIED)
    asm.read_pseudo(2, "epoch")
    asm.branch_registers("le", 2, 1, "ok")
    asm.exit_refuse(9_999)
    asm.label("ok")
    asm.exit_ok()
    return asm.finish()


@kernel("int64(int64[::1], int64[::1], int64, int64, int64[::1])", nogil=True)
def fused_predicate(entries, offsets, count, applied, verdicts):  # type: ignore[no-untyped-def]
    """What `epoch_program` says of each entry, written by hand."""
    if not 0 <= count <= min(offsets.size, verdicts.size):
        return -1
    size = entries.size
    for i in range(count):
        image = offsets[i]
        if image < ENTRY_WORDS or image > size:
            return -1
        # Not `or`: the processor would mispredict the branch for half of the rows.
        is_ok = ((entries[image - 1] & ENTRY_AUTHOR_MASK) != 0) | (entries[image - 2] <= applied)
        verdicts[i] = p.VERDICT_OK if is_ok else p.VERDICT_REFUSED
    return 0


def loop(program: Program, rows: list[tuple[int, int]]) -> list[int]:
    """A tight interpreter of the instructions this program has, row by row."""
    code = [(each.opcode, each.a, each.b, each.place, each.value, each.target) for each in program.instructions]
    registers = [0] * p.REGISTERS
    verdicts = []
    for epoch, author in rows:
        at = 0
        while True:
            opcode, a, b, place, value, target = code[at]
            at += 1
            if opcode == p.OP_READ_ATTR:
                registers[a] = epoch if place == p.PSEUDO_EPOCH else author
            elif opcode in (p.OP_LOAD_CONST16, p.OP_LOAD_CONST64):
                registers[a] = value
            elif opcode == p.OP_BRANCH_NE:
                if registers[a] != registers[b]:
                    at = target
            elif opcode == p.OP_BRANCH_LE:
                if registers[a] <= registers[b]:
                    at = target
            else:
                verdicts.append(p.VERDICT_OK if opcode == p.OP_EXIT_OK else p.VERDICT_REFUSED)
                break
    return verdicts


def measure(context: Context) -> list[Line]:
    """Two lines: the predicate, nanoseconds a row; a filter and a sum."""
    random = np.random.default_rng(10)
    entries = np.zeros((ROWS, 5), dtype=np.int64)
    entries[:, 1] = random.integers(0, 1_000, ROWS) << 32
    entries[:, 2] = random.integers(0, 2, ROWS)
    entries[:, 4] = random.integers(-1_000, 1_000, ROWS)
    flat = entries.reshape(-1)
    offsets = np.arange(ROWS, dtype=np.int64) * 5 + 3
    planes = np.zeros(p.ROWS_WORDS, dtype=np.int64)
    out = np.zeros(2 * ROWS, dtype=np.int64)
    program = epoch_program()
    pairs = list(zip(entries[:LOOP_ROWS, 1].tolist(), entries[:LOOP_ROWS, 2].tolist(), strict=True))

    def run(each: Program) -> None:
        run_batch(flat, offsets, ROWS, NOTHING, each.words, planes, each.new_work(), out)

    def fused_by_numpy() -> None:
        author = flat[offsets - 1] & 0xFFFF
        out[:ROWS] = np.where((author != 0) | (flat[offsets - 2] <= APPLIED), p.VERDICT_OK, p.VERDICT_REFUSED)

    looped = timed(lambda: loop(program, pairs))
    works = [
        Work(OURS, timed(lambda: run(program)), f"run_batch of {ROWS} entries in private memory"),
        Work("Python loop", lambda: looped() * (ROWS / LOOP_ROWS), f"{LOOP_ROWS} rows, times {ROWS // LOOP_ROWS}"),
        Work("fused kernel", timed(lambda: fused_predicate(flat, offsets, ROWS, APPLIED, out)), "this predicate alone"),
        Work("fused NumPy", timed(fused_by_numpy), "entries taken out by offsets, three comparisons"),
    ]
    line = line_of("P10", "EPOCH predicate over a batch", interleave(works, ROWS, context.scale.rounds + 2))
    times_faster(line, "Python loop", 30)
    at_most(line, "times the fused kernel", line.figures[OURS] / line.figures["fused kernel"], 3)
    where = compile_filter(TABLE, (col("b") > 0) & (col("id") >= 0))
    sums = compile_aggregates(TABLE, [("sum", "b")]).program
    columns = [
        Work("filter of two columns", timed(lambda: run(where)), "(b > 0) & (id >= 0)"),
        Work("sum of one column", timed(lambda: run(sums)), 'sum("b")'),
    ]
    return [line, line_of("P10", "filter and sum, a row", interleave(columns, ROWS, context.scale.rounds + 2))]
