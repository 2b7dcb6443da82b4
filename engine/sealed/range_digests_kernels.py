"""XXH3-128, seed 0, of the bytes of files that are not sealed units.

The lanes are those of XXH3-64, merged twice. The merge is a kernel of its own (ADR 0005).
"""

# mypy: ignore-errors

from __future__ import annotations

import numpy as np

from tidemark.engine.jit.kernel import helper, kernel
from tidemark.engine.sealed.checksums_kernels import (
    MERGE,
    P1,
    P2,
    ROUND_WORDS,
    SECRET,
    SECRET_LAST,
    STRIPE_WORDS,
    STRIPES_PER_ROUND,
    XXH3_AVALANCHE,
    XXH3_START,
    accumulate,
    multiply_fold,
    shift_right,
)

MERGE_HIGH = np.frombuffer(SECRET.tobytes()[117 : 117 + 64], dtype="<i8").copy()
STRIPE_BYTES = 64
BYTES_MIN = 256  # the long form of the algorithm begins at 241 bytes


@kernel("int64(int64[::1], int64, int64[::1], int64[::1])", nogil=True)
def fill_lanes_of_bytes(words, size, last, lanes):
    """Fill lanes[:8] with the lanes of XXH3 over the first `size` bytes of `words`; 0, or -1 for an invalid size. last:
    the last 64 of these bytes.
    """
    if size < BYTES_MIN or size > words.size * 8 or last.size < STRIPE_WORDS or lanes.size < STRIPE_WORDS:
        return -1
    for i in range(STRIPE_WORDS):
        lanes[i] = XXH3_START[i]
    rounds = (size - 1) // (ROUND_WORDS * 8)
    at = 0
    for _ in range(rounds):
        for stripe in range(STRIPES_PER_ROUND):
            accumulate(lanes, words, at + stripe * STRIPE_WORDS, SECRET, stripe)
        at += ROUND_WORDS
        for i in range(STRIPE_WORDS):
            lane = lanes[i]
            lane ^= shift_right(lane, 47)
            lane ^= SECRET[16 + i]
            lanes[i] = lane * 0x9E3779B1
    stripes = (size - 1 - rounds * ROUND_WORDS * 8) // STRIPE_BYTES
    for stripe in range(stripes):
        accumulate(lanes, words, at + stripe * STRIPE_WORDS, SECRET, stripe)
    accumulate(lanes, last, 0, SECRET_LAST, 0)
    return 0


@helper
def merged(lanes, secret, start):
    """Merge the lanes into one word."""
    found = start
    for i in range(0, STRIPE_WORDS, 2):
        found += multiply_fold(lanes[i] ^ secret[i], lanes[i + 1] ^ secret[i + 1])
    found = (found ^ shift_right(found, 37)) * XXH3_AVALANCHE
    return found ^ shift_right(found, 32)


@kernel("int64(int64[::1], int64, int64[::1])")
def merge_to_128(lanes, size, out):
    """Write the digest of `size` bytes with these lanes to out[:2], low word first; 0."""
    out[0] = merged(lanes, MERGE, size * P1)
    out[1] = merged(lanes, MERGE_HIGH, ~(size * P2))
    return 0
