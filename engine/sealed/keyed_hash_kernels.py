"""SipHash-1-3: the hash of keys wherever a table in memory is searched by key.

Callers and peers choose keys. For xxh64 and for multiplicative hashes, an attacker can construct keys that collide
under every seed (ADR 0019). For SipHash this needs the seed, which each store draws itself and sends to no peer.
"""

# mypy: ignore-errors

from __future__ import annotations

from tidemark.engine.jit.kernel import helper, kernel
from tidemark.engine.jit.words_kernels import word_at
from tidemark.engine.sealed.checksums_kernels import rotate

SECOND_HALF = 0x5851F42D4C957F2D  # derives the second half of the 128-bit key from the seed
START_0 = 0x736F6D6570736575
START_1 = 0x646F72616E646F6D
START_2 = 0x6C7967656E657261
START_3 = 0x7465646279746573


@helper
def sip_round(v0, v1, v2, v3):
    v0 += v1
    v1 = rotate(v1, 13) ^ v0
    v0 = rotate(v0, 32)
    v2 += v3
    v3 = rotate(v3, 16) ^ v2
    v0 += v3
    v3 = rotate(v3, 21) ^ v0
    v2 += v1
    v1 = rotate(v1, 17) ^ v2
    v2 = rotate(v2, 32)
    return v0, v1, v2, v3


@helper
def absorb(v0, v1, v2, v3, word):
    v0, v1, v2, v3 = sip_round(v0, v1, v2, v3 ^ word)
    return v0 ^ word, v1, v2, v3


@helper
def finish(v0, v1, v2, v3, words, start, count, length):
    """Absorb the last `count` words of a message of `length` words, at words[start:], and return the hash."""
    for i in range(count):
        v0, v1, v2, v3 = absorb(v0, v1, v2, v3, word_at(words, start + i))
    v0, v1, v2, v3 = absorb(v0, v1, v2, v3, (length * 8 & 0xFF) << 56)
    v2 ^= 0xFF
    for _ in range(3):
        v0, v1, v2, v3 = sip_round(v0, v1, v2, v3)
    return v0 ^ v1 ^ v2 ^ v3


@helper
def second_half(seed):
    return rotate(seed, 32) ^ SECOND_HALF


@helper
def keyed_hash(words, start, count, seed):
    """Return the hash of words[start : start + count], as an int64."""
    half = second_half(seed)
    return finish(seed ^ START_0, half ^ START_1, seed ^ START_2, half ^ START_3, words, start, count, count)


@helper
def headed_hash(head, words, start, count, seed):
    """Return `keyed_hash` of the word `head` followed by words[start : start + count]."""
    half = second_half(seed)
    v0, v1, v2, v3 = absorb(seed ^ START_0, half ^ START_1, seed ^ START_2, half ^ START_3, head)
    return finish(v0, v1, v2, v3, words, start, count, count + 1)


@kernel("int64(int64[::1], int64, int64, int64)")
def keyed_hash_of(words, start, count, seed):
    """See `keyed_hash`."""
    return keyed_hash(words, start, count, seed)


@kernel("int64(int64, int64[::1], int64, int64, int64)")
def headed_hash_of(head, words, start, count, seed):
    """See `headed_hash`."""
    return headed_hash(head, words, start, count, seed)
