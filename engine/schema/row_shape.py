"""The place of every column of a table in its row image (docs/internals/design.md, "Row image"), from the definition.

Invariant: pieces tile the fixed image without overlap. Key columns come first, each in whole words; the others follow,
naturally aligned and widest first, so that there are no gaps; then one bit for each nullable column; then zero bytes up
to a whole word; then, in tables with disk columns, the disk reference. A disk part is laid out in the same way, with
its header word in the place of the key. The layout is a function of the definition alone: it never changes while rows
exist. A column added to a table with rows is in the var part, whatever its type, after the existing columns; a dropped
column keeps its place, where new rows have zeros or NULL.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tidemark.engine.base import limits
from tidemark.engine.base.errors import SchemaInvalid
from tidemark.engine.base.words_layout import WORD_BYTES, words_for
from tidemark.engine.schema.row_layout import DISK_HEADER_WORDS, DISK_REFERENCE_WORDS, VAR_END_BYTES, VAR_HEADER_WORDS

if TYPE_CHECKING:
    from tidemark.engine.schema.column import Column, Columns

FIXED = "fixed"
VAR = "var"
KEY = "key"


@dataclass(frozen=True)
class Place:
    """The place of one column.

    `part` is FIXED (`offset` and `width` in bytes of the fixed image), VAR (`ordinal` of the var column) or KEY
    (`ordinal` of the piece of a canonical key in the var part). `null_offset` is the byte of the fixed image and
    `null_mask` the bit in it that is set for NULL; -1 and 0 if there is none. With `is_disk`, all of this is relative
    to the disk part, counted from its header word.
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
    is_disk: bool = False
    is_dropped: bool = False


@dataclass(frozen=True)
class PartLayout:
    """The geometry of one part of an image, in memory or on disk: fixed words, then maybe a var part.

    `fixed_places` are in the order of offsets, `var_places` in the order of ordinals; both include dropped columns,
    with positions past the last column's.
    """

    fixed_places: tuple[Place, ...]
    var_places: tuple[Place, ...]
    fixed_words: int
    null_offset: int
    null_bytes: int
    has_var: bool


@dataclass(frozen=True)
class RowLayout(PartLayout):
    """The geometry of a table's row image: its part in memory, and `disk` for the disk part, if there is one.

    `places` are in column order, `key_places` in key order; `dropped` is the number of dropped columns. `var_since` is
    the schema version that added a var part to a table without one; it is then found through side pages. 0: rows had a
    var part from the beginning, or have none.
    """

    places: tuple[Place, ...]
    key_places: tuple[Place, ...]
    key_words: int
    key_in_var: bool
    disk: PartLayout | None
    dropped: int
    var_since: int


def _key_in_var(definition: Columns) -> bool:
    names = set(definition.primary_key)
    return any(column.type.is_var for column in definition.columns if column.name in names)


def _columns_outside_the_key(definition: Columns, is_disk: bool) -> list[tuple[int, Column]]:
    names, count = set(definition.primary_key), len(definition.columns)
    return [
        (position, column)
        for position, column in definition.physical
        if column.is_disk == is_disk and (position >= count or column.name not in names)
    ]


def _fixed_columns(columns: Sequence[tuple[int, Column]]) -> list[tuple[int, Column]]:
    """Return the columns of fixed size, in the order of their offsets."""
    fixed = [item for item in columns if not item[1].in_var]
    # The sort is stable: equal ones stay in order of creation. Their positions would change when a column is dropped.
    return sorted(fixed, key=lambda item: (-item[1].type.alignment, -item[1].type.width))


