"""One encoder and one decoder of the row image, for single rows; `engine/rows/columnar.py` does the same for batches.

Invariants: (1) a value reaches an image only after its column's type has accepted it; (2) equal rows have equal images
(padding and the bytes under a NULL are zero), so images can be compared as words; (3) nothing changes before everything
is validated.

Speed: rows whose values are stored unconverted take one precompiled `struct.Struct`. Its range checks replace ours.
Only a row that it refuses is checked value by value, to name the invalid value.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from tidemark.engine.base.errors import (
    InvariantBroken,
    NoSuchColumn,
    NotNullViolation,
    PageDamaged,
    Rejected,
    RowTooLarge,
    TypeMismatch,
)
from tidemark.engine.base.words_layout import WORD_BYTES
from tidemark.engine.rows.row import row_class
from tidemark.engine.rows.row_part import Changes, RowPart, image_words, key_pieces
from tidemark.engine.rows.row_var import disk_part_words, split_var_part, unexpected_var_words, var_part_words
from tidemark.engine.schema.column import ABSENT
from tidemark.engine.schema.definition import TableDefinition
from tidemark.engine.schema.names import as_names, no_such_column
from tidemark.engine.schema.row_layout import DISK_REFERENCE_WORDS
from tidemark.engine.schema.row_shape import FIXED, VAR, RowLayout, compute_layout
from tidemark.engine.types.base import counted, shown

E = TypeVar("E", bound=Rejected)
Words = NDArray[np.int64]
_INT64 = np.dtype(np.int64)
_WORD = struct.Struct("<q")

# A batch of up to this many images is decoded faster row by row than as a record batch, which has a fixed cost; the
# second holds for whole rows of tables whose rows one `struct` call decodes.
FEW_ROWS = 16
FEW_DIRECT_ROWS = 256


def located(error: E, table: str, column: str, row: int | None) -> E:
    """Return the same error with table, column and row added."""
    where = f"{table}.{column}" if row is None else f"{table}.{column} in row {row}"
    return type(error)(f"{where} {error.message}", table=table, column=column, row=row)


class RowFormat:
    """The row image of one table version: geometry, encoder, decoder.

    `fixed_words` is F, `key_words` is K (0 if the key is in the var part), `single_int_key` is True if the canonical
    key is one word equal to the key's int. `Row` is the class of the table's rows. Up to `few_rows` whole rows are best
    decoded one by one. `has_disk` is True if images have a disk part, after everything else; `disk_words` is its size
    in words if all rows have the same, else 0.
    """

    def __init__(self, definition: TableDefinition) -> None:
        self.definition = definition
        layout = compute_layout(definition)
        self.layout: RowLayout = layout
        self.memory = RowPart(layout, is_disk=False)
        self.disk = None if layout.disk is None else RowPart(layout.disk, is_disk=True)
        self.has_disk = layout.disk is not None
        self.disk_words = 0 if layout.disk is None or layout.disk.has_var else layout.disk.fixed_words
        self._disk_names = frozenset(place.column.name for place in layout.places if place.is_disk)
        self.fixed_words = self.layout.fixed_words
        self.key_words = self.layout.key_words
        self.has_var = self.layout.has_var
        self.key_in_var = self.layout.key_in_var
        self.names = tuple(column.name for column in definition.columns)
        self._places = len(definition.physical)
        self.key_columns = tuple(place.column for place in self.layout.key_places)
        key_type = self.key_columns[0].type
        self.single_int_key = len(self.key_columns) == 1 and key_type.direct is int and key_type.key_code == "q"
        self.Row: Any = row_class(self.names)
        # By columns: how kernels make rows (`engine/point/plan.py`) and columns (`engine/queries/key_columns.py`).
        self.plans: dict[tuple[str, ...], Any] = {}
        self.shapes: dict[tuple[str, ...], Any] = {}
        self._prepare_fixed()
        self._prepare_direct()
        self._prepare_key()
        self._prepare_missing()
        direct = self._decode_direct()
        self.decode_row: Callable[..., Any] = direct or self._decode_general
        self.few_rows = FEW_ROWS if direct is None else FEW_DIRECT_ROWS

    # --- preparation ----------------------------------------------------------------------------
    def _prepare_fixed(self) -> None:
        layout = self.layout
        self._packer = self.memory.packer
        self._store = [
            place.column.type.stored_key if place.is_key else place.column.type.stored for place in layout.places
        ]
        self._converters = [place.column.type.loaded if place.column.type.converts else None for place in layout.places]
        # Columns whose new values need only a check of type and range: (type, least, greatest, offset, pack).
        self._quick: dict[str, tuple[type, Any, Any, int, Callable[..., None]]] = {}
        for place in layout.fixed_places:
            kind = place.column.type
            if place.is_key or place.null_mask or place.is_dropped:
                continue
            pack = self.memory.packers[place.position].pack_into
            if kind.direct is not None and kind.direct_range is not None:
                self._quick[place.column.name] = (kind.direct, *kind.direct_range, place.offset, pack)

    def _prepare_direct(self) -> None:
        """Decide whether whole rows can go through one struct call."""
        layout = self.layout
        order = [place.position for place in layout.fixed_places]
        self._direct_types: tuple[type, ...] | None = None
        self._direct_lengths: list[tuple[int, int]] = []
        self._direct_ranges: list[tuple[int, int, int]] = []
        self._to_layout: Callable[[Any], Any] | None = None if order == sorted(order) else itemgetter(*order)
        direct = all(
            place.column.type.direct is not None and (place.column.type.is_canonical or not place.is_key)
            for place in layout.places
        )
        if direct and not layout.has_var and not self.has_disk and not layout.dropped:
            self._direct_types = tuple(place.column.type.direct for place in layout.places)  # type: ignore[misc]
            self._direct_lengths = [
                (place.position, place.width) for place in layout.places if place.column.type.direct is bytes
            ]
            # In a key an integer takes a word, which struct fills with more than the column holds.
            self._direct_ranges = [
                (place.position, *bounds)
                for place in layout.places
                if place.is_key and (kind := place.column.type).direct is int and kind.width < WORD_BYTES
                if (bounds := kind.stored_range) is not None
            ]
        self._is_judged = bool(self._direct_lengths or self._direct_ranges)

    def _prepare_key(self) -> None:
        self._key_store = [column.type.stored_key for column in self.key_columns]
        self._key_packers = [
            None if column.type.is_var else struct.Struct("<" + column.type.key_code) for column in self.key_columns
        ]
        bounds = self.key_columns[0].type.stored_range if self.single_int_key else None
        self._key_range = bounds or (0, -1)

    def _prepare_missing(self) -> None:
        self._missing = [column.missing for column in self.definition.columns]
        # Columns whose default is computed, with their positions: rows get their values before they come here.
        self.computed = [(at, column) for at, column in enumerate(self.definition.columns) if column.computed]
        self.numbered = next((column for _, column in self.computed if column.default.is_numbered), None)
        self._positions = {name: position for position, name in enumerate(self.names)}
        names = self.names
        self._from_mapping: Callable[[Any], Any] = (
            itemgetter(*names) if len(names) > 1 else lambda mapping: (mapping[names[0]],)
        )

    def _decode_direct(self) -> Callable[..., Any] | None:
        """Return a decoder of one struct call, for tables without nulls, var part and conversions; else None."""
        layout = self.layout
        if layout.has_var or layout.null_bytes or self.has_disk or layout.dropped or any(self._converters):
            return None
        unpack = self._packer.unpack_from
        make = self.Row._make
        order = [place.position for place in layout.fixed_places]
        if order == sorted(order):

            def decode(buffer: Any, word_offset: int) -> Any:
                return make(unpack(buffer, word_offset << 3))

            return decode
        pick = itemgetter(*(order.index(position) for position in range(len(order))))

        def decode_permuted(buffer: Any, word_offset: int) -> Any:
            return make(pick(unpack(buffer, word_offset << 3)))

        return decode_permuted

    # --- keys -----------------------------------------------------------------------------------
    def encode_int_keys(self, values: Any) -> NDArray[np.int64] | None:
        """Return the canonical keys of a list of integers, of a table with `single_int_key`; None for other values."""
        if not self.single_int_key or type(values) is not list or {*map(type, values)} != {int}:
            return None
        try:
            words = np.array(values, dtype=np.int64)
        except OverflowError:
            return None
        low, high = self._key_range
        return words if low <= int(words.min()) and int(words.max()) <= high else None

    def encode_int_key(self, value: Any, row: int | None = None) -> int:
        """Return the canonical key of a table with `single_int_key`, as an int."""
        low, high = self._key_range
        if type(value) is int and low <= value <= high:
            return value
        return int(self._key_stored((value,), row)[0])

    def encode_key(self, value: Any, row: int | None = None) -> Words:
        """Return the canonical key of a scalar, or of a tuple or list in key order.

        Shapes: (key words,) int64.
        """
        if self.single_int_key and type(value) is int:
            return np.array((self.encode_int_key(value, row),), dtype=_INT64)
        pieces = (value,) if len(self.key_columns) == 1 and not isinstance(value, tuple) else value
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

    def decode_key(self, words: Any) -> Any:
        """Return the key value (a tuple if there are several key columns) of canonical key words."""
        stored = key_pieces(words.tobytes(), self._key_packers)
        values = [column.type.loaded(value) for column, value in zip(self.key_columns, stored, strict=True)]
        return values[0] if len(values) == 1 else tuple(values)

    def image_key(self, image: Words) -> Words:
        """Return a copy of the canonical key inside a row image."""
        if not self.key_in_var:
            return image[: self.key_words].copy()
        part = split_var_part(image.data.cast("B"), self.fixed_words * WORD_BYTES)
        return np.frombuffer(bytearray(part.key), _INT64)

    # --- rows in --------------------------------------------------------------------------------
    def encode_row(self, row: Mapping[str, Any] | Sequence[Any], number: int | None = None) -> Words:
        """Return the image of a row given by column names or in column order; `number` is its place in a batch.

        Shapes: (fixed words + var words + disk words,) int64.
        """
        values = row if type(row) is tuple else self.values_of(row, number)
        if len(values) != len(self.names):
            raise self._wrong_count(values, number)
        if tuple(map(type, values)) == self._direct_types and (not self._is_judged or self._fits_directly(values)):
            image: Any = np.empty(self.fixed_words, _INT64)
            try:
                self._packer.pack_into(image, 0, *(self._to_layout(values) if self._to_layout else values))
            except (struct.error, OverflowError):
                pass
            else:
                return image  # type: ignore[no-any-return]
        return self._encode_general(values, number)

    def _fits_directly(self, values: Sequence[Any]) -> bool:
        """Whether struct refuses or stores each value whole."""
        for position, width in self._direct_lengths:
            if len(values[position]) > width:  # struct would silently truncate it
                return False
        return all(low <= values[position] <= high for position, low, high in self._direct_ranges)

    def values_of(self, row: Any, number: int | None = None) -> Sequence[Any]:
        """Return the values of a row, with defaults of columns that it leaves out. Raises: TypeMismatch,
        NoSuchColumn.
        """
        # An isinstance check of an abstract class costs more than encoding a small row, and nearly all rows are dicts.
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
        """Return all values as stored, None for NULL, in column order. Raises: Rejected for the first invalid value."""
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
        key = self._key_bytes([stored[place.position] for place in layout.key_places]) if layout.key_in_var else b""
        try:
            image = self.memory.pack(stored, key)
            if self.disk is not None:
                image += self.disk.pack(stored)
        except RowTooLarge as error:
            raise self._too_large(error, number) from None
        return np.frombuffer(image, _INT64)

    def _too_large(self, error: RowTooLarge, number: int | None) -> RowTooLarge:
        table = self.definition.name
        return RowTooLarge(f"{table}: {error.message}", table=table, row=number)

    # --- rows out -------------------------------------------------------------------------------
    def needs_disk(self, columns: Sequence[str] | None) -> bool:
        """Whether decoding these columns (all if None) needs the disk part of an image."""
        return bool(self._disk_names) if columns is None else self.touches_disk(as_names(columns, "columns"))

    def touches_disk(self, names: Iterable[str]) -> bool:
        """Whether any of the names belongs to a disk column."""
        return self.has_disk and not self._disk_names.isdisjoint(names)

    def image_parts(self, image: Words) -> tuple[int, int]:
        """Return (words of the fixed image and var part, words of the disk part, 0 if the image has none).

        Raises: PageDamaged if the lengths in the image do not add up to its length.
        """
        view = image.data.cast("B")
        memory = whole = image_words(self.layout, view, 0, has_var=True, has_disk=False)
        if self.has_disk and memory < len(image):
            whole = image_words(self.layout, view, 0, has_var=True, has_disk=True)
            if not self.has_var:
                memory += unexpected_var_words(view, memory * WORD_BYTES)
        if whole != len(image):
            raise self._damaged("has lengths that contradict each other")
        return memory, whole - memory

    def _decode_general(self, buffer: Any, word_offset: int) -> Any:
        """Return the row at a word offset."""
        values: list[Any] = [None] * self._places
        self.memory.unpack_fixed(buffer, word_offset * WORD_BYTES, values)
        if self.has_var or self.has_disk:
            # If all disk columns were dropped, some images are passed without their disk part.
            with_disk = bool(self._disk_names)
            at = (word_offset + self.fixed_words) * WORD_BYTES
            self._decode_rest(memoryview(buffer).cast("B"), at, values, True, with_disk)
        return self.Row._make(self._loaded(values))

    def decode_columns(self, buffer: Any, word_offset: int, columns: Sequence[str]) -> tuple[Any, ...]:
        """Return the values of some columns of the image at a word offset. If none of them is a disk column, the image
        may lack its disk part. Raises: NoSuchColumn, PageDamaged.
        """
        for name in columns:
            if name not in self._positions:
                raise self.no_such_column(name, None)
        values = self._present(buffer, word_offset, True, self.needs_disk(columns))
        return tuple(values[self._positions[name]] for name in columns)

    def decode_present(self, buffer: Any, word_offset: int, has_var: bool, has_disk: bool) -> dict[str, Any]:
        """Return the values by column name of an image with its fixed words and the parts that the flags name. UPDATE
        records omit parts that they keep; local checkpoints omit the disk part. Raises: PageDamaged.
        """
        values = self._present(buffer, word_offset, has_var, has_disk)
        return {
            place.column.name: values[place.position]
            for place in self.layout.places
            if (has_disk if place.is_disk else has_var or place.part == FIXED)
        }

    def _present(self, buffer: Any, word_offset: int, has_var: bool, has_disk: bool) -> list[Any]:
        values: list[Any] = [None] * self._places
        self.memory.unpack_fixed(buffer, word_offset * WORD_BYTES, values)
        rest = (word_offset + self.fixed_words) * WORD_BYTES
        self._decode_rest(memoryview(buffer).cast("B"), rest, values, has_var, has_disk)
        return self._loaded(values)

    def _decode_rest(self, view: memoryview, offset: int, values: list[Any], has_var: bool, has_disk: bool) -> None:
        """Put the stored values of the parts after a fixed image into `values`; the flags say which parts exist."""
        if has_var and self.has_var:
            part = split_var_part(view, offset)
            self.memory.unpack_var(part, values)
            if self.key_in_var:
                for place, value in zip(self.layout.key_places, key_pieces(part.key, self._key_packers), strict=True):
                    values[place.position] = value
            if self.has_disk and has_disk:
                offset += var_part_words(view, offset) * WORD_BYTES
        elif has_disk and self.has_disk and not self.has_var:
            offset += unexpected_var_words(view, offset) * WORD_BYTES
        if has_disk and self.disk is not None:
            layout = self.disk.layout
            disk_part_words(view, offset, layout.fixed_words, layout.has_var)
            self.disk.unpack_fixed(view, offset, values)
            if layout.has_var:
                self.disk.unpack_var(split_var_part(view, offset + layout.fixed_words * WORD_BYTES), values)

    def _loaded(self, values: list[Any]) -> list[Any]:
        try:
            del values[len(self.names) :]
            for position, convert in enumerate(self._converters):
                if convert is not None and values[position] is not None:
                    values[position] = convert(values[position])
        except (ValueError, IndexError, ArithmeticError) as error:
            raise self._damaged("holds bytes that are not a value of its column") from error
        return values

    def _damaged(self, what: str) -> PageDamaged:
        table = self.definition.name
        return PageDamaged(f"{table}: a row {what}; run `tidemark check`", table=table)

    # --- changes --------------------------------------------------------------------------------
    def encode_changes(self, changes: Mapping[str, Any]) -> Changes:
        """Validate new values of some columns and return them as Changes. Raises: NoSuchColumn; Rejected for an invalid
        value, and for a key column (delete and insert instead).
        """
        result = Changes()
        for name, value in changes.items():
            quick = self._quick.get(name)
            if quick is not None and type(value) is quick[0] and quick[1] <= value <= quick[2]:
                result.fixed.append((quick[3], quick[4], value))
                continue
            position = self._positions.get(name)
            if position is None:
                raise self.no_such_column(name, None)
            place = self.layout.places[position]
            if place.is_key:
                raise self.key_change_refused(name)
            if value is None:
                if not place.column.nullable:
                    raise self._null_refused(name, None)
                stored = None
            else:
                try:
                    stored = self._store[position](value)
                except Rejected as error:
                    raise located(error, self.definition.name, name, None) from None
            target, part = result, self.memory
            if place.is_disk and self.disk is not None:
                target, part = result.disk or Changes(), self.disk
                result.disk = target
            if place.part == VAR:
                target.var[place.ordinal] = None if stored is None else place.column.type.to_var(stored)
                continue
            if place.null_mask:
                target.nulls.append((place.null_offset, place.null_mask, stored is None))
            stored = part.zeros[position] if stored is None else stored
            target.fixed.append((place.offset, part.packers[position].pack_into, stored))
        return result

    def apply_changes(self, image: Words, changes: Changes) -> Words:
        """Return a new image with the changes applied; the given one stays unchanged. If no disk column changes,
        the image may lack its disk part; then the new one lacks it too. Raises: RowTooLarge, PageDamaged.
        """
        if not changes.var and not self.has_disk:
            result = image.copy()
            changes.pack_fixed(result, 0)
            return result
        view = image.data.cast("B")
        end = self.image_parts(image)[0] * WORD_BYTES if self.has_disk else len(view)
        try:
            laid = self.memory.changed(view[:end], changes)
            if self.has_disk:
                _WORD.pack_into(laid, (self.fixed_words - DISK_REFERENCE_WORDS) * WORD_BYTES, 0)
            laid += view[end:] if changes.disk is None else self._disk_changed(view[end:], changes.disk)
        except RowTooLarge as error:
            raise self._too_large(error, None) from None
        return np.frombuffer(laid, _INT64)

    def _disk_changed(self, part: memoryview, changes: Changes) -> bytearray:
        if self.disk is None:
            raise InvariantBroken(f"{self.definition.name} has no disk part to change; report this")
        layout = self.disk.layout
        if disk_part_words(part, 0, layout.fixed_words, layout.has_var) * WORD_BYTES != len(part):
            raise self._damaged("has lengths that contradict each other")
        return self.disk.changed(part, changes)

    # --- refusals -------------------------------------------------------------------------------
    def no_such_column(self, name: object, row: int | None) -> NoSuchColumn:
        """Return the refusal of an unknown column."""
        return no_such_column(self.definition.name, name, self.names, row)

    def key_change_refused(self, name: str) -> Rejected:
        """Return the refusal of a change of a key column."""
        table = self.definition.name
        return Rejected(
            f"{table}.{name} is part of the primary key and cannot be changed; delete and insert the row",
            table=table,
            column=name,
        )

    def _null_refused(self, name: str, row: int | None, absent: bool = False) -> NotNullViolation:
        message = "has no default and must be given" if absent else "is not nullable, got None"
        return located(NotNullViolation(message), self.definition.name, name, row)

    def _wrong_count(self, values: Sequence[Any], row: int | None) -> TypeMismatch:
        table = self.definition.name
        return TypeMismatch(
            f"{table} has {counted(len(self.names), 'column')}, the row has {counted(len(values), 'value')};"
            " give a dict to use defaults",
            table=table,
            row=row,
        )
