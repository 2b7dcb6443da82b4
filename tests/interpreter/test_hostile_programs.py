"""Hostile programs (F111): words changed one by one, endless programs, long ones under Ctrl-C, and programs from the
wire.

A program that the verifier accepts runs next to words that must stay as they are.
"""

from __future__ import annotations

import random
import signal
from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgpack
import numpy as np
import pytest

import tidemark as tm
from tests.interpreter.generate import Batch, Writer, definition_of
from tests.interpreter.machine import accumulator
from tests.interpreter.test_verifier import TABLE
from tests.shares import few
from tests.store.support import open_memory
from tests.store.trouble import promises
from tidemark.engine.base.errors import FrameRejected, ProgramInvalid
from tidemark.engine.programs import program_layout as p
from tidemark.engine.programs import running
from tidemark.engine.programs.instruction_set import INSTRUCTIONS
from tidemark.engine.programs.interpreter import Assembler, Program
from tidemark.engine.programs.vm_batch_kernels import run_batch
from tidemark.engine.rows import columns_layout as c
from tidemark.engine.schema.definition import TableDefinition
from tidemark.replication.calls.values import EXTENSIONS, unpack

GUARD = 1 << 12  # words before and after each array
CANARY = 0x5AFE_5AFE_5AFE_5AFE
HOSTILE = [-(2**63), -(2**31), -1, 0, 1, 2, 15, 16, 63, 64, 255, 2**16, 2**31 - 1, 2**32, 2**62, 2**63 - 1]


class Guarded:
    """An array between words that must stay as they are."""

    def __init__(self, words: Any) -> None:
        self._all = np.full(len(words) + 2 * GUARD, CANARY, dtype=np.int64)
        self.words = self._all[GUARD : GUARD + len(words)]
        self.words[:] = words

    def is_intact(self) -> bool:
        return bool((self._all[:GUARD] == CANARY).all() and (self._all[-GUARD:] == CANARY).all())


def run_guarded(program: Program, batch: Batch) -> int:
    """Run a program where stray writes are noticed; return its status."""
    count = len(batch.rows)
    parameters = np.resize(batch.parameters, p.PARAMETERS_MAX * count)
    given = [
        Guarded(each)
        for each in (
            batch.entries,
            batch.offsets,
            parameters,
            program.words,
            np.zeros(p.ROWS_WORDS, dtype=np.int64),
            program.new_work(),
            np.zeros((2 + len(program.outputs) * p.OUTPUT_PLANES) * count, dtype=np.int64),
        )
    ]
    entries, offsets, parameters, words, rows, work, out = (each.words for each in given)
    status = int(run_batch(entries, offsets, count, parameters, words, rows, work, out))
    assert all(each.is_intact() for each in given), "words outside of an array were written"
    assert np.array_equal(entries, batch.entries) and np.array_equal(words, program.words), "what is read was written"
    assert set(out[:count].tolist()) <= set(range(p.VERDICT_NONE, p.VERDICT_ERROR + 1))
    return status


def programs(seed: int, count: int) -> Iterator[tuple[Program, Batch]]:
    print("seed", seed)
    r = random.Random(seed)
    for number in range(count):
        definition = definition_of(r)
        yield Writer(definition, r, with_loops=number % 2 == 0, updates=True).program(), Batch(definition, r, 12)


def judged(program: Program, words: Any, batch: Batch, columns: Any = None) -> str:
    """What becomes of changed words: refused, or the status of the run."""
    try:
        changed = Program(program.definition, program.columns if columns is None else columns, words)
    except ProgramInvalid:
        return "refused"
    status = run_guarded(changed, batch)
    assert status in (p.RUN_OK, p.RUN_LAST, p.RUN_ERROR)
    return {p.RUN_OK: "run", p.RUN_LAST: "run", p.RUN_ERROR: "ended with an error"}[status]


