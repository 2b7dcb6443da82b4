"""Column words of a table's columns, computed from its row layout (docs/internals/access.md, section 1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tidemark.engine.base.words_layout import WORD_BYTES, words_for
from tidemark.engine.rows import columns_layout as c
from tidemark.engine.rows.row_part import var_default
from tidemark.engine.schema.row_shape import FIXED, KEY, Place, RowLayout

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tidemark.engine.types import ColumnType


def column_class(kind: ColumnType) -> int:
    """Return the CLASS_ constant by which kernels read values of a type."""
    return getattr(c, f"CLASS_{kind.value_class}")  # type: ignore[no-any-return]


def _part(place: Place) -> int:
    if place.part == KEY:
        return c.PART_KEY
    if place.part == FIXED:
        return c.PART_DISK if place.is_disk else c.PART_FIXED
    return c.PART_DISK_VAR if place.is_disk else c.PART_VAR


def _var_mask(place: Place) -> int:
    mask = c.VAR_NULLABLE if place.column.nullable else 0
    return mask | c.VAR_PADDED if place.column.type.is_padded else mask


def _key_path(layout: RowLayout, ordinal: int) -> bytes:
    """Return the word counts of the pieces of a canonical key up to and including piece `ordinal`, as int64; -1 for a
    piece that begins with its length.
    """
    pieces = [place.column.type for place in layout.key_places[: ordinal + 1]]
    words = [-1 if kind.is_var else kind.key_bytes_max // WORD_BYTES for kind in pieces]
    return np.array(words, dtype=np.int64).tobytes()


def column_place(layout: RowLayout, position: int) -> tuple[int, ...]:
    """Return what says where the values of a column are in rows, and how they are read; the same in all versions."""
    return tuple(column_words(layout, [position])[0][: c.CW_MISSING].tolist())


def column_words(layout: RowLayout, positions: Sequence[int]) -> tuple[NDArray[np.int64], bytes]:
    """Return the words of the columns at `positions`, consecutively, and the constants to which they refer.

    Shapes: COLUMN_WORDS for each position. CW_MISSING is a byte offset in the constants, which fill whole words; each
    default begins on a word. For a key column in the var part, it is the offset of the word counts of the key's pieces
    up to and including this one, -1 for a piece of variable size.
    """
    words = np.zeros(len(positions) * c.COLUMN_WORDS, dtype=np.int64)
    constants = bytearray()
    for number, position in enumerate(positions):
        place = layout.places[position]
        kind = place.column.type
        is_fixed = place.part == FIXED
        at = words[number * c.COLUMN_WORDS : (number + 1) * c.COLUMN_WORDS]
        at[c.CW_PART] = _part(place)
        at[c.CW_AT] = place.offset if is_fixed else place.ordinal
        at[c.CW_BYTES] = place.width if is_fixed else kind.width or kind.bytes_max
        at[c.CW_CLASS] = column_class(kind)
        at[c.CW_NULL_BYTE] = place.null_offset
        at[c.CW_NULL_MASK] = place.null_mask if is_fixed else _var_mask(place)
        at[c.CW_MISSING] = -1
        if place.part == KEY:
            path = _key_path(layout, place.ordinal)
            at[c.CW_MISSING] = len(constants)
            at[c.CW_MISSING_BYTES] = len(path)
            constants += path
            continue
        value = None if is_fixed else var_default(place)
        if value is not None:
            at[c.CW_MISSING] = len(constants)
            at[c.CW_MISSING_BYTES] = len(value)
            constants += value.ljust(words_for(len(value)) * WORD_BYTES, b"\0")
    return words, bytes(constants)
