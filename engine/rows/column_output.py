"""The batch decoder: row images to record batches by gather kernels, without Python code per row.

Lengths inside images are checked before they are used; an image that contradicts itself raises PageDamaged.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tidemark.engine.base.column_buffers import NO_BYTES, build_variable
from tidemark.engine.base.errors import LimitExceeded, PageDamaged, SchemaInvalid
from tidemark.engine.base.extras import needed
from tidemark.engine.base.words_layout import WORD_BYTES, words_for
from tidemark.engine.rows import columns_kernels as fixed_kernels
from tidemark.engine.rows import disk_columns_kernels as disk_kernels
from tidemark.engine.rows import var_columns_kernels as var_kernels
from tidemark.engine.rows.columnar import check_status
from tidemark.engine.rows.row_format import RowFormat, Words
from tidemark.engine.rows.row_part import var_default
from tidemark.engine.schema.column import Column
from tidemark.engine.schema.definition import TableDefinition
from tidemark.engine.schema.names import as_names
from tidemark.engine.schema.row_shape import FIXED, KEY, VAR, PartLayout, Place

if TYPE_CHECKING:
    import pyarrow as pa

# Block size: images stay in the cache while several columns are read from them.
_BLOCK_WORDS = 32_768
_OFFSET_MAX = (1 << 31) - 1
_GATHER: dict[int, tuple[Callable[..., int], Any]] = {
    8: (fixed_kernels.gather_8, np.int64),
    4: (fixed_kernels.gather_4, np.int32),
    2: (fixed_kernels.gather_2, np.int16),
    1: (fixed_kernels.gather_1, np.uint8),
}


def arrow_schema(definition: TableDefinition, columns: Sequence[str] | None = None) -> pa.Schema:
    """Return the Arrow schema of a table's rows as they are read."""
    import pyarrow as pa

    known = {column.name: column for column in definition.columns}
    names = list(known) if columns is None else list(columns)
    return pa.schema([pa.field(name, known[name].type.arrow_type(), known[name].nullable) for name in names])


def wanted_names(row_format: RowFormat, columns: Sequence[str] | None, hidden: Collection[str] = ()) -> list[str]:
    """Return the requested columns, given as one name or several; None means all but the `hidden` ones, which may be
    requested by name.

    Raises: NoSuchColumn; SchemaInvalid for a repeated name, and unless `columns` is a name or a list of names.
    """
    if columns is None:
        return list(row_format.names)
    names = as_names(columns, "columns")
    for place, name in enumerate(names):
        if name not in hidden and name not in row_format.names:
            raise row_format.no_such_column(name, None)
        if name in names[:place]:
            table = row_format.definition.name
            raise SchemaInvalid(f"{table}: column {name} is asked for twice; name it once", table=table, column=name)
    return names


def decode_rows(
    row_format: RowFormat,
    images: Words,
    offsets_or_stride: Words | int,
    count: int,
    columns: Sequence[str] | None = None,
    extra: Mapping[str, NDArray[np.int64]] | None = None,
) -> pa.RecordBatch:
    """Return a record batch of `count` images, with the named columns (all if None) and `extra` int64 columns after
    them.

    Whole images of a table with disk columns must be given by word positions; images need no disk part unless a disk
    column is named.

    Shapes: `images` (words,) int64; `offsets_or_stride` the word positions of the images, (count,) or longer, or the
    stride in words; `extra` arrays (count,). Raises: NoSuchColumn, SchemaInvalid (a repeated column), PageDamaged,
    LimitExceeded past 2 GiB of one column.
    """
    import pyarrow as pa

    names = wanted_names(row_format, columns)
    known = dict(zip(row_format.names, row_format.layout.places, strict=True))
    places = [known[name] for name in names]
    arrays: dict[int, pa.Array] = {}
    layout = row_format.layout
    in_memory = [place for place in places if not place.is_disk]
    _decode_part(arrays, row_format, layout, images, offsets_or_stride, in_memory, count)
    if any(place.part == KEY for place in places):
        _decode_keys(arrays, row_format, images, _positions(offsets_or_stride, count), count)
    on_disk = [place for place in places if place.is_disk]
    if layout.disk is not None and on_disk:
        starts = _disk_starts(row_format, layout.disk, images, _positions(offsets_or_stride, count), count)
        _decode_part(arrays, row_format, layout.disk, images, starts, on_disk, count)
    values = [arrays[place.position] for place in places]
    fields = list(arrow_schema(row_format.definition, names))
    for name, numbers in (extra or {}).items():
        values.append(pa.array(numbers))
        fields.append(pa.field(name, pa.int64(), False))
    return pa.RecordBatch.from_arrays(values, schema=pa.schema(fields))


