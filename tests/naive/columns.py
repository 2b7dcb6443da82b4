"""Naive twins of the column kernels, written from the row image's description, one value at a time."""

from __future__ import annotations


def scatter(image, source, first, stride, units, begin, count):
    for row in range(begin, begin + count):
        image[first + row * stride : first + row * stride + units] = source[row * units : (row + 1) * units]


def gather(target, image, first, stride, units, begin, count):
    for row in range(begin, begin + count):
        target[row * units : (row + 1) * units] = image[first + row * stride : first + row * stride + units]


def is_valid(validity, position):
    return len(validity) == 0 or bool(validity[position // 8] & (1 << position % 8))


def stamp_nulls(image, validity, bit_offset, null_byte, mask, value_byte, stride, count):
    offset, width = value_byte >> 16, value_byte & 0xFFFF
    nulls = 0
    for row in range(count):
        at = row * stride
        image[at + null_byte] &= 0xFF ^ mask
        if not is_valid(validity, bit_offset + row):
            image[at + null_byte] |= mask
            image[at + offset : at + offset + width] = 0
            nulls += 1
    return nulls


def gather_nulls(bitmap, image, null_byte, mask, stride, count):
    for row in range(count):
        if not image[row * stride + null_byte] & mask:
            bitmap[row // 8] |= 1 << row % 8
    return sum(bool(image[row * stride + null_byte] & mask) for row in range(count))


def scatter_padded(image, source, offsets, first, stride, width, count):
    for row in range(count):
        value = bytes(source[offsets[row] : offsets[row + 1]]).ljust(width, b"\0")
        image[first + row * stride : first + row * stride + width] = list(value)


def stripped(image, first, stride, width, count):
    return [bytes(image[first + row * stride : first + row * stride + width]).rstrip(b"\0") for row in range(count)]


def key_piece(value: bytes) -> bytes:
    """A variable key piece: a length word and the bytes padded to a word."""
    return len(value).to_bytes(8, "little") + value + bytes(-len(value) % 8)


def var_part(key: bytes, values: list[bytes | None]) -> bytes:
    """A var part from its description in docs/internals/design.md."""
    body = b"".join(value or b"" for value in values)
    ends = b""
    end = 0
    for value in values:
        end += len(value or b"")
        ends += (end | (value is None) << 31).to_bytes(4, "little")
    ends += bytes(-len(ends) % 8)
    body += bytes(-len(body) % 8)
    words = 1 + (len(key) + len(ends) + len(body)) // 8
    header = words | len(values) << 32 | len(key) // 8 << 44 | 1 << 56
    return header.to_bytes(8, "little") + key + ends + body


def split_var_part(part: bytes) -> tuple[bytes, list[bytes | None]]:
    """Key bytes and values of a well-formed var part."""
    header = int.from_bytes(part[:8], "little")
    count, key_bytes = header >> 32 & 0xFFF, (header >> 44 & 0xFFF) * 8
    ends = [int.from_bytes(part[8 + key_bytes + 4 * i :][:4], "little") for i in range(count)]
    body = part[8 + key_bytes + (4 * count + 7) // 8 * 8 :]
    values: list[bytes | None] = []
    begin = 0
    for end in ends:
        values.append(None if end >> 31 else body[begin : end & 0x7FFFFFFF])
        begin = end & 0x7FFFFFFF
    return part[8 : 8 + key_bytes], values
