"""Naive twins of the kernels that hash and sort batches, take pools and exchange locks."""

from __future__ import annotations

import xxhash

from tests.naive.sip_hash import keyed_hash

TAG_MASK = (1 << 29) - 1
PARTITION_SEED = 42


def fragment_of(key: bytes, fragments: int) -> int:
    """Fragment of a canonical key (D14)."""
    if fragments == 1:
        return 0
    return (xxhash.xxh64(key, PARTITION_SEED).intdigest() & ((1 << 63) - 1)) % fragments


def hashed(key: bytes, fragments: int, seed: int) -> int:
    """Fragment << 29 | tag of a canonical key."""
    return fragment_of(key, fragments) << 29 | keyed_hash(key, seed) & TAG_MASK


def sorted_by_fragment(hashes: list[int]) -> list[int]:
    """Batch positions, by fragment, each fragment's in their order."""
    return sorted(range(len(hashes)), key=lambda position: hashes[position] >> 29)


def starts_of(hashes: list[int], fragments: int) -> list[int]:
    """Where each fragment's positions end, as the counting sort leaves it."""
    return [sum(each >> 29 <= number for each in hashes) for number in range(fragments)]


class Pool:
    """Pages handed out: the free ones last in, first out; then never-used ones from below."""

    def __init__(self, first: int, limit: int) -> None:
        self.high, self.limit = first, limit
        self.free: list[int] = []

    def take(self) -> int:
        """A page, 0 when there is none."""
        if self.free:
            return self.free.pop()
        if self.high >= self.limit:
            return 0
        self.high += 1
        return self.high - 1


def exchanged(lock: int, expected: int, wanted: int) -> tuple[int, int]:
    """(1 if done, lock word after): the mark of waiting does not count, and stays unless the lock is freed."""
    waited = 1 << 31
    if lock & ~waited != expected & ~waited:
        return 0, lock
    return 1, wanted | (lock & waited) if wanted else 0