def _decode_part(
    arrays: dict[int, Any],
    row_format: RowFormat,
    layout: PartLayout,
    images: Words,
    offsets_or_stride: Words | int,
    places: Sequence[Place],
    count: int,
) -> None:
    """Decode the given columns, all in memory or all on disk, of images whose parts start at these offsets; key columns
    in var parts are left out.
    """
    fixed = [place for place in places if place.part == FIXED]
    if fixed:
        compact = fixed_images(row_format, layout, images, offsets_or_stride, count)
        is_strided = isinstance(offsets_or_stride, int) and not layout.has_var
        stride = offsets_or_stride if isinstance(offsets_or_stride, int) and is_strided else layout.fixed_words
        _decode_fixed(arrays, compact, stride, fixed, count)
    var = [place for place in places if place.part == VAR]
    if var:
        positions = _positions(offsets_or_stride, count)
        for place in var:
            arrays[place.position] = _decode_var(row_format, layout, images, positions, place, count)


def _disk_starts(row_format: RowFormat, layout: PartLayout, images: Words, positions: Words, count: int) -> Words:
    starts = np.empty(count, np.int64)
    memory = (row_format.fixed_words, int(row_format.has_var))
    disk = (layout.fixed_words, int(layout.has_var))
    _sound(row_format, disk_kernels.find_disk_parts(starts, images, positions, *memory, *disk, count))
    return starts


def _positions(offsets_or_stride: Words | int, count: int) -> Words:
    if isinstance(offsets_or_stride, int):
        return np.arange(count, dtype=np.int64) * offsets_or_stride
    return offsets_or_stride


def fixed_images(
    row_format: RowFormat, layout: PartLayout, images: Words, offsets_or_stride: Words | int, count: int
) -> Words:
    """Return the fixed images of a part: the images themselves if there is a stride and no var part, else a copy."""
    if isinstance(offsets_or_stride, int) and not layout.has_var:
        return images[: count * offsets_or_stride]
    compact = np.empty(count * layout.fixed_words, np.int64)
    positions = _positions(offsets_or_stride, count)
    _sound(row_format, var_kernels.collect_fixed(compact, images, positions, layout.fixed_words, count))
    return compact


def _damaged(row_format: RowFormat) -> PageDamaged:
    table = row_format.definition.name
    return PageDamaged(f"{table}: the lengths in a row contradict each other; run `tidemark check`", table=table)


def _sound(row_format: RowFormat, status: int) -> int:
    """Return the status of a kernel. Raises: PageDamaged if the kernel met lengths that contradict each other."""
    if status < 0:
        raise _damaged(row_format)
    return status


