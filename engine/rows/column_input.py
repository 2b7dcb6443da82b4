"""Tabular input as record batches, and keys as arrays: Arrow, pandas, polars, NumPy, dicts of columns, iterables of
rows. The one entrance for data of other libraries: their errors come out as errors of this store.

Shapes and Python values are validated here; the encoder validates Arrow values. Python rows are converted by column in
chunks, so that in the common case no Python code runs per value. Row numbers in errors count from the start of the
input.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain, groupby, islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tidemark.engine.base.errors import NoSuchColumn, NotNullViolation, TypeMismatch
from tidemark.engine.rows.column_values import from_python, is_plain_type, plain_array
from tidemark.engine.rows.computed_columns import nullable, rows_without_columns
from tidemark.engine.rows.row_format import located
from tidemark.engine.schema.column import ABSENT, Column
from tidemark.engine.schema.definition import TableDefinition
from tidemark.engine.schema.names import no_such_column
from tidemark.engine.types.base import counted, shown

if TYPE_CHECKING:
    import pyarrow as pa

PYTHON_CHUNK_ROWS = 8_192
# Units of moments and spans that Arrow has.
_ARROW_UNITS = [("D", 1), ("s", 1), ("ms", 1), ("us", 1), ("ns", 1)]
BATCH_ROWS = 65_536


# What pyarrow raises for values and types that it does not convert.
_NOT_ARROW = (TypeError, ValueError, ArithmeticError, NotImplementedError)


class Batch(NamedTuple):
    """Some rows of an input: a record batch with some or all of the table's columns, and the number of its first row.
    `filled` has the columns of the batch that no row gave, so that all rows have the default there.
    """

    columns: pa.RecordBatch
    first_row: int
    filled: frozenset[str] = frozenset()


def rows_expected(data: Any) -> int:
    """Return the number of rows of an input if it is known before reading, else 0."""
    count = getattr(data, "num_rows", None)
    if isinstance(count, int):
        return count
    return len(data) if hasattr(data, "__len__") and not isinstance(data, Mapping) else 0


def to_columns(data: Any, definition: TableDefinition, fill_in: bool = True) -> Iterator[Batch]:
    """Return an iterator of batches of at most BATCH_ROWS rows, in order. Python rows that are mappings may omit
    columns, which take their defaults; without `fill_in` batches omit them too, and all rows must omit the same ones.
    Columns whose default is computed are omitted in any case, or have NULL for a number to come.

    Raises: TypeMismatch if the data is not tabular; for Python values also NoSuchColumn, NotNullViolation and
    ValueOutOfRange.
    """
    import pyarrow as pa

    data = _collected(data, definition)
    if isinstance(data, pa.RecordBatch):
        return _sliced([data], data.schema, definition)
    if isinstance(data, (pa.Table, pa.RecordBatchReader)):
        batches = data.to_batches() if isinstance(data, pa.Table) else data
        return _sliced(batches, data.schema, definition)
    if _is_pandas(data) and hasattr(data, "columns"):
        return _in_slices(_from_pandas(data, definition), definition)
    if hasattr(data, "__arrow_c_stream__"):
        return _from_stream(data, definition)
    if hasattr(data, "__arrow_c_array__"):
        return _in_slices(pa.record_batch(data), definition)
    if isinstance(data, np.ndarray):
        return _in_slices(_from_structured(data, definition), definition)
    if isinstance(data, Mapping):
        return _in_slices(_from_mapping(data, definition), definition)
    if isinstance(data, Iterable) and not isinstance(data, (str, bytes, bytearray, memoryview)):
        return _from_rows(data, definition, fill_in)
    raise _shapeless(data, definition)


def to_key_columns(keys: Any, definition: TableDefinition, names: Sequence[str]) -> dict[str, pa.Array]:
    """Return keys as arrays of Arrow by the name of their column.

    keys: data that has these columns, in every form that `to_columns` takes by column; or for one column a sequence,
    array or Series of values, for several a sequence of tuples.

    Raises: NotNullViolation if a column is missing, TypeMismatch; for Python values also ValueOutOfRange.
    """
    keys = _collected(keys, definition)
    held = _named_columns(keys, definition)
    if held is not None:
        listed = [name for name, _ in held]
        for name in names:
            if name not in listed:
                raise located(NotNullViolation("is part of the key and must be given"), definition.name, name, None)
            if listed.count(name) > 1:
                raise located(TypeMismatch("appears twice in the keys"), definition.name, name, None)
        columns = {name: values for name, values in held if name in names}
    elif isinstance(keys, (str, bytes)) or not hasattr(keys, "__iter__"):
        error = TypeMismatch(f"needs a sequence of keys, got {shown(keys)}")
        raise located(error, definition.name, names[0], None)
    elif len(names) > 1:
        columns = _parted_keys(keys, definition, names)
    else:
        columns = {names[0]: keys if _is_array(keys) else [_only_value(key) for key in keys]}
    arrays = {name: _column_array(columns[name], name, definition) for name in names}
    if len({*map(len, arrays.values())}) > 1:
        raise TypeMismatch(f"{definition.name}: key columns differ in length", table=definition.name)
    return arrays


def _is_array(values: Any) -> bool:
    return hasattr(values, "dtype") or hasattr(values, "__arrow_c_array__") or hasattr(values, "__arrow_c_stream__")


def _only_value(key: Any) -> Any:
    return key[0] if isinstance(key, tuple) and len(key) == 1 else key


def _parted_keys(keys: Iterable[Any], definition: TableDefinition, names: Sequence[str]) -> dict[str, Any]:
    rows, table = list(keys), definition.name
    for row, key in enumerate(rows):
        if not isinstance(key, (tuple, list)) or len(key) != len(names):
            raise TypeMismatch(f"{table}: the key is ({', '.join(names)}), got {shown(key)}", table=table, row=row)
    return {name: [key[place] for key in rows] for place, name in enumerate(names)}


def _named_columns(data: Any, definition: TableDefinition) -> list[tuple[Any, Any]] | None:
    """Return the columns of data that names them, with their names; None for data that names none."""
    import pyarrow as pa

    if isinstance(data, Mapping):
        return list(data.items())
    if isinstance(data, np.ndarray):
        return None if data.dtype.names is None else [(name, data[name]) for name in data.dtype.names]
    if _is_pandas(data):
        if not hasattr(data, "columns"):
            return None
        _check_index(data, names := [str(name) for name in data.columns], definition)
        return [(name, data.iloc[:, place]) for place, name in enumerate(names)]
    if hasattr(data, "get_columns"):  # of polars
        return [(each.name, each) for each in data.get_columns()]
    if isinstance(data, (pa.Array, pa.ChunkedArray)) or hasattr(data, "dtype"):
        return None
    if hasattr(data, "__arrow_c_stream__") and not isinstance(data, (pa.Table, pa.RecordBatch)):
        try:
            data = pa.RecordBatchReader.from_stream(data).read_all()
        except library_errors(OSError) as error:
            raise _unreadable(definition, 0, error) from None
    if not isinstance(data, (pa.Table, pa.RecordBatch)):
        return None
    return list(zip(data.schema.names, data.columns, strict=True))


def library_errors(*others: type[Exception]) -> tuple[type[Exception], ...]:
    """Return what pyarrow raises, and polars and DuckDB if they are loaded: no such error leaves a call. others: what
    else is caught.
    """
    import pyarrow as pa

    polars, duckdb = sys.modules.get("polars"), sys.modules.get("duckdb")
    found: list[type[Exception]] = [pa.ArrowException, *others]
    found += [] if polars is None else [polars.exceptions.PolarsError]
    found += [] if duckdb is None else [duckdb.Error]
    return tuple(found)


def _collected(data: Any, definition: TableDefinition) -> Any:
    """Return the rows of a LazyFrame of polars; other data as it is. Raises: TypeMismatch if its query fails."""
    polars = sys.modules.get("polars")
    if polars is None or not isinstance(data, polars.LazyFrame):
        return data
    try:
        return data.collect()
    except polars.exceptions.PolarsError as error:
        reason = " ".join(str(error).split())
        text = f"{definition.name}: the query of the LazyFrame fails: {reason}; call its collect() to find out where"
        raise TypeMismatch(text, table=definition.name) from error


def _is_pandas(data: Any) -> bool:
    return type(data).__module__.partition(".")[0] == "pandas"


def _shapeless(data: Any, definition: TableDefinition) -> TypeMismatch:
    return TypeMismatch(
        f"{definition.name}: rows must be Arrow, pandas, polars, NumPy structured, a dict of columns or an iterable of"
        f" rows, not {shown(data)}",
        table=definition.name,
    )


def _in_slices(batch: pa.RecordBatch, definition: TableDefinition) -> Iterator[Batch]:
    return _sliced([batch], batch.schema, definition)


def _sliced(
    batches: Iterable[pa.RecordBatch],
    schema: pa.Schema,
    definition: TableDefinition,
    also: tuple[type[Exception], ...] = (),
) -> Iterator[Batch]:
    """Yield the rows in batches; an input without rows is one batch without rows, so that its columns are checked.
    also: what the batches may raise besides errors of libraries.
    """
    import pyarrow as pa

    first_row = 0
    iterator = iter(batches)
    while True:
        try:
            batch = next(iterator, None)
        except library_errors(*also) as error:
            raise _unreadable(definition, first_row, error) from None
        if batch is None:
            break
        batch = _plain_batch(batch, definition)
        for begin in range(0, batch.num_rows, BATCH_ROWS):
            yield Batch(batch.slice(begin, BATCH_ROWS), first_row + begin)
        first_row += batch.num_rows
    if first_row == 0 and len(schema):
        empty = pa.RecordBatch.from_arrays([pa.nulls(0, kind) for kind in schema.types], schema=schema)
        yield Batch(_plain_batch(empty, definition), 0)


def _unreadable(definition: TableDefinition, row: int, error: Exception) -> TypeMismatch:
    reason = " ".join(str(error).split())
    text = f"{definition.name}: the rows from row {row} on cannot be read as Arrow data: {reason}"
    return TypeMismatch(text, table=definition.name, row=row)


def _plain_batch(batch: pa.RecordBatch, definition: TableDefinition) -> pa.RecordBatch:
    """Return a batch in types that all calls of Arrow know, which for example cannot `take` from views."""
    import pyarrow as pa

    if all(is_plain_type(kind) for kind in batch.schema.types):
        return batch
    names = batch.schema.names
    arrays = [_plain(each, name, definition) for name, each in zip(names, batch.columns, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=names)


def _plain(values: Any, name: str, definition: TableDefinition) -> pa.Array:
    """Return a column of Arrow as `plain_array`. Raises: TypeMismatch."""
    import pyarrow as pa

    try:
        return plain_array(values)
    except pa.ArrowException as error:
        reason = " ".join(str(error).split())
        refused = TypeMismatch(f"cannot be read from Arrow {values.type}: {reason}; cast the column first")
        raise located(refused, definition.name, name, None) from None


def _from_stream(data: Any, definition: TableDefinition) -> Iterator[Batch]:
    import pyarrow as pa

    try:
        if not any(map(_is_of_objects, getattr(data, "dtypes", ()))):
            reader = pa.RecordBatchReader.from_stream(data)
            # A stream reports what its producer raises as an OSError.
            return _sliced(reader, reader.schema, definition, (OSError,))
    except library_errors() as error:
        if not hasattr(data, "get_columns"):
            raise _unreadable(definition, 0, error) from None
    # A type of polars that Arrow does not have: its values are Python's.
    return _in_slices(_from_mapping({each.name: each for each in data.get_columns()}, definition), definition)


def _is_of_objects(dtype: Any) -> bool:
    """Whether this is the type of columns of Python objects in polars, which gives Arrow their addresses."""
    return type(dtype).__module__.startswith("polars.") and str(dtype) == "Object"


def _from_pandas(frame: Any, definition: TableDefinition) -> pa.RecordBatch:
    import pyarrow as pa

    names = [str(name) for name in frame.columns]
    _check_index(frame, names, definition)
    arrays = [_pandas_column(frame.iloc[:, place], name, definition) for place, name in enumerate(names)]
    return pa.RecordBatch.from_arrays(arrays, names=names)


def _check_index(frame: Any, names: Sequence[str], definition: TableDefinition) -> None:
    """Raises: TypeMismatch if a column of the table is in the index of a frame of pandas, and not in its columns."""
    for name in frame.index.names:
        if name not in names and any(column.name == name for column in definition.columns):
            raise TypeMismatch(
                f"{definition.name}: {name!r} is in the index of the frame, which is no column; call reset_index()",
                table=definition.name,
                column=name,
            )


def _pandas_column(series: Any, name: str, definition: TableDefinition) -> pa.Array:
    """Return a Series as Arrow. What pandas calls missing is NULL; but NaN in a column of floats that is not nullable
    can only be a value.
    """
    import pyarrow as pa

    _, column = definition.found(name)
    keeps_nan = not column.nullable and column.type.python is float
    if hasattr(series, "sparse") and hasattr(series.dtype, "fill_value"):
        series = series.sparse.to_dense()
    dtype = series.dtype
    categories = getattr(dtype, "categories", None)
    if categories is not None and categories.dtype.kind == "O":
        series = series.astype(object)
        dtype = series.dtype
    is_numpy = isinstance(dtype, np.dtype)
    if keeps_nan and is_numpy and dtype.kind == "f":
        return _numpy_array(series.to_numpy(), column, definition)
    # The integers under periods and intervals are not their values.
    if not (is_numpy and dtype.kind == "O") and type(dtype).__name__ not in ("PeriodDtype", "IntervalDtype"):
        try:
            array = pa.array(series, from_pandas=True)
            return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array
        except _NOT_ARROW:
            pass
    # Python objects are handled as in Python rows: pyarrow would accept bytes and text, or times with and without a
    # zone, in one column, and would refuse others with its own errors.
    values = series.to_numpy(dtype=object, copy=True)
    is_missing = series.isna().to_numpy()
    if keeps_nan:
        # A new array: that of pandas 3 cannot be written.
        is_missing = is_missing & [not isinstance(value, float) for value in values]
    values[is_missing] = None
    return from_python(list(values), nullable(column), definition.name, 0)


def _numpy_array(values: Any, column: Column, definition: TableDefinition) -> pa.Array:
    """Return an array of NumPy as Arrow. Masked values and NaT are NULL."""
    import pyarrow as pa

    if values.ndim != 1:
        advice = "give one value for each row"
        if column.type.python is bytes and values.ndim == 2:
            advice = f"to store the bytes of each row, give array.view('V{values.itemsize * values.shape[1]}').ravel()"
        error = TypeMismatch(f"needs an array of one dimension, got shape {values.shape}; {advice}")
        raise located(error, definition.name, column.name, None)
    mask = None
    if isinstance(values, np.ma.MaskedArray):
        mask = np.ma.getmaskarray(values)
        values = values.data
    if mask is not None and mask.dtype.names:
        mask = None  # a column of records, which is refused below
    dtype = values.dtype
    is_common = dtype.kind in "biuf" or _is_time_of_arrow(values)
    if dtype.kind == "V" and not dtype.names:
        return _fixed_bytes(values, mask)
    if dtype.kind in "mM" and mask is not None:
        mask = mask | np.isnat(values)  # with a mask, Arrow takes NaT for a number
    if is_common:
        if not dtype.isnative:
            values = values.astype(dtype.newbyteorder("="))
        try:
            return pa.array(np.ascontiguousarray(values), mask=mask)
        except _NOT_ARROW:
            pass
    # `tolist` would make integers of moments, and NumPy's own objects are shown better in errors.
    plain = values.tolist() if dtype.kind in "SUO" else list(values)
    if dtype.kind in "mM" and mask is None:
        mask = np.isnat(values)
    if mask is not None:
        plain = [None if is_masked else value for value, is_masked in zip(plain, mask.tolist(), strict=True)]
    return from_python(plain, nullable(column), definition.name, 0)


def _is_time_of_arrow(values: Any) -> bool:
    """Whether Arrow has the unit of these moments or spans, and its numbers hold theirs: its days have 32 bits."""
    if values.dtype.kind not in "mM" or np.datetime_data(values.dtype) not in _ARROW_UNITS:
        return False
    if np.datetime_data(values.dtype)[0] != "D":
        return True
    days = values[~np.isnat(values)].astype(np.int64)
    return not days.size or (days.min() >= -(1 << 31) and days.max() < 1 << 31)


def _fixed_bytes(values: Any, mask: Any) -> pa.Array:
    import pyarrow as pa

    data = pa.py_buffer(np.ascontiguousarray(values).tobytes())
    valid = None if mask is None else pa.py_buffer(np.packbits(~mask, bitorder="little"))
    return pa.Array.from_buffers(pa.binary(values.dtype.itemsize), len(values), [valid, data])


def _from_structured(data: Any, definition: TableDefinition) -> pa.RecordBatch:
    if data.dtype.names is None or data.ndim != 1:
        raise _shapeless(data, definition)
    return _from_mapping({name: data[name] for name in data.dtype.names}, definition)


def _column_array(values: Any, name: str, definition: TableDefinition) -> pa.Array:
    import pyarrow as pa

    _, column = definition.found(name)
    if isinstance(values, (pa.Array, pa.ChunkedArray)):
        return _plain(values, name, definition)
    if isinstance(values, np.ndarray):
        return _numpy_array(values, column, definition)
    if _is_pandas(values) and hasattr(values, "dtype"):
        series = values if hasattr(values, "iloc") else sys.modules["pandas"].Series(values)
        return _pandas_column(series, name, definition)
    if hasattr(values, "__arrow_c_stream__") and not _is_of_objects(getattr(values, "dtype", None)):
        with suppress(*library_errors()):
            return plain_array(pa.chunked_array(values))
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        raise located(TypeMismatch(f"needs a column of values, got {shown(values)}"), definition.name, name, None)
    return from_python(list(values), nullable(column), definition.name, 0)


def _unknown(definition: TableDefinition, name: object, row: int) -> NoSuchColumn:
    return no_such_column(definition.name, name, (column.name for column in definition.columns), row)


def _from_mapping(data: Mapping[Any, Any], definition: TableDefinition) -> pa.RecordBatch:
    import pyarrow as pa

    arrays = [_column_array(values, name, definition) for name, values in data.items()]
    if len({len(array) for array in arrays}) > 1:
        sizes = {name: len(array) for name, array in zip(data, arrays, strict=True)}
        raise TypeMismatch(f"{definition.name}: columns differ in length: {shown(sizes)}", table=definition.name)
    return pa.RecordBatch.from_arrays(arrays, names=list(data))


# --- Python rows ----------------------------------------------------------------------------------
def _from_rows(rows: Iterable[Any], definition: TableDefinition, fill_in: bool) -> Iterator[Batch]:
    import pyarrow as pa

    names = [column.name for column in definition.columns]
    known = definition.columns
    computed = [each for each in definition.columns if each.computed and not each.computed.is_numbered and fill_in]
    iterator = iter(rows)
    first_row = 0
    while whole := list(islice(iterator, PYTHON_CHUNK_ROWS)):
        for chunk in _alike(whole, computed) if computed else (whole,):
            if not fill_in and any(isinstance(row, Mapping) for row in chunk):
                if first_row == 0:
                    names = _given_names(chunk[0], definition)
                    known = tuple(column for column in definition.columns if column.name in names)
                columns = _columns_of(chunk, names, definition, first_row)
            else:
                columns = _transposed(chunk, names, definition, first_row)
            arrays = {}
            for given, column in zip(columns, known, strict=True):
                values, default = given, column.computed
                if default is not None and default.is_numbered:
                    values = [None if value is default else value for value in given]
                elif default is not None and given[0] is default:
                    continue
                is_key = column.name in definition.primary_key
                arrays[column.name] = from_python(values, nullable(column), definition.name, first_row, is_key)
            batch = pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))
            if not arrays:
                batch = rows_without_columns(definition, len(chunk))
            yield Batch(batch, first_row, _filled(chunk, names).intersection(arrays))
            first_row += len(chunk)


def _alike(rows: list[Any], computed: list[Column]) -> Iterator[list[Any]]:
    """Yield consecutive rows that leave out the same ones of these columns."""

    def left_out(row: Any) -> list[bool]:
        if not isinstance(row, Mapping):
            return []
        return [row.get(column.name, column.default) is column.default for column in computed]

    for _, alike in groupby(rows, left_out):
        yield list(alike)


def _filled(chunk: list[Any], names: list[str]) -> frozenset[str]:
    """Return the columns that are missing in every row of the chunk."""
    if not all(isinstance(row, Mapping) for row in chunk) or len(chunk[0]) == len(names):
        return frozenset()
    return frozenset(names).difference(*chunk)


def _given_names(row: Any, definition: TableDefinition) -> list[str]:
    """Return the columns a row has, in column order."""
    names = [column.name for column in definition.columns]
    if not isinstance(row, Mapping):
        return names
    for name in row:
        if name not in names:
            raise _unknown(definition, name, 0)
    return [name for name in names if name in row]


def _columns_of(chunk: list[Any], names: list[str], definition: TableDefinition, first_row: int) -> list[Sequence[Any]]:
    """Return the columns of mappings that have exactly these names."""
    wanted = set(names)
    for place, row in enumerate(chunk):
        if not isinstance(row, Mapping) or row.keys() != wanted:
            number = first_row + place
            raise TypeMismatch(
                f"{definition.name}: row {number} does not name exactly the columns {', '.join(names)}, as all rows"
                " of a call must; change rows that name other columns in another call",
                table=definition.name,
                row=number,
            )
    return [list(map(itemgetter(name), chunk)) for name in names]


def _transposed(chunk: list[Any], names: list[str], definition: TableDefinition, first_row: int) -> list[Sequence[Any]]:
    kinds = set(map(type, chunk))
    if kinds == {dict} and set(map(len, chunk)) == {len(names)}:
        try:
            return [list(map(itemgetter(name), chunk)) for name in names]
        except KeyError:
            pass
    elif all(issubclass(kind, (tuple, list)) for kind in kinds) and set(map(len, chunk)) == {len(names)}:
        # zip(*chunk) creates an iterator per row; that many objects make the garbage collector visit the caller's rows.
        flat = list(chain.from_iterable(chunk))
        return [flat[place :: len(names)] for place in range(len(names))]
    whole = [_row_values(row, names, definition, first_row + place) for place, row in enumerate(chunk)]
    return list(zip(*whole, strict=True))


def _row_values(row: Any, names: list[str], definition: TableDefinition, number: int) -> Sequence[Any]:
    table = definition.name
    if isinstance(row, Mapping):
        values = []
        for column in definition.columns:
            value = row.get(column.name, column.missing)
            if value is ABSENT:
                raise located(NotNullViolation("has no default and must be given"), table, column.name, number)
            values.append(value)
        for name in row:
            if name not in names:
                raise _unknown(definition, name, number)
        return values
    if isinstance(row, (np.void, np.ma.mvoid)) and row.dtype.names:
        # Not `item()`, which makes integers of moments, and shows what a mask hides.
        data: Any
        hidden: Any
        data, hidden = (row, row) if isinstance(row, np.void) else (np.ma.getdata(row), np.ma.getmaskarray(row))
        fields = {name: None if hidden is not data and hidden[name].any() else data[name] for name in row.dtype.names}
        return _row_values(fields, names, definition, number)
    if not isinstance(row, Sequence) or isinstance(row, (str, bytes, bytearray, memoryview)):
        raise TypeMismatch(f"{table}: a row is a mapping or a sequence, got {shown(row)}", table=table, row=number)
    if len(row) != len(names):
        raise TypeMismatch(
            f"{table} has {counted(len(names), 'column')}, row {number} has {counted(len(row), 'value')};"
            " give dicts to use defaults",
            table=table,
            row=number,
        )
    return row
