"""xxHash: XXH64 for the partition of a key, XXH3-64 for sealed units (D14).

Both are computed in int64 arithmetic, which wraps as uint64 does; a logical right shift is an arithmetic shift and a
mask.
"""

# mypy: ignore-errors

from __future__ import annotations

import numpy as np

from tidemark.engine.jit.kernel import helper, kernel


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


P1 = _signed(0x9E3779B185EBCA87)
P2 = _signed(0xC2B2AE3D27D4EB4F)
P3 = _signed(0x165667B19E3779F9)
P4 = _signed(0x85EBCA77C2B2AE63)
P5 = _signed(0x27D4EB2F165667C5)
XXH3_AVALANCHE = 0x165667919E3779F9
LOW32 = 0xFFFFFFFF


@helper
def shift_right(value, bits):
    """Return an int64 shifted right logically by 1..63 bits."""
    return (value >> bits) & ((1 << (64 - bits)) - 1)


@helper
def rotate(value, bits):
    """Rotate an int64 left by 1..63 bits."""
    return (value << bits) | ((value >> (64 - bits)) & ((1 << bits) - 1))


@helper
def avalanche64(h):
    """Return the final mix of XXH64."""
    h ^= (h >> 33) & 0x7FFFFFFF
    h *= P2
    h ^= (h >> 29) & 0x7FFFFFFFF
    h *= P3
    return h ^ ((h >> 32) & LOW32)


@helper
def round64(accumulator, word):
    """Return a lane of XXH64 after one more word."""
    accumulator += word * P2
    return rotate(accumulator, 31) * P1


@helper
def xxh64_hash(words, start, count, seed):
    """Return the XXH64 of `count` words of an int64 array, as an int64."""
    at = start
    end = start + count
    if count >= 4:
        v1 = seed + P1 + P2
        v2 = seed + P2
        v3 = seed
        v4 = seed - P1
        while at + 4 <= end:
            v1 = round64(v1, words[at])
            v2 = round64(v2, words[at + 1])
            v3 = round64(v3, words[at + 2])
            v4 = round64(v4, words[at + 3])
            at += 4
        h = rotate(v1, 1) + rotate(v2, 7) + rotate(v3, 12) + rotate(v4, 18)
        h = (h ^ round64(0, v1)) * P1 + P4
        h = (h ^ round64(0, v2)) * P1 + P4
        h = (h ^ round64(0, v3)) * P1 + P4
        h = (h ^ round64(0, v4)) * P1 + P4
    else:
        h = seed + P5
    h += count * 8
    while at < end:
        h ^= round64(0, words[at])
        h = rotate(h, 27) * P1 + P4
        at += 1
    return avalanche64(h)


@kernel("int64(int64[::1], int64, int64, int64)")
def xxh64_words(words, start, count, seed):
    """Return the XXH64 of words[start : start + count] (8 bytes each) with a seed, as a signed 64-bit integer."""
    return xxh64_hash(words, start, count, seed)


# --- XXH3-64, seed 0, for inputs over 240 bytes ---------------------------------------------------
# The default secret is part of the published algorithm. It is read as words at byte offsets that are multiples of 8,
# except for the last stripe (offset 121 of 192) and the merge (offset 11), which have their own arrays below.
_SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221b8084674f743248e"
    "e03590e6813a264c3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8a8fa763fe39c343ff9dcbbc7c70b4f1d"
    "8a51e04bcdb45931c89f7ec9d9787364eac5ac8334d3ebc3c581a0fffa1363eb170ddd51b7f0da49d316552629d4689e2b16be587d47a1fc"
    "8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
)
SECRET = np.frombuffer(_SECRET, dtype="<i8").copy()
SECRET_LAST = np.frombuffer(_SECRET[121 : 121 + 64], dtype="<i8").copy()
MERGE = np.frombuffer(_SECRET[11 : 11 + 64], dtype="<i8").copy()
_LOW64 = (1 << 64) - 1
XXH3_START = np.array([0xC2B2AE3D, P1, P2, P3, P4, 0x85EBCA77, P5, 0x9E3779B1], dtype=np.int64)
STRIPE_WORDS = 8
STRIPES_PER_ROUND = (192 - 64) // 8
ROUND_WORDS = STRIPE_WORDS * STRIPES_PER_ROUND
WORDS_MIN = 31  # the long form of the algorithm begins at 241 bytes


@helper
def accumulate(lanes, words, at, secret, key):
    """Accumulate one 64-byte stripe of XXH3 into the lanes."""
    for i in range(STRIPE_WORDS):
        word = words[at + i]
        mixed = word ^ secret[key + i]
        lanes[i ^ 1] += word
        lanes[i] += (mixed & LOW32) * ((mixed >> 32) & LOW32)


