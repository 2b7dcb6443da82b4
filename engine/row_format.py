"""One encoder and one decoder of the row image, for single rows; `engine/columnar.py` does the same for batches.

Invariants: (1) a value reaches an image only after its column's type has accepted it; (2) equal rows have equal images
(padding and the bytes under a NULL are zero), so images can be compared as words; (3) nothing is touched before
everything is validated.

Speed: rows whose values are stored as they are take one precompiled `struct.Struct`; its own range checks replace ours,
and only a row it refuses is looked at value by value, to say which value was wrong.
"""

from __future__ import annotations

import math
import struct
from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.errors import NoSuchColumn, NotNullViolation, PageDamaged, Rejected, RowTooLarge, TypeMismatch
from engine.layout.row import WORD_BYTES, words_for
from engine.row_layout import VAR, Place, RowLayout, compute_layout
from engine.row_var import VarPart, build_var_part, split_var_part
from engine.schema import ABSENT, TableDefinition
from engine.types import Floating, Integer
from engine.types_base import shown

Words = NDArray[np.int64]
_INT64 = np.dtype(np.int64)
_BYTE = struct.Struct("<B")
_WORD = struct.Struct("<q")


def located(error: Rejected, table: str, column: str, row: int | None) -> Rejected:
    """The same refusal with table, column and row named."""
    where = f"{table}.{column}" if row is None else f"{table}.{column} in row {row}"
    return type(error)(f"{where} {error.message}", table=table, column=column, row=row)


class Changes:
    """Validated new values of some columns, ready to be laid over a row image.

    `fixed` lists (byte offset in the fixed image, pack_into, stored value), `nulls` lists (byte offset, bit, is null),
    `var` maps the ordinal of a var column to its bytes or None.
    """

    __slots__ = ("fixed", "nulls", "var")

    def __init__(self) -> None:
        self.fixed: list[tuple[int, Callable[..., None], Any]] = []
        self.nulls: list[tuple[int, int, bool]] = []
        self.var: dict[int, bytes | None] = {}

    def pack_fixed(self, buffer: Any, byte_offset: int) -> None:
        """Write the fixed-size changes over the fixed image that starts at `byte_offset` of a writable buffer."""
        for offset, pack_into, value in self.fixed:
            pack_into(buffer, byte_offset + offset, value)
        for offset, mask, is_null in self.nulls:
            (bits,) = _BYTE.unpack_from(buffer, byte_offset + offset)
            _BYTE.pack_into(buffer, byte_offset + offset, bits | mask if is_null else bits & ~mask)


def _code(place: Place) -> str:
    return place.column.type.key_code if place.is_key else place.column.type.code


