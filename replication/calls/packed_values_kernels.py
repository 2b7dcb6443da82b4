"""A kernel that measures a MessagePack value before anything is built from it: its nesting, and its memory.

The bytes come from a peer. A header of five bytes can make an unpacker allocate four billion items, one byte becomes an
empty list of 56 bytes, and each extension type is unpacked by a nested call. So lengths, nesting and memory are checked
first, in one pass and without recursion. The kernel touches private memory only.

Memory is an upper bound for 64-bit CPython: no value takes more than is counted for it.
"""

# mypy: ignore-errors

from __future__ import annotations

import numpy as np

from tidemark.engine.jit.kernel import helper, kernel

# Return values in place of a count of bytes.
BROKEN = -1  # truncated, of an unknown type, or with a key that is not text
TOO_DEEP = -2
TOO_LARGE = -3

# Words of `kinds` for each extension type.
KIND_IS_NESTED = 0  # whether its payload is a packed value, which is measured too
KIND_BASE_BYTES = 1  # memory of the built value, without the payload's part
KIND_FACTOR = 2  # bytes of memory per payload byte
KIND_PAYLOAD_MAX = 3  # bytes
KIND_WORDS = 4

# Words of the stack for each level of nesting.
LEVEL_LEFT = 0  # values still to come; in a map, keys and values
LEVEL_IS_MAP = 1
LEVEL_END = 2  # end of the bytes of the enclosing level
LEVEL_IS_PAYLOAD = 3
LEVEL_WORDS = 4

NUMBER_BYTES = 40
TEXT_BYTES = 80
LIST_BYTES = 80
PLACE_BYTES = 16  # per item: in a list, and in the tuple that may be built from the list
DICT_BYTES = 240
ENTRY_BYTES = 80

# The group of a value, by its first byte.
_ARRAY, _MAP, _EXTENSION, _TEXT, _OCTETS, _PLAIN = range(6)


@helper
def _big(octets, at, count):
    """Return the unsigned big-endian integer of `count` bytes."""
    value = np.int64(0)
    for place in range(count):
        value = value << 8 | np.int64(octets[np.uint64(at + place)])
    return value


@helper
def _text_bytes(octets, at, size):
    """Return the bytes of memory of a str while it is decoded. Its widest character sets the width of all characters,
    and the narrower text decoded so far is copied.
    """
    factor = 1
    for place in range(at, at + size):
        octet = np.int64(octets[np.uint64(place)])
        if octet >= 0xF0:
            return TEXT_BYTES + 6 * size
        if octet >= 0xC4:
            factor = 3
        elif octet >= 0x80:
            factor = max(factor, 2)
    return TEXT_BYTES + factor * size


@helper
def _group(first):
    """Return the group of a value with this first byte, and the number of length bytes that follow."""
    if first < 0x80 or first >= 0xE0:
        return _PLAIN, 0
    if first < 0x90:
        return _MAP, 0
    if first < 0xA0:
        return _ARRAY, 0
    if first < 0xC0:
        return _TEXT, 0
    if 0xC4 <= first <= 0xC6:
        return _OCTETS, 1 << (first - 0xC4)
    if 0xC7 <= first <= 0xC9:
        return _EXTENSION, 1 << (first - 0xC7)
    if 0xD4 <= first <= 0xD8:
        return _EXTENSION, 0
    if 0xD9 <= first <= 0xDB:
        return _TEXT, 1 << (first - 0xD9)
    if 0xDC <= first <= 0xDD:
        return _ARRAY, 2 << (first - 0xDC)
    if 0xDE <= first:
        return _MAP, 2 << (first - 0xDE)
    return _PLAIN, 0


@helper
def _plain_size(first):
    """Return how many bytes follow the first one of nil, a boolean or a number; -1 if that one begins no value."""
    if first == 0xC1:
        return -1
    if first == 0xCA:
        return 4
    if first == 0xCB:
        return 8
    if 0xCC <= first <= 0xCF:
        return 1 << (first - 0xCC)
    if 0xD0 <= first <= 0xD3:
        return 1 << (first - 0xD0)
    return 0


@helper
def _short_length(first, group):
    """Return the length that the first byte itself contains."""
    if group == _TEXT:
        return first & 0x1F
    if group == _EXTENSION:
        return 1 << (first - 0xD4)
    return first & 0x0F


