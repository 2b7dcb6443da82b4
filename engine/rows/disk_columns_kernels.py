"""Kernels that join memory and disk parts into row images, and find disk parts in images; private memory only.

Offsets are word positions: count + 1 where they delimit images, count where they only give starts. Lengths in images
are checked before they are used.
"""

# mypy: ignore-errors

from __future__ import annotations

from tidemark.engine.jit.kernel import helper, kernel
from tidemark.engine.jit.words_kernels import move_words
from tidemark.engine.schema import row_layout as R


@kernel(
    "int64(int64[::1], Array(int64, 1, 'C', readonly=True), Array(int64, 1, 'C', readonly=True),"
    " Array(int64, 1, 'C', readonly=True), Array(int64, 1, 'C', readonly=True), Array(int64, 1, 'C', readonly=True),"
    " int64)",
    nogil=True,
)
def join_parts(images, offsets, memory, memory_offsets, disk, disk_offsets, count):
    """Join each row's part in memory and its disk part, and write the header word of the disk part.

    The three offsets have count + 1 entries; returns count or -1.
    """
    if min(offsets.size, memory_offsets.size, disk_offsets.size) <= count:
        return -1
    for row in range(count):
        at = offsets[row]
        first = memory_offsets[row]
        second = disk_offsets[row]
        memory_words = memory_offsets[row + 1] - first
        words = disk_offsets[row + 1] - second
        if min(at, first, second, memory_words) < 0 or words < 1 or at + memory_words + words != offsets[row + 1]:
            return -1
        if first + memory_words > memory.size or second + words > disk.size or offsets[row + 1] > images.size:
            return -1
        move_words(memory, first, images, at, memory_words)
        at += memory_words
        images[at] = words | R.DISK_VERSION << R.DISK_VERSION_SHIFT
        move_words(disk, second + 1, images, at + 1, words - 1)
    return count


@helper
def _var_words(images, at):
    """Return the words of the var part at word `at`, -1 if it would end past the images."""
    if at >= images.size:
        return -1
    header = images[at]
    words = header & R.VAR_WORDS_MASK
    if header < 0 or words < R.VAR_HEADER_WORDS or words > images.size - at:
        return -1
    return words


@helper
def is_var_part(images, at):
    """Whether the part at word `at` is a var part, where a table that got var parts later may have its disk part. A
    disk part has no column count and at least two words.
    """
    if at >= images.size:
        return False
    return (images[at] >> R.VAR_COUNT_SHIFT) & R.VAR_COUNT_MASK != 0 or images[
        at
    ] & R.VAR_WORDS_MASK == R.VAR_HEADER_WORDS


@kernel(
    "int64(int64[::1], Array(int64, 1, 'C', readonly=True), Array(int64, 1, 'C', readonly=True), int64, int64, int64,"
    " int64, int64)",
    nogil=True,
)
def find_disk_parts(starts, images, offsets, fixed_words, has_var, disk_fixed_words, disk_has_var, count):
    """Find where the disk part of each image starts; returns count, or -1 - row if an image's lengths contradict each
    other.

    `fixed_words` and `has_var` describe the part in memory, the other two the disk part. If var parts were added
    to the table later, rows may have one although has_var is 0.
    """
    if count > starts.size or count > offsets.size:
        return -1
    for row in range(count):
        at = offsets[row]
        if at < 0 or at > images.size - fixed_words:
            return -1 - row
        at += fixed_words
        if has_var or is_var_part(images, at):
            words = _var_words(images, at)
            if words < 0:
                return -1 - row
            at += words
        if at > images.size - disk_fixed_words:
            return -1 - row
        needed = disk_fixed_words
        if disk_has_var:
            words = _var_words(images, at + disk_fixed_words)
            if words < 0:
                return -1 - row
            needed += words
        if images[at] != needed | R.DISK_VERSION << R.DISK_VERSION_SHIFT:
            return -1 - row
        starts[row] = at
    return count
