"""The tree against its naive twin, a sorted list of (key, place), over rows in a real arena."""

from __future__ import annotations

import random as plain_random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tidemark as tm
from tests.index.stage import Stage, numpy_random
from tests.index.values import columns_of, row_of
from tidemark.engine.index import index_layout as ix
from tidemark.engine.index.ordered import OrderedIndex

TINY = (4, 8)
SMALL = (8, 8)
LONG = "the same beginning of all keys, longer than what entries hold "

SHAPES: dict[str, tuple[list[Any], Callable[[int, np.random.Generator], dict[str, Any]]]] = {
    "one word": (
        [tm.Column("k", tm.Int64)],
        lambda i, random: {"k": int(random.integers(-(2**63), 2**63 - 1))},
    ),
    "three values": ([tm.Column("k", tm.Int8)], lambda i, random: {"k": int(random.integers(3))}),
    "nulls": (
        [tm.Column("k", tm.Int64, nullable=True)],
        lambda i, random: {"k": None if random.random() < 0.5 else int(random.integers(40))},
    ),
    "three words": (
        [tm.Column("a", tm.Int32), tm.Column("k", tm.Decimal(30, 2), nullable=True)],
        lambda i, random: {
            "a": int(random.integers(4)),
            "k": None if random.random() < 0.2 else int(random.integers(9)),
        },
    ),
    "four words": (
        [tm.Column("a", tm.UInt64), tm.Column("k", tm.VarBinary(8)), tm.Column("c", tm.Int16)],
        lambda i, random: {"a": 2**64 - 1 - int(random.integers(3)), "k": bytes([0] * (i % 5)), "c": i % 7},
    ),
    "long": (
        [tm.Column("k", tm.VarChar(90))],
        lambda i, random: {"k": LONG + str(random.integers(60)) if i % 3 else LONG[: random.integers(60)]},
    ),
    "same words": ([tm.Column("k", tm.VarChar(90))], lambda i, random: {"k": LONG + str(i % 11)}),
    "composite": (
        [tm.Column("a", tm.VarChar(30), nullable=True), tm.Column("k", tm.Int32, nullable=True)],
        lambda i, random: {
            "a": None if random.random() < 0.3 else "abc" * int(random.integers(9)),
            "k": None if random.random() < 0.3 else int(random.integers(5)),
        },
    ),
}


def make(shape: str, count: int, seed: int, capacities: Any, **options: Any) -> tuple[Stage, np.random.Generator]:
    random = numpy_random(seed)
    columns, row = SHAPES[shape]
    names = [column.name for column in columns]
    stage = Stage([tm.Column("id", tm.Int64), *columns], names, capacities=capacities, **options)
    stage.put({"id": i, **row(i, random)} for i in range(count))
    return stage, random


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("capacities", [TINY, SMALL, None], ids=["tiny", "small", "full"])
def test_random_history_equals_twin_after_every_step(shape: str, capacities: Any) -> None:
    stage, random = make(shape, 500, plain_random.SystemRandom().getrandbits(32), capacities, fragments=3)
    places = stage.places()
    every = list(stage.model)
    assert len(places) == len(every)
    for _ in range(14):
        chosen = [every[i] for i in random.permutation(len(every))[: random.integers(1, 200)]]
        if random.random() < 0.6:
            stage.add(chosen, places)
        else:
            stage.remove(chosen, places)
        stage.verify()


@pytest.mark.parametrize("seed", range(10))
def test_random_columns_equal_twin(seed: int) -> None:
    random = numpy_random(seed if seed < 5 else plain_random.SystemRandom().getrandbits(32))
    columns = columns_of(random)
    stage = Stage([tm.Column("id", tm.Int64), *columns], [each.name for each in columns], capacities=SMALL, fragments=2)
    stage.put(row_of(i, columns, random) for i in range(300))
    places = stage.places()
    every = list(stage.model)
    stage.add([every[i] for i in random.permutation(len(every))], places)
    stage.verify()
    stage.remove([every[i] for i in random.permutation(len(every))[:200]], places)
    stage.verify()
    for _ in range(20):
        check_range(stage, random)