def _fixed_words(columns: Sequence[tuple[int, Column]], start: int) -> int:
    """Return the words of `start` bytes followed by the fixed-size columns."""
    fixed = [column for _, column in columns if not column.in_var]
    nullable = sum(column.nullable for column in fixed)
    return words_for(start + sum(column.type.width for column in fixed) + (nullable + 7) // 8)


def fixed_image_bytes(definition: Columns) -> int:
    """Return the bytes of the fixed image, disk reference included."""
    key_bytes = 0
    if not _key_in_var(definition):
        key_bytes = sum(definition.columns[position].type.key_bytes_max for position in definition.key_positions)
    words = _fixed_words(_columns_outside_the_key(definition, False), key_bytes)
    return (words + (DISK_REFERENCE_WORDS if definition.has_disk else 0)) * WORD_BYTES


def var_part_bytes(definition: Columns) -> int:
    """Return the maximum bytes of values in the var part in memory, Text and Blob not counted."""
    columns = _columns_outside_the_key(definition, False)
    size = sum(column.type.bytes_max or column.type.width for _, column in columns if column.in_var)
    if _key_in_var(definition):
        size += sum(definition.columns[position].type.key_bytes_max for position in definition.key_positions)
    return size


def disk_part_words(definition: Columns) -> int:
    """Return the maximum words of a row's disk part, bytes of Text and Blob not counted; 0 without disk columns."""
    columns = _columns_outside_the_key(definition, True)
    if not columns:
        return 0
    words = _fixed_words(columns, DISK_HEADER_WORDS * WORD_BYTES)
    var = [column.type for _, column in columns if column.in_var]
    if var:
        words += VAR_HEADER_WORDS + words_for(len(var) * VAR_END_BYTES) + words_for(sum(kind.bytes_max for kind in var))
    return words


def check_disk_part_fits(definition: Columns, page_bytes: int) -> None:
    """Check that disk parts, Text and Blob aside, always fit a page of the tablespace. Raises: SchemaInvalid."""
    needed, most = disk_part_words(definition), limits.disk_part_words_max(page_bytes)
    if needed > most:
        raise SchemaInvalid(
            f"table {definition.name}: its disk columns may take {needed * WORD_BYTES} bytes, more than the"
            f" {most * WORD_BYTES} of one page of {page_bytes}; use Text or Blob, or a tablespace with larger pages",
            table=definition.name,
            needed_bytes=needed * WORD_BYTES,
            most_bytes=most * WORD_BYTES,
        )


def _part_layout(
    columns: Sequence[tuple[int, Column]],
    key_places: Sequence[Place],
    start: int,
    key_in_var: bool,
    is_disk: bool,
    live: int,
) -> PartLayout:
    """Lay out these columns after `start` bytes of key or header; positions from `live` on are dropped columns."""
    fixed_columns = _fixed_columns(columns)
    null_offset = start + sum(column.type.width for _, column in fixed_columns)
    fixed = [place for place in key_places if place.part == FIXED]
    offset = start
    nullable = 0
    for position, column in fixed_columns:
        null_at, mask = -1, 0
        if column.nullable:
            null_at, mask = null_offset + nullable // 8, 1 << nullable % 8
            nullable += 1
        width = column.type.width
        place = Place(position, column, FIXED, False, offset, width, null_offset=null_at, null_mask=mask)
        fixed.append(replace(place, is_disk=is_disk, is_dropped=position >= live))
        offset += width
    var_columns = [item for item in columns if item[1].in_var]
    var = tuple(
        Place(position, column, VAR, False, ordinal=ordinal, is_disk=is_disk, is_dropped=position >= live)
        for ordinal, (position, column) in enumerate(var_columns)
    )
    return PartLayout(
        fixed_places=tuple(fixed),
        var_places=var,
        fixed_words=_fixed_words(columns, start),
        null_offset=null_offset,
        null_bytes=(nullable + 7) // 8,
        has_var=key_in_var or bool(var),
    )


def compute_layout(definition: Columns) -> RowLayout:
    """Return the layout of a definition's rows, which is computed once and stays with the definition."""
    known: dict[str, Any] = vars(definition)
    found: RowLayout | None = known.get("_layout")
    if found is None:
        found = known["_layout"] = _computed_layout(definition)
    return found


def _computed_layout(definition: Columns) -> RowLayout:
    columns = definition.columns
    key_in_var = _key_in_var(definition)
    key_places = []
    offset = 0
    for ordinal, position in enumerate(definition.key_positions):
        column = columns[position]
        if key_in_var:
            key_places.append(Place(position, column, KEY, True, ordinal=ordinal))
        else:
            key_places.append(Place(position, column, FIXED, True, offset=offset, width=column.type.width))
            offset += column.type.key_bytes_max
    in_memory, live = _columns_outside_the_key(definition, False), len(columns)
    memory = _part_layout(in_memory, key_places, offset, key_in_var, False, live)
    on_disk = _columns_outside_the_key(definition, True)
    disk = _part_layout(on_disk, (), DISK_HEADER_WORDS * WORD_BYTES, False, True, live) if on_disk else None
    var_since = 0
    if memory.has_var and not key_in_var and all(place.column.added for place in memory.var_places):
        var_since = min(place.column.added for place in memory.var_places)
    parts = (memory,) if disk is None else (memory, disk)
    places = {place.position: place for part in parts for place in (*part.fixed_places, *part.var_places)}
    places |= {place.position: place for place in key_places}
    return RowLayout(
        fixed_places=memory.fixed_places,
        var_places=memory.var_places,
        fixed_words=memory.fixed_words + (0 if disk is None else DISK_REFERENCE_WORDS),
        null_offset=memory.null_offset,
        null_bytes=memory.null_bytes,
        has_var=memory.has_var,
        places=tuple(places[position] for position in range(len(columns))),
        key_places=tuple(key_places),
        key_words=offset // WORD_BYTES,
        key_in_var=key_in_var,
        disk=disk,
        dropped=len(definition.dropped),
        var_since=var_since,
    )
