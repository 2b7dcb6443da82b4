"""Hashes of the keys of many images: fragment and tag of each, and their order by fragment."""

# mypy: ignore-errors

from __future__ import annotations

from tidemark.engine.jit.kernel import kernel
from tidemark.engine.memory import arena_layout as A
from tidemark.engine.rows.primary_kernels import image_key, tag_of
from tidemark.engine.schema import partitions_layout as H
from tidemark.engine.schema.partitions_kernels import PARTITION_SEED, POSITIVE, partition_of
from tidemark.engine.sealed.checksums_kernels import xxh64_hash


@kernel("int64(int64[::1], int64, int64[::1], int64[::1], int64, int64[::1])", nogil=True)
def hash_images(header, key_words, images, offsets, count, hashes):
    """Fill hashes with fragment << 29 | tag for a batch of images; returns how many, fewer if no partition takes the
    next one.

    header: the table's private hash header. If it has partition words, `hashes` must have room for a key after its
    first `count` words.
    """
    fixed = header[H.HH_FIXED_WORDS]
    seed = header[H.HH_SEED]
    if header[H.HH_PARTITION] == 0:
        fragments = header[H.HH_FRAGMENTS]
        for i in range(count):
            at = offsets[i] if offsets.size else i * fixed
            first, words = image_key(images, at, fixed, key_words)
            number = 0
            if fragments > 1:
                number = (xxh64_hash(images, first, words, PARTITION_SEED) & POSITIVE) % fragments
            hashes[i] = number << A.TAG_BITS | tag_of(images, first, words, seed)
        return count
    for i in range(count):
        at = offsets[i] if offsets.size else i * fixed
        first, words = image_key(images, at, fixed, key_words)
        number = partition_of(header, header[H.HH_PARTITION], images, first, hashes, count)
        if number < 0:
            return i
        hashes[i] = number << A.TAG_BITS | tag_of(images, first, words, seed)
    return count


@kernel("int64(int64[::1], int64, int64, int64[::1], int64[::1])", nogil=True)
def sort_by_fragment(hashes, count, fragments, order, starts):
    """Sort batch positions by fragment into `order`, with a stable counting sort. starts: fragments + 1 words; on
    return, starts[i] is where the positions of fragment i end.
    """
    for number in range(fragments + 1):
        starts[number] = 0
    for i in range(count):
        starts[(hashes[i] >> A.TAG_BITS) + 1] += 1
    for number in range(fragments):
        starts[number + 1] += starts[number]
    for i in range(count):
        number = hashes[i] >> A.TAG_BITS
        order[starts[number]] = i
        starts[number] += 1
    return count
