"""Kernels that turn columns into row images and back; private memory only, so they run without the GIL.

Offsets of fixed columns are in units of the array's element (8, 4, 2 or 1 bytes): a 20-byte column at an offset that is
a multiple of four moves as five 4-byte units. Every kernel checks its bounds before the first write and returns -1 if
they do not hold; for the image, `copy_padded` relies on the check of `measure_padded`. Callers treat -1 as a broken
invariant, or as damage if the lengths were read from an image.
"""

# mypy: ignore-errors

from __future__ import annotations

from tidemark.engine.jit.kernel import helper, kernel
from tidemark.engine.jit.objects_kernels import copy_elements

_PASSES_MAX = 8


@helper
def bit(bitmap, position):
    return (bitmap[position >> 3] >> (position & 7)) & 1


@helper
def _scatter(image, source, first, stride, units, begin, count):
    if count <= 0:
        return 0
    if min(first, stride, units, begin) < 0 or units < 1:
        return -1
    if first + (begin + count - 1) * stride + units > image.size or (begin + count) * units > source.size:
        return -1
    # For few units, one pass each: an inner loop of unknown length costs more than another pass in the cache.
    if units <= _PASSES_MAX:
        for unit in range(units):
            for row in range(begin, begin + count):
                image[first + unit + row * stride] = source[row * units + unit]
    else:
        for row in range(begin, begin + count):
            copy_elements(image, first + row * stride, source, row * units, units)
    return count


@helper
def _gather(target, image, first, stride, units, begin, count):
    if count <= 0:
        return 0
    if min(first, stride, units, begin) < 0 or units < 1:
        return -1
    if first + (begin + count - 1) * stride + units > image.size or (begin + count) * units > target.size:
        return -1
    if units <= _PASSES_MAX:
        for unit in range(units):
            for row in range(begin, begin + count):
                target[row * units + unit] = image[first + unit + row * stride]
    else:
        for row in range(begin, begin + count):
            copy_elements(target, row * units, image, first + row * stride, units)
    return count


@kernel("int64(int64[::1], Array(int64, 1, 'C', readonly=True), int64, int64, int64, int64, int64)", nogil=True)
def scatter_8(image, source, first, stride, units, begin, count):
    """Write rows begin … begin + count of a column of 8-byte units into strided images; returns count or -1."""
    return _scatter(image, source, first, stride, units, begin, count)


@kernel("int64(int32[::1], Array(int32, 1, 'C', readonly=True), int64, int64, int64, int64, int64)", nogil=True)
def scatter_4(image, source, first, stride, units, begin, count):
    return _scatter(image, source, first, stride, units, begin, count)


@kernel("int64(int16[::1], Array(int16, 1, 'C', readonly=True), int64, int64, int64, int64, int64)", nogil=True)
def scatter_2(image, source, first, stride, units, begin, count):
    return _scatter(image, source, first, stride, units, begin, count)


@kernel("int64(uint8[::1], Array(uint8, 1, 'C', readonly=True), int64, int64, int64, int64, int64)", nogil=True)
def scatter_1(image, source, first, stride, units, begin, count):
    return _scatter(image, source, first, stride, units, begin, count)


@kernel("int64(int64[::1], Array(int64, 1, 'C', readonly=True), int64, int64, int64, int64, int64)", nogil=True)
def gather_8(target, image, first, stride, units, begin, count):
    """Read rows begin … begin + count of a column of 8-byte units from strided images; returns count or -1."""
    return _gather(target, image, first, stride, units, begin, count)


@kernel("int64(int32[::1], Array(int32, 1, 'C', readonly=True), int64, int64, int64, int64, int64)", nogil=True)
def gather_4(target, image, first, stride, units, begin, count):
    return _gather(target, image, first, stride, units, begin, count)


@kernel("int64(int16[::1], Array(int16, 1, 'C', readonly=True), int64, int64, int64, int64, int64)", nogil=True)
def gather_2(target, image, first, stride, units, begin, count):
    return _gather(target, image, first, stride, units, begin, count)