def check_range(stage: Stage, random: np.random.Generator) -> None:
    """One random range, its bounds prefixes of keys of rows, both ways, in odd batches."""
    shape = stage.index.shape
    rows = list(stage.model.values())
    ends, keys = [], []
    for _ in range(2):
        values = [rows[random.integers(len(rows))][name] for name in stage.key]
        values = values[: random.integers(0, len(values) + 1)]
        is_above = bool(random.random() < 0.5)
        ends.append(shape.above(values) if is_above else shape.below(values))
        row = dict(zip(stage.key, values, strict=False))
        keys.append((stage.sort_key(row)[: len(values)], is_above))
    inside = [
        place
        for key, place in sorted((key, place) for place, key in stage.indexed.items())
        if is_past(key, *keys[0]) and not is_past(key, *keys[1])
    ]
    batch = int(random.integers(1, 50))
    assert stage.tree(False, batch, *ends) == inside
    assert stage.tree(True, batch, *ends) == inside[::-1]
    estimate = stage.index.estimate(*ends)
    assert 0 <= estimate <= len(stage.indexed)
    if len(inside) < 3:
        assert estimate == len(inside), "a range within a leaf or two is counted"


def is_past(key: Any, prefix: Any, is_above: bool) -> bool:
    begin = key[: len(prefix)]
    return begin > prefix if is_above else begin >= prefix


@pytest.mark.parametrize("shape", SHAPES)
def test_ranges_of_every_shape_equal_twin(shape: str) -> None:
    stage, random = make(shape, 400, 5, SMALL)
    places = stage.places()
    stage.add(stage.model, places)
    for _ in range(60):
        check_range(stage, random)


ORDERS: dict[str, Callable[[list[int], np.random.Generator], list[int]]] = {
    "from the front": lambda ids, random: ids,
    "from the back": lambda ids, random: ids[::-1],
    "at random": lambda ids, random: [ids[i] for i in random.permutation(len(ids))],
    "from both ends": lambda ids, random: [each for pair in zip(ids, ids[::-1], strict=True) for each in pair][
        : len(ids)
    ],
    "every other first": lambda ids, random: ids[::2] + ids[1::2],
}


@pytest.mark.parametrize("filling", ORDERS)
@pytest.mark.parametrize("emptying", ORDERS)
def test_filled_and_emptied_in_any_order_is_whole_at_every_height(filling: str, emptying: str) -> None:
    """NDB bug #56829: nodes that empty must come back."""
    stage, random = make("one word", 600, 1, TINY)
    places = stage.places()
    ids = sorted(stage.model, key=lambda each: stage.sort_key(stage.model[each]))
    heights = set()
    order = ORDERS[filling](ids, random)
    steps = [*range(0, 48, 4), *range(48, 600, 46)]
    for start, stop in zip(steps, [*steps[1:], 600], strict=True):
        stage.add(order[start:stop], places)
        stage.check_structure()
        heights.add(stage.index.counters()["height"])
    stage.verify()
    assert max(heights) >= 4
    order = ORDERS[emptying](ids, random)
    for start in range(0, 600, 40):
        stage.remove(order[start : start + 40], places)
        stage.check_structure()
        heights.add(stage.index.counters()["height"])
    stage.verify()
    counters = stage.index.counters()
    assert (counters["height"], counters["leaves"], counters["inner_nodes"]) == (1, 1, 0)
    assert {1, 2, 3, 4} <= heights


def test_ascending_keys_fill_leaves_and_a_straggler_does_not_end_that() -> None:
    stage, _ = make("one word", 0, 1, None)
    stage.put({"id": i, "k": i * 2} for i in range(6_000))
    stage.put([{"id": 10_000, "k": 4_001}])
    places = stage.places()
    stage.add(range(3_000), places)
    stage.add([10_000], places)
    stage.add(range(3_000, 6_000), places)
    stage.verify()
    capacity = ix.leaf_capacity(1)
    assert stage.index.counters()["leaves"] <= 6_000 // capacity + 3


def test_the_same_entry_twice_is_skipped_and_a_missing_one_is_not_removed() -> None:
    stage, _ = make("long", 50, 3, TINY)
    places = stage.places()
    stage.add(range(40), places)
    stage.add(range(30, 50), places)  # the stage asserts how many were new
    stage.remove(range(10), places)
    stage.remove(range(20), places)
    stage.verify()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("reverse", [False, True])
