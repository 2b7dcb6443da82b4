"""Programs with groups: the machine and plain Python find the same groups, keys and aggregates in random rows."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from tests.interpreter.generate import LONGS, Batch, batch_of, definition_of
from tests.interpreter.machine import Machine, float_sum, order
from tests.seeds import fresh_seeds
from tidemark.engine import types as t
from tidemark.engine.base.errors import ProgramInvalid, Rejected
from tidemark.engine.programs import program_layout as p
from tidemark.engine.programs.aggregates import Aggregates
from tidemark.engine.programs.expression_programs import compile_aggregates
from tidemark.engine.programs.expressions import Col, Expression, col
from tidemark.engine.programs.interpreter import Program
from tidemark.engine.programs.running import Running
from tidemark.engine.rows.row_format import RowFormat
from tidemark.engine.schema.column import Column
from tidemark.engine.schema.definition import TableDefinition
from tidemark.engine.types import Decimal


class Rows:
    """A table whose rows are in private memory."""

    def __init__(self, definition: TableDefinition) -> None:
        self.name = definition.name
        self.format = RowFormat(definition)

    def format_key(self, key: Any) -> str:
        return repr(key)


def expression_of(definition: TableDefinition, r: random.Random) -> Expression:
    """A part of a key: a column, or now and then arithmetic."""
    numbers = [each for each in definition.columns if isinstance(each.type, t.Integer) and each.type.bits < 64]
    if numbers and r.random() < 0.2:
        return col(r.choice(numbers).name) % 3
    return Col(r.choice(definition.columns).name)


def functions_of(definition: TableDefinition, r: random.Random) -> list[tuple[str, Any]]:
    """Aggregates; of a random column, some are refused."""
    found: list[tuple[str, Any]] = []
    for _ in range(r.randint(0, 4)):
        function = r.choice(["count", "sum", "min", "max", "mean"])
        found.append((function, r.choice(definition.columns).name))
    return [*found, ("count", None)] if r.random() < 0.5 else found


def stored_of(machine: Machine, outputs: Any, number: int, values: list[Any]) -> Any:
    """What an aggregate of these values is, as it is stored."""
    output = outputs[number]
    numbers = [value for _, value in values]
    if output.function == "count":
        return len(numbers)
    if not numbers:
        return None
    if output.function in ("min", "max"):
        best = numbers[0]
        for each in numbers[1:]:
            if order(each, best) == (1 if output.function == "max" else -1):
                best = each
        return best
    total: Any = sum(numbers)
    if isinstance(numbers[0], float):
        whole, rest = float_sum(numbers)
        total = whole + rest if abs(whole) < float("inf") else whole
    return output.mean(total, len(numbers)) if output.function == "mean" else total


def loaded(output: Any, value: Any) -> Any:
    load = output.loader()
    found = value if value is None or load is None else load(value)
    return "NaN" if found != found else found


def expected_of(program: Program, outputs: Any, batch: Batch) -> list[tuple[Any, ...]]:
    machine = Machine(program)
    machine.run(batch.rows)
    rows = []
    keys = [each for each in outputs if each.function == "key"]
    for key, values in machine.groups.items():
        parts = [loaded(output, value) for output, value in zip(keys, key, strict=True)]
        results = [
            loaded(output, stored_of(machine, outputs[len(keys) :], number, values[number]))
            for number, output in enumerate(outputs[len(keys) :])
        ]
        rows.append((*parts, *results))
    return rows


def found_of(program: Program, outputs: Any, batch: Batch, definition: TableDefinition, pieces: int) -> list[Any]:
    running = Running(program)
    table = Rows(definition)
    for part in np.array_split(batch.offsets, pieces):
        running.accepted(table, batch.entries, part)
    columns = Aggregates(program, outputs).groups(running.work, [], None)
    assert len(columns) == len(outputs)
    count = int(running.work[p.W_GROUPS + p.GS_COUNT])
    rows = list(zip(*columns, strict=True)) if columns else [()] * count
    return [tuple("NaN" if value != value else value for value in row) for row in rows]


def same(one: list[Any], other: list[Any]) -> bool:
    return list(map(repr, one)) == list(map(repr, other))


@pytest.mark.parametrize("seed", [1, 2, 3, 4, 5, 6, *fresh_seeds(2)])
def test_groups_of_random_keys_and_their_aggregates_equal_those_of_plain_python(seed: int) -> None:
    print("seed", seed)
    r = random.Random(seed)
    compiled = 0
    for _ in range(12):
        definition = definition_of(r)
        batch = Batch(definition, r, r.choice([1, 30, 700]))
        for _ in range(6):
            keys = [expression_of(definition, r) for _ in range(r.choice([1, 1, 2, 3, 9]))]
            where = col(r.choice(definition.columns).name).is_not_null() if r.random() < 0.3 else None
            try:
                made = compile_aggregates(definition, functions_of(definition, r), where, keys)
            except Rejected:
                continue
            compiled += 1
            found = found_of(made.program, made.outputs, batch, definition, r.choice([1, 2, 7]))
            assert same(found, expected_of(made.program, made.outputs, batch)), (keys, where, made.outputs)
    assert compiled > 12


def table_of(*kinds: Any) -> TableDefinition:
    columns = [Column("id", t.Int64), *(Column(f"c{n}", kind) for n, kind in enumerate(kinds))]
    return TableDefinition(1, 1, "t", tuple(columns), ("id",))


def test_many_groups_grow_the_memory_and_are_all_there() -> None:
    definition = table_of(t.VarChar(40))
    rows = [(key, f"key {key % 9_000}" * (1 + key % 3)) for key in range(20_000)]
    entries, offsets = batch_of(definition, rows)
    made = compile_aggregates(definition, [("max", "c0"), ("count", None), ("sum", "id")], None, [Col("c0")])
    running = Running(made.program)
    running.accepted(Rows(definition), entries, offsets)
    running.accepted(Rows(definition), entries, offsets[:5])
    expected: dict[str, list[int]] = {}
    for key, text in [*rows, *rows[:5]]:
        expected.setdefault(text, []).append(key)
    names, greatest, counts, sums = Aggregates(made.program, made.outputs).groups(running.work, [], None)
    assert names == greatest == list(expected)
    assert counts == [len(keys) for keys in expected.values()]
    assert sums == [sum(keys) for keys in expected.values()]


def test_sums_of_groups_are_exact_and_decimals_keep_their_scale() -> None:
    definition = table_of(t.Int64, t.Decimal(38, 4), t.UInt64)
    most = Decimal(38, 4).loaded((10**38 - 1).to_bytes(16, "little", signed=True))
    rows = [(key, r, most, 2**64 - 1) for key, r in enumerate(LONGS * 50)]
    entries, offsets = batch_of(definition, rows)
    functions = [("sum", "c0"), ("sum", "c1"), ("sum", "c2"), ("mean", "c1"), ("mean", "c0")]
    made = compile_aggregates(definition, functions, None, [Col("c2")])
    running = Running(made.program)
    running.accepted(Rows(definition), entries, offsets)
    ((key, *found),) = zip(*Aggregates(made.program, made.outputs).groups(running.work, [], None), strict=True)
    total = sum(LONGS) * 50
    assert key == 2**64 - 1
    assert found[0] == total and found[2] == len(rows) * (2**64 - 1)
    digits = str((10**38 - 1) * len(rows))
    assert str(found[1]) == f"{digits[:-4]}.{digits[-4:]}"
    assert found[3] == most and found[4] == total / len(rows)


CHANGES = [
    (lambda words, at: words.__setitem__(p.H_KEY_WORDS, 0), "in word 15 of its header"),
    (lambda words, at: words.__setitem__(p.H_KEY_WORDS, 9), "in word 15 of its header"),
    (lambda words, at: words.__setitem__(at[p.OP_KEY] + p.I_VALUE, 2), "not one after the other"),
    (lambda words, at: words.__setitem__(at[p.OP_KEY] + p.I_PLACE, 1), "not one after the other"),
    (lambda words, at: words.__setitem__(at[p.OP_KEY_BYTES] + p.I_PLACE, 0), "not of characters or bytes"),
    (lambda words, at: words.__setitem__(at[p.OP_MAX_BYTES] + p.I_TARGET, 9), "accumulator 9"),
    (lambda words, at: words.__setitem__(at[p.OP_GROUP], p.OP_COUNT), "and one group"),
    (lambda words, at: words.__setitem__(at[p.OP_MAX_BYTES], p.OP_GROUP), "and one group|invalid"),
]


@pytest.mark.parametrize(("change", "message"), CHANGES)
def test_a_program_whose_groups_do_not_hold_together_is_refused(change: Any, message: str) -> None:
    definition = table_of(t.VarChar(9))
    made = compile_aggregates(definition, [("max", "c0"), ("sum", "id")], None, [Col("id"), Col("c0")]).program
    start = p.PROGRAM_HEADER_WORDS + int(made.words[p.H_COLUMNS]) * 8
    at = {each.opcode: start + number * p.INSTRUCTION_WORDS for number, each in enumerate(made.instructions)}
    words = made.words.copy()
    change(words, at)
    with pytest.raises(ProgramInvalid, match=message):
        Program(definition, made.columns, words)


def test_aggregates_before_the_extremes_of_bytes_are_refused() -> None:
    """A run that is repeated must add up nothing twice."""
    definition = table_of(t.VarChar(9))
    made = compile_aggregates(definition, [("max", "c0"), ("count", None)], None, [Col("id")]).program
    code = made.instructions
    first = next(number for number, each in enumerate(code) if each.opcode == p.OP_MAX_BYTES)
    last = next(number for number, each in enumerate(code) if each.opcode == p.OP_COUNT)
    start = p.PROGRAM_HEADER_WORDS + int(made.words[p.H_COLUMNS]) * 8
    words = made.words.copy()
    place, other = (slice(start + n * 4, start + n * 4 + 4) for n in (first, last))
    words[place], words[other] = made.words[other], made.words[place]
    with pytest.raises(ProgramInvalid, match=r"before the group and the extremes|not written"):
        Program(definition, made.columns, words)


@pytest.mark.parametrize("seed", [1, 2])
def test_flipped_bits_of_programs_with_groups_are_refused_or_run_within_memory(seed: int) -> None:
    print("seed", seed)
    r = random.Random(seed)
    passed = 0
    for _ in range(8):
        definition = definition_of(r)
        batch = Batch(definition, r, 20)
        names = r.choices([each.name for each in definition.columns], k=2)
        good = compile_aggregates(
            definition, [("count", None), ("count", names[0])], None, list(map(Col, names))
        ).program
        for _ in range(60):
            words = good.words.copy()
            words[r.randrange(words.size)] ^= np.int64(1) << np.int64(r.randrange(63))
            try:
                changed = Program(definition, good.columns, words)
            except ProgramInvalid:
                continue
            passed += 1
            running = Running(changed)
            status, _ = running.run(Rows(definition), batch.entries, batch.offsets, np.zeros(80, dtype=np.int64))
            assert status in (p.RUN_OK, p.RUN_LAST, p.RUN_ERROR)
    assert passed, "some flips change a constant only"