@helper
def fill_lanes(words, start, count, lanes):
    """Fill lanes[:8] with the lanes of XXH3-64 over words[start : start + count]; 0, or -1 for an invalid range."""
    if count < WORDS_MIN or start < 0 or start + count > words.size:
        return -1
    for i in range(STRIPE_WORDS):
        lanes[i] = XXH3_START[i]
    end = start + count
    rounds = (count * 8 - 1) // (ROUND_WORDS * 8)
    at = start
    for _ in range(rounds):
        for stripe in range(STRIPES_PER_ROUND):
            accumulate(lanes, words, at + stripe * STRIPE_WORDS, SECRET, stripe)
        at += ROUND_WORDS
        for i in range(STRIPE_WORDS):
            lane = lanes[i]
            lane ^= (lane >> 47) & 0x1FFFF
            lane ^= SECRET[16 + i]
            lanes[i] = lane * 0x9E3779B1
    stripes = (count - rounds * ROUND_WORDS - 1) // STRIPE_WORDS
    for stripe in range(stripes):
        accumulate(lanes, words, at + stripe * STRIPE_WORDS, SECRET, stripe)
    accumulate(lanes, words, end - STRIPE_WORDS, SECRET_LAST, 0)
    return 0


@kernel("int64(int64[::1], int64, int64, int64[::1])", nogil=True)
def xxh3_lanes(words, start, count, lanes):
    """Fill the eight lanes of XXH3-64 over words[start : start + count]; 0, or -1 for an invalid range.

    Another kernel merges them: with the merge in this function, LLVM 22 produces wrong results at optimisation level 1
    and above (ADR 0005).
    """
    return fill_lanes(words, start, count, lanes)


@kernel("int64(int64[::1], int64[::1], int64, int64[::1])", nogil=True)
def xxh3_lanes_of_units(words, bounds, units, lanes):
    """Fill the lanes of several units in one call, which releases the GIL once: reacquiring it may take long.

    bounds: [start, count] of each unit. lanes: 8 words of scratch, then 8 per unit. Returns 0, or -1 for invalid
    arguments.
    """
    if units < 0 or bounds.size < 2 * units or lanes.size < STRIPE_WORDS * (units + 1):
        return -1
    for unit in range(units):
        if fill_lanes(words, bounds[2 * unit], bounds[2 * unit + 1], lanes) != 0:
            return -1
        for i in range(STRIPE_WORDS):
            lanes[STRIPE_WORDS * (unit + 1) + i] = lanes[i]
    return 0


@helper
def multiply_fold(a, b):
    """Return the low half xor the high half of the unsigned 128-bit product of two words."""
    low_a = a & LOW32
    high_a = shift_right(a, 32)
    low_b = b & LOW32
    high_b = shift_right(b, 32)
    low = low_a * low_b
    middle = high_a * low_b + shift_right(low, 32)
    cross = low_a * high_b + (middle & LOW32)
    high = high_a * high_b + shift_right(middle, 32) + shift_right(cross, 32)
    return ((cross << 32) | (low & LOW32)) ^ high


@kernel("int64(int64[::1], int64, int64, int64[::1])")
def xxh3_lanes_of_page(words, start, count, lanes):
    """Do `xxh3_lanes` for a few words without releasing the GIL: reacquiring it may take long."""
    return fill_lanes(words, start, count, lanes)


@helper
def merge_lanes(lanes, count):
    """Merge the lanes of `count` words into the hash, a signed 64-bit integer."""
    merged = count * 8 * P1
    for i in range(0, STRIPE_WORDS, 2):
        merged += multiply_fold(lanes[i] ^ MERGE[i], lanes[i + 1] ^ MERGE[i + 1])
    merged = (merged ^ shift_right(merged, 37)) * XXH3_AVALANCHE
    return merged ^ shift_right(merged, 32)


@kernel("int64(int64[::1], int64)")
def xxh3_merge(lanes, count):
    """See `merge_lanes`."""
    return merge_lanes(lanes, count)


def xxh3_signed(words: np.ndarray, start: int, count: int) -> int:
    """Return the XXH3-64 (seed 0) of words[start : start + count] of a contiguous int64 array, as a signed 64-bit int.

    Raises: ValueError below 31 words (248 bytes; every sealed unit has more) and outside the array.
    """
    lanes = np.empty(STRIPE_WORDS, dtype=np.int64)
    if xxh3_lanes(words, start, count, lanes) != 0:
        raise ValueError("xxh3_signed needs at least 31 words inside the array")
    return xxh3_merge(lanes, count)


def xxh3_signed_of_units(words: np.ndarray, bounds: list[tuple[int, int]]) -> list[int]:
    """Return `xxh3_signed` of ranges (start, count) of one array, releasing the GIL only once. Raises: ValueError."""
    lanes = np.empty(STRIPE_WORDS * (len(bounds) + 1), dtype=np.int64)
    places = np.array(bounds, dtype=np.int64).reshape(-1)
    if xxh3_lanes_of_units(words, places, len(bounds), lanes) != 0:
        raise ValueError("xxh3_signed_of_units needs at least 31 words a range, inside the array")
    each = lanes.reshape(-1, STRIPE_WORDS)
    return [xxh3_merge(each[unit + 1], count) for unit, (_, count) in enumerate(bounds)]


def xxh3_words(words: np.ndarray, start: int, count: int) -> int:
    """Return `xxh3_signed` as an unsigned integer."""
    return xxh3_signed(words, start, count) & _LOW64
