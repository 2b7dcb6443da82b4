"""Arrow arrays converted to the type of a column, validated as a whole.

`conform` returns an array of values that the column accepts, or raises: TypeMismatch for an unsuitable Arrow type. If
some value does not fit, the column's type checks the values one by one, so that batches and single rows refuse the same
values with the same message.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date, datetime, time
from decimal import Decimal as PythonDecimal
from decimal import InvalidOperation
from typing import TYPE_CHECKING, Any

from tidemark.engine.base import limits
from tidemark.engine.base.errors import NotNullViolation, Rejected, TypeMismatch, ValueOutOfRange
from tidemark.engine.rows.column_buffers import variable
from tidemark.engine.rows.row_format import located
from tidemark.engine.schema.column import Column
from tidemark.engine.schema.types import Boolean, Decimal, Enum, Floating, Integer
from tidemark.engine.schema.types_base import shown
from tidemark.engine.schema.types_calendar import Calendar
from tidemark.engine.schema.types_text import Binary, Char, LongBinary, LongText, VarBinary, VarChar

if TYPE_CHECKING:
    import pyarrow as pa

# Powers of ten in Arrow's table for 128 bits.
_ARROW_DIGITS = 38
# Text that Arrow must not parse as a decimal: exponents, and more digits in a row than it has powers of ten. Of
# hundreds before the point it would take the lowest 128 bits.
_UNUSUAL_NUMBER = rf"[^-+.0-9]|[0-9]{{{_ARROW_DIGITS + 1}}}"
_ASCII_ROWS_MIN = 256  # of an array in which it pays to look at all bytes together
# Python types whose values pyarrow converts exactly as `ColumnType.stored` would.
_EXACT: dict[type, frozenset[type]] = {
    Integer: frozenset((int,)),
    Floating: frozenset((float,)),
    Decimal: frozenset((PythonDecimal,)),
    Boolean: frozenset((bool,)),
    Char: frozenset((str,)),
    VarChar: frozenset((str,)),
    LongText: frozenset((str,)),
    Enum: frozenset((str,)),
    Binary: frozenset((bytes,)),
    VarBinary: frozenset((bytes,)),
    LongBinary: frozenset((bytes,)),
}
_EXACT_CALENDAR: dict[str, frozenset[type]] = {
    "Date": frozenset((date,)),
    "Time": frozenset((time,)),
    "DateTime": frozenset((datetime,)),
    "Timestamp": frozenset((datetime,)),
}


def conform(array: pa.Array, column: Column, table: str, first_row: int, is_key: bool = False) -> pa.Array:
    """Return the array in a type the encoder knows (Enum: indexes of members); `first_row` is the number of its row 0.

    Raises: TypeMismatch, ValueOutOfRange, NotNullViolation.
    """
    import pyarrow as pa

    kind = column.type
    array = plain_array(array)
    if pa.types.is_dictionary(array.type) and (not isinstance(kind, Enum) or array.dictionary.null_count):
        if isinstance(kind, (Char, VarChar)) and (column.nullable or not array.null_count):
            known = _known_values(array.dictionary, kind)
            if known is not None:
                return known.take(array.indices)
        array = array.dictionary_decode()
    if pa.types.is_null(array.type) or (array.null_count and array.null_count == len(array)):
        array = pa.nulls(len(array), pa.string() if isinstance(kind, Enum) else kind.arrow_type())
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
        return str(kind.extension_name).startswith(
            "pandas."
        )  # periods and intervals, whose numbers are not their values
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
            return plain_array(_compute().run_end_decode(array))
        except pa.ArrowNotImplementedError:  # runs of a type that no column takes
            return array
    if isinstance(kind, pa.Bool8Type):
        return array.storage.cast(pa.bool_())
    return plain_array(array.storage)


def _fitting(array: pa.Array, kind: Any, is_key: bool) -> Any:
    """Return the array in a type the encoder knows, None if a value does not fit. Raises: TypeMismatch."""
    import pyarrow as pa

    try:
        result = _CONFORM[type(kind)](array, kind)
    except pa.ArrowInvalid:
        return None
    if result is not None and is_key and isinstance(kind, Floating) and _any(_compute().is_nan(result)):
        return None
    return result


def _compute() -> Any:
    import pyarrow.compute as pc

    return pc


def _any(mask: pa.Array) -> bool:
    return bool(_compute().any(mask).as_py())


def _first_refusal(array: pa.Array, column: Column, table: str, first_row: int, is_key: bool) -> Rejected:
    """Return the error for the first value that the column's type refuses."""
    row, count = 0, len(array)
    while count > 1:
        half = count // 2
        if _fitting(array.slice(row, half), column.type, is_key) is None:
            count = half
        else:
            row, count = row + half, count - half
    store = column.type.stored_key if is_key else column.type.stored
    scalar = array[row]
    error: Rejected = ValueOutOfRange(f"cannot hold the value exactly, got {_shown_scalar(scalar)}")
    try:
        value = scalar.as_py()
        store(int(value) if isinstance(column.type, Integer) else value)
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


