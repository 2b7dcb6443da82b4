"""The hash of keys against its twin, the twin against CPython's own, and the attack it prevents."""

from __future__ import annotations

import random
import sys

import numpy as np
import pytest

from tests.elsewhere import python
from tests.engine.hostile_keys import colliding_words
from tests.naive.sip_hash import keyed_hash, siphash13
from tidemark.engine.memory.arena_layout import TAG_MASK
from tidemark.engine.sealed.checksums_kernels import xxh64_words
from tidemark.engine.sealed.keyed_hash_kernels import headed_hash_of, keyed_hash_of

HASHES = "print(*[hash(bytes(range(count))) for count in range(1, 40)])"


@pytest.mark.skipif(sys.hash_info.algorithm != "siphash13", reason="this Python hashes bytes in another way")
def test_twin_equals_the_hash_of_bytes_of_cpython_without_a_key() -> None:
    done = python("-c", HASHES, PYTHONHASHSEED=0)
    assert [int(each) % 2**64 for each in done.stdout.split()] == [
        siphash13(bytes(range(count)), 0, 0) for count in range(1, 40)
    ]


def test_hash_of_any_words_equals_twin() -> None:
    r = random.Random(1)
    words = np.array([r.randrange(-(2**63), 2**63) for _ in range(500)], dtype=np.int64)
    for count in [*range(12), 31, 32, 33, 384, 400]:
        for seed in (0, 1, -1, r.randrange(-(2**63), 2**63)):
            start = r.randrange(500 - count)
            octets = words[start : start + count].tobytes()
            assert keyed_hash_of(words, start, count, seed) % 2**64 == keyed_hash(octets, seed), (count, seed)
            head = r.randrange(-(2**63), 2**63)
            headed = head.to_bytes(8, "little", signed=True) + octets
            assert headed_hash_of(head, words, start, count, seed) % 2**64 == keyed_hash(headed, seed), (count, seed)


@pytest.mark.parametrize("seed", [0, 1, -1, 0x1234_5678_9ABC_DEF0, -0x1234_5678_9ABC_DEF0])
def test_keys_that_collide_in_xxh64_under_any_seed_do_not_collide(seed: int) -> None:
    """Story: tags were xxh64 under the seed of the store. The words that a peer adds to one key to get another are made
    without the seed, and half of them leave the hash as it is, whatever the seed. 64 such keys filled their two buckets
    with entries of one tag; 600 were more than the overflow list takes.
    """
    keys = colliding_words(12)

    def largest(hashes: list[int]) -> int:
        return max(np.unique(np.array(hashes) & TAG_MASK, return_counts=True)[1].tolist())

    assert len({tuple(key) for key in keys.tolist()}) == 4_096
    assert largest([xxh64_words(key, 0, key.size, seed) for key in keys]) >= 8, "they are of no use any more"
    assert largest([keyed_hash_of(key, 0, key.size, seed) for key in keys]) <= 2
