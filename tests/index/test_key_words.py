"""Key words: four encoders agree bit by bit, words sort as keys do."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import tidemark as tm
from tests.index.stage import Stage, numpy_random
from tests.index.values import KEY_KINDS, KINDS, columns_of, row_of, value_of
from tests.index.whole import encode_places
from tests.naive import keys as naive
from tests.seeds import fresh_seeds
from tidemark.engine import types as t
from tidemark.engine.base.errors import SchemaInvalid, TypeMismatch
from tidemark.engine.index import index_layout as ix
from tidemark.engine.index.key_values import KeyShape
from tidemark.engine.index.key_words_kernels import encode_images

SEEDS = [*range(12), *fresh_seeds(6)]


def filled(columns: list[Any], random: np.random.Generator, count: int = 60, **options: Any) -> Stage:
    stage = Stage([tm.Column("id", tm.Int64), *columns], [column.name for column in columns], **options)
    stage.put(row_of(number, columns, random) for number in range(count))
    return stage


def row_words(stage: Stage, places: list[int], limit: int) -> list[list[int]]:
    out = np.zeros(len(places) * (limit + 2), dtype=np.int64)
    lengths = np.zeros(len(places), dtype=np.int64)
    encode_places(stage.mem, stage.index.handle, np.array(places), len(places), limit, out, lengths)
    return [out[i * (limit + 2) :][: lengths[i]].tolist() for i in range(len(places))]


def image_words(stage: Stage, rows: list[dict[str, Any]], limit: int) -> list[list[int]]:
    images = [stage.table.format.encode_row(row) for row in rows]
    offsets = np.cumsum([0, *map(len, images)])[:-1].astype(np.int64)
    out = np.zeros(len(rows) * (limit + 2), dtype=np.int64)
    lengths = np.zeros(len(rows), dtype=np.int64)
    fixed = stage.table.format.fixed_words
    joined = np.concatenate(images)
    encode_images(stage.index.shape.descriptor, joined, offsets, fixed, len(rows), limit, out, lengths)
    return [out[i * (limit + 2) :][: lengths[i]].tolist() for i in range(len(rows))]


def check_agreement(stage: Stage) -> None:
    shape, columns = stage.index.shape, stage.index.shape.columns
    rows = list(stage.model.values())
    places = stage.places()
    values = [[row.get(name) for name in stage.key] for row in rows]
    expected = [naive.key_words(columns, each, shape.words) for each in values]
    assert all(len(words) <= shape.key_words for words in expected)
    assert [shape.encode(each) for each in values] == expected
    assert row_words(stage, [places[row["id"]] for row in rows], shape.key_words) == expected
    assert image_words(stage, rows, shape.key_words) == expected
    first = [words[: shape.words] for words in expected]
    assert row_words(stage, [places[row["id"]] for row in rows], shape.words) == first, "cut at W words"
    by_key = sorted(range(len(rows)), key=lambda i: (stage.sort_key(rows[i]), i))
    assert sorted(range(len(rows)), key=lambda i: (expected[i], i)) == by_key


@pytest.mark.parametrize("seed", SEEDS)
def test_key_words_of_random_columns_agree_and_sort_as_keys(seed: int) -> None:
    random = numpy_random(seed)
    stage = filled(columns_of(random), random)
    check_agreement(stage)


@pytest.mark.parametrize("kind", KINDS, ids=repr)
def test_key_words_of_each_type_agree_and_sort_as_keys(kind: Any) -> None:
    random = numpy_random(7)
    for nullable in (False, True):
        stage = filled([tm.Column("k", kind, nullable=nullable)], random)
        check_agreement(stage)


@pytest.mark.parametrize("seed", SEEDS[:8])
def test_key_words_of_primary_keys_in_the_var_part_agree(seed: int) -> None:
    """Pieces of such a key hold their own lengths; an index may take them in any order."""
    random = numpy_random(seed)
    kinds = [KEY_KINDS[random.integers(len(KEY_KINDS))] for _ in range(3)]
    names = [f"k{i}" for i in range(4)]
    key = [tm.Column(name, kind) for name, kind in zip(names, [*kinds, t.VarChar(9)], strict=True)]
    order = [names[i] for i in random.permutation(4)]
    stage = Stage([tm.Column("id", tm.Int64), *key], order[: random.integers(1, 5)], primary_key=order)
    seen = set()
    for number in range(80):
        row = row_of(number, key, random)
        stored = tuple(str(row[name]) for name in names)
        if stored not in seen:
            seen.add(stored)
            try:
                stage.put([row])
            except tm.DuplicateKey:
                seen.discard(stored)
    assert len(stage.model) > 3
    check_agreement(stage)


def test_key_words_of_a_row_with_a_chained_var_part_agree() -> None:
    """A large Text before the indexed column puts its bytes into a later chunk, or across two."""
    columns = [tm.Column("text", tm.Text), tm.Column("k", tm.VarChar(80), nullable=True)]
    stage = Stage([tm.Column("id", tm.Int64), *columns], ["k"])
    word = "key value " * 7
    sizes = [0, 10, 31_000, *range(31_890, 32_010, 3), 64_000, 95_900]
    for i, size in enumerate(sizes):
        stage.put([{"id": i, "text": "x" * size, "k": word + str(i) if i % 5 else None}])
    check_agreement(stage)


def test_single_int64_key_word_is_the_value_itself() -> None:
    stage = filled([tm.Column("k", t.Int64)], numpy_random(0), 1)
    for value in (0, -1, 5, -(2**63), 2**63 - 1):
        assert stage.index.shape.encode([value]) == [value]


def test_entries_answer_alone_only_for_their_own_exact_columns() -> None:
    columns = [tm.Column("a", t.Int32), tm.Column("f", t.Float64), tm.Column("s", t.VarChar(80))]
    stage = filled(columns, numpy_random(0), 1)
    definition, layout = stage.table.definition, stage.table.format.layout
    shape = KeyShape(definition, layout, ["a", "f"])
    assert shape.answers(["a"]) and shape.answers([])
    assert not shape.answers(["a", "f"]) and not shape.answers(["a", "s"])
    assert not KeyShape(definition, layout, ["a", "s"]).answers(["a"])


def test_floats_sort_with_nan_above_and_zeros_equal() -> None:
    stage = filled([tm.Column("k", t.Float64)], numpy_random(0), 1)
    encode = stage.index.shape.encode
    assert encode([-0.0]) == encode([0.0])
    assert encode([math.nan]) == encode([-math.nan]) > encode([math.inf])


def test_absent_var_columns_have_the_key_words_of_their_default() -> None:
    """Rows written before a column was added end before it; the column words carry its default."""
    columns = [tm.Column("a", tm.VarChar(5)), tm.Column("k", tm.VarChar(20), default="späte Spalte\0")]
    stage = Stage([tm.Column("id", tm.Int64), *columns], ["k", "a"])
    image = stage.table.format.encode_row({"id": 1, "a": "x", "k": "y"}).copy()
    fixed = stage.table.format.fixed_words
    header = int(image[fixed])
    image[fixed] = header & ~(0xFFF << 32) | 1 << 32  # one column is left
    image[fixed + 1] &= 0xFFFFFFFF
    out, lengths = np.zeros(64, dtype=np.int64), np.zeros(1, dtype=np.int64)
    encode_images(stage.index.shape.descriptor, image, np.zeros(1, dtype=np.int64), fixed, 1, 40, out, lengths)
    assert out[: lengths[0]].tolist() == stage.index.shape.encode(["späte Spalte\0", "x"])


@pytest.mark.parametrize("seed", SEEDS[:10])
def test_bounds_of_any_beginning_enclose_exactly_what_begins_so(seed: int) -> None:
    random = numpy_random(seed)
    columns = columns_of(random, 3)
    stage = filled(columns, random)
    shape = stage.index.shape
    for row in list(stage.model.values())[:12]:
        values = [row[name] for name in stage.key][: random.integers(0, len(columns) + 1)]
        below, above = shape.below(values), shape.above(values)
        bits = naive.key_bits(columns, values)
        for other in stage.model.values():
            whole = naive.key_bits(columns, [other[name] for name in stage.key])
            words = shape.encode([other[name] for name in stage.key])
            inside = words_of(below) <= words and below_or_equal(words, above)
            assert inside == whole.startswith(bits)


def words_of(target: Any) -> list[int]:
    return [int(each) for each in target[ix.TG_KEY : ix.TG_KEY + target[ix.TG_WORDS]]]


def below_or_equal(words: list[int], above: Any) -> bool:
    bound = words_of(above)
    return words[: len(bound)] <= bound


def test_keys_that_are_too_long_and_bounds_of_wrong_values_are_refused() -> None:
    columns = [tm.Column("id", tm.Int64), tm.Column("long", tm.VarBinary(5_000)), tm.Column("k", tm.Int64)]
    stage = Stage(columns, ["k"])
    definition, layout = stage.table.definition, stage.table.format.layout
    with pytest.raises(SchemaInvalid):
        KeyShape(definition, layout, ["long"])
    shape = KeyShape(definition, layout, ["k"])
    for values in ([None], [1, 2]):
        with pytest.raises(TypeMismatch):
            shape.below(values)
    with pytest.raises(TypeMismatch):
        shape.starting([], "a")


def test_values_of_every_type_are_accepted_by_their_type() -> None:
    random = numpy_random(3)
    for kind in KINDS:
        for _ in range(30):
            kind.stored(value_of(kind, random))
