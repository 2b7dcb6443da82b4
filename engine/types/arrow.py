"""What column types have in common when they take Arrow arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidemark.engine.base.column_buffers import variable

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemark.engine.types.base import ColumnType

_ASCII_ROWS_MIN = 256  # of an array in which it pays to look at all bytes together


def compute() -> Any:
    """Return pyarrow's module of computations, which is imported at its first use."""
    import pyarrow.compute as pc

    return pc


def kinds() -> Any:
    """Return pyarrow's module of questions about types."""
    import pyarrow as pa

    return pa.types


def is_any(mask: pa.Array) -> bool:
    return bool(compute().any(mask).as_py())


def longest(lengths: Any) -> int:
    return compute().max(lengths).as_py() or 0


def strings(array: pa.Array, kind: ColumnType) -> Any:
    """Return an array of valid text as it is. Raises: TypeMismatch, ArrowInvalid."""
    if not (kinds().is_string(array.type) or kinds().is_large_string(array.type)):
        raise kind.wrong_arrow(array)
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


def is_string(kind: pa.DataType) -> bool:
    """Whether this is a type of text, as views of text are."""
    return bool(kinds().is_string(kind) or kinds().is_large_string(kind) or kinds().is_string_view(kind))
