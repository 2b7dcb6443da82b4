"""The dependency tracker against its twin, and rules that only the tracker has."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conformance.judgements import pack_keys
from tests.naive import dependencies as naive
from tidemark.engine.base.errors import InvariantBroken, TransactionTooLarge
from tidemark.replication.conflict.tracker import DependencyTracker

SEED = 20_261_124


def packed(keys: list[tuple[bytes, ...]]) -> tuple[np.ndarray, np.ndarray]:
    parts = []
    for number in range(len(keys[0]) if keys else 1):
        pieces = [key[number] for key in keys]
        offsets = np.cumsum([0] + [len(piece) for piece in pieces], dtype=np.int64)
        parts.append((np.frombuffer(b"".join(pieces), dtype=np.uint8), offsets))
    return pack_keys(parts)


def words(values: list[int]) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def track(tracker: DependencyTracker, writes: list[tuple[int, int, tuple[bytes, ...]]]) -> None:
    ids, tables, keys = [list(each) for each in zip(*writes, strict=True)]
    tracker.track(words(ids), words(tables), *packed(keys))


@given(st.integers(0, 2**32), st.integers(1, 400), st.integers(1, 40), st.integers(1, 60))
def test_any_stream_of_writes_and_marks_equals_twin(seed: int, count: int, transactions: int, rows: int) -> None:
    r = random.Random(seed)
    tracker, twin = DependencyTracker(SEED), naive.Tracker()
    batch: list[tuple[int, int, tuple[bytes, ...]]] = []
    names = [r.randint(-(2**63), 2**63 - 1) for _ in range(transactions)] + [-1]

    def flush() -> None:
        if batch:
            track(tracker, batch)
            batch.clear()

    for _ in range(count):
        id_ = r.choice(names)
        key = (b"k" * r.randint(0, 3), bytes([r.randint(0, rows) % 256]) * r.randint(1, 9))
        twin.track(id_, 7, key)
        batch.append((id_, 7, key))
        if r.random() < 0.05:
            flush()
            guilty = r.choice(names)
            assert tracker.mark(words([guilty])) == twin.mark(guilty)
    flush()
    assert tracker.is_marked(words(names)).tolist() == [each in twin.marked for each in names]
    assert (tracker.transactions, tracker.keys) == (len(twin.seen), len(twin.owner))
    assert tracker.marked == len(twin.marked)
    assert tracker.edges >= sum(map(len, twin.follows.values()))


@given(st.lists(st.tuples(st.binary(max_size=20), st.binary(max_size=20)), min_size=1, max_size=30))
def test_packed_keys_differ_exactly_when_keys_differ(keys: list[tuple[bytes, bytes]]) -> None:
    """Story: packed bytes without lengths confused ("a", "bc") with ("ab", "c"): innocent transactions were
    rejected.
    """
    data, offsets = packed(keys)
    images = [data[offsets[i] : offsets[i + 1]].tobytes() for i in range(len(keys))]
    assert len(set(images)) == len(set(keys))


def test_mark_goes_forward_and_leaves_the_innocent_before_it() -> None:
    tracker = DependencyTracker(SEED)
    track(tracker, [(1, 1, (b"8",)), (1, 1, (b"9",)), (2, 1, (b"9",)), (2, 1, (b"7",)), (3, 1, (b"7",))])
    assert tracker.mark(words([2])) == 2
    assert tracker.is_marked(words([1, 2, 3, 4])).tolist() == [False, True, True, False]


def test_write_after_a_marked_transaction_is_marked_at_once() -> None:
    tracker = DependencyTracker(SEED)
    track(tracker, [(1, 1, (b"a",))])
    tracker.mark(words([1]))
    track(tracker, [(2, 1, (b"a",)), (3, 2, (b"a",))])
    assert tracker.is_marked(words([2, 3])).tolist() == [True, False]  # the same key in another table is another key
    assert tracker.marked == 2


def test_transaction_may_write_a_row_again_and_does_not_depend_on_itself() -> None:
    """A transaction has its steps one by one where they pass values of a unique index on, and what it applied from
    several servers.
    """
    tracker = DependencyTracker(SEED)
    track(tracker, [(5, 1, (b"b",)), (5, 1, (b"c",)), (5, 1, (b"b",)), (6, 1, (b"b",)), (6, 1, (b"b",))])
    assert tracker.edges == 1
    assert tracker.mark(words([6])) == 1 and tracker.mark(words([5])) == 1


@pytest.mark.parametrize("seed", range(5))
def test_keys_followed_in_parts_leave_what_following_all_at_once_leaves(seed: int) -> None:
    r = random.Random(seed)
    twin = naive.Tracker()
    writes: list[tuple[int, int, tuple[bytes, ...]]] = []
    for _ in range(r.randint(9_000, 15_000)):
        id_, table, key = r.randint(1, 200), r.randint(1, 2), (r.randint(0, 20_000).to_bytes(8, "big"),)
        twin.track(id_, table, key)
        writes.append((id_, table, key))
    tracker = DependencyTracker(SEED, 1 << 19)
    readings = 1
    track(tracker, writes)
    while tracker.begin_part():
        track(tracker, writes)
        readings += 1
    assert readings > 1 and tracker.memory_bytes <= 1 << 19
    assert (tracker.transactions, tracker.keys) == (len(twin.seen), len(twin.owner))
    guilty = r.choice(twin.seen)
    assert tracker.mark(words([guilty])) == twin.mark(guilty)
    assert tracker.is_marked(words(twin.seen)).tolist() == [each in twin.marked for each in twin.seen]


def test_many_transactions_pass_the_memory_limit_whatever_the_parts() -> None:
    tracker = DependencyTracker(SEED, 1 << 18)
    with pytest.raises(TransactionTooLarge, match="transactions with"):
        track(tracker, [(number, 1, (number.to_bytes(8, "big"),)) for number in range(5_000)])
    assert tracker.memory_bytes <= 1 << 18


def test_keys_that_differ_in_their_highest_bytes_are_spread_over_the_parts() -> None:
    """Story: the hash bits that were used did not depend on the last bytes of a key: all keys were in one part, and in
    one place of the hash table.
    """
    tracker = DependencyTracker(SEED, 1 << 18)
    writes = [(number % 5, 1, (number.to_bytes(8, "big"),)) for number in range(20_000)]
    readings = 1
    track(tracker, writes)
    while tracker.begin_part():
        track(tracker, writes)
        readings += 1
    assert (tracker.keys, tracker.transactions) == (20_000, 5)
    assert tracker.memory_bytes <= 1 << 18 and readings <= 32


def test_parts_are_no_more_than_allowed() -> None:
    tracker = DependencyTracker(SEED, 1 << 18, parts_max=4)
    with pytest.raises(TransactionTooLarge, match="in 4 parts"):
        track(tracker, [(number % 5, 1, (number.to_bytes(8, "big"),)) for number in range(20_000)])


def test_many_keys_in_many_batches_keep_their_owners_through_growth() -> None:
    tracker = DependencyTracker(SEED)
    numbers = np.arange(200_000, dtype=np.int64)
    data = np.stack([np.full_like(numbers, 8), numbers], axis=1).reshape(-1)
    for start in range(0, numbers.size, 10_000):
        part = slice(start, start + 10_000)
        offsets = np.arange(10_001, dtype=np.int64) * 2
        tracker.track(numbers[part] + 1, np.ones(10_000, dtype=np.int64), data[2 * start : 2 * start + 20_000], offsets)
    again = numbers[::1_000]
    keys = np.stack([np.full_like(again, 8), again], axis=1).reshape(-1)
    tracker.track(-again - 2, np.ones_like(again), keys, np.arange(again.size + 1, dtype=np.int64) * 2)
    assert (tracker.keys, tracker.edges) == (200_000, 200)
    tracker.mark(np.array([1], dtype=np.int64))
    assert tracker.is_marked(words([1, -2, -1_002])).tolist() == [True, True, False]


@pytest.mark.parametrize("offsets", [[0, 3], [-1, 2], [2, 1], [0]])
def test_keys_outside_of_their_data_are_refused_and_nothing_is_taken(offsets: list[int]) -> None:
    tracker = DependencyTracker(SEED)
    with pytest.raises(InvariantBroken):
        tracker.track(words([1]), words([1]), words([8, 5]), words(offsets))
    assert (tracker.transactions, tracker.keys) == (0, 0)