def test_scan_continues_after_its_last_entry_whatever_happened_to_the_tree(shape: str, reverse: bool) -> None:
    """Its entry, its leaf, or everything is removed between two batches; other entries come and go."""
    stage, random = make(shape, 300, 9, TINY)
    places = stage.places()
    ids = {place: number for number, place in places.items()}
    for fate in ("entry", "leaf", "everything", "all but the last", "half and new ones"):
        stage.remove(list(stage.model), places)
        stage.add(range(200), places)
        given: list[int] = []
        scan = stage.index.scan(None, None, reverse, 7)
        for _ in range(9):
            given += [int(each) for each in next(scan)]
        last = (stage.indexed[given[-1]], given[-1])
        gone = {
            "entry": [given[-1]],
            "leaf": given[-12:],
            "everything": list(stage.indexed),
            "all but the last": stage.twin()[:-1],
            "half and new ones": [each for each in stage.indexed if random.random() < 0.5],
        }[fate]
        stage.remove([ids[each] for each in gone], places)
        if fate == "half and new ones":
            stage.add(range(200, 300), places)
        twin = sorted((key, place) for place, key in stage.indexed.items())
        expected = [place for key, place in twin if (key, place) < last] if reverse else None
        if expected is None:
            expected = [place for key, place in twin if (key, place) > last]
        else:
            expected.reverse()
        assert [int(each) for batch in scan for each in batch] == expected


@pytest.mark.parametrize("start", ["", "a", "abc", LONG, LONG + "1", "ab\0", "zz"])
def test_keys_that_begin_with_a_text_are_found_by_their_beginning(start: str) -> None:
    texts = [
        "",
        "a",
        "ab",
        "ab\0",
        "ab\0c",
        "abc",
        "abd",
        "b",
        LONG,
        LONG + "1",
        LONG + "12",
        LONG + "2",
        "zé",
        "z" * 90,
    ]
    stage = Stage(
        [tm.Column("id", tm.Int64), tm.Column("a", tm.Int8), tm.Column("k", tm.VarChar(90), nullable=True)],
        ["a", "k"],
        capacities=TINY,
    )
    stage.put({"id": 100 * a + i, "a": a, "k": text} for a in range(3) for i, text in enumerate([*texts, None]))
    places = stage.places()
    stage.add(stage.model, places)
    found = stage.tree(False, 3, *stage.index.shape.starting([1], start))
    rows = [
        row
        for row in stage.model.values()
        if row["a"] == 1 and (row["k"] or "?").startswith(start) and row["k"] is not None
    ]
    assert found == [places[row["id"]] for row in sorted(rows, key=stage.sort_key)]


def test_keys_given_with_places_are_the_key_words_of_their_rows() -> None:
    stage, _ = make("three words", 200, 4, SMALL)
    places = stage.places()
    stage.add(stage.model, places)
    ids = {place: number for number, place in places.items()}
    for reverse in (False, True):
        seen = 0
        for found, keys in stage.index.scan_keys(reverse=reverse, batch=33):
            for place, words in zip(found, keys.reshape(len(found), -1), strict=True):
                row = stage.model[ids[int(place)]]
                assert words.tolist() == stage.index.shape.encode([row[name] for name in stage.key])
                seen += 1
        assert seen == 200


@pytest.mark.parametrize("shape", ["one word", "three values", "long"])
def test_estimates_of_wide_ranges_are_near(shape: str) -> None:
    stage, random = make(shape, 4_000, 6, (16, 16))
    places = stage.places()
    stage.add([int(each) for each in random.permutation(4_000)], places)
    twin = sorted((key, place) for place, key in stage.indexed.items())
    for _ in range(30):
        one, other = sorted(int(each) for each in random.integers(0, len(twin), 2))
        bounds = [target_of(stage.index, stage, twin[each][1]) for each in (one, other)]
        assert abs(stage.index.estimate(*bounds) - (other - one)) <= 1_000
    assert stage.index.estimate(stage.index.shape.above(), stage.index.shape.below()) == 0


def target_of(index: OrderedIndex, stage: Stage, place: int) -> Any:
    ids = {each: number for number, each in stage.places().items()}
    target = index.shape.below([stage.model[ids[place]][name] for name in stage.key])
    target[ix.TG_PLACE] = place
    return target
