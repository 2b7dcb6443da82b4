"""The batch encoder: record batches to row images and canonical keys, byte for byte as `engine/rows/row_format.py`.

Invariants: all values are validated before the first image word is written (only the limit on var parts is checked
later); padding and the bytes under NULLs are zero.

Fixed columns are scattered block by block, so that a block of images stays in the cache while its columns are
written. Var parts take two passes: lengths with a prefix sum, then the bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tidemark.engine.base import limits
from tidemark.engine.base.column_buffers import NO_BYTES, NO_WORDS, validity, variable
from tidemark.engine.base.errors import InvariantBroken, NotNullViolation, RowTooLarge, TypeMismatch
from tidemark.engine.base.words_layout import WORD_BYTES, words_for
from tidemark.engine.rows import columns_kernels as fixed_kernels
from tidemark.engine.rows import disk_columns_kernels as disk_kernels
from tidemark.engine.rows import var_columns_kernels as var_kernels
from tidemark.engine.rows.column_input import Batch, to_key_columns
from tidemark.engine.rows.column_values import conform
from tidemark.engine.rows.row_format import RowFormat, Words, located
from tidemark.engine.schema.column import ABSENT
from tidemark.engine.schema.row_shape import FIXED, PartLayout, Place
from tidemark.engine.types.base import Octets, shown

if TYPE_CHECKING:
    import pyarrow as pa

# Block size: the images of one block and the columns written to them fit the L2 cache.
_BLOCK_WORDS = 32_768
_SCATTER: dict[int, tuple[Callable[..., int], Any]] = {
    8: (fixed_kernels.scatter_8, np.int64),
    4: (fixed_kernels.scatter_4, np.int32),
    2: (fixed_kernels.scatter_2, np.int16),
    1: (fixed_kernels.scatter_1, np.uint8),
}


@dataclass(slots=True)
class EncodedKeys:
    """Canonical keys of a batch.

    Fixed size: key i is `key_words` words from word i × `key_stride` of `keys`. Otherwise `key_words` is 0 and
    `key_offsets` (count + 1, int64) are word positions in `keys`.
    """

    keys: Words
    key_stride: int
    key_words: int
    key_offsets: Words
    count: int

    def dense(self) -> EncodedKeys:
        """Return the keys with no other words between them, as kernels that look rows up take them."""
        if self.key_offsets.size or self.key_stride == self.key_words:
            return self
        words = np.ascontiguousarray(self.keys.reshape(self.count, self.key_stride)[:, : self.key_words]).ravel()
        return EncodedKeys(words, self.key_words, self.key_words, NO_WORDS, self.count)

    def take(self, places: Words) -> EncodedKeys:
        """Return the keys at `places`, which ascend."""
        if places.size == self.count:
            return self
        if not self.key_offsets.size:
            words = self.keys.reshape(self.count, self.key_stride)[places].reshape(-1)
            return EncodedKeys(words, self.key_stride, self.key_words, NO_WORDS, places.size)
        starts, lengths = self.key_offsets[places], np.diff(self.key_offsets)[places]
        offsets = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths)])
        source = np.arange(int(offsets[-1]), dtype=np.int64) + np.repeat(starts - offsets[:-1], lengths)
        return EncodedKeys(self.keys[source], 0, 0, offsets, places.size)


@dataclass(frozen=True)
class EncodedRows:
    """Row images of a batch and their canonical keys.

    Fixed size: image i starts at word i × `stride_words`, and `offsets` is empty. Otherwise `stride_words` is 0 and
    `offsets` (count + 1, int64) are word positions in `images`.
    """

    images: Words
    stride_words: int
    offsets: Words
    keys: EncodedKeys

    @property
    def count(self) -> int:
        """The number of rows."""
        return self.keys.count

    def starts(self) -> Words:
        """Return the word position of each image."""
        if self.stride_words:
            return np.arange(self.count, dtype=np.int64) * self.stride_words
        return self.offsets[: self.count]


def check_status(status: int) -> int:
    """Return the status of a kernel. Raises: InvariantBroken if the kernel refused its caller's bounds."""
    if status < 0:
        raise InvariantBroken("a column kernel was called with invalid bounds; report this")
    return status


