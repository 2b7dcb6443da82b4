"""Tabular input as record batches: Arrow, pandas, polars, NumPy, dicts of columns, iterables of rows.

Shapes and Python values are validated here; the encoder validates Arrow values. Python rows are converted by column in
chunks, so that in the common case no Python code runs per value. Row numbers in errors count from the start of the
input.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tidemark.engine.base.errors import NoSuchColumn, NotNullViolation, TypeMismatch
from tidemark.engine.rows.column_values import from_python
from tidemark.engine.rows.row_format import located
from tidemark.engine.schema.column import ABSENT
from tidemark.engine.schema.definition import TableDefinition
from tidemark.engine.schema.names import no_such_column
from tidemark.engine.schema.types_base import counted, shown

if TYPE_CHECKING:
    import pyarrow as pa

PYTHON_CHUNK_ROWS = 8_192
BATCH_ROWS = 65_536


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


def to_columns(
    data: Any, definition: TableDefinition, batch_rows: int = BATCH_ROWS, fill_in: bool = True
) -> Iterator[Batch]:
    """Return an iterator of batches of at most `batch_rows` rows, in order. Python rows that are mappings may omit
    columns, which take their defaults; without `fill_in` batches omit them too, and all rows must omit the same ones.

    Raises: TypeMismatch if the data is not tabular; for Python values also NoSuchColumn, NotNullViolation and
    ValueOutOfRange.
    """
    import pyarrow as pa

    if isinstance(data, pa.RecordBatch):
        return _sliced([data], batch_rows)
    if isinstance(data, (pa.Table, pa.RecordBatchReader)):
        return _sliced(data.to_batches() if isinstance(data, pa.Table) else data, batch_rows)
    if type(data).__module__.partition(".")[0] == "pandas" and hasattr(data, "columns"):
        return _sliced([_from_pandas(data, definition)], batch_rows)
    if hasattr(data, "__arrow_c_stream__"):
        return _sliced(pa.RecordBatchReader.from_stream(data), batch_rows)
    if hasattr(data, "__arrow_c_array__"):
        return _sliced([pa.record_batch(data)], batch_rows)
    if isinstance(data, np.ndarray):
        return _sliced([_from_structured(data, definition)], batch_rows)
    if isinstance(data, Mapping):
        return _sliced([_from_mapping(data, definition)], batch_rows)
    if isinstance(data, Iterable) and not isinstance(data, (str, bytes, bytearray, memoryview)):
        return _from_rows(data, definition, min(batch_rows, PYTHON_CHUNK_ROWS), fill_in)
    raise _shapeless(data, definition)


def _shapeless(data: Any, definition: TableDefinition) -> TypeMismatch:
    return TypeMismatch(
        f"{definition.name}: rows must be Arrow, pandas, polars, NumPy structured, a dict of columns or an iterable of"
        f" rows, not {shown(data)}",
        table=definition.name,
    )


def _sliced(batches: Iterable[pa.RecordBatch], batch_rows: int) -> Iterator[Batch]:
    first_row = 0
    for batch in batches:
        for begin in range(0, batch.num_rows, batch_rows):
            part = batch.slice(begin, batch_rows)
            yield Batch(part, first_row + begin)
        first_row += batch.num_rows


def _from_pandas(frame: Any, definition: TableDefinition) -> pa.RecordBatch:
    import pyarrow as pa

    nullable = {column.name for column in definition.columns if column.nullable}
    arrays = []
    for position, name in enumerate(frame.columns):
        series = frame.iloc[:, position]
        plain_float = isinstance(series.dtype, np.dtype) and series.dtype.kind == "f"
        # In pandas NaN means missing; in a column that is not nullable, NaN can only be a value.
        if plain_float and name not in nullable:
            arrays.append(pa.array(series.to_numpy()))
            continue
        if series.dtype == object:
            # Python objects are handled as in Python rows: pyarrow would accept bytes and text, or times with and
            # without a zone, in one column, and would refuse others with its own errors.
            values = series.where(series.notna(), None).to_numpy(dtype=object)
            arrays.append(_column_array(values, name, definition))
            continue
        arrays.append(_series(series))
    return pa.RecordBatch.from_arrays(arrays, names=[str(name) for name in frame.columns])


def _series(series: Any) -> pa.Array:
    import pyarrow as pa

    array = pa.array(series, from_pandas=True)
    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array


def _numpy_array(values: Any) -> pa.Array:
    import pyarrow as pa

    if values.ndim != 1:
        raise TypeMismatch(f"a column is one-dimensional, got shape {values.shape}")
    if values.dtype.kind in "SV" and not values.dtype.names:
        width = values.dtype.itemsize
        # The raw bytes: NumPy would drop zero bytes at the end of each value.
        data = np.ascontiguousarray(values).tobytes()
        return pa.Array.from_buffers(pa.binary(width), len(values), [None, pa.py_buffer(data)])
    if values.dtype.kind == "U":
        return pa.array(values.tolist(), pa.string())
    return pa.array(np.ascontiguousarray(values))


def _from_structured(data: Any, definition: TableDefinition) -> pa.RecordBatch:
    import pyarrow as pa

    if data.dtype.names is None or data.ndim != 1:
        raise _shapeless(data, definition)
    names = list(data.dtype.names)
    return pa.RecordBatch.from_arrays([_column_array(data[name], name, definition) for name in names], names=names)


def _column_array(values: Any, name: str, definition: TableDefinition) -> pa.Array:
    import pyarrow as pa

    if isinstance(values, (pa.Array, pa.ChunkedArray)):
        return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    if isinstance(values, np.ndarray) and values.dtype != object:
        return _numpy_array(values)
    column = next((column for column in definition.columns if column.name == name), None)
    if column is None:
        raise _unknown(definition, name, None)
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        raise located(TypeMismatch(f"needs a column of values, got {shown(values)}"), definition.name, name, None)
    return from_python(list(values), column, definition.name, 0)


def _unknown(definition: TableDefinition, name: object, row: int | None) -> NoSuchColumn:
    return no_such_column(definition.name, name, (column.name for column in definition.columns), row)


def _from_mapping(data: Mapping[Any, Any], definition: TableDefinition) -> pa.RecordBatch:
    import pyarrow as pa

    arrays = [_column_array(values, name, definition) for name, values in data.items()]
    if len({len(array) for array in arrays}) > 1:
        sizes = {name: len(array) for name, array in zip(data, arrays, strict=True)}
        raise TypeMismatch(f"{definition.name}: columns differ in length: {shown(sizes)}", table=definition.name)
    return pa.RecordBatch.from_arrays(arrays, names=list(data))


# --- Python rows ----------------------------------------------------------------------------------
def _from_rows(rows: Iterable[Any], definition: TableDefinition, chunk_rows: int, fill_in: bool) -> Iterator[Batch]:
    import pyarrow as pa

    names = [column.name for column in definition.columns]
    known = definition.columns
    iterator = iter(rows)
    first_row = 0
    while chunk := list(islice(iterator, chunk_rows)):
        if not fill_in and any(isinstance(row, Mapping) for row in chunk):
            if first_row == 0:
                names = _given_names(chunk[0], definition)
                known = tuple(column for column in definition.columns if column.name in names)
            columns = _columns_of(chunk, names, definition, first_row)
        else:
            columns = _transposed(chunk, names, definition, first_row)
        arrays = [
            from_python(values, column, definition.name, first_row, column.name in definition.primary_key)
            for values, column in zip(columns, known, strict=True)
        ]
        yield Batch(pa.RecordBatch.from_arrays(arrays, names=names), first_row, _filled(chunk, names))
        first_row += len(chunk)


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
                f"{definition.name}: row {number} does not name exactly the columns {', '.join(names)}, as all rows of"
                " one call must; change rows of other columns in another call",
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
    if isinstance(row, np.void) and row.dtype.names:
        return _row_values(dict(zip(row.dtype.names, row.item(), strict=True)), names, definition, number)
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