def test_each_word_of_a_program_made_hostile_is_refused_or_stays_inside() -> None:
    """Or if bits of it are flipped."""
    seen: Counter[str] = Counter()
    r = random.Random(20_261_124)
    for program, batch in programs(20_261_124, few(3, 60)):
        for at in range(program.words.size):
            flipped = [int(program.words[at]) ^ 1 << r.randrange(63) for _ in range(4)]
            for value in (*HOSTILE, *flipped):
                words = program.words.copy()
                if words[at] != value:
                    words[at] = value
                    seen[judged(program, words, batch)] += 1
    print(seen)
    assert min(seen["refused"], seen["run"], seen["ended with an error"]) > 20, seen
    assert seen["refused"] > seen["run"], "most words of a program mean something"


def test_each_branch_to_each_place_is_refused_or_stays_inside() -> None:
    """Targets from far before the first instruction to far after the last; none outside is let pass."""
    seen: Counter[str] = Counter()
    outside = 0
    for program, batch in programs(7, few(4, 60)):
        count = len(program.instructions)
        code = p.PROGRAM_HEADER_WORDS + len(program.columns) * c.COLUMN_WORDS
        for number, each in enumerate(program.instructions):
            if "target" not in INSTRUCTIONS[each.opcode].fields:
                continue
            for target in (*HOSTILE, *range(-2, count + 3)):
                words = program.words.copy()
                words[code + number * p.INSTRUCTION_WORDS + p.I_TARGET] = target
                verdict = judged(program, words, batch)
                seen[verdict] += 1
                if not 0 <= target < count:
                    outside += 1
                    assert verdict == "refused", f"a branch from {number} to {target} of {count} was let pass"
    print(seen, outside)
    assert outside > 100 and seen["refused"] > outside and seen["run"] > 100, seen


@pytest.mark.parametrize("columns", [(-1,), (5,), (2**40,), (0, 0), (True,), (1.0,), ("id",), (None,), ([],)])
def test_columns_by_positions_that_the_table_has_not_are_refused(columns: Any) -> None:
    """Story: positions were looked up as Python does, so that -1 was the last column under another name, which a
    program could write to two outputs; one past the end was an IndexError.
    """
    asm = Assembler(TABLE)
    for name in ("u", "n")[: len(columns)]:
        asm.branch_column_null(name, "end")
    asm.label("end")
    asm.exit_ok()
    good = asm.finish()
    with pytest.raises(ProgramInvalid):
        Program(TABLE, columns, good.words)


def rounds(definition: TableDefinition, count: int | None, adds: bool = False) -> Program:
    """A program that loops so often and accepts the row; None: for ever. adds: 1 to an accumulator each time."""
    asm = Assembler(definition)
    asm.load_const(0, count or 1)
    asm.load_const(1, 1)
    asm.load_const(2, 0)
    asm.label("again")
    if adds:
        asm.aggregate("sum", 1, 0)
    if count is None:
        asm.branch("again")
    else:
        asm.sub(0, 0, 1)
        asm.branch_registers("gt", 0, 2, "again")
    asm.exit_ok()
    return asm.finish()


def test_endless_program_runs_as_many_instructions_as_its_budget_has() -> None:
    program = rounds(TABLE, None, adds=True)
    offsets = np.array([3], dtype=np.int64)
    entries, nothing = np.zeros(16, dtype=np.int64), np.zeros(0, dtype=np.int64)
    work, out = program.new_work(), np.zeros(2, dtype=np.int64)
    run_batch(entries, offsets, 1, nothing, program.words, np.zeros(p.ROWS_WORDS, dtype=np.int64), work, out)
    assert out.tolist() == [p.VERDICT_ERROR, p.PE_STEPS]
    count, total, _ = accumulator(work, 0)
    assert count == total == (p.PROGRAM_STEPS_MAX - 3 + 1) // 2, "three loads, then two instructions each time"


def stored_rows(count: int) -> Any:
    db: Any = open_memory(data_memory="32 MiB", transaction_memory="8 MiB", redo_log="16 MiB")
    db.create_table("test.t", [tm.Column("id", tm.Int64), tm.Column("n", tm.Int64)], "id", tm.HashPartition(1))
    db["test.t"].insert_many([(number, number) for number in range(count)])
    return db