def _wrong_type(array: pa.Array, kind: Any) -> TypeMismatch:
    return TypeMismatch(f"is {kind!r} and takes no Arrow {array.type} (cast it first)")


def _conform_integer(array: pa.Array, kind: Any) -> Any:
    import pyarrow as pa

    # Decimals of scale 0 too: systems without unsigned 64-bit numbers, such as Spark, use these instead.
    if not pa.types.is_integer(array.type) and not (pa.types.is_decimal(array.type) and array.type.scale == 0):
        raise _wrong_type(array, kind)
    target = kind.arrow_type()
    return array if array.type == target else array.cast(target)


def _conform_float(array: pa.Array, kind: Any) -> Any:
    import pyarrow as pa

    target = kind.arrow_type()
    if array.type == target:
        return array
    if pa.types.is_integer(array.type):
        return array.cast(target)
    if not pa.types.is_floating(array.type):
        raise _wrong_type(array, kind)
    result = array.cast(target)
    pc = _compute()
    if kind.bits == 32 and _any(pc.and_(pc.is_inf(result), pc.invert(pc.is_inf(array)))):
        return None
    return result


def _within(numbers: Any, low: Any, high: Any) -> bool:
    span = _compute().min_max(numbers)
    least, most = span["min"].as_py(), span["max"].as_py()
    return least is None or (low <= least and most <= high)


def _is_beyond_arrow(source: pa.DataType, kind: Any) -> bool:
    """Whether rescaling this type would make Arrow read past its table of powers of ten, which it does not check."""
    return bool(abs(source.scale - kind.scale) > (76 if source.bit_width > 128 else _ARROW_DIGITS))


def _conform_decimal(array: pa.Array, kind: Any) -> Any:
    import pyarrow as pa

    target = kind.arrow_type()
    if pa.types.is_integer(array.type):
        # Twenty digits hold every 64-bit integer.
        array = array.cast(pa.decimal128(20, 0))
    elif not pa.types.is_decimal(array.type) or _is_beyond_arrow(array.type, kind):
        raise _wrong_type(array, kind)
    result = array.cast(target)
    result.validate(full=True)  # no value has more digits; a reader of Arrow may not have checked it
    return result


def decimals_of_text(array: pa.Array, kind: Decimal) -> pa.Array:
    """Convert numbers given as text to the Arrow type of a column. Raises: ValueOutOfRange with the `row`."""
    import pyarrow as pa

    if not _any(_compute().match_substring_regex(array, _UNUSUAL_NUMBER)):
        try:
            return array.cast(kind.arrow_type())
        except pa.ArrowInvalid:
            pass
    values = []
    for row, text in enumerate(array.to_pylist()):
        try:
            values.append(None if text is None else kind.exact(PythonDecimal(text.strip())))
        except InvalidOperation:
            raise ValueOutOfRange(f"holds numbers, got {shown(text)}", row=row) from None
        except ValueOutOfRange as error:
            raise ValueOutOfRange(error.message, row=row) from None
    return pa.array(values, kind.arrow_type())


def _conform_bool(array: pa.Array, kind: Any) -> Any:
    import pyarrow as pa

    if not pa.types.is_boolean(array.type):
        raise _wrong_type(array, kind)
    return array


def _strings(array: pa.Array, kind: Any) -> Any:
    import pyarrow as pa

    if not (pa.types.is_string(array.type) or pa.types.is_large_string(array.type)):
        raise _wrong_type(array, kind)
    # Arrow readers may not have checked UTF-8; invalid text could be written but not read back.
    if len(array) < _ASCII_ROWS_MIN or not _is_ascii(array):
        array.validate(full=True)
    return array


def _is_ascii(array: pa.Array) -> bool:
    """Whether strings have ASCII alone, in valid places: that is seen at once, and Arrow checks value by value."""
    data, ends = variable(array)
    if not (0 <= ends[0] and ends[-1] <= data.size and (ends[1:] >= ends[:-1]).all()):
        return False
    return bool(data[ends[0] : ends[-1]].max(initial=0) < 0x80)


def _known_values(dictionary: pa.Array, kind: Any) -> Any:
    """Return the values of a dictionary if all of them fit, else None: then those that rows have must be looked at."""
    import pyarrow as pa

    try:
        return None if dictionary.null_count else _conform_text(dictionary, kind)
    except (TypeMismatch, pa.ArrowInvalid):
        return None


