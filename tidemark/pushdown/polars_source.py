"""A table as a polars LazyFrame, which asks its source for columns, a predicate and a number of rows.

A predicate is read with documented calls alone. `meta.pop` gives the operands of an expression, but not its operator.
So each known operator is applied to the operands: if the result equals the expression (`meta.eq`), it is that operator.
A part that equals none is left out.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tidemark.engine.base.errors import Rejected
from tidemark.engine.programs.expressions import Col, Compare, Constant, Expression, Member, Not, NullTest, joined
from tidemark.engine.rows.column_output import to_polars
from tidemark.pushdown.necessary import NESTING_MAX, UNKNOWN

if TYPE_CHECKING:
    import polars as pl

    from tidemark.pushdown.dataset import Source

_COMPARISONS = {name: getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")}
_CLOSED: dict[Any, tuple[str, str]] = {
    "both": ("ge", "le"),
    "left": ("ge", "lt"),
    "right": ("gt", "le"),
    "none": ("gt", "lt"),
}


def scan(source: Source) -> pl.LazyFrame:
    """Return a LazyFrame that reads the source each time it is collected. Raises: Unsupported without polars."""
    schema = to_polars(source.schema.empty_table()).schema
    from polars.io.plugins import register_io_source

    def read(
        with_columns: list[str] | None, predicate: pl.Expr | None, n_rows: int | None, batch_size: int | None
    ) -> Iterator[pl.DataFrame]:
        wanted = source.schema.names if with_columns is None else with_columns
        columns, where = list(wanted), None
        if predicate is not None:
            columns += [name for name in predicate.meta.root_names() if name not in columns]
            # `n_rows` counts rows before the predicate, so with it the predicate is not pushed down.
            if n_rows is None:
                where = source.necessary(condition_of(predicate, schema))
        for batch in source.batches(columns or source.schema.names[:1], where, n_rows):
            frame = to_polars(batch)
            if predicate is not None:
                frame = frame.filter(predicate)
            yield frame.select(wanted)

    return register_io_source(read, schema=schema)


def condition_of(predicate: pl.Expr, schema: pl.Schema) -> Expression:
    """Return a predicate over columns of a schema as a condition, with Unknown for each part that is not translated."""
    from polars.exceptions import PolarsError

    try:
        return _condition(predicate, schema, 0)
    except (PolarsError, Rejected):  # an expression without operands, or more parts than a condition may have
        return UNKNOWN


def _condition(node: pl.Expr, schema: pl.Schema, depth: int) -> Expression:
    if node.meta.is_column():
        return Col(node.meta.output_name())
    if depth > NESTING_MAX or node.meta.is_literal():
        return UNKNOWN
    operands = node.meta.pop()[::-1]  # the last one comes first
    if len(operands) == 1:
        return _of_one(node, operands[0], schema, depth + 1)
    if len(operands) == 2:
        return _of_two(node, operands[0], operands[1], schema, depth + 1)
    return _between(node, operands, schema) if len(operands) == 3 else UNKNOWN


def _of_one(node: pl.Expr, operand: pl.Expr, schema: pl.Schema, depth: int) -> Expression:
    if node.meta.eq(~operand):
        return Not(_condition(operand, schema, depth))
    if not operand.meta.is_column():
        return UNKNOWN
    column = Col(operand.meta.output_name())
    if node.meta.eq(operand.is_null()):
        return NullTest(column)
    return Not(NullTest(column)) if node.meta.eq(operand.is_not_null()) else UNKNOWN


def _of_two(node: pl.Expr, one: pl.Expr, other: pl.Expr, schema: pl.Schema, depth: int) -> Expression:
    for is_and, made in ((True, one & other), (False, one | other)):
        if node.meta.eq(made):
            return joined(is_and, _condition(one, schema, depth), _condition(other, schema, depth))
    if not one.meta.is_column() or not other.meta.is_literal():  # polars moves columns to the left
        return UNKNOWN
    for name, compare in _COMPARISONS.items():
        if node.meta.eq(compare(one, other)):
            return _compare(name, one, other, schema)
    if node.meta.eq(one.is_in(other)):
        return _member(one, other, schema)
    if node.meta.eq(one.str.starts_with(other)):
        prefix = _values(one, other, schema)
        return Col(one.meta.output_name()).starts_with(prefix[0]) if prefix and prefix[0] is not None else UNKNOWN
    return UNKNOWN


def _compare(name: str, column: pl.Expr, literal: pl.Expr, schema: pl.Schema) -> Expression:
    values = _values(column, literal, schema)
    return Compare(name, Col(column.meta.output_name()), Constant(values[0])) if values else UNKNOWN


def _between(node: pl.Expr, operands: list[pl.Expr], schema: pl.Schema) -> Expression:
    column, low, high = operands
    if not column.meta.is_column() or not low.meta.is_literal() or not high.meta.is_literal():
        return UNKNOWN
    for closed, (above, below) in _CLOSED.items():
        if node.meta.eq(column.is_between(low, high, closed)):
            return joined(True, _compare(above, column, low, schema), _compare(below, column, high, schema))
    return UNKNOWN


def _member(column: pl.Expr, literal: pl.Expr, schema: pl.Schema) -> Expression:
    values = _values(column, literal, schema)
    if values is None:
        return UNKNOWN
    return Member(Col(column.meta.output_name()), tuple(map(Constant, values)))


def _values(column: pl.Expr, literal: pl.Expr, schema: pl.Schema) -> list[Any] | None:
    """Return the values of a literal, one or those of a list, if their type is the column's; else None."""
    import polars as pl

    found = pl.select(literal).to_series()
    if isinstance(found.dtype, pl.List):
        found = found.explode()
    wanted = schema[column.meta.output_name()]
    is_text = found.dtype == pl.String and isinstance(wanted, pl.Categorical)
    if found.dtype != wanted and not is_text and not (found.dtype.is_decimal() and wanted.is_decimal()):
        return None
    if found.dtype == pl.Time and (found.cast(pl.Int64) % 1_000 != 0).any():  # polars has ns, a column µs
        return None
    return found.to_list()