def encode_rows(row_format: RowFormat, batch: Batch | pa.RecordBatch, first_row: int = 0) -> EncodedRows:
    """Return the images and keys of a record batch; missing columns take their defaults.

    Raises: NoSuchColumn, TypeMismatch, ValueOutOfRange, NotNullViolation, RowTooLarge; `row` counts from `first_row`.
    """
    if isinstance(batch, Batch):
        # A column filled with its default may have been dropped or renamed since the batch was built.
        gone = batch.filled.difference(row_format.names)
        batch, first_row = batch.columns.drop_columns(list(gone)) if gone else batch.columns, batch.first_row
    arrays = _conformed(row_format, batch, first_row)
    return encode_arrays(row_format, arrays, batch.num_rows, first_row)


def check_columns(row_format: RowFormat, batch: pa.RecordBatch, needs_all: bool) -> None:
    """Check the columns of a batch without rows. Raises: as `encode_rows`, for missing columns only if it needs all."""
    if needs_all:
        _conformed(row_format, batch, 0)
        return
    known = {column.name: column for column in row_format.definition.columns}
    for name, array in given(row_format, batch).items():
        conform(array, known[name], row_format.definition.name, 0)


def given(row_format: RowFormat, batch: pa.RecordBatch) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for name, array in zip(batch.schema.names, batch.columns, strict=True):
        if name not in row_format.names:
            raise row_format.no_such_column(name, None)
        if name in given:
            table = row_format.definition.name
            raise TypeMismatch(f"{table}: column {shown(name)} appears twice in the batch", table=table, column=name)
        given[name] = array
    return given


def _conformed(row_format: RowFormat, batch: pa.RecordBatch, first_row: int) -> dict[int, pa.Array]:
    import pyarrow as pa

    table = row_format.definition.name
    columns = given(row_format, batch)
    arrays = {}
    for place in row_format.layout.places:
        column = place.column
        array = columns.get(column.name)
        if array is None:
            if column.missing is ABSENT:
                raise located(NotNullViolation("has no default and must be given"), table, column.name, None)
            kind = column.type.input_type()
            array = pa.nulls(batch.num_rows, kind)
            if column.computed is not None:
                if batch.num_rows:
                    raise located(NotNullViolation("has a default that is not computed here"), table, column.name, None)
            elif column.missing is not None:
                missing = column.type.input_value(column.type.stored(column.missing))
                array = pa.repeat(pa.scalar(missing, kind), batch.num_rows)
        arrays[place.position] = conform(array, column, table, first_row, place.is_key)
    return arrays


def encode_arrays(
    row_format: RowFormat, arrays: Mapping[int, pa.Array], count: int, first_row: int, with_disk: bool = True
) -> EncodedRows:
    """Return images of conformed columns, given by position. Images with a disk part have offsets; without it
    (`with_disk` False) they have the form of a table in memory.
    """
    layout = row_format.layout
    fixed = _fixed_part(layout, arrays, count)
    keys = EncodedKeys(fixed, layout.fixed_words, layout.key_words, NO_WORDS, count)
    if layout.key_in_var:
        key_arrays = [arrays[place.position] for place in layout.key_places]
        keys = _variable_keys(row_format.key_columns, key_arrays, count)
    images, stride, offsets = fixed, layout.fixed_words, NO_WORDS
    if layout.has_var:
        images, offsets = _encode_var(row_format, layout, arrays, fixed, keys, first_row)
        stride = 0
    if layout.disk is not None and with_disk:
        memory_offsets = offsets if layout.has_var else _every(layout.fixed_words, count)
        images, offsets = _join_disk(row_format, layout.disk, arrays, images, memory_offsets, count, first_row)
        stride = 0
    return EncodedRows(images, stride, offsets, keys)