@kernel("int64(uint8[::1], Array(uint8, 1, 'C', readonly=True), int64, int64, int64, int64, int64)", nogil=True)
def gather_1(target, image, first, stride, units, begin, count):
    return _gather(target, image, first, stride, units, begin, count)


@kernel("int64(uint8[::1], Array(uint8, 1, 'C', readonly=True), int64, int64, int64, int64, int64, int64)", nogil=True)
def stamp_nulls(image, validity, bit_offset, null_byte, mask, value_byte, stride, count):
    """Set or clear the null bit of every row from an Arrow validity bitmap (empty: all valid); returns the nulls or -1.

    value_byte: offset << 16 | width of the value, whose bytes are zeroed under a NULL.
    """
    offset = value_byte >> 16
    width = value_byte & 0xFFFF
    if count <= 0:
        return 0
    last = (count - 1) * stride
    if min(null_byte, offset, stride, bit_offset) < 0 or max(null_byte + 1, offset + width) + last > image.size:
        return -1
    if validity.size > 0 and (bit_offset + count - 1) >> 3 >= validity.size:
        return -1
    nulls = 0
    for row in range(count):
        at = row * stride
        if validity.size > 0 and bit(validity, bit_offset + row) == 0:
            image[at + null_byte] |= mask
            for i in range(width):
                image[at + offset + i] = 0
            nulls += 1
        else:
            image[at + null_byte] &= 0xFF ^ mask
    return nulls


@kernel("int64(uint8[::1], Array(uint8, 1, 'C', readonly=True), int64, int64, int64, int64)", nogil=True)
def gather_nulls(bitmap, image, null_byte, mask, stride, count):
    """Write an Arrow validity bitmap (zeroed before) from the null bits of strided images; returns the nulls or -1."""
    if count <= 0:
        return 0
    if min(null_byte, stride) < 0 or null_byte + (count - 1) * stride >= image.size or (count + 7) >> 3 > bitmap.size:
        return -1
    nulls = 0
    for row in range(count):
        if image[row * stride + null_byte] & mask:
            nulls += 1
        else:
            bitmap[row >> 3] |= 1 << (row & 7)
    return nulls


@kernel(
    "int64(uint8[::1], Array(uint8, 1, 'C', readonly=True), Array(int64, 1, 'C', readonly=True), int64, int64, int64,"
    " int64)",
    nogil=True,
)
def scatter_padded(image, source, offsets, first, stride, width, count):
    """Write values of varying length, zero-padded to `width` bytes; returns count, or -1 if one is longer."""
    if count <= 0:
        return 0
    if min(first, stride, width) < 0 or first + (count - 1) * stride + width > image.size or count >= offsets.size:
        return -1
    for row in range(count):
        begin = offsets[row]
        size = offsets[row + 1] - begin
        if begin < 0 or size < 0 or size > width or begin + size > source.size:
            return -1
    for row in range(count):
        begin = offsets[row]
        size = offsets[row + 1] - begin
        at = first + row * stride
        copy_elements(image, at, source, begin, size)
        for i in range(size, width):
            image[at + i] = 0
    return count


@kernel("int64(int64[::1], Array(uint8, 1, 'C', readonly=True), int64, int64, int64, int64)", nogil=True)
def measure_padded(ends, image, first, stride, width, count):
    """Write the offsets (count + 1) of zero-padded values without their padding; returns their sum or -1."""
    if min(first, stride, width) < 0 or count >= ends.size:
        return -1
    if count > 0 and first + (count - 1) * stride + width > image.size:
        return -1
    end = 0
    ends[0] = 0
    for row in range(count):
        at = first + row * stride
        size = width
        while size > 0 and image[at + size - 1] == 0:
            size -= 1
        end += size
        ends[row + 1] = end
    return end


@kernel(
    "int64(uint8[::1], Array(int64, 1, 'C', readonly=True), Array(uint8, 1, 'C', readonly=True), int64, int64, int64)",
    nogil=True,
)
def copy_padded(target, ends, image, first, stride, count):
    """Copy the values that `measure_padded` measured; returns count or -1."""
    if count >= ends.size or ends[count] > target.size:
        return -1
    for row in range(count):
        copy_elements(target, ends[row], image, first + row * stride, ends[row + 1] - ends[row])
    return count
