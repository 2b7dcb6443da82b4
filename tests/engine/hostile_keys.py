"""Keys that a peer makes without knowing the seed of a store, against hashes that multiply and xor."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.int64]

LOW64 = (1 << 64) - 1
LANE_FACTOR = 0xC2B2AE3D27D4EB4F  # xxh64 multiplies each word by it
FACTOR = 0x2545F4914F6CDD1D  # of the hash that sets of keys had


def colliding_words(pairs: int, base: int = 0) -> Words:
    """Keys against xxh64, two for each choice of the pairs. Shape: (2 ** pairs, words), a multiple of 8 words.

    A pair is a word and the next one of its lane. The first word gets a difference that flips bit 32 of the lane, if
    there is no carry. The rotation makes it the highest bit, which is still the only changed bit after the product, and
    the second word flips it back. Half of the pairs collide, and a seed only decides which half.
    """
    flip = (1 << 32) * pow(LANE_FACTOR, -1, 1 << 64) & LOW64
    keys = np.full((1 << pairs, -(-pairs // 4) * 8), base, dtype=np.uint64)
    chosen = np.arange(1 << pairs, dtype=np.uint64)
    for pair in range(pairs):
        is_flipped = chosen >> np.uint64(pair) & np.uint64(1)
        at = pair // 4 * 8 + pair % 4
        keys[:, at] += is_flipped * np.uint64(flip)
        keys[:, at + 4] += is_flipped * np.uint64(1 << 63)
    return keys.view(np.int64)


def _unshifted(mixed: NDArray[np.uint64], bits: int) -> NDArray[np.uint64]:
    """What became `mixed` by x ^ (x >> bits)."""
    found = mixed.copy()
    for _ in range(64 // bits):
        found = mixed ^ (found >> np.uint64(bits))
    return found


def words_that_hash_to(wanted: NDArray[np.uint64], state: int) -> Words:
    """A word for each wanted hash, of a hash that stood at `state` before it: the last two steps of the one that sets
    of keys and the tracker had, inverted.
    """
    inverse = np.uint64(pow(FACTOR, -1, 1 << 64))
    mixed = _unshifted(_unshifted(wanted, 32) * inverse, 32)
    return (_unshifted(mixed, 29) * inverse ^ np.uint64(state)).view(np.int64)


def same_low_bits(count: int, bits: int) -> NDArray[np.uint64]:
    """Hashes that differ above the low `bits` only."""
    return np.arange(1, count + 1, dtype=np.uint64) << np.uint64(bits)


def state_after(head: int, start: int | None) -> int:
    """Where that hash stands after the head of a key: of sets of keys, or begun with `start`, as the tracker did."""
    if start is None:
        return head * FACTOR & LOW64
    mixed = (start ^ head) * FACTOR & LOW64
    return mixed ^ mixed >> 29
