"""The set of keys against its twin, and rows of encoded keys."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.naive import key_sets as naive
from tidemark.engine.base.errors import InvariantBroken, TransactionTooLarge
from tidemark.engine.rows.columnar import EncodedKeys
from tidemark.replication.applier.key_set import KeySet, offsets_of, slice_keys
from tidemark.replication.applier.key_sets_kernels import add_keys, find_keys, rehash_keys
from tidemark.replication.applier.key_sets_layout import KEY_SET_BROKEN

Key = tuple[int, ...]
NOTHING = np.zeros(0, np.int64)
SEED = 20_261_124


def encoded(keys: list[Key], width: int) -> EncodedKeys:
    """Return keys of `width` words each, or of any lengths for 0."""
    words = np.array([word for key in keys for word in key], dtype=np.int64)
    if width:
        return EncodedKeys(words, width, width, NOTHING, len(keys))
    offsets = np.cumsum([0] + [len(key) for key in keys], dtype=np.int64)
    return EncodedKeys(words, 0, 0, offsets, len(keys))


def drawn(r: random.Random, width: int, count: int) -> list[Key]:
    return [tuple(r.choice((-1, 0, 1, 2**62)) for _ in range(width or r.randrange(4))) for _ in range(count)]


@given(st.integers(0, 2**32), st.sampled_from([0, 1, 2, 3]), st.integers(1, 30))
def test_any_batches_of_any_tables_equal_twin(seed: int, width: int, batches: int) -> None:
    r = random.Random(seed)
    keys, twin = KeySet(SEED), naive.Keys()
    for _ in range(batches):
        table, batch = r.randrange(3), drawn(r, width, r.randrange(40))
        assert keys.holds(table, encoded(batch, width)).tolist() == twin.holds(table, batch)
        start = 0
        while start < len(batch):
            added = keys.add(table, encoded(batch, width), start)
            assert added == twin.add(table, batch, start)
            start = added + 1
        assert keys.count == len(twin.known)
        if r.random() < 0.1:
            keys.clear()
            twin.known.clear()


def test_many_keys_grow_the_set_and_are_found_again() -> None:
    keys = KeySet(SEED)
    many = encoded([(number, -number) for number in range(20_000)], 2)
    assert keys.add(1, many) == 20_000
    assert keys.holds(1, many).all() and not keys.holds(2, many).any()
    assert keys.add(1, many) == 0


def test_keys_beyond_the_memory_limit_are_refused_and_none_is_added() -> None:
    keys = KeySet(SEED, 1 << 16)
    few = encoded([(number, -number) for number in range(500)], 2)
    assert keys.add(1, few) == 500
    with pytest.raises(TransactionTooLarge, match="500 rows"):
        keys.add(2, encoded([(number, -number) for number in range(20_000)], 2))
    assert keys.count == 500 and keys.holds(1, few).all() and not keys.holds(2, few).any()


@given(st.integers(0, 2**32), st.sampled_from([0, 1, 3]))
def test_some_rows_of_keys_are_those_keys(seed: int, width: int) -> None:
    r = random.Random(seed)
    batch = drawn(r, width, r.randrange(1, 30))
    keys = encoded(batch, width)

    def back(some: EncodedKeys) -> list[Key]:
        offsets = offsets_of(some)
        assert offsets.size == some.count + 1
        pairs = zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)
        return [tuple(some.keys[start:stop].tolist()) for start, stop in pairs]

    start = r.randrange(len(batch) + 1)
    stop = r.randrange(start, len(batch) + 1)
    assert back(slice_keys(keys, start, stop)) == batch[start:stop]
    places = sorted(r.sample(range(stop - start), r.randrange(stop - start + 1)))
    taken = slice_keys(keys, start, stop).take(np.array(places, dtype=np.int64))
    assert back(taken) == [batch[start + place] for place in places]


def test_kernels_refuse_bounds_that_do_not_hold() -> None:
    slots, data, state = np.zeros(8, np.int64), np.zeros(8, np.int64), np.zeros(3, np.int64)
    words = np.arange(4, dtype=np.int64)
    assert add_keys(1, words, NOTHING, 1, 0, 8, slots, data, state) == KEY_SET_BROKEN, "no free slot would be left"
    assert add_keys(1, words, NOTHING, 1, 0, 5, slots, data, state) == KEY_SET_BROKEN, "the last key lies outside"
    assert add_keys(1, words, np.array([0, 9], np.int64), 0, 0, 1, slots, data, state) == KEY_SET_BROKEN
    assert add_keys(1, words, NOTHING, 1, 3, 2, slots, data, state) == KEY_SET_BROKEN
    assert (
        find_keys(1, words, np.array([0, 2], np.int64), 0, slots, data, state, np.zeros(2, np.int64)) == KEY_SET_BROKEN
    )
    assert rehash_keys(np.zeros(16, np.int64), data, state) == state[0]
    keys = KeySet(SEED)
    keys.add(0, EncodedKeys(words, 1, 1, NOTHING, 4))
    with pytest.raises(InvariantBroken):
        keys.holds(0, EncodedKeys(words, 0, 0, np.array([0, 9], np.int64), 1))