def _fixed_part(layout: PartLayout, arrays: Mapping[int, pa.Array], count: int) -> Words:
    fixed = np.zeros(count * layout.fixed_words, np.int64)
    places = [(place, arrays[place.position]) for place in layout.fixed_places if not place.is_dropped]
    write_fixed(fixed, layout.fixed_words, places, count)
    for place, array in places:
        if array.null_count:
            stamp_nulls(fixed, layout.fixed_words, place, array, count)
    return fixed


def _every(words: int, count: int) -> Words:
    return np.arange(count + 1, dtype=np.int64) * words


def _join_disk(
    row_format: RowFormat,
    layout: PartLayout,
    arrays: Mapping[int, pa.Array],
    memory: Words,
    memory_offsets: Words,
    count: int,
    first_row: int,
) -> tuple[Words, Words]:
    """Return whole images and their offsets, joined from the parts in memory and the disk columns."""
    disk = _fixed_part(layout, arrays, count)
    disk_offsets = _every(layout.fixed_words, count)
    if layout.has_var:
        no_keys = EncodedKeys(NO_WORDS, 0, 0, NO_WORDS, count)
        disk, disk_offsets = _encode_var(row_format, layout, arrays, disk, no_keys, first_row)
    offsets = memory_offsets + disk_offsets
    images = np.empty(int(offsets[count]), np.int64)
    check_status(disk_kernels.join_parts(images, offsets, memory, memory_offsets, disk, disk_offsets, count))
    return images, offsets


