"""Arrow arrays converted to the type of a column, validated as a whole.

`conform` returns an array of values that the column accepts, or raises: TypeMismatch for an unsuitable Arrow type. If
some value does not fit, the column's type checks the values one by one, so that batches and single rows refuse the same
values with the same message.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from types import NoneType
from typing import TYPE_CHECKING, Any

from tidemark.engine.base.errors import NotNullViolation, Rejected, TypeMismatch, ValueOutOfRange
from tidemark.engine.rows.row_format import located
from tidemark.engine.schema.column import Column
from tidemark.engine.types.arrow import compute
from tidemark.engine.types.base import shown

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemark.engine.types import ColumnType


def conform(array: pa.Array, column: Column, table: str, first_row: int, is_key: bool = False) -> pa.Array:
    """Return the array in a type the encoder knows (`ColumnType.conform`); `first_row` is the number of its row 0.

    Raises: TypeMismatch, ValueOutOfRange, NotNullViolation.
    """
    import pyarrow as pa

    try:
        return _conformed(array, column, table, first_row, is_key)
    except pa.ArrowException as error:  # of arrays that contradict themselves, such as indices past their dictionary
        reason = " ".join(str(error).split())
        refused = TypeMismatch(f"cannot be read from Arrow {array.type}: {reason}; cast the column first")
        raise located(refused, table, column.name, None) from None


def _conformed(array: pa.Array, column: Column, table: str, first_row: int, is_key: bool) -> pa.Array:
    import pyarrow as pa

    kind = column.type
    array = plain_array(array)
    if pa.types.is_dictionary(array.type):
        if column.nullable or not array.null_count:
            known = _known_values(array.dictionary, kind, is_key, len(array))
            if known is not None:
                return known.take(array.indices)
        array = array.dictionary_decode()
    if pa.types.is_null(array.type) or (array.null_count and array.null_count == len(array)):
        array = pa.nulls(len(array), kind.input_type())
    if array.null_count and not column.nullable:
        row = first_row + array.is_null().index(True).as_py()
        raise located(NotNullViolation("is not nullable, got None"), table, column.name, row)
    try:
        result = _fitting(array, kind, is_key)
    except TypeMismatch as error:
        given = next((row for row in range(len(array)) if array[row].is_valid), None)
        if given is None:
            raise located(error, table, column.name, None) from None
        text = f"{error.message}, got {_shown_scalar(array[given])}"
        raise located(TypeMismatch(text), table, column.name, first_row + given) from None
    except pa.ArrowNotImplementedError:
        return conform(from_python(array.to_pylist(), column, table, first_row, is_key), column, table, first_row)
    if result is None:
        raise _first_refusal(array, column, table, first_row, is_key)
    return result


def is_plain_type(kind: pa.DataType) -> bool:
    """Whether `plain_array` returns arrays of a type as they are."""
    import pyarrow as pa

    if pa.types.is_dictionary(kind):
        return is_plain_type(kind.value_type)
    if isinstance(kind, pa.BaseExtensionType):
        # Of pandas: periods and intervals, whose numbers are not their values.
        return str(kind.extension_name).startswith("pandas.")
    is_view = pa.types.is_string_view(kind) or pa.types.is_binary_view(kind)
    return not (is_view or pa.types.is_run_end_encoded(kind))


def plain_array(array: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return the same values in one array of a type that all calls of Arrow know: no views, runs and extensions."""
    import pyarrow as pa

    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
        if isinstance(array, pa.ChunkedArray):
            array = pa.concat_arrays(array.chunks)
    kind = array.type
    if is_plain_type(kind):
        return array
    if pa.types.is_dictionary(kind):
        return pa.DictionaryArray.from_arrays(array.indices, plain_array(array.dictionary), safe=False)
    if pa.types.is_string_view(kind):
        return array.cast(pa.large_string())
    if pa.types.is_binary_view(kind):
        return array.cast(pa.large_binary())
    if pa.types.is_run_end_encoded(kind):
        try:
            return plain_array(compute().run_end_decode(array))
        except pa.ArrowNotImplementedError:  # runs of a type that no column takes
            return array
    if isinstance(kind, pa.Bool8Type):
        return array.storage.cast(pa.bool_())
    return plain_array(array.storage)