# --- fixed columns --------------------------------------------------------------------------------
def _decode_fixed(arrays: dict[int, Any], images: Words, stride: int, places: Sequence[Place], count: int) -> None:
    gathered: dict[int, NDArray[Any]] = {}
    calls = []
    for place in places:
        if place.column.type.is_varying:
            continue
        width = place.width
        if place.is_key and place.column.type.value_class != "BYTES":
            width = words_for(width) * WORD_BYTES
        unit = (place.offset | width | WORD_BYTES) & -(place.offset | width | WORD_BYTES)
        gather, dtype = _GATHER[unit]
        target = np.empty(count * width // unit, dtype)
        gathered[place.position] = target
        first, step = place.offset // unit, stride * WORD_BYTES // unit
        calls.append((gather, target, images.view(dtype), first, step, width // unit))
    block = max(1, _BLOCK_WORDS // max(1, stride))
    for begin in range(0, count, block):
        size = min(block, count - begin)
        for gather, target, source, first, step, units in calls:
            check_status(gather(target, source, first, step, units, begin, size))
    octets = images.view(np.uint8)
    for place in places:
        bitmap, nulls = None, 0
        if place.null_mask:
            bitmap = np.zeros((count + 7) // 8, np.uint8)
            nulls = fixed_kernels.gather_nulls(
                bitmap, octets, place.null_offset, place.null_mask, stride * WORD_BYTES, count
            )
            check_status(nulls)
        if place.column.type.is_varying:
            arrays[place.position] = _decode_char(octets, stride * WORD_BYTES, place, count, bitmap, nulls)
        else:
            arrays[place.position] = arrow_of(gathered[place.position], place.column, count, bitmap, nulls)


def _decode_char(octets: Any, stride_bytes: int, place: Place, count: int, bitmap: Any, nulls: int) -> Any:
    ends = np.zeros(count + 1, np.int64)
    total = fixed_kernels.measure_padded(ends, octets, place.offset, stride_bytes, place.width, count)
    _check_column_size(place.column, check_status(total))
    data = np.empty(total, np.uint8)
    check_status(fixed_kernels.copy_padded(data, ends, octets, place.offset, stride_bytes, count))
    return build_variable(place.column.type.arrow_type(), count, ends, data, bitmap, nulls)


def _check_column_size(column: Column, total: int) -> None:
    if total > _OFFSET_MAX and not column.type.is_lob:
        raise LimitExceeded(
            f"column {column.name} takes {total} bytes, an Arrow batch holds 2 GiB; ask for fewer rows at once"
        )


def arrow_of(values: NDArray[Any], column: Column, count: int, bitmap: Any, nulls: int) -> Any:
    """Return gathered units (8 bytes wide in keys) as an Arrow array of the column's type."""
    try:
        return column.type.array_of(values, count, bitmap, nulls)
    except PageDamaged as error:
        raise _of_column(error, column) from error


def _of_column(error: PageDamaged, column: Column) -> PageDamaged:
    return PageDamaged(f"column {column.name} {error.message}")


# --- keys and var columns ---------------------------------------------------------------------------
def _decode_keys(arrays: dict[int, Any], row_format: RowFormat, images: Words, positions: Words, count: int) -> None:
    offsets = np.zeros(count + 1, np.int64)
    total = _sound(row_format, var_kernels.measure_keys(offsets, images, positions, row_format.fixed_words, count))
    keys = np.empty(total, np.int64)
    check_status(var_kernels.copy_keys(keys, offsets, images, positions, row_format.fixed_words, count))
    cursor = offsets[:count].copy()
    for place in row_format.layout.key_places:
        kind = place.column.type
        if kind.is_var:
            ends = np.zeros(count + 1, np.int64)
            size = _sound(row_format, var_kernels.measure_key_bytes(ends, cursor, keys, count))
            _check_column_size(place.column, size)
            data = np.empty(size, np.uint8)
            check_status(var_kernels.walk_key_bytes(data, cursor, ends, keys.view(np.uint8), count))
            arrays[place.position] = build_variable(kind.arrow_type(), count, ends, data, None, 0)
            continue
        units = words_for(kind.width)
        words = np.empty(count * units, np.int64)
        _sound(row_format, var_kernels.walk_key_words(words, cursor, keys, units, count))
        piece = Place(place.position, place.column, FIXED, True, offset=0, width=kind.width)
        _decode_fixed(arrays, words, units, [piece], count)


def _decode_var(
    row_format: RowFormat, layout: PartLayout, images: Words, positions: Words, place: Place, count: int
) -> Any:
    column = place.column
    held = var_default(place)
    default, room = (NO_BYTES, -1) if held is None else (np.frombuffer(held, np.uint8), len(held))
    ends = np.zeros(count + 1, np.int64)
    bitmap = np.zeros((count + 7) // 8, np.uint8)
    words = layout.fixed_words
    nulls = var_kernels.measure_var_column(ends, bitmap, images, positions, words, place.ordinal, room, count)
    _sound(row_format, nulls)
    _check_column_size(column, int(ends[count]))
    data = np.empty(int(ends[count]), np.uint8)
    status = var_kernels.copy_var_column(
        data, ends, images, images.view(np.uint8), positions, default, words, place.ordinal, count
    )
    check_status(status)
    try:
        array = column.type.column_from_var(data, ends, bitmap, nulls)
    except PageDamaged as error:
        raise _of_column(error, column) from error
    if array is None:
        raise _damaged(row_format)
    return array


# --- other forms --------------------------------------------------------------------------------------
def python_columns(batch: pa.RecordBatch | pa.Table, definition: TableDefinition) -> list[list[Any]]:
    """Return the Python values of each column, hidden ones too. Raises: PageDamaged if bytes are not a value."""
    kinds = {column.name: column.type for column in definition.columns}
    return [
        kinds[name].values_of(held) if name in kinds else held.to_pylist()
        for name, held in zip(batch.schema.names, batch.columns, strict=True)
    ]


def to_pandas(table: pa.Table | pa.RecordBatch, definition: TableDefinition) -> Any:
    """Return a pandas DataFrame. Columns of integers, floats and Bool that are nullable have the nullable types of
    pandas (Int64, Float32, boolean), whether or not they have a NULL: NumPy's have no NULL, and floats round integers.
    JSON has the type string: a str among objects would be a document that is a str. All others have the types that
    Arrow chooses; NULL is pandas' missing value there.

    Raises: Unsupported if pandas is not installed.
    """
    import pyarrow as pa

    with needed("to_pandas() needs pandas", "pandas"):
        import pandas as pd

    names = {column.name: "string" for column in definition.columns if column.type.object_kind == "JSON"}
    for field in table.schema:
        if _is_number(field.type) and field.nullable:
            names[field.name] = "boolean" if pa.types.is_boolean(field.type) else _pandas_name(field.type)
    if names.keys().isdisjoint(table.schema.names):
        return table.to_pandas()
    whole = table if isinstance(table, pa.Table) else pa.Table.from_batches([table])
    series: dict[str, Any] = {}
    frame = whole.select([name for name in whole.schema.names if name not in names]).to_pandas()
    for name in whole.schema.names:
        if name in frame.columns:
            series[name] = frame[name]
            continue
        dtype: Any = pd.api.types.pandas_dtype(names[name])
        series[name] = pd.Series(dtype.__from_arrow__(whole.column(name)), copy=False)
    return pd.DataFrame(series, copy=False)


def _is_number(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))


def _pandas_name(kind: pa.DataType) -> str:
    """Return the name of pandas' nullable type: Int64, UInt8, Float32."""
    name = str(np.dtype(kind.to_pandas_dtype()).name)
    return name.replace("uint", "UInt") if name.startswith("u") else name.title()


def to_polars(table: pa.Table | pa.RecordBatch) -> Any:
    """Return a polars DataFrame. Raises: Unsupported if polars is not installed."""
    with needed("to_polars() and scan_polars() need polars", "polars"):
        import polars

    return polars.from_arrow(table)


def to_numpy(table: pa.Table | pa.RecordBatch, definition: TableDefinition) -> NDArray[Any]:
    """Return a structured array: numbers in their width, Bool as bool, Date as datetime64[D], DateTime and Timestamp as
    datetime64[us], Binary(n) as n raw bytes, other types and nullable columns as Python objects (None for NULL).

    Shapes: (rows,) with one field per column.
    """
    known = {column.name: column for column in definition.columns}
    fields: list[tuple[str, Any]] = []
    values: list[Any] = []
    for name in table.schema.names:
        held = table.column(name)
        column = known.get(name)
        code = "i8" if column is None else "O" if column.nullable else column.type.numpy
        dtype: Any = np.dtype(code)
        fields.append((name, dtype))
        if dtype.kind == "O":
            kind = known[name].type
            found = [value for each in _chunks(held) for value in kind.values_of(each)]
            values.append(np.array([*found, None], dtype=object)[:-1])
        elif dtype.kind == "V":
            values.append(np.concatenate([np.zeros(0, dtype), *[_octets(each, dtype) for each in _chunks(held)]]))
        else:
            values.append(held.to_numpy() if hasattr(held, "chunks") else held.to_numpy(zero_copy_only=False))
    result = np.empty(table.num_rows, np.dtype(fields))
    for (name, _), column_values in zip(fields, values, strict=True):
        result[name] = column_values
    return result


def _chunks(held: Any) -> list[Any]:
    """Return the arrays of a column of a table or of a batch."""
    return held.chunks if hasattr(held, "chunks") else [held]


def _octets(array: pa.Array, dtype: Any) -> NDArray[Any]:
    """Return the values of an array of fixed size without NULL."""
    return np.frombuffer(array.buffers()[1], dtype, len(array), array.offset * dtype.itemsize)