# --- fixed columns --------------------------------------------------------------------------------
def write_fixed(image: Words, stride_words: int, places: Sequence[tuple[Place, pa.Array]], count: int) -> None:
    """Scatter columns into strided images, a block of rows at a time."""
    calls = []
    for place, array in places:
        kind = place.column.type
        source = kind.key_numbers(array) if place.is_key else kind.numbers(array)
        if source is None:
            # The bytes under a NULL may be longer than the column.
            if array.null_count:
                array = array.fill_null("" if kind.is_text else b"")
            data, offsets = variable(array)
            status = fixed_kernels.scatter_padded(
                image.view(np.uint8), data, offsets, place.offset, stride_words * WORD_BYTES, place.width, count
            )
            check_status(status)
            continue
        width = source.dtype.itemsize if count == 0 else source.nbytes // count
        unit = (place.offset | width | WORD_BYTES) & -(place.offset | width | WORD_BYTES)
        scatter, dtype = _SCATTER[unit]
        first, step = place.offset // unit, stride_words * WORD_BYTES // unit
        calls.append((scatter, image.view(dtype), source.view(dtype), first, step, width // unit))
    block = max(1, _BLOCK_WORDS // max(1, stride_words))
    for begin in range(0, count, block):
        size = min(block, count - begin)
        for scatter, target, source, first, step, units in calls:
            check_status(scatter(target, source, first, step, units, begin, size))


def stamp_nulls(image: Words, stride_words: int, place: Place, array: pa.Array, count: int) -> None:
    bitmap, bit_offset = validity(array)
    value = place.offset << 16 | place.width
    stride = stride_words * WORD_BYTES
    status = fixed_kernels.stamp_nulls(
        image.view(np.uint8), bitmap, bit_offset, place.null_offset, place.null_mask, value, stride, count
    )
    check_status(status)


# --- keys -----------------------------------------------------------------------------------------
def _variable_keys(columns: Sequence[Any], arrays: Sequence[pa.Array], count: int) -> EncodedKeys:
    """Return canonical keys with variable pieces: sizes, a prefix sum, then piece by piece."""
    totals = np.zeros(count, np.int64)
    pieces: list[Any] = []
    for column, array in zip(columns, arrays, strict=True):
        if column.type.is_var:
            piece = variable(array)
            check_status(var_kernels.add_key_words(totals, piece[1], count))
            pieces.append(piece)
        else:
            units = words_for(column.type.width)
            totals += units
            words = np.zeros(count * units, np.int64)
            place = Place(0, column, FIXED, True, offset=0, width=column.type.width)
            write_fixed(words, units, [(place, array)], count)
            pieces.append((words, units))
    offsets = np.zeros(count + 1, np.int64)
    keys = np.zeros(check_status(var_kernels.sum_offsets(offsets, totals, count)), np.int64)
    cursor = offsets[:count].copy()
    for column, (source, extra) in zip(columns, pieces, strict=True):
        if column.type.is_var:
            status = var_kernels.append_key_bytes(keys, keys.view(np.uint8), cursor, source, extra, count)
        else:
            status = var_kernels.append_key_words(keys, cursor, source, extra, count)
        check_status(status)
    return EncodedKeys(keys, 0, 0, offsets, count)


def encode_keys(row_format: RowFormat, values: Any, first_row: int = 0) -> EncodedKeys:
    """Return canonical keys of keys in a form that `to_key_columns` takes.

    Raises: TypeMismatch, ValueOutOfRange, NotNullViolation.
    """
    words = row_format.encode_int_keys(values)
    if words is not None:
        return EncodedKeys(words, 1, 1, NO_WORDS, words.size)
    columns = row_format.key_columns
    table = row_format.definition.name
    given = to_key_columns(values, row_format.definition, [column.name for column in columns])
    arrays = [conform(given[column.name], column, table, first_row, True) for column in columns]
    count = len(arrays[0])
    if row_format.key_in_var:
        return _variable_keys(columns, arrays, count)
    stride = row_format.key_words
    words = np.zeros(count * stride, np.int64)
    places = row_format.layout.key_places
    write_fixed(words, stride, list(zip(places, arrays, strict=True)), count)
    return EncodedKeys(words, stride, stride, NO_WORDS, count)


# --- var parts ------------------------------------------------------------------------------------
def _var_column(place: Place, arrays: Mapping[int, pa.Array], count: int) -> tuple[Octets, Words, Octets, int]:
    """Return bytes, ends (count + 1), validity and its first bit of a column of the var part, including added columns
    of any type and dropped columns.
    """
    if place.is_dropped:
        return NO_BYTES, np.zeros(count + 1, np.int64), np.zeros((count + 7) // 8, np.uint8), 0
    array = arrays[place.position]
    return (*place.column.type.column_to_var(array), *validity(array))


def _encode_var(
    row_format: RowFormat,
    layout: PartLayout,
    arrays: Mapping[int, pa.Array],
    fixed: Words,
    keys: EncodedKeys,
    first_row: int,
) -> tuple[Words, Words]:
    count = keys.count
    columns = [_var_column(place, arrays, count) for place in layout.var_places]
    totals = np.zeros(count, np.int64)
    for _, ends, bitmap, bit_offset in columns:
        if check_status(var_kernels.add_lengths(totals, ends, bitmap, bit_offset, count)) > limits.VAR_PART_BYTES_MAX:
            row = first_row + int(np.argmax(totals))
            table = row_format.definition.name
            raise RowTooLarge(
                f"{table}: the variable columns of row {row} take more than {limits.VAR_PART_BYTES_MAX} bytes",
                table=table,
                row=row,
            )
    var_count = len(columns)
    offsets = np.zeros(count + 1, np.int64)
    total = var_kernels.lay_out_rows(offsets, totals, keys.key_offsets, layout.fixed_words, var_count, count)
    images = np.empty(check_status(total), np.int64)
    ends_at = np.empty(count, np.int64)
    key_words = keys.keys if keys.key_offsets.size else NO_WORDS
    status = var_kernels.place_rows(
        images, offsets, ends_at, fixed, key_words, keys.key_offsets, layout.fixed_words, var_count, count
    )
    check_status(status)
    cursor = np.zeros(count, np.int64)
    for ordinal, column in enumerate(columns):
        given = (images, images.view(np.uint8), cursor, ends_at, *column, ordinal)
        check_status(var_kernels.append_var_column(*given, var_count, count))
    return images, offsets
