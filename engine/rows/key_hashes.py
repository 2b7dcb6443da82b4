"""Hashes of the keys of many images, and the order of the images by fragment."""

from __future__ import annotations

import numpy as np

from tidemark.engine.base.errors import InvariantBroken
from tidemark.engine.memory.arena import Words
from tidemark.engine.rows import key_hashes_kernels as kernels
from tidemark.engine.schema.partition_words import KEY_ROOM_WORDS
from tidemark.engine.schema.partitions_layout import HH_PARTITION


def hash_images(header: Words, key_words: int, images: Words, offsets: Words, count: int) -> tuple[Words, int]:
    """Return `fragment << TAG_BITS | tag` of each image's key, and how many images were hashed: fewer than `count`
    if no partition takes the key of the next one.

    header: a private hash header. key_words: words of a key of fixed size, else 0. offsets: one for each image, or
    empty if all images have the size in the header. Shapes: hashes (count,).
    """
    if offsets.size and offsets.size < count:
        raise InvariantBroken(f"{count} images were to be hashed, with offsets of {offsets.size}; report this")
    hashes: Words = np.empty(count + (KEY_ROOM_WORDS if header[HH_PARTITION] else 0), dtype=np.int64)
    found = int(kernels.hash_images(header, key_words, images, offsets, count, hashes))
    return hashes[:count], found


def order_by_fragment(hashes: Words, fragments: int) -> tuple[Words, Words]:
    """Return the positions of hashes sorted by fragment, stable, and where those of each fragment end.

    fragments: more than the highest fragment number. Shapes: order (hashes,), stops (fragments,).
    """
    order: Words = np.empty(hashes.size, dtype=np.int64)
    stops: Words = np.empty(fragments + 1, dtype=np.int64)
    kernels.sort_by_fragment(hashes, hashes.size, fragments, order, stops)
    return order, stops[:fragments]
