"""Keys and transaction ids that a peer chooses to attack the hash tables of the applier (F113): probes are counted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.applier.logs import NAME, Log, applier_of, apply_all, make_store
from tests.engine.hostile_keys import same_low_bits, state_after, words_that_hash_to
from tidemark.engine.rows.columnar import EncodedKeys
from tidemark.engine.sealed.keyed_hash_kernels import headed_hash_of
from tidemark.replication.applier.key_set import KeySet
from tidemark.replication.applier.key_sets_layout import KS_TABLE_SHIFT
from tidemark.replication.conflict.dependencies_layout import KEY_TABLE_SHIFT
from tidemark.replication.conflict.tracker import DependencyTracker

NOTHING = np.zeros(0, dtype=np.int64)
SEED = 0x0123_4567_89AB_CDEF
COUNT = 100_000
BITS = 22  # more than the tables use
BOUND = 400  # the longest run in a table two thirds full is about 150


def single(words: Any) -> EncodedKeys:
    return EncodedKeys(np.ascontiguousarray(words), 1, 1, NOTHING, len(words))


def test_keys_made_to_collide_in_a_set_need_few_probes() -> None:
    """Story: the set hashed by multiplying and shifting, without a seed. Each step can be inverted, so a peer can make
    any number of keys with one hash: the last of 100,000 rows of an epoch read 100,000 slots.
    """
    keys = words_that_hash_to(same_low_bits(COUNT, BITS), state_after(1 << KS_TABLE_SHIFT | 1, None))
    assert np.unique(keys).size == COUNT
    made = KeySet(SEED)
    assert made.add(1, single(keys)) == COUNT and made.count == COUNT
    assert made.longest_probe < BOUND
    assert made.holds(1, single(keys)).all() and not made.holds(2, single(keys)).any()


def test_keys_and_transactions_made_to_collide_in_a_tracker_need_few_probes() -> None:
    """Story: the same as for sets of keys."""
    keys = words_that_hash_to(same_low_bits(COUNT, BITS), state_after(1 << KEY_TABLE_SHIFT | 1, 0x1B873593))
    ids = words_that_hash_to(same_low_bits(COUNT, BITS), 0x51ED270B)
    tracker = DependencyTracker(SEED)
    tracker.track(ids, np.ones(COUNT, dtype=np.int64), keys, np.arange(COUNT + 1, dtype=np.int64))
    assert (tracker.keys, tracker.transactions) == (COUNT, COUNT)
    assert tracker.longest_probe < BOUND
    tracker.mark(ids[::2].copy())
    assert tracker.is_marked(ids).tolist() == [True, False] * (COUNT // 2)


def colliding(head: int, seed: int, count: int, mask: int) -> list[int]:
    """Return words of keys with equal low bits of the hash under this seed, found by trial."""
    found: list[int] = []
    word = np.zeros(1, dtype=np.int64)
    number = 0
    while len(found) < count:
        word[0] = number
        if headed_hash_of(head, word, 0, 1, seed) & mask == 0:
            found.append(number)
        number += 1
    return found


@pytest.mark.parametrize("kind", ["set", "tracker"])
def test_keys_found_with_one_seed_are_of_no_use_against_another(kind: str) -> None:
    def probes(seed: int) -> int:
        if kind == "set":
            made = KeySet(seed)
            made.add(1, single(keys))
            made.clear()  # this keeps the seed
            made.add(1, single(keys))
            return made.longest_probe
        tracker = DependencyTracker(seed)
        ones = np.ones(keys.size, dtype=np.int64)
        tracker.track(ones, ones, keys, np.arange(keys.size + 1, dtype=np.int64))
        return tracker.longest_probe

    keys = np.array(colliding(1 << 32 | 1, 0, 300, 1023), dtype=np.int64)
    assert probes(0) >= 300, "the probes of colliding keys are not counted"
    assert probes(SEED) < 60


def test_applier_hashes_with_the_seed_of_its_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every set and every tracker of an applier has the seed that the store drew when it was made."""
    seeds: list[tuple[type, int]] = []

    def noting(kind: Any) -> Callable[..., None]:
        made = kind.__init__

        def init(self: Any, seed: int, *arguments: Any, **options: Any) -> None:
            seeds.append((kind, seed))
            made(self, seed, *arguments, **options)

        return init

    for kind in (KeySet, DependencyTracker):
        monkeypatch.setattr(kind, "__init__", noting(kind))
    db: Any = make_store(function="NDB$EPOCH_TRANS(31)")
    db[NAME].insert((1, "own", 0))
    db.sync()
    log = Log()
    log.begin(5)
    log.insert((1, "other", 1), (2, "new", 1), transaction_ids=7)
    log.commit()
    apply_all(applier_of(db), log)
    assert {kind for kind, _ in seeds} == {KeySet, DependencyTracker}
    assert {seed for _, seed in seeds} == {db.parts.store.tables.seed} != {0}