class RowFormat:
    """The row image of one table version: geometry, encoder, decoder.

    `fixed_words` is F, `key_words` is K (0 if the key lies in the var part), `single_int_key` tells that the canonical
    key is one word equal to the key's int. `Row` is the named tuple class of the table.
    """

    def __init__(self, definition: TableDefinition) -> None:
        self.definition = definition
        self.layout: RowLayout = compute_layout(definition)
        self.fixed_words = self.layout.fixed_words
        self.key_words = self.layout.key_words
        self.has_var = self.layout.has_var
        self.key_in_var = self.layout.key_in_var
        self.names = tuple(column.name for column in definition.columns)
        self.key_columns = tuple(place.column for place in self.layout.key_places)
        key_type = self.key_columns[0].type
        self.single_int_key = (
            len(self.key_columns) == 1 and isinstance(key_type, Integer) and (key_type.signed or key_type.bits < 64)
        )
        # Column names that are no identifiers become _0, _1, … by their place.
        self.Row: Any = namedtuple("Row", self.names, rename=True)  # type: ignore[misc]
        self._prepare_fixed()
        self._prepare_direct()
        self._prepare_key()
        self._prepare_missing()
        self.decode_row: Callable[..., Any] = self._decode_direct() or self._decode_general

    # --- preparation ----------------------------------------------------------------------------
    def _prepare_fixed(self) -> None:
        layout = self.layout
        codes = "<" + "".join(_code(place) for place in layout.fixed_places)
        # Arithmetic by struct itself: pads of key codes are part of them.
        tail = layout.fixed_words * WORD_BYTES - layout.null_offset - layout.null_bytes
        self._packer = struct.Struct(f"{codes}{layout.null_bytes}x{tail}x")
        self._unpacker = struct.Struct(f"{codes}{layout.null_bytes}s{tail}x")
        self._store = [
            place.column.type.stored_key if place.is_key else place.column.type.stored for place in layout.places
        ]
        self._packers = {place.position: struct.Struct("<" + _code(place)) for place in layout.fixed_places}
        self._zeros = {position: each.unpack(bytes(each.size))[0] for position, each in self._packers.items()}
        self._converters = [place.column.type.loaded if place.column.type.converts else None for place in layout.places]
        self._var_defaults = [self._var_default(place) for place in layout.var_places]
        # Columns whose new values need no more than a look at type and range: (type, least, greatest, offset, pack).
        self._quick: dict[str, tuple[type, Any, Any, int, Callable[..., None]]] = {}
        for place in layout.fixed_places:
            kind = place.column.type
            if place.is_key or place.null_mask:
                continue
            pack = self._packers[place.position].pack_into
            if isinstance(kind, Integer):
                self._quick[place.column.name] = (int, kind.minimum, kind.maximum, place.offset, pack)
            elif isinstance(kind, Floating) and kind.bits == 64:
                self._quick[place.column.name] = (float, -math.inf, math.inf, place.offset, pack)

    @staticmethod
    def _var_default(place: Place) -> bytes | None:
        default = place.column.missing
        return None if default is None or default is ABSENT else place.column.type.stored(default)

    def _prepare_direct(self) -> None:
        """Decide whether whole rows can go through one struct call."""
        layout = self.layout
        order = [place.position for place in layout.fixed_places]
        self._direct_types: tuple[type, ...] | None = None
        self._direct_lengths: list[tuple[int, int]] = []
        self._to_layout: Callable[[Any], Any] | None = None if order == sorted(order) else itemgetter(*order)
        direct = all(
            place.column.type.direct is not None and not (place.is_key and isinstance(place.column.type, Floating))
            for place in layout.places
        )
        if direct and not layout.has_var:
            self._direct_types = tuple(place.column.type.direct for place in layout.places)  # type: ignore[misc]
            self._direct_lengths = [
                (place.position, place.width) for place in layout.places if place.column.type.direct is bytes
            ]

    def _prepare_key(self) -> None:
        self._key_store = [column.type.stored_key for column in self.key_columns]
        self._key_packers = [
            None if column.type.is_var else struct.Struct("<" + column.type.key_code) for column in self.key_columns
        ]
        single = self.key_columns[0].type
        self._key_range = (single.minimum, single.maximum) if isinstance(single, Integer) else (0, -1)

    def _prepare_missing(self) -> None:
        self._missing = [column.missing for column in self.definition.columns]
        self._positions = {name: position for position, name in enumerate(self.names)}
        names = self.names
        self._from_mapping: Callable[[Any], Any] = (
            itemgetter(*names) if len(names) > 1 else lambda mapping: (mapping[names[0]],)
        )

    def _decode_direct(self) -> Callable[..., Any] | None:
        """A decoder of one struct call for tables without nulls, var part and conversions."""
        layout = self.layout
        if layout.has_var or layout.null_bytes or any(self._converters):
            return None
        unpack = self._packer.unpack_from
        make = partial(tuple.__new__, self.Row)
        order = [place.position for place in layout.fixed_places]
        if order == sorted(order):

            def decode(buffer: Any, word_offset: int, var_buffer: Any = None, var_word_offset: int = 0) -> Any:
                return make(unpack(buffer, word_offset << 3))

            return decode
        pick = itemgetter(*(order.index(position) for position in range(len(order))))

        def decode_permuted(buffer: Any, word_offset: int, var_buffer: Any = None, var_word_offset: int = 0) -> Any:
            return make(pick(unpack(buffer, word_offset << 3)))

        return decode_permuted

    # --- keys -----------------------------------------------------------------------------------
    def encode_int_key(self, value: Any, row: int | None = None) -> int:
        """The canonical key of a table with `single_int_key`, as an int."""
        low, high = self._key_range
        if type(value) is int and low <= value <= high:
            return value
        return int(self._key_stored((value,), row)[0])

    def encode_key(self, value: Any, row: int | None = None) -> Words:
        """The canonical key of a scalar, or of a tuple or list in key order.

        Shapes: (key words,) int64.
        """
        single = len(self.key_columns) == 1
        pieces = (value,) if single and not isinstance(value, tuple) else value
        if not isinstance(pieces, (tuple, list)) or len(pieces) != len(self.key_columns):
            wanted = ", ".join(column.name for column in self.key_columns)
            raise TypeMismatch(
                f"{self.definition.name}: the primary key is ({wanted}), got {shown(value)}",
                table=self.definition.name,
                row=row,
            )
        return np.frombuffer(bytearray(self._key_bytes(self._key_stored(pieces, row))), _INT64)

    def _key_stored(self, pieces: Sequence[Any], row: int | None) -> list[Any]:
        stored = []
        for column, store, value in zip(self.key_columns, self._key_store, pieces, strict=True):
            if value is None:
                raise self._null_refused(column.name, row)
            try:
                stored.append(store(value))
            except Rejected as error:
                raise located(error, self.definition.name, column.name, row) from None
        return stored

    def _key_bytes(self, stored: Sequence[Any]) -> bytes:
        pieces = []
        for packer, value in zip(self._key_packers, stored, strict=True):
            if packer is None:
                pieces.append(_WORD.pack(len(value)) + value + bytes(-len(value) % WORD_BYTES))
            else:
                pieces.append(packer.pack(value))
        return b"".join(pieces)

    def decode_key(self, words: Any, word_offset: int = 0) -> Any:
        """The key value (a tuple if there are several key columns) of canonical key words."""
        view = words.data.cast("B")
        offset = word_offset * WORD_BYTES
        values = []
        for column, packer in zip(self.key_columns, self._key_packers, strict=True):
            if packer is None:
                (length,) = _WORD.unpack_from(view, offset)
                offset += WORD_BYTES
                stored: Any = bytes(view[offset : offset + length])
                offset += words_for(length) * WORD_BYTES
            else:
                (stored,) = packer.unpack_from(view, offset)
                offset += packer.size
            values.append(column.type.loaded(stored))
        return values[0] if len(values) == 1 else tuple(values)

    def image_key(self, image: Words) -> Words:
        """The canonical key inside a row image, as a copy."""
        if not self.key_in_var:
            return image[: self.key_words].copy()
        part = split_var_part(image.data.cast("B"), self.fixed_words * WORD_BYTES)
        return np.frombuffer(bytearray(part.key), _INT64)

    # --- rows in --------------------------------------------------------------------------------
    def encode_row(self, row: Mapping[str, Any] | Sequence[Any], number: int | None = None) -> Words:
        """The image of a row given by column names or in column order; `number` is its place in a batch.

        Shapes: (fixed words + var words,) int64.
        """
        values = row if type(row) is tuple else self._values(row, number)
        if len(values) != len(self.names):
            raise self._wrong_count(values, number)
        if tuple(map(type, values)) == self._direct_types:
            for position, width in self._direct_lengths:
                # struct would cut an over-long value silently.
                if len(values[position]) > width:
                    break
            else:
                image: Any = np.empty(self.fixed_words, _INT64)
                try:
                    self._packer.pack_into(image, 0, *(self._to_layout(values) if self._to_layout else values))
                except (struct.error, OverflowError):
                    pass
                else:
                    return image  # type: ignore[no-any-return]
        return self._encode_general(values, number)

    def _values(self, row: Any, number: int | None) -> Sequence[Any]:
        # Asking the abstract class costs more than encoding a small row; dicts are nearly all there is.
        if type(row) is dict or isinstance(row, Mapping):
            if len(row) == len(self.names):
                try:
                    values: Sequence[Any] = self._from_mapping(row)
                    return values
                except KeyError:
                    pass
            for name in row:
                if name not in self._positions:
                    raise self.no_such_column(name, number)
            return [row.get(name, missing) for name, missing in zip(self.names, self._missing, strict=True)]
        if isinstance(row, Sequence) and not isinstance(row, (str, bytes, bytearray, memoryview)):
            return row
        raise TypeMismatch(
            f"{self.definition.name}: a row is a mapping or a sequence of values, got {shown(row)}",
            table=self.definition.name,
            row=number,
        )

    def stored_values(self, values: Sequence[Any], number: int | None) -> list[Any]:
        """Every value as stored, None for NULL, in column order; the first refusal is raised with its place."""
        stored: list[Any] = []
        for place, store, value in zip(self.layout.places, self._store, values, strict=True):
            if value is None or value is ABSENT:
                if value is ABSENT or not place.column.nullable:
                    raise self._null_refused(place.column.name, number, value is ABSENT)
                stored.append(None)
                continue
            try:
                stored.append(store(value))
            except Rejected as error:
                raise located(error, self.definition.name, place.column.name, number) from None
        return stored

    def _encode_general(self, values: Sequence[Any], number: int | None) -> Words:
        layout = self.layout
        stored = self.stored_values(values, number)
        var = b""
        if layout.has_var:
            key = b""
            if layout.key_in_var:
                key = self._key_bytes([stored[place.position] for place in layout.key_places])
            var = self._build_var(key, [stored[place.position] for place in layout.var_places], number)
        buffer = bytearray(layout.fixed_words * WORD_BYTES)
        nulls = []
        fixed = []
        for place in layout.fixed_places:
            value = stored[place.position]
            if value is None:
                nulls.append(place)
                value = self._zeros[place.position]
            fixed.append(value)
        self._packer.pack_into(buffer, 0, *fixed)
        for place in nulls:
            buffer[place.null_offset] |= place.null_mask
        return np.frombuffer(buffer + var, _INT64)

    def _build_var(self, key: bytes, values: Sequence[bytes | None], number: int | None) -> bytes:
        try:
            return build_var_part(key, values)
        except RowTooLarge as error:
            raise RowTooLarge(
                f"{self.definition.name}: {error.message}", table=self.definition.name, row=number
            ) from None

    # --- rows out -------------------------------------------------------------------------------
    def _decode_general(self, buffer: Any, word_offset: int, var_buffer: Any = None, var_word_offset: int = 0) -> Any:
        """The row at a word offset as a named tuple; the var part follows its fixed image unless given apart."""
        layout = self.layout
        values = self._fixed_values(buffer, word_offset)
        if layout.has_var:
            if var_buffer is None:
                var_buffer, var_word_offset = buffer, word_offset + layout.fixed_words
            self._decode_var(split_var_part(memoryview(var_buffer).cast("B"), var_word_offset * WORD_BYTES), values)
        return self.Row._make(self._loaded(values))

    def decode_fixed(self, buffer: Any, word_offset: int) -> dict[str, Any]:
        """Values of the columns of a fixed image by name: all that an update carries which keeps the var part."""
        values = self._loaded(self._fixed_values(buffer, word_offset))
        return {place.column.name: values[place.position] for place in self.layout.fixed_places}

    def _fixed_values(self, buffer: Any, word_offset: int) -> list[Any]:
        layout = self.layout
        *fixed, null_bits = self._unpacker.unpack_from(buffer, word_offset * WORD_BYTES)
        values: list[Any] = [None] * len(self.names)
        for place, value in zip(layout.fixed_places, fixed, strict=True):
            values[place.position] = value
        if any(null_bits):
            for place in layout.fixed_places:
                if place.null_mask and null_bits[place.null_offset - layout.null_offset] & place.null_mask:
                    values[place.position] = None
        return values

    def _loaded(self, values: list[Any]) -> list[Any]:
        try:
            for position, convert in enumerate(self._converters):
                if convert is not None and values[position] is not None:
                    values[position] = convert(values[position])
        except (UnicodeDecodeError, IndexError, OverflowError) as error:
            table = self.definition.name
            raise PageDamaged(
                f"{table}: a row holds what no value is stored as; run `tidemark check`", table=table
            ) from error
        return values

    def _decode_var(self, part: VarPart, values: list[Any]) -> None:
        layout = self.layout
        for place, value in zip(layout.var_places, self._padded(part.values), strict=True):
            values[place.position] = value
        if layout.key_in_var:
            offset = 0
            for place, packer in zip(layout.key_places, self._key_packers, strict=True):
                if packer is None:
                    (length,) = _WORD.unpack_from(part.key, offset)
                    values[place.position] = part.key[offset + WORD_BYTES : offset + WORD_BYTES + length]
                    offset += WORD_BYTES + words_for(length) * WORD_BYTES
                else:
                    (values[place.position],) = packer.unpack_from(part.key, offset)
                    offset += packer.size

    def _padded(self, values: list[bytes | None]) -> list[bytes | None]:
        """Var values with the defaults of columns that were added after the row was written."""
        return values + self._var_defaults[len(values) :]

    # --- changes --------------------------------------------------------------------------------
    def encode_changes(self, changes: Mapping[str, Any], number: int | None = None) -> Changes:
        """Validate new values of some columns; key columns are refused (delete and insert instead)."""
        result = Changes()
        for name, value in changes.items():
            quick = self._quick.get(name)
            if quick is not None and type(value) is quick[0] and quick[1] <= value <= quick[2]:
                result.fixed.append((quick[3], quick[4], value))
                continue
            position = self._positions.get(name)
            if position is None:
                raise self.no_such_column(name, number)
            place = self.layout.places[position]
            if place.is_key:
                raise self.key_change_refused(name, number)
            if value is None:
                if not place.column.nullable:
                    raise self._null_refused(name, number)
                stored = None
            else:
                try:
                    stored = self._store[position](value)
                except Rejected as error:
                    raise located(error, self.definition.name, name, number) from None
            if place.part == VAR:
                result.var[place.ordinal] = stored
                continue
            if place.null_mask:
                result.nulls.append((place.null_offset, place.null_mask, stored is None))
            stored = self._zeros[position] if stored is None else stored
            result.fixed.append((place.offset, self._packers[position].pack_into, stored))
        return result

    def apply_changes(self, image: Words, changes: Changes) -> Words:
        """A new image with the changes laid over it; the given one stays as it is."""
        if not changes.var:
            result = image.copy()
            changes.pack_fixed(result, 0)
            return result
        fixed_bytes = self.fixed_words * WORD_BYTES
        part = split_var_part(image.data.cast("B"), fixed_bytes)
        values = self._padded(part.values)
        for ordinal, value in changes.var.items():
            values[ordinal] = value
        buffer = bytearray(image[: self.fixed_words].tobytes())
        changes.pack_fixed(buffer, 0)
        return np.frombuffer(buffer + self._build_var(part.key, values, None), _INT64)

    # --- refusals -------------------------------------------------------------------------------
    def no_such_column(self, name: object, row: int | None) -> NoSuchColumn:
        """The refusal of an unknown column."""
        table = self.definition.name
        return NoSuchColumn(f"{table} has no column {shown(name)}", table=table, column=name, row=row)

    def key_change_refused(self, name: str, row: int | None) -> Rejected:
        """The refusal of a change of a key column."""
        table = self.definition.name
        return Rejected(
            f"{table}.{name} is part of the primary key and cannot be changed; delete and insert the row",
            table=table,
            column=name,
            row=row,
        )

    def _null_refused(self, name: str, row: int | None, absent: bool = False) -> NotNullViolation:
        message = "has no default and must be given" if absent else "is not nullable, got None"
        error = located(NotNullViolation(message), self.definition.name, name, row)
        assert isinstance(error, NotNullViolation)
        return error

    def _wrong_count(self, values: Sequence[Any], row: int | None) -> TypeMismatch:
        table = self.definition.name
        return TypeMismatch(
            f"{table} has {len(self.names)} columns, the row has {len(values)} values; give a dict to use defaults",
            table=table,
            row=row,
        )
