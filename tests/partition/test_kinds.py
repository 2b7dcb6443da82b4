"""Every kind of partition: what is refused, what comes back from JSON, and to which partition a key belongs."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tidemark as tm
from tests.engine.pool_words import free_blocks
from tests.naive.partitions import number_of
from tests.partition.kinds import table as random_table
from tidemark.engine.base.limits import FRAGMENTS_MAX, PARTITION_VALUES_MAX
from tidemark.engine.jit.kernel import kernel
from tidemark.engine.memory import arena_layout as a
from tidemark.engine.memory.arena import Arena, address_of
from tidemark.engine.schema.definition import TableDefinition
from tidemark.engine.schema.partitions_kernels import drop_partition_words, fragment_number
from tidemark.engine.schema.partitions_layout import SP_UNIT_COUNT, SP_UNIT_IS_PAGE
from tidemark.engine.table.table import Table

COLUMNS = (tm.Column("a", tm.Int32), tm.Column("b", tm.VarChar(20)), tm.Column("v", tm.Int64))


def defined(partition: Any, key: tuple[str, ...] = ("a", "b")) -> TableDefinition:
    return TableDefinition(1, 1, "t", COLUMNS, key, partition)


@kernel("int64(int64[::1], int64, int64[::1], int64)")
def number_alone(mem, table, key, words):  # type: ignore[no-untyped-def]
    return fragment_number(mem, table, key, 0, words)


@settings(max_examples=150)
@given(st.integers(0, 2**32))
def test_fragment_of_any_key_equals_twin_in_batches_and_alone(seed: int) -> None:
    rng = random.Random(seed)
    definition, draw = random_table(rng)
    arena = Arena(4 << 20, 1 << 20)
    made = Table(arena, definition, 7, None, None)
    keys = [draw() for _ in range(40)]
    expected = [number_of(definition, key) for key in keys]
    single = len(definition.primary_key) == 1
    assert made.fragments_of([key[0] for key in keys] if single else keys).tolist() == expected
    for key, number in zip(keys, expected, strict=True):
        words = made.format.encode_key(key[0] if single else key)
        assert number_alone(arena.mem, address_of(made.handle), words, words.size) == number, key


@settings(max_examples=150)
@given(st.integers(0, 2**32))
def test_definition_comes_back_from_its_json(seed: int) -> None:
    definition, _ = random_table(random.Random(seed))
    again = TableDefinition.from_json(definition.to_json())
    assert again == definition and again.to_json() == definition.to_json()


def test_json_of_a_plain_hash_is_what_it_always_was() -> None:
    assert b'"partition":{"fragments":3,"kind":"hash"}' in defined(tm.HashPartition(3)).to_json()


def test_key_partition_of_the_whole_key_is_where_a_hash_puts_it() -> None:
    rng = random.Random(5)
    keys = [(rng.randrange(100), "x" * rng.randrange(9)) for _ in range(100)]
    assert [number_of(defined(tm.KeyPartition(5)), key) for key in keys] == [
        number_of(defined(tm.HashPartition(5)), key) for key in keys
    ]


@pytest.mark.parametrize("count", range(1, 40))
def test_one_more_linear_partition_takes_rows_of_one_only(count: int) -> None:
    before, after = defined(tm.LinearHash(count, modulo="a")), defined(tm.LinearHash(count + 1, modulo="a"))
    moved = [
        number_of(before, (number, ""))
        for number in range(-200, 200)
        if number_of(before, (number, "")) != number_of(after, (number, ""))
    ]
    assert len(set(moved)) == 1


REFUSED: list[tuple[Any, str]] = [
    (lambda: tm.HashPartition(0), "1 to 4096 fragments"),
    (lambda: tm.HashPartition(True), "1 to 4096 fragments"),
    (lambda: tm.HashPartition(2, "v"), "not a column of the primary key"),
    (lambda: tm.HashPartition(2, ["a", "a"]), "appears twice"),
    (lambda: tm.HashPartition(2, []), "given by name"),
    (lambda: tm.HashPartition(2, modulo="b"), "integer column"),
    (lambda: tm.HashPartition(2, ["a"], "a"), "no other partition columns"),
    (lambda: tm.KeyPartition(2, linear=1), "True or False"),
    (lambda: tm.RangePartition("a", []), "1 to 4096 fragments"),
    (lambda: tm.RangePartition("v", [("p", 1)]), "not a column of the primary key"),
    (lambda: tm.RangePartition("a", [("p", 1), ("q", 1)]), "must ascend"),
    (lambda: tm.RangePartition("a", [("p", 2), ("q", 1)]), "must ascend"),
    (lambda: tm.RangePartition("a", [("p", tm.MAXVALUE), ("q", 1)]), "must ascend"),
    (lambda: tm.RangePartition("a", [("p", 1), ("p", 2)]), "appears twice"),
    (lambda: tm.RangePartition("a", [("p", "x")]), "needs an int"),
    (lambda: tm.RangePartition("a", [("p", 2**31)]), "holds"),
    (lambda: tm.RangePartition("a", [("p", None)]), "needs an int"),
    (lambda: tm.RangePartition(["a", "b"], [("p", 1)]), r"one value for each partition column \(2\)"),
    (lambda: tm.RangePartition(["a", "b"], [("p", (tm.MAXVALUE, "x"))]), "after MAXVALUE"),
    (lambda: tm.RangePartition("a", [("p",)]), "pairs"),
    (lambda: tm.RangePartition("a", [("p/q", 1)]), "name"),
    (lambda: tm.ListPartition("a", {"p": [1, 2], "q": [3, 1]}), "again in 'q'"),
    (lambda: tm.ListPartition("a", {"p": [1, 1]}), "again in 'p'"),
    (lambda: tm.ListPartition("a", {"p": []}), "one value or more"),
    (lambda: tm.ListPartition("a", {"p": 7}), "one value or more"),
    (lambda: tm.ListPartition("a", {"p": [tm.MAXVALUE]}), "not a value of a list"),
    (lambda: tm.ListPartition("a", {"p": range(PARTITION_VALUES_MAX + 1)}), "more than"),
    (lambda: tm.HashPartition, "call it"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "message"), REFUSED)
def test_partition_that_cannot_be_is_refused(make: Any, message: str) -> None:
    with pytest.raises(tm.Rejected, match=message):
        defined(make())


def test_bounds_too_long_to_be_searched_are_refused() -> None:
    columns = (tm.Column("a", tm.VarBinary(3_000)), tm.Column("v", tm.Int64))
    bounds = [(f"p{number}", number.to_bytes(2) + b"x" * 2_900) for number in range(FRAGMENTS_MAX)]
    definition = TableDefinition(1, 1, "t", columns, ("a",), tm.RangePartition("a", bounds))
    with pytest.raises(tm.SchemaInvalid, match="shorten them"):
        Table(Arena(64 << 20, 1 << 20), definition, 7, None, None)


@pytest.mark.parametrize("count", [1, 60, 500, 4_000])
def test_bounds_in_blocks_and_pages_find_every_neighbour(count: int) -> None:
    arena = Arena(64 << 20, 1 << 20)
    bounds = [(f"p{number}", 10 * number) for number in range(count)]
    made = Table(arena, defined(tm.RangePartition("a", bounds), ("a",)), 7, None, None)
    words = int(arena.mem[address_of(made.handle) + a.T_PARTITION])
    assert bool(arena.mem[words + SP_UNIT_IS_PAGE]) == (count > 170)
    assert arena.mem[words + SP_UNIT_COUNT] == (1 if count <= 1_000 else 3)
    keys = np.arange(-15, 10 * count + 5, dtype=np.int32)
    expected = [-1 if key >= 10 * (count - 1) else max(0, key // 10 + 1) for key in keys.tolist()]
    assert made.fragments_of(keys).tolist() == expected
    used = arena.used_pages(), free_blocks(arena)
    again = Table(arena, defined(tm.RangePartition("a", bounds), ("a",)), 7, None, None)
    again.drop()
    assert arena.used_pages() * 8 - free_blocks(arena) == used[0] * 8 - used[1]
    assert drop_partition_words(arena.mem, words) == a.OK
