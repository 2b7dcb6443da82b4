"""Pruning against brute force: no partition with a matching row is ever left out."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tidemark as tm
from tests.naive.partitions import comparable, number_of
from tests.partition.kinds import TYPES
from tests.partition.kinds import table as random_table
from tests.partition.test_kinds import defined
from tidemark.engine.schema.partition_pruning import Between, Known, partitions_for


def holds(known: Known, value: Any) -> bool:
    if not isinstance(known, Between):
        return value in list(known)
    here = comparable(value)
    if known.lower is not None:
        low = comparable(known.lower)
        if here < low or (here == low and not known.with_lower):
            return False
    if known.upper is None:
        return True
    high = comparable(known.upper)
    return bool(here < high or (here == high and known.with_upper))


def random_known(rng: random.Random, draw: Any) -> Known:
    if rng.random() < 0.4:
        return [draw(rng) for _ in range(rng.randrange(4))]
    one, two = sorted((draw(rng), draw(rng)), key=comparable)
    return Between(
        None if rng.random() < 0.2 else one, None if rng.random() < 0.2 else two, rng.random() < 0.5, rng.random() < 0.5
    )


@settings(max_examples=300)
@given(st.integers(0, 2**32))
def test_pruning_keeps_every_partition_that_has_a_row(seed: int) -> None:
    rng = random.Random(seed)
    definition, draw = random_table(rng)
    draws = {
        name: {repr(kind): each for kind, each in TYPES}[repr(definition.columns[definition.position(name)].type)]
        for name in definition.primary_key
    }
    known = {name: random_known(rng, draws[name]) for name in definition.primary_key if rng.random() < 0.7}
    kept = partitions_for(definition, known)
    assert list(kept) == sorted(set(kept)) and set(kept) <= set(definition.partition.numbers)
    for _ in range(300):
        key = draw()
        pieces = dict(zip(definition.primary_key, key, strict=True))
        if all(holds(each, pieces[name]) for name, each in known.items()):
            number = number_of(definition, key)
            assert number == -1 or number in kept, (key, known, definition.partition)


TENS = tm.RangePartition("a", [("p0", 10), ("p1", 20), ("p2", 30)])
PAIRS = tm.RangePartition(["a", "b"], [("p0", (1, "m")), ("p1", (1, tm.MAXVALUE)), ("p2", (2, "m"))])


@pytest.mark.parametrize(
    ("partition", "known", "kept"),
    [
        (TENS, {}, (0, 1, 2)),
        (TENS, {"b": ["x"]}, (0, 1, 2)),
        (TENS, {"a": []}, ()),
        (TENS, {"a": [9, 25]}, (0, 2)),
        (TENS, {"a": [30]}, ()),
        (TENS, {"a": Between(10, 20, True, False)}, (1,)),
        (TENS, {"a": Between(9, 20, False, True)}, (1, 2)),
        (TENS, {"a": Between(None, 9)}, (0,)),
        (TENS, {"a": Between(29)}, (2,)),
        (TENS, {"a": Between(29, None, False)}, ()),
        (TENS, {"a": Between(20, 10)}, ()),
        (TENS, {"a": Between(-(2**31), 2**31 - 1)}, (0, 1, 2)),
        (TENS, {"a": [5.0]}, (0, 1, 2)),
        (TENS, {"a": Between(2**40)}, (0, 1, 2)),
        (PAIRS, {"a": [1]}, (0, 1)),
        (PAIRS, {"a": [1], "b": ["l", "k"]}, (0,)),
        (PAIRS, {"a": [1], "b": Between("m")}, (1,)),
        (PAIRS, {"a": [2], "b": Between("n")}, ()),
        (PAIRS, {"b": ["a"]}, (0, 1, 2)),
        (tm.ListPartition("a", {"x": [1, 2], "y": [7]}), {"a": Between(2, 6)}, (0,)),
        (tm.ListPartition("a", {"x": [1, 2], "y": [7]}), {"a": Between(2, 7, False, False)}, ()),
        (tm.HashPartition(10, modulo="a"), {"a": Between(8, 11)}, (0, 1, 8, 9)),
        (tm.HashPartition(10, modulo="a"), {"a": Between(8)}, tuple(range(10))),
        (tm.LinearHash(6, modulo="a"), {"a": [6, 7]}, (2, 3)),
        (tm.HashPartition(4), {"a": [6]}, (0, 1, 2, 3)),
    ],
)
def test_pruning_leaves_out_what_it_can(partition: Any, known: dict[str, Known], kept: tuple[int, ...]) -> None:
    assert partitions_for(defined(partition), known) == kept


def test_hash_of_few_keys_is_pruned_to_their_partitions() -> None:
    for partition in (tm.HashPartition(50), tm.KeyPartition(50, "b", linear=True), tm.LinearHash(50, ["b", "a"])):
        definition = defined(partition)
        keys = [(a, b) for a in (1, -5) for b in ("x", "")]
        kept = partitions_for(definition, {"a": {1, -5}, "b": ["x", ""]})
        assert set(kept) == {number_of(definition, key) for key in keys}


def test_dropped_partitions_are_in_no_answer() -> None:
    definition = defined(TENS.without_partition("p1"))
    assert partitions_for(definition, {"a": Between(5, 25)}) == (0, 2)
    assert partitions_for(definition, {"a": [15]}) == (2,)
