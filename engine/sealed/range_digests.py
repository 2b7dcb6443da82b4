"""Digests of ranges of files that are not sealed units: XXH3-128."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tidemark.engine.sealed.checksums_kernels import STRIPE_WORDS
from tidemark.engine.sealed.range_digests_kernels import BYTES_MIN, STRIPE_BYTES, fill_lanes_of_bytes, merge_to_128

if TYPE_CHECKING:
    from tidemark.engine.sealed.sealed_layout import Words


def xxh3_128(words: Words, size: int) -> bytes:
    """Return the XXH3-128 of the first `size` bytes of an int64 array, in the byte order of its hexadecimal form.

    Fewer than 256 bytes are digested with zeros up to 256. Raises: ValueError if the array has fewer bytes.
    """
    if size > words.size * 8:
        raise ValueError("xxh3_128 needs the bytes inside the array")
    if size < BYTES_MIN:
        octets = words.view(np.uint8)[:size]
        words, size = np.zeros(BYTES_MIN // 8, dtype=np.int64), BYTES_MIN
        words.view(np.uint8)[: octets.size] = octets
    lanes: Words = np.empty(STRIPE_WORDS, dtype=np.int64)
    out: Words = np.empty(2, dtype=np.int64)
    last = words.view(np.uint8)[size - STRIPE_BYTES : size].copy().view(np.int64)
    fill_lanes_of_bytes(words, size, last, lanes)
    merge_to_128(lanes, size, out)
    return bytes(out[::-1].astype(">i8").tobytes())
