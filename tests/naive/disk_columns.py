"""Naive twins of the kernels of disk parts, written from docs/internals/disk.md, one row at a time."""

from __future__ import annotations

from itertools import pairwise

VERSION = 1 << 56


def disk_part(fixed: bytes, var: bytes) -> bytes:
    """A disk part of its fixed columns and its var part, if any."""
    return ((8 + len(fixed) + len(var)) // 8 | VERSION).to_bytes(8, "little") + fixed + var


def joined(memory, memory_offsets, disk, disk_offsets):
    """Images as lists of words; word 0 of each disk part is a placeholder."""
    images = []
    for (first, end), (second, stop) in zip(pairwise(memory_offsets), pairwise(disk_offsets), strict=True):
        images.append([*memory[first:end], stop - second | VERSION, *disk[second + 1 : stop]])
    return images


def disk_start(images, offset, fixed_words, has_var, disk_fixed_words, disk_has_var):
    """Word where the disk part of the image at `offset` starts; None if its lengths are invalid."""

    def var_words(at):
        header = images[at] if at < len(images) else -1
        words = header % 2**32
        return None if header < 0 or words == 0 or at + words > len(images) else words

    at = offset + fixed_words
    if at > len(images):
        return None
    # A disk part has no count of columns, and two words at least: any other header belongs to a var part.
    header = images[at] if at < len(images) else 0
    if has_var or (header >> 32) % 2**12 or header % 2**32 == 1:
        words = var_words(at)
        if words is None:
            return None
        at += words
    size = disk_fixed_words
    if at + size > len(images):
        return None
    if disk_has_var:
        words = var_words(at + size)
        if words is None:
            return None
        size += words
    return at if images[at] == size | VERSION else None
