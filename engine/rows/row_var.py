"""The var part and the disk part of one row in Python (batches have kernels): built, measured, split.

`engine/schema/row_layout.py` has the layout. A var part is replaced whole; only values of the same lengths are changed
in place (`put_var_values`).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from tidemark.engine.base import limits
from tidemark.engine.base.errors import PageDamaged, RowTooLarge
from tidemark.engine.base.words_layout import WORD_BYTES, words_for
from tidemark.engine.schema.row_layout import (
    VAR_COUNT_MASK,
    VAR_COUNT_SHIFT,
    VAR_END_BYTES,
    VAR_END_MASK,
    VAR_HEADER_WORDS,
    VAR_KEY_WORDS_MASK,
    VAR_KEY_WORDS_SHIFT,
    VAR_NULL_BIT,
    VAR_WORDS_MASK,
    disk_header,
    var_header,
)

_WORD = struct.Struct("<q")


class VarPart(NamedTuple):
    """A var part split into canonical key bytes (empty unless the key is here) and the bytes of every column."""

    key: bytes
    values: list[bytes | None]


@lru_cache(maxsize=256)
def _ends_struct(count: int) -> struct.Struct:
    return struct.Struct(f"<{count}I{-count * VAR_END_BYTES % WORD_BYTES}x")


def build_var_part(key: bytes, values: Sequence[bytes | None]) -> bytes:
    """Return the bytes of a var part. Raises: RowTooLarge past the limit of end offsets.

    Shapes: `key` is a whole number of words.
    """
    ends = []
    end = 0
    for value in values:
        if value is None:
            ends.append(end | VAR_NULL_BIT)
        else:
            end += len(value)
            ends.append(end)
    if end > limits.VAR_PART_BYTES_MAX:
        raise RowTooLarge(f"the row's variable columns take {end} bytes, more than {limits.VAR_PART_BYTES_MAX}")
    key_words = len(key) // WORD_BYTES
    ends_words = words_for(len(ends) * VAR_END_BYTES)
    words = VAR_HEADER_WORDS + key_words + ends_words + words_for(end)
    pieces = [_WORD.pack(var_header(words, len(ends), key_words)), key, _ends_struct(len(ends)).pack(*ends)]
    pieces.extend(value for value in values if value)
    pieces.append(bytes(-end % WORD_BYTES))
    return b"".join(pieces)


def var_part_words(buffer: memoryview, offset: int) -> int:
    """Return the words of the var part at a byte offset. Raises: PageDamaged if it would end past the buffer.

    Shapes: `buffer` is a view of bytes.
    """
    room = len(buffer) - offset
    if room < WORD_BYTES:
        raise _damaged(offset)
    (header,) = _WORD.unpack_from(buffer, offset)
    words: int = header & VAR_WORDS_MASK
    if header < 0 or not VAR_HEADER_WORDS * WORD_BYTES <= words * WORD_BYTES <= room:
        raise _damaged(offset)
    return words


def disk_part_words(buffer: memoryview, offset: int, fixed_words: int, has_var: bool) -> int:
    """Return the words of the disk part at a byte offset, whose fixed columns end at `fixed_words`.

    Shapes: `buffer` is a view of bytes. Raises: PageDamaged unless its lengths agree and it ends within the buffer.
    """
    room = len(buffer) - offset
    if room < fixed_words * WORD_BYTES:
        raise _damaged(offset, "disk")
    (header,) = _WORD.unpack_from(buffer, offset)
    needed = fixed_words
    if has_var:
        needed += var_part_words(buffer, offset + fixed_words * WORD_BYTES)
    if header != disk_header(needed):
        raise _damaged(offset, "disk")
    return needed


def unexpected_var_words(buffer: memoryview, offset: int) -> int:
    """Return the words of a var part that precedes a disk part although the format has no var parts, because they were
    added to the table later; 0 if there is none.

    A disk part has no count of columns, and at least two words. Shapes: `buffer` is a view of bytes.
    """
    if len(buffer) - offset < WORD_BYTES:
        return 0
    (header,) = _WORD.unpack_from(buffer, offset)
    is_var = header >> VAR_COUNT_SHIFT & VAR_COUNT_MASK or header & VAR_WORDS_MASK == VAR_HEADER_WORDS
    return var_part_words(buffer, offset) if is_var else 0


def _shape_at(buffer: memoryview | bytearray, offset: int) -> tuple[int, int, int, int] | None:
    """Return the bytes and the values of the var part at a byte offset, and where its key ends and its values start;
    None if its lengths contradict each other.
    """
    room = len(buffer) - offset
    if room < WORD_BYTES:
        return None
    (header,) = _WORD.unpack_from(buffer, offset)
    size = (header & VAR_WORDS_MASK) * WORD_BYTES
    count = header >> VAR_COUNT_SHIFT & VAR_COUNT_MASK
    key_end = (VAR_HEADER_WORDS + (header >> VAR_KEY_WORDS_SHIFT & VAR_KEY_WORDS_MASK)) * WORD_BYTES
    start = key_end + words_for(count * VAR_END_BYTES) * WORD_BYTES
    return None if header < 0 or not start <= size <= room else (size, count, key_end, start)


def split_var_part(buffer: memoryview, offset: int) -> VarPart:
    """Split the var part at a byte offset. Raises: PageDamaged if its lengths contradict each other.

    Shapes: `buffer` is a view of bytes.
    """
    shape = _shape_at(buffer, offset)
    if shape is None:
        raise _damaged(offset)
    size, count, key_end, start = shape
    values: list[bytes | None] = []
    begin = 0
    for word in _ends_struct(count).unpack_from(buffer, offset + key_end):
        end = word & VAR_END_MASK
        if not begin <= end <= size - start:
            raise _damaged(offset)
        at = offset + start
        values.append(None if word & VAR_NULL_BIT else bytes(buffer[at + begin : at + end]))
        begin = end
    return VarPart(bytes(buffer[offset + WORD_BYTES : offset + key_end]), values)


def put_var_values(part: bytearray, offset: int, values: Mapping[int, bytes | None]) -> bool:
    """Overwrite the values with these ordinals in the var part at a byte offset by values of the same lengths.

    Returns False and changes nothing if a length differs, an old or new value is NULL, the part lacks the column, or
    its lengths contradict each other.
    """
    shape = _shape_at(part, offset)
    if shape is None:
        return False
    size, count, key_end, start = shape
    ends = _ends_struct(count).unpack_from(part, offset + key_end)
    places = []
    for ordinal, value in values.items():
        if value is None or ordinal >= count or ends[ordinal] & VAR_NULL_BIT:
            return False
        begin, end = ends[ordinal - 1] & VAR_END_MASK if ordinal else 0, ends[ordinal]
        if end - begin != len(value) or end > size - start:
            return False
        places.append((offset + start + begin, offset + start + end, value))
    for begin, end, value in places:
        part[begin:end] = value
    return True


def _damaged(offset: int, part: str = "var") -> PageDamaged:
    return PageDamaged(f"the lengths in a {part} part contradict each other; run `tidemark check`", offset=offset)
