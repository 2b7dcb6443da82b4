"""Filters Spark pushes down, as conditions of the store (docs/spark.md, section 4).

What is pushed is a first look that spares Spark rows; it judges every row it gets once more. So a filter is left out
whenever the store might refuse a row that Spark takes: NaN, which Spark holds greater than every number and equal to
itself; Binary(n) with its padding; order of Enums, by place here and by text there.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from engine.compiled import compile_filter
from engine.condition_ranges import known_of
from engine.errors import Rejected
from engine.expressions import Expression, col
from engine.partition_pruning import partitions_for
from engine.types import Boolean, Decimal, Enum, Integer
from engine.types_calendar import Calendar
from engine.types_text import Char, VarChar

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

    from engine.schema import Column, TableDefinition

_COMPARISONS = {
    "EqualTo": "eq",
    "GreaterThan": "gt",
    "GreaterThanOrEqual": "ge",
    "LessThan": "lt",
    "LessThanOrEqual": "le",
}
_ORDERED = (Integer, Decimal, Boolean, Calendar, Char, VarChar)


def condition_of(definition: TableDefinition, filters: Iterable[Filter]) -> Expression | None:
    """What all filters say together as far as it can be said; None if that is nothing."""
    known = {column.name: column for column in definition.columns}
    found: Expression | None = None
    for each in filters:
        made = _expression(known, each)
        if made is None or not _compiles(definition, made):
            continue
        found = made if found is None else found & made
    return found


def fragments_of(definition: TableDefinition, where: Expression) -> set[int] | None:
    """The only fragments there may be rows in that a condition takes; None if it could be any."""
    known = known_of(where)
    return set(partitions_for(definition, known)) if known else None


def _compiles(definition: TableDefinition, where: Expression) -> bool:
    try:
        compile_filter(definition, where)
    except Rejected:
        return False
    return True


def _expression(known: dict[str, Column], each: Any) -> Expression | None:
    kind = type(each).__name__
    if kind == "Not":
        # NOT of a comparison is NULL for a NULL on both sides alike; Spark pushes it for single comparisons only.
        inner = each.child
        if type(inner).__name__ not in ("EqualTo", "In", "IsNull"):
            return None
        made = _expression(known, inner)
        return None if made is None else ~made
    path: Any = getattr(each, "attribute", ())
    column = known.get(path[0]) if len(path) == 1 else None
    if column is None:
        return None
    if kind == "IsNull":
        return col(column.name).is_null()
    if kind == "IsNotNull":
        return col(column.name).is_not_null()
    return _comparison(column, kind, each)


def _comparison(column: Column, kind: str, each: Any) -> Expression | None:
    name, text = col(column.name), isinstance(column.type, (Char, VarChar))
    if kind in _COMPARISONS:
        value = _value(column, each.value)
        is_comparable = isinstance(column.type, _ORDERED) or (isinstance(column.type, Enum) and kind == "EqualTo")
        if value is None or not is_comparable:
            return None
        made: Expression = getattr(name, f"__{_COMPARISONS[kind]}__")(value)
        return made
    if kind == "In":
        values = [_value(column, value) for value in each.value]
        is_comparable = isinstance(column.type, (*_ORDERED, Enum))
        return name.isin(values) if is_comparable and values and None not in values else None
    if kind == "StringStartsWith" and text and isinstance(each.value, str):
        return name.starts_with(each.value)
    return None


def _value(column: Column, value: Any) -> Any:
    """A value as the store's column has it; None if it cannot be compared."""
    kind = column.type
    if isinstance(kind, Integer) and not isinstance(value, (int, float)) and value is not None:
        return int(value) if value == int(value) else None  # UInt64 is decimal(20,0) in Spark
    if isinstance(kind, Calendar) and repr(kind) == "Timestamp" and value is not None and value.tzinfo is None:
        return None
    return value
