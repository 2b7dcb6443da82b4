"""Where every column of a table lies in its row image (docs/design.md, "Row image"), computed from the definition.

Invariant: pieces tile the fixed image without overlap. Key columns come first, each in whole words; the others follow,
naturally aligned and widest first, so that no gap arises; then one bit per nullable one; then zero bytes to a word.
The layout is a function of the definition alone: it never changes while rows exist.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.layout.row import WORD_BYTES, words_for

if TYPE_CHECKING:
    from engine.schema import Column, TableDefinition

FIXED = "fixed"
VAR = "var"
KEY = "key"


@dataclass(frozen=True)
class Place:
    """Where one column lies.

    `part` is FIXED (`offset` and `width` in bytes of the fixed image), VAR (`ordinal` of the var column) or KEY
    (`ordinal` of the piece of a canonical key that lies in the var part). `null_offset` is the byte of the fixed image
    and `null_mask` the bit in it that is set for NULL; -1 and 0 if there is none.
    """

    position: int
    column: Column
    part: str
    is_key: bool
    offset: int = -1
    width: int = 0
    ordinal: int = -1
    null_offset: int = -1
    null_mask: int = 0


@dataclass(frozen=True)
class RowLayout:
    """The geometry of a table's row image; places are in column order, `key_places` in key order."""

    places: tuple[Place, ...]
    key_places: tuple[Place, ...]
    fixed_places: tuple[Place, ...]
    var_places: tuple[Place, ...]
    fixed_words: int
    key_words: int
    null_offset: int
    null_bytes: int
    has_var: bool
    key_in_var: bool


def _key_in_var(definition: TableDefinition) -> bool:
    names = set(definition.primary_key)
    return any(column.type.is_var for column in definition.columns if column.name in names)


def _plain_columns(definition: TableDefinition) -> list[tuple[int, Column]]:
    """Fixed-size columns outside the key, in the order they lie in."""
    names = set(definition.primary_key)
    plain = [
        (position, column)
        for position, column in enumerate(definition.columns)
        if column.name not in names and not column.type.is_var
    ]
    return sorted(plain, key=lambda item: (-item[1].type.alignment, -item[1].type.width, item[0]))


def fixed_image_bytes(definition: TableDefinition) -> int:
    """Bytes of the fixed image."""
    key_bytes = 0
    if not _key_in_var(definition):
        key_bytes = sum(definition.columns[position].type.key_bytes_max for position in definition.key_positions)
    plain = _plain_columns(definition)
    nullable = sum(column.nullable for _, column in plain)
    size = key_bytes + sum(column.type.width for _, column in plain) + (nullable + 7) // 8
    return words_for(size) * WORD_BYTES


def var_part_bytes(definition: TableDefinition) -> int:
    """Most bytes of values in the var part, Text and Blob not counted."""
    names = set(definition.primary_key)
    size = 0
    for column in definition.columns:
        if column.name in names:
            size += column.type.key_bytes_max if _key_in_var(definition) else 0
        elif column.type.is_var:
            size += column.type.bytes_max
    return size


def compute_layout(definition: TableDefinition) -> RowLayout:
    """The layout of a definition's rows."""
    columns = definition.columns
    key_in_var = _key_in_var(definition)
    places: dict[int, Place] = {}
    offset = 0
    for ordinal, position in enumerate(definition.key_positions):
        column = columns[position]
        if key_in_var:
            places[position] = Place(position, column, KEY, True, ordinal=ordinal)
        else:
            places[position] = Place(position, column, FIXED, True, offset=offset, width=column.type.width)
            offset += column.type.key_bytes_max
    key_words = offset // WORD_BYTES
    plain = _plain_columns(definition)
    null_offset = offset + sum(column.type.width for _, column in plain)
    nullable = 0
    for position, column in plain:
        null_at, mask = -1, 0
        if column.nullable:
            null_at, mask = null_offset + nullable // 8, 1 << nullable % 8
            nullable += 1
        places[position] = Place(
            position, column, FIXED, False, offset, column.type.width, null_offset=null_at, null_mask=mask
        )
        offset += column.type.width
    ordinal = 0
    for position, column in enumerate(columns):
        if position not in places:
            places[position] = Place(position, column, VAR, False, ordinal=ordinal)
            ordinal += 1
    ordered = tuple(places[position] for position in range(len(columns)))
    fixed = sorted((place for place in ordered if place.part == FIXED), key=lambda place: place.offset)
    return RowLayout(
        places=ordered,
        key_places=tuple(places[position] for position in definition.key_positions),
        fixed_places=tuple(fixed),
        var_places=tuple(place for place in ordered if place.part == VAR),
        fixed_words=words_for(null_offset + (nullable + 7) // 8),
        key_words=key_words,
        null_offset=null_offset,
        null_bytes=(nullable + 7) // 8,
        has_var=key_in_var or ordinal > 0,
        key_in_var=key_in_var,
    )
