"""Both hashes against the reference, for every length class (a compiler once broke one of them, ADR 0004)."""

from __future__ import annotations

import numpy as np
import pytest
import xxhash

from tidemark.engine.sealed.checksums_kernels import (
    WORDS_MIN,
    xxh3_signed,
    xxh3_signed_of_units,
    xxh3_words,
    xxh64_words,
)
from tidemark.engine.sealed.range_digests import xxh3_128

WORDS = np.random.default_rng(20_261_121).integers(-(2**63), 2**63 - 1, 5_000, dtype=np.int64)


@pytest.mark.parametrize("seed", [0, 42, 12_345_678_901_234_567])
def test_xxh64_equals_the_reference_for_every_short_length(seed: int) -> None:
    for count in range(80):
        expected = xxhash.xxh64(WORDS[3 : 3 + count].tobytes(), seed).intdigest()
        assert xxh64_words(WORDS, 3, count, seed) % 2**64 == expected, count


def test_xxh3_equals_the_reference_around_every_block_boundary() -> None:
    for count in [*range(WORDS_MIN, 700), 4_095, 4_096, 4_097]:
        expected = xxhash.xxh3_64(WORDS[3 : 3 + count].tobytes()).intdigest()
        assert xxh3_words(WORDS, 3, count) == expected, count


def test_xxh3_of_several_ranges_equals_that_of_each() -> None:
    bounds = [(0, 31), (40, 1_000), (3, 129), (WORDS.size - 33, 33)]
    assert xxh3_signed_of_units(WORDS, bounds) == [xxh3_signed(WORDS, start, count) for start, count in bounds]
    assert xxh3_signed_of_units(WORDS, []) == []
    for bad in ((0, 30), (-1, 40), (WORDS.size - 32, 33)):
        with pytest.raises(ValueError):
            xxh3_signed_of_units(WORDS, [(0, 31), bad])


def test_xxh3_refuses_what_is_outside_the_array_or_too_short() -> None:
    for start, count in ((0, WORDS_MIN - 1), (-1, 100), (4_950, 100)):
        with pytest.raises(ValueError, match="inside the array"):
            xxh3_words(WORDS, start, count)


def test_xxh3_128_equals_the_reference_for_every_length() -> None:
    octets = WORDS.tobytes()
    for size in [*range(300), *range(1_000, 1_200), 2_047, 2_048, 2_049, len(octets)]:
        expected = xxhash.xxh3_128(octets[:size].ljust(256, b"\0")).digest()
        assert xxh3_128(WORDS, size) == expected, size
    with pytest.raises(ValueError, match="inside the array"):
        xxh3_128(WORDS, len(octets) + 1)
