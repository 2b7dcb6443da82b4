"""One part of a row image in Python: the columns in memory, or the disk part; `engine/rows/row_format.py` joins them.

Invariants: padding and the bytes under a NULL are zero. Fixed columns change in place; a var part is replaced whole
unless all new values have the lengths of the old ones.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

from tidemark.engine.base.errors import PageDamaged
from tidemark.engine.base.words_layout import WORD_BYTES, words_for
from tidemark.engine.rows.row_var import (
    VarPart,
    build_var_part,
    disk_part_words,
    put_var_values,
    split_var_part,
    unexpected_var_words,
    var_part_words,
)
from tidemark.engine.schema.column import ABSENT
from tidemark.engine.schema.row_layout import DISK_HEADER_WORDS, disk_header
from tidemark.engine.schema.row_shape import PartLayout, Place, RowLayout

_BYTE = struct.Struct("<B")
_WORD = struct.Struct("<q")


class Changes:
    """Validated new values of some columns, ready to be applied to a row image.

    `fixed` lists (byte offset in the part, pack_into, stored value), `nulls` lists (byte offset, bit, is null), `var`
    maps the ordinal of a var column to its bytes or None. These three are for the columns in memory. `disk` has the
    same for the disk columns, with offsets from the header word of the disk part; it is None if none of them changes.
    """

    __slots__ = ("disk", "fixed", "nulls", "var")

    def __init__(self) -> None:
        self.fixed: list[tuple[int, Callable[..., None], Any]] = []
        self.nulls: list[tuple[int, int, bool]] = []
        self.var: dict[int, bytes | None] = {}
        self.disk: Changes | None = None

    def pack_fixed(self, buffer: Any, byte_offset: int) -> None:
        """Apply the fixed-size changes to the part that starts at `byte_offset` of a writable buffer."""
        for offset, pack_into, value in self.fixed:
            pack_into(buffer, byte_offset + offset, value)
        for offset, mask, is_null in self.nulls:
            (bits,) = _BYTE.unpack_from(buffer, byte_offset + offset)
            _BYTE.pack_into(buffer, byte_offset + offset, bits | mask if is_null else bits & ~mask)


def _code(place: Place) -> str:
    return place.column.type.key_code if place.is_key else place.column.type.code


def var_default(place: Place) -> bytes | None:
    """Return the bytes of a var column for rows whose var part lacks it: its default, None for NULL."""
    default, kind = place.column.when_absent, place.column.type
    return None if default is None or default is ABSENT else kind.to_var(kind.stored(default))


class RowPart:
    """Packs and unpacks one part; `packer` takes its fixed columns in the order of their offsets.

    Lists of stored values cover the whole row, in column order, None for NULL; lists to be filled have room for dropped
    columns at their end.
    """

    def __init__(self, layout: PartLayout, is_disk: bool) -> None:
        self.layout = layout
        self.is_disk = is_disk
        self.fixed_words = layout.fixed_words
        codes = f"<{DISK_HEADER_WORDS * WORD_BYTES * is_disk}x" + "".join(_code(place) for place in layout.fixed_places)
        # struct does the arithmetic, as the codes of keys include their padding.
        tail = layout.fixed_words * WORD_BYTES - layout.null_offset - layout.null_bytes
        self.packer = struct.Struct(f"{codes}{layout.null_bytes}x{tail}x")
        self.unpacker = struct.Struct(f"{codes}{layout.null_bytes}s{tail}x")
        self.packers = {place.position: struct.Struct("<" + _code(place)) for place in layout.fixed_places}
        self.zeros = {position: each.unpack(bytes(each.size))[0] for position, each in self.packers.items()}
        self.var_defaults = [var_default(place) for place in layout.var_places]
        # Added columns whose stored values are not bytes.
        self._converted = [place for place in layout.var_places if not place.column.type.is_varying]

    def pack(self, stored: Sequence[Any], key: bytes = b"") -> bytearray:
        """Return the bytes of the part; `key` goes into its var part before the columns. Raises: RowTooLarge."""
        layout = self.layout
        buffer = bytearray(layout.fixed_words * WORD_BYTES)
        nulls = []
        fixed = []
        for place in layout.fixed_places:
            value = None if place.is_dropped else stored[place.position]
            if value is None:
                if not place.is_dropped:
                    nulls.append(place)
                value = self.zeros[place.position]
            fixed.append(value)
        self.packer.pack_into(buffer, 0, *fixed)
        for place in nulls:
            buffer[place.null_offset] |= place.null_mask
        if layout.has_var:
            values = [None if place.is_dropped else stored[place.position] for place in layout.var_places]
            for place in self._converted:
                value = values[place.ordinal]
                values[place.ordinal] = None if value is None else place.column.type.to_var(value)
            buffer += build_var_part(key, values)
        if self.is_disk:
            _WORD.pack_into(buffer, 0, disk_header(len(buffer) // WORD_BYTES))
        return buffer

    def unpack_fixed(self, buffer: Any, byte_offset: int, values: list[Any]) -> None:
        """Put the stored values of the fixed columns of the part at a byte offset into `values`."""
        layout = self.layout
        *fixed, null_bits = self.unpacker.unpack_from(buffer, byte_offset)
        for place, value in zip(layout.fixed_places, fixed, strict=True):
            values[place.position] = value
        if any(null_bits):
            for place in layout.fixed_places:
                if place.null_mask and null_bits[place.null_offset - layout.null_offset] & place.null_mask:
                    values[place.position] = None

    def unpack_var(self, part: VarPart, values: list[Any]) -> None:
        """Put the stored values of the var columns into `values`."""
        padded = self._padded(part.values)
        for place in self._converted:
            value = padded[place.ordinal]
            padded[place.ordinal] = None if value is None else place.column.type.from_var(value)
        for place, value in zip(self.layout.var_places, padded, strict=False):
            values[place.position] = value

    def _padded(self, values: list[bytes | None]) -> list[bytes | None]:
        """Return var values with the defaults of columns that were added after the row was written."""
        return values + self.var_defaults[len(values) :]

    def changed(self, part: memoryview, changes: Changes) -> bytearray:
        """Return a copy of the part, given as a view of its bytes, with changes applied. Raises: RowTooLarge,
        PageDamaged.
        """
        fixed_bytes = self.layout.fixed_words * WORD_BYTES
        buffer = bytearray(part)
        changes.pack_fixed(buffer, 0)
        if not changes.var or put_var_values(buffer, fixed_bytes, changes.var):
            return buffer
        del buffer[fixed_bytes:]
        var = split_var_part(part, fixed_bytes)
        values = self._padded(var.values)
        for ordinal, value in changes.var.items():
            values[ordinal] = value
        buffer += build_var_part(var.key, values)
        if self.is_disk:
            _WORD.pack_into(buffer, 0, disk_header(len(buffer) // WORD_BYTES))
        return buffer


def image_words(layout: RowLayout, view: memoryview, byte_offset: int, has_var: bool, has_disk: bool) -> int:
    """Return the words of the image at a byte offset of a view of bytes; the flags say which parts it has.

    Raises: PageDamaged if it would end past the view.
    """
    words = layout.fixed_words
    if byte_offset + words * WORD_BYTES > len(view):
        raise PageDamaged("a row image ends beyond its memory; run `tidemark check`", offset=byte_offset)
    if has_var and layout.has_var:
        words += var_part_words(view, byte_offset + words * WORD_BYTES)
    elif has_disk and not layout.has_var and layout.disk is not None:
        words += unexpected_var_words(view, byte_offset + words * WORD_BYTES)
    if has_disk and layout.disk is not None:
        disk = layout.disk
        words += disk_part_words(view, byte_offset + words * WORD_BYTES, disk.fixed_words, disk.has_var)
    return words


def key_pieces(key: bytes, packers: Sequence[struct.Struct | None]) -> list[Any]:
    """Return the stored values of a canonical key; packers: None for a piece of variable size. Raises: PageDamaged."""
    values: list[Any] = []
    offset = 0
    try:
        for packer in packers:
            if packer is None:
                (length,) = _WORD.unpack_from(key, offset)
                values.append(key[offset + WORD_BYTES : offset + WORD_BYTES + length])
                offset += WORD_BYTES + words_for(length) * WORD_BYTES
            else:
                values.append(packer.unpack_from(key, offset)[0])
                offset += packer.size
    except (struct.error, OverflowError) as error:
        raise PageDamaged("the lengths in a key contradict each other; run `tidemark check`") from error
    return values