def _longest(lengths: Any) -> int:
    return _compute().max(lengths).as_py() or 0


def _conform_text(array: pa.Array, kind: Any) -> Any:
    pc = _compute()
    result = _strings(array, kind)
    longest = _longest(pc.binary_length(result))
    if isinstance(kind, LongText):
        return result if longest <= limits.LOB_BYTES_MAX else None
    # Count characters only if the size in bytes does not decide it.
    if longest > kind.length and _longest(pc.utf8_length(result)) > kind.length:
        return None
    if isinstance(kind, Char) and _any(pc.ends_with(result, "\0")):
        return None
    return result


def _conform_bytes(array: pa.Array, kind: Any) -> Any:
    import pyarrow as pa

    if pa.types.is_fixed_size_binary(array.type):
        if isinstance(kind, Binary) and array.type.byte_width == kind.length:
            return array
        array = array.cast(pa.binary())
    if not (pa.types.is_binary(array.type) or pa.types.is_large_binary(array.type)):
        raise _wrong_type(array, kind)
    limit = limits.LOB_BYTES_MAX if isinstance(kind, LongBinary) else kind.length
    return array if _longest(_compute().binary_length(array)) <= limit else None


def _conform_calendar(array: pa.Array, kind: Any) -> Any:
    import pyarrow as pa

    source = array.type
    fits = {
        "Date": pa.types.is_date(source),
        "Time": pa.types.is_time(source),
        "DateTime": pa.types.is_timestamp(source) and source.tz is None,
        "Timestamp": pa.types.is_timestamp(source) and source.tz is not None,
    }
    if not fits[kind.name]:
        raise _wrong_type(array, kind)
    result = array.cast(kind.arrow_type())
    numbers = result.cast(pa.int32() if kind.name == "Date" else pa.int64())
    return result if _within(numbers, kind.minimum, kind.maximum) else None


def _conform_enum(array: pa.Array, kind: Any) -> Any:
    import pyarrow as pa

    pc = _compute()
    members = pa.array(kind.members, pa.large_string())
    if pa.types.is_dictionary(array.type):
        places = pc.index_in(_strings(array.dictionary, kind).cast(pa.large_string()), members)
        result = places.take(array.indices)
    else:
        result = pc.index_in(_strings(array, kind).cast(pa.large_string()), members)
    return result if result.null_count == array.null_count else None


_CONFORM: dict[type, Callable[[Any, Any], Any]] = {
    Integer: _conform_integer,
    Floating: _conform_float,
    Decimal: _conform_decimal,
    Boolean: _conform_bool,
    Char: _conform_text,
    VarChar: _conform_text,
    LongText: _conform_text,
    Binary: _conform_bytes,
    VarBinary: _conform_bytes,
    LongBinary: _conform_bytes,
    Calendar: _conform_calendar,
    Enum: _conform_enum,
}


def input_type(column: Column) -> pa.DataType:
    """Return the Arrow type in which Python values are collected; `conform` does the last conversion."""
    import pyarrow as pa

    kind = column.type
    if isinstance(kind, Enum):
        return pa.string()
    if isinstance(kind, Binary):
        return pa.binary()
    # pyarrow converts a float that is too large to an infinite Float32; the cast in `conform` notices this.
    if isinstance(kind, Floating):
        return pa.float64()
    return kind.arrow_type()


def _zones_fit(values: Sequence[Any], kind: Calendar) -> bool:
    if kind.name == "Date":
        return True
    plain = [value.tzinfo is None for value in values if value is not None]
    return not any(plain) if kind.name == "Timestamp" else all(plain)


def from_python(values: Sequence[Any], column: Column, table: str, first_row: int, is_key: bool = False) -> pa.Array:
    """Return an Arrow array of Python values; None is NULL.

    pyarrow converts values of exactly the column's Python type; for any other mix the type checks each value.
    """
    import pyarrow as pa

    kind = column.type
    exact = _EXACT_CALENDAR[kind.name] if isinstance(kind, Calendar) else _EXACT[type(kind)]
    found = set(map(type, values))
    found.discard(type(None))
    if found <= exact and (not isinstance(kind, Calendar) or _zones_fit(values, kind)):
        try:
            if isinstance(kind, Decimal):
                # Arrow writes out all digits, or reads past a table, before it checks the exponent.
                values = [None if value is None else kind.exact(value) for value in values]
            return pa.array(values, input_type(column))
        except (pa.ArrowException, OverflowError, ValueError, ValueOutOfRange):
            pass
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
            plain.append(kind.loaded(store(value)))
        except Rejected as error:
            raise located(error, table, column.name, first_row + row) from None
    return pa.array(plain, input_type(column))