@helper
def _head(octets, at, end):
    """Return (group, size, start of the content) of the value at `at`; start -1 if it is truncated or invalid.

    The size is in bytes; for an array or a map, it is the number of entries.
    """
    if at >= end:
        return _PLAIN, np.int64(0), np.int64(-1)
    first = np.int64(octets[np.uint64(at)])
    at += 1
    group, prefix = _group(first)
    if group == _PLAIN:
        size = np.int64(_plain_size(first))
        return group, size, at if size >= 0 else np.int64(-1)
    if prefix > end - at:
        return group, np.int64(0), np.int64(-1)
    size = _big(octets, at, prefix) if prefix > 0 else np.int64(_short_length(first, group))
    at += prefix
    if group == _EXTENSION:
        at += 1  # its type number, which the size does not include
    is_whole = group == _ARRAY or group == _MAP or size <= end - at
    return group, size, at if is_whole else np.int64(-1)


@helper
def _is_key(stack, depth):
    """Whether the next value is a key of a map."""
    level = (depth - 1) * LEVEL_WORDS
    return depth > 0 and stack[level + LEVEL_IS_MAP] != 0 and stack[level + LEVEL_LEFT] & 1 == 0


@helper
def _close(stack, depth, at, end):
    """Return (depth, end) after a value, and after all levels that it completes; depth is -1 if a payload is longer
    than its value.
    """
    while depth > 0:
        level = (depth - 1) * LEVEL_WORDS
        stack[level + LEVEL_LEFT] -= 1
        if stack[level + LEVEL_LEFT] > 0:
            break
        if stack[level + LEVEL_IS_PAYLOAD] != 0 and at != end:
            return np.int64(-1), end
        end = stack[level + LEVEL_END]
        depth -= 1
    return depth, end


@helper
def _cost(octets, group, size, at, kinds):
    """Return (bytes of memory without nested values, number of nested values); -1 for an unknown extension type, or for
    a payload that is too long.
    """
    if group == _ARRAY:
        return LIST_BYTES + PLACE_BYTES * size, size
    if group == _MAP:
        return DICT_BYTES + ENTRY_BYTES * size, 2 * size
    if group == _TEXT:
        return _text_bytes(octets, at, size), np.int64(0)
    if group != _EXTENSION:
        return NUMBER_BYTES + (size if group == _OCTETS else 0), np.int64(0)
    kind = np.int64(octets[np.uint64(at - 1)]) * KIND_WORDS
    if kind >= kinds.size or size > kinds[np.uint64(kind + KIND_PAYLOAD_MAX)]:
        return np.int64(-1), np.int64(0)
    cost = kinds[np.uint64(kind + KIND_BASE_BYTES)] + kinds[np.uint64(kind + KIND_FACTOR)] * size
    return cost, kinds[np.uint64(kind + KIND_IS_NESTED)]


@kernel(
    "int64(Array(uint8, 1, 'C', readonly=True), Array(int64, 1, 'C', readonly=True), int64[::1], int64)", nogil=True
)
def measure_value(octets, kinds, stack, most_bytes):
    """Return the bytes of memory of the one value in `octets`, at most `most_bytes`, or BROKEN, TOO_DEEP, TOO_LARGE.

    kinds: KIND_WORDS words for each extension type, from number 0. stack: LEVEL_WORDS words for each allowed level of
    nesting. Every key of a map must be text.
    """
    depth = np.int64(0)
    at = np.int64(0)
    end = np.int64(octets.size)
    total = np.int64(0)
    while True:
        group, size, at = _head(octets, at, end)
        if at < 0 or (group != _TEXT and _is_key(stack, depth)):
            return BROKEN
        cost, count = _cost(octets, group, size, at, kinds)
        if cost < 0:
            return BROKEN
        total += cost
        if total > most_bytes:
            return TOO_LARGE
        is_inner = group == _ARRAY or group == _MAP or count > 0
        if is_inner and (depth + 1) * LEVEL_WORDS > stack.size:
            return TOO_DEEP
        if count > 0:
            level = depth * LEVEL_WORDS
            stack[level + LEVEL_LEFT] = count
            stack[level + LEVEL_IS_MAP] = group == _MAP
            stack[level + LEVEL_END] = end
            stack[level + LEVEL_IS_PAYLOAD] = group == _EXTENSION
            depth += 1
            if group == _EXTENSION:
                end = at + size
            continue
        if not is_inner:
            at += size
        depth, end = _close(stack, depth, at, end)
        if depth < 0:
            return BROKEN
        if depth == 0:
            return total if at == end else BROKEN
