"""Values of computed defaults, put into rows and batches before they are encoded (`engine/schema/computed.py`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from tidemark.engine.base.errors import NotNullViolation, Rejected
from tidemark.engine.rows.column_values import conform
from tidemark.engine.rows.row_format import RowFormat, located
from tidemark.engine.schema.column import ABSENT
from tidemark.engine.types.arrow import compute
from tidemark.engine.types.base import plain

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemark.engine.base.clock import Clock
    from tidemark.engine.schema.column import Column
    from tidemark.engine.schema.definition import TableDefinition


_LEFT_OUT = {b"tidemark": b"left out"}  # of a column that only says how many rows a batch has


class Numbers(Protocol):
    """The numbers of one table's `tm.autoincrement` column."""

    def take(self, count: int) -> range:
        """Return the next numbers. Raises: ValueOutOfRange if the column's type has no more."""
        ...

    def saw(self, number: int) -> None:
        """Give no number up to this one from now on: a row brings it."""
        ...


class NoNumbers:
    """Of rows that are written where no store is: they must bring their numbers."""

    def __init__(self, table: str, column: str) -> None:
        self._where = table, column

    def take(self, count: int) -> range:
        raise located(
            NotNullViolation(
                "is numbered where the store is, and tasks of a load have no store: give its values, or insert the rows"
                " with insert_many or load"
            ),
            *self._where,
            None,
        )

    def saw(self, number: int) -> None:
        """The adoption of the load counts."""


def filled_row(row_format: RowFormat, row: Any, clock: Clock, numbers: Numbers) -> tuple[Any, int | None]:
    """Return a row with all values, and the number that it has or was given, None in a table without numbers."""
    values = list(row_format.values_of(row))
    number = None
    if len(values) != len(row_format.names):
        return row, None  # the encoder refuses it
    for position, column in row_format.computed:
        value, default = values[position], column.default
        if default.is_numbered:
            if value is None or value is default:
                values[position] = number = numbers.take(1).start
            else:
                number = _stored(column, value)
                if number is not None:
                    numbers.saw(number)
        elif value is default:
            values[position] = default.value(column.type, clock)
    return tuple(values), number


def _stored(column: Column, value: Any) -> int | None:
    """Return a number that a row brings, None if the encoder will refuse it."""
    try:
        found: int = column.type.stored(plain(value))
    except Rejected:
        return None
    return found


def filled_columns(
    row_format: RowFormat, columns: pa.RecordBatch, clock: Clock, numbers: Numbers, first_row: int
) -> pa.RecordBatch:
    """Return a batch with the values of computed defaults: all of a column that it lacks, and numbers in place of NULL.

    Raises: TypeMismatch, ValueOutOfRange for numbers that do not fit.
    """
    import pyarrow as pa

    count = columns.num_rows
    for _, column in row_format.computed if count else ():
        default, at = column.default, columns.schema.get_field_index(column.name)
        is_left_out = at >= 0 and columns.schema.field(at).metadata == _LEFT_OUT
        if at < 0 or is_left_out:
            if at < 0 and column.name in columns.schema.names:
                continue  # twice, which the encoder refuses
            if default.is_numbered:
                array = _array(numbers.take(count), column)
            else:
                array = default.array(column.type, clock, count).cast(column.type.input_type())
            made = pa.field(column.name, array.type)
            columns = columns.set_column(at, made, array) if is_left_out else columns.append_column(made, array)
        elif default.is_numbered:
            given = conform(columns.column(at), nullable(column), row_format.definition.name, first_row)
            most = compute().max(given).as_py()
            if most is not None:
                numbers.saw(most)
            if given.null_count:
                taken = _array(numbers.take(given.null_count), column)
                given = compute().replace_with_mask(given, given.is_null(), taken)
            columns = columns.set_column(at, pa.field(column.name, given.type), given)
    return columns


def rows_without_columns(definition: TableDefinition, count: int) -> pa.RecordBatch:
    """Return a batch of rows that leave out every column, which only a table of computed columns has."""
    import pyarrow as pa

    name = next((column.name for column in definition.columns if column.computed), None)
    if name is None:
        return pa.RecordBatch.from_arrays([], names=[])
    return pa.RecordBatch.from_arrays([pa.nulls(count)], schema=pa.schema([pa.field(name, pa.null(), True, _LEFT_OUT)]))


def nullable(column: Column) -> Column:
    """Return a numbered column as it takes its values: None means that the store gives a number. Others as they are."""
    if column.computed is None or not column.computed.is_numbered:
        return column
    return replace(column, nullable=True, default=ABSENT)


def _array(numbers: Sequence[int], column: Column) -> pa.Array:
    import pyarrow as pa

    return pa.array(np.array(numbers, dtype=np.int64)).cast(column.type.arrow_type())