def _fitting(array: pa.Array, kind: ColumnType, is_key: bool) -> Any:
    """Return the array in a type the encoder knows, None if a value does not fit. Raises: TypeMismatch."""
    import pyarrow as pa

    try:
        return kind.conform_key(array) if is_key else kind.conform(array)
    except pa.ArrowInvalid:
        return None


def _known_values(dictionary: pa.Array, kind: ColumnType, is_key: bool, rows: int) -> Any:
    """Return the values of a dictionary if it has few for these rows and all of them fit, else None: then those that
    rows have must be looked at.
    """
    import pyarrow as pa

    if dictionary.null_count or len(dictionary) > rows:
        return None
    try:
        return _fitting(dictionary, kind, is_key)
    except (TypeMismatch, pa.ArrowNotImplementedError):
        return None


def _first_refusal(array: pa.Array, column: Column, table: str, first_row: int, is_key: bool) -> Rejected:
    """Return the error for the first value that the column's type refuses."""
    row, count = 0, len(array)
    while count > 1:
        half = count // 2
        if _fitting(array.slice(row, half), column.type, is_key) is None:
            count = half
        else:
            row, count = row + half, count - half
    store = column.type.stored_key if is_key else column.type.stored_of_arrow
    scalar = array[row]
    error: Rejected = ValueOutOfRange(f"cannot hold the value exactly, got {_shown_scalar(scalar)}")
    try:
        value = scalar.as_py()
        store(int(value) if column.type.python is int else value)  # Arrow's decimals may be whole
    except Rejected as found:
        error = found
    except (ValueError, ArithmeticError):  # no Python value is equal to it
        pass
    return located(error, table, column.name, first_row + row)


def _shown_scalar(scalar: pa.Scalar) -> str:
    """Format a value of Arrow for a message; a moment or span as its number, which Python may not have."""
    import pyarrow as pa

    if isinstance(scalar, (pa.DictionaryScalar, pa.RunEndEncodedScalar)):
        scalar = scalar.value
    if pa.types.is_temporal(scalar.type):
        return f"{scalar.type} {getattr(scalar, 'value', scalar)}"
    if pa.types.is_decimal(scalar.type):  # Arrow would write out all digits, whatever the scale
        return f"{scalar.type}"
    try:
        return shown(scalar.as_py())
    except UnicodeDecodeError:
        return f"{scalar.type} {shown(scalar.as_buffer().to_pybytes())}"
    except (ValueError, ArithmeticError):  # no Python value is equal to it
        return f"a value of {scalar.type}"


def from_python(values: Sequence[Any], column: Column, table: str, first_row: int, is_key: bool = False) -> pa.Array:
    """Return an Arrow array of Python values; None is NULL.

    pyarrow converts values of exactly the column's Python type; for any other mix the type checks each value.
    """
    import pyarrow as pa

    kind = column.type
    if {*map(type, values)} <= {kind.python, NoneType}:
        with suppress(pa.ArrowException, OverflowError, ValueError, ValueOutOfRange):
            array = kind.array_from(values)
            if array is not None:
                return array
    store = kind.stored_key if is_key else kind.stored
    plain: list[Any] = []
    for row, value in enumerate(values):
        if value is None:
            if not column.nullable:
                error = NotNullViolation("is not nullable, got None")
                raise located(error, table, column.name, first_row + row)
            plain.append(None)
            continue
        try:
            plain.append(kind.input_value(store(value)))
        except Rejected as error:
            raise located(error, table, column.name, first_row + row) from None
    return pa.array(plain, kind.input_type())
