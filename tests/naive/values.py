"""Whether the bytes of a row image are a row of its table: read with `struct`, Python's numbers and its own UTF-8."""

from __future__ import annotations

import struct
from typing import Any

from tidemark.engine import types as t
from tidemark.engine.types import Binary, Char, Document, LongText, Moment, Uuid, VarChar


class Wrong(Exception):
    """The image is no row; the argument is the column, None if no single one is wrong."""


def check(holds: bool, column: str | None = None) -> None:
    if not holds:
        raise Wrong(column)


def number_is_valid(kind: Any, number: int) -> bool:
    if isinstance(kind, (t.Integer, Moment)):
        low, high = kind.stored_range
        return bool(low <= number <= high)
    if isinstance(kind, t.Decimal):
        return len(str(abs(number))) <= kind.precision
    return number in (0, 1) if kind == t.Bool else 0 <= number < len(kind.members)


def check_value(place: Any, data: bytes, is_fixed: bool) -> None:
    """A value that is not NULL; `data` are all bytes that belong to it, padding to whole words in keys included."""
    kind, name = place.column.type, place.column.name
    if isinstance(kind, (Char, VarChar, LongText, Document)):
        text = data
        if kind.width and is_fixed:
            check(not any(data[kind.width :]), name)
            text = data[: kind.width].rstrip(b"\0")
        try:
            count = len(text.decode())
        except UnicodeDecodeError:
            raise Wrong(name) from None
        check(isinstance(kind, (LongText, Document)) or count <= kind.length, name)
    elif isinstance(kind, (Binary, Uuid)):
        check(not any(data[kind.width :]) if is_fixed else not data.endswith(b"\0"), name)
    elif isinstance(kind, t.Floating):
        if place.is_key:
            check(not any(data[kind.width :]), name)
            (value,) = struct.unpack("<f" if kind.bits == 32 else "<d", data[: kind.width])
            check(value == value and data[: kind.width] != struct.pack("<f" if kind.bits == 32 else "<d", -0.0), name)
    elif kind.width:
        signed = not (isinstance(kind, t.Integer) and not kind.signed) and kind not in (t.Bool,)
        if isinstance(kind, t.Enum) and len(data) == 2:
            signed = False
        check(number_is_valid(kind, int.from_bytes(data, "little", signed=signed)), name)


def check_fixed(part: bytes, layout: Any, end: int) -> None:
    """The columns at fixed places of a part; zeros from its NULL bits to byte `end`."""
    for place in layout.fixed_places:
        kind = place.column.type
        width = -(-kind.width // 8) * 8 if place.is_key else kind.width
        data = part[place.offset : place.offset + width]
        if place.null_mask and part[place.null_offset] & place.null_mask:
            check(not any(data), place.column.name)
        else:
            check_value(place, data, True)
    bits = int.from_bytes(part[layout.null_offset : end], "little")
    for place in layout.fixed_places:
        if place.null_mask:
            bits &= ~(place.null_mask << 8 * (place.null_offset - layout.null_offset))
    check(bits == 0)


def check_key(data: bytes, places: Any) -> None:
    """A canonical key in a var part."""
    at = 0
    for place in places:
        kind, name = place.column.type, place.column.name
        if kind.width:
            width = -(-kind.width // 8) * 8
            check(at + width <= len(data), name)
            check_value(place, data[at : at + width], True)
            at += width
            continue
        check(at + 8 <= len(data), name)
        (size,) = struct.unpack_from("<q", data, at)
        padded = -(-size // 8) * 8
        check(0 <= size and at + 8 + padded <= len(data), name)
        check(size <= kind.bytes_max, name)
        check_value(place, data[at + 8 : at + 8 + size], False)
        check(not any(data[at + 8 + size : at + 8 + padded]), name)
        at += 8 + padded
    check(at == len(data))


def check_var(data: bytes, key_places: Any, places: Any) -> int:
    """A var part at the start of some bytes; returns its bytes."""
    check(len(data) >= 8)
    (header,) = struct.unpack_from("<q", data)
    check(header >= 0 and header >> 56 == 1)
    words, count, key_words = header & 0xFFFFFFFF, header >> 32 & 0xFFF, header >> 44 & 0xFFF
    begin_at = 8 * (1 + key_words + (count + 1) // 2)
    check(begin_at <= 8 * words <= len(data))
    check(count <= len(places))
    check(bool(key_places) or key_words == 0)
    if key_places:
        check_key(data[8 : 8 + 8 * key_words], key_places)
    values, begin = data[begin_at : 8 * words], 0
    for place in places:
        kind, name = place.column.type, place.column.name
        if place.ordinal >= count:
            check(place.column.added > 0, name)
            continue
        (word,) = struct.unpack_from("<I", data, 8 * (1 + key_words) + 4 * place.ordinal)
        end = word & 0x7FFFFFFF
        check(begin <= end <= len(values), name)
        value, begin = values[begin:end], end
        if word >> 31:
            check((place.column.nullable or place.is_dropped) and not value, name)
            continue
        if kind.width and not isinstance(kind, (Char, Binary, Uuid)):
            check(len(value) == kind.width, name)
        elif not kind.is_lob:
            check(len(value) <= (kind.width or kind.bytes_max), name)
        check_value(place, value, False)
    check(len(values) - begin < 8 and not any(values[begin:]))
    return int(8 * words)


def wrong_column(data: bytes, layout: Any) -> tuple[bool, str | None]:
    """(whether the image is wrong, the column); `data` goes on to the end of all images."""
    try:
        at = 8 * layout.fixed_words
        check(len(data) >= at)
        check_fixed(data[:at], layout, at - 8 * (layout.disk is not None))
        if layout.has_var:
            at += check_var(data[at:], layout.key_places if layout.key_in_var else (), layout.var_places)
        if layout.disk is not None:
            disk = layout.disk
            check(len(data) >= at + 8)
            (header,) = struct.unpack_from("<q", data, at)
            words = header & 0xFFFFFFFF
            check(header == words | 1 << 56 and disk.fixed_words <= words <= (len(data) - at) // 8)
            part = data[at : at + 8 * words]
            check_fixed(part[: 8 * disk.fixed_words], disk, 8 * disk.fixed_words)
            done = 8 * disk.fixed_words
            if disk.has_var:
                done += check_var(part[done:], (), disk.var_places)
            check(done == len(part))
    except Wrong as wrong:
        return True, wrong.args[0]
    return False, None