def test_endless_program_is_an_error_of_the_call_and_the_store_continues() -> None:
    db = stored_rows(3_000)
    endless = rounds(db["test.t"].definition, None)
    for call in (
        lambda: list(db["test.t"].scan(where=endless)),
        lambda: db["test.t"].delete_where(endless),
        lambda: db["test.t"].update_where({"n": 1}, where=endless),
        lambda: db["test.t"].update(1, {"n": 1}, where=endless),
    ):
        with pytest.raises(tm.ProgramFailed, match=f"more than {p.PROGRAM_STEPS_MAX} instructions"):
            call()
    assert set(promises(db).values()) == {0}
    assert len(db["test.t"]) == 3_000 and db["test.t"][1].n == 1


@pytest.mark.parametrize("calls", [1, 3])
def test_ctrl_c_ends_a_long_scan_after_the_call_it_fell_into(calls: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Story: a program ran over a batch of 65,536 rows in one call of a kernel, half a billion instructions, in which
    no Ctrl-C was heard.
    """
    seen: list[int] = []

    def noted(*arguments: Any) -> Any:
        status = run_batch(*arguments)
        seen.append(arguments[2])
        if len(seen) == calls:
            signal.raise_signal(signal.SIGINT)
        return status

    count, times = 4_000, 3_990
    db = stored_rows(count)
    long = rounds(db["test.t"].definition, times)
    monkeypatch.setattr(running, "run_batch", noted)
    # A process that was started in the background has Ctrl-C ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            list(db["test.t"].scan(where=long))
    finally:
        signal.signal(signal.SIGINT, before)
    assert len(seen) == calls, "it continued after Ctrl-C"
    steps = [rows * (3 + 2 * times) for rows in seen]
    assert sum(seen) < count and min(steps) > 4_000_000, "it was no long run"
    assert max(steps) <= running.STEPS_PER_CALL
    assert set(promises(db).values()) == {0} and not db.parts.store.users.pins
    seen.clear()
    calls = 0
    rows = [row.id for row in db["test.t"].scan(where=long)]
    assert len(rows) == sum(seen) == count and len(seen) == -(-count // 512)


def test_rows_in_parts_give_what_rows_at_once_give(monkeypatch: pytest.MonkeyPatch) -> None:
    """A last row and an error in the middle of a batch end all that comes after, in whichever call they lie."""
    db = stored_rows(2_000)
    definition = db["test.t"].definition
    asm = Assembler(definition)
    asm.load_const(0, 5)
    asm.label("again")
    asm.load_const(1, 1)
    asm.sub(0, 0, 1)
    asm.load_const(2, 0)
    asm.branch_registers("gt", 0, 2, "again")
    asm.branch_column("eq", "id", 1_100, "last")
    asm.exit_ok()
    asm.label("last")
    asm.exit_last()
    program = asm.finish()
    assert not program.is_forward
    in_parts = [row.id for row in db["test.t"].scan(where=program)]
    monkeypatch.setattr(running, "STEPS_PER_CALL", 1 << 40)
    assert in_parts == [row.id for row in db["test.t"].scan(where=program)] != []
    assert in_parts[-1] == 1_100 and len(in_parts) > 512


def sent(name: str, version: int, columns: Any, words: Any) -> bytes:
    """A program as a peer of any make would send it."""
    parts = msgpack.packb([name, version, columns, words], use_bin_type=True)
    packed: bytes = msgpack.packb(msgpack.ExtType(EXTENSIONS.index("program"), parts))
    return packed


@pytest.mark.parametrize(
    ("columns", "cut"),
    [
        ([2], 0),
        ([-1], 0),
        ([1.5], 0),
        (["n"], 0),
        ([None], 0),
        (7, 0),
        (None, 0),
        ({}, 0),
        ([1], 3),
        ([1], 8),
        ([1], -8),
    ],
)
def test_programs_from_the_wire_with_impossible_parts_are_refused(columns: Any, cut: int) -> None:
    db = stored_rows(1)
    definition = db["test.t"].definition
    asm = Assembler(definition)
    asm.branch_column_null("n", "end")
    asm.label("end")
    asm.exit_ok()
    octets = asm.finish().words.tobytes()
    octets = octets[: len(octets) - cut] if cut >= 0 else octets + bytes(-cut)
    with pytest.raises((ProgramInvalid, FrameRejected)):
        unpack(sent("test.t", definition.version, columns, octets), lambda name: db[name].definition)
