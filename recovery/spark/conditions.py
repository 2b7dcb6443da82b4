"""Conditions of a read as text, since options of Spark are text (docs/spark.md, section 4)."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any

from tidemark.engine.base.errors import SchemaInvalid, TypeMismatch
from tidemark.engine.programs import expressions
from tidemark.engine.programs.expressions import Expression
from tidemark.engine.schema.types_base import shown

_NODES = {
    kind.__name__: kind
    for kind in (
        *(expressions.Col, expressions.Constant, expressions.Arithmetic, expressions.Compare),
        *(expressions.Junction, expressions.Not, expressions.NullTest, expressions.Member, expressions.Like),
    )
}
# Values that have no form in JSON: how each is written and read. A datetime is a date too, so it comes first.
_VALUES: dict[type, tuple[Callable[[Any], str], Callable[[str], Any]]] = {
    Decimal: (str, Decimal),
    bytes: (bytes.hex, bytes.fromhex),
    datetime: (datetime.isoformat, datetime.fromisoformat),
    date: (date.isoformat, date.fromisoformat),
    time: (time.isoformat, time.fromisoformat),
    float: (float.hex, float.fromhex),  # JSON has no NaN and no infinity
}
NESTING_MAX = 200


def to_text(where: Expression) -> str:
    """Return an expression as text, which the option `where` of a read takes.

    Raises: TypeMismatch for constants of types that no column has, and for more than 200 nested levels.

    Examples:
        >>> from tidemark.spark import condition
        >>> condition(tm.col("stock") < 5)
        '{"Compare": ["lt", {"Col": ["stock"]}, {"Constant": [5]}]}'
    """
    return json.dumps(_packed(where, 0))


def from_text(text: str) -> Expression:
    """Return the expression in a text. Raises: SchemaInvalid if the text is no expression."""
    try:
        found = _unpacked(json.loads(text), 0)
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        raise SchemaInvalid(
            f"option where is not a condition ({error}); make it with tidemark.spark.condition()", option="where"
        ) from error
    if not isinstance(found, Expression):
        text = f"option where is not a condition, but {shown(found)}; make it with tidemark.spark.condition()"
        raise SchemaInvalid(text, option="where")
    return found


def _packed(value: Any, depth: int) -> Any:
    if depth > NESTING_MAX:
        raise TypeMismatch(f"conditions nest {NESTING_MAX} deep at most; divide the condition")
    if isinstance(value, Expression):
        node: Any = value
        return {type(value).__name__: [_packed(getattr(value, each.name), depth + 1) for each in fields(node)]}
    if isinstance(value, tuple):
        return [_packed(each, depth + 1) for each in value]
    if value is None or isinstance(value, (bool, int, str)):
        return value
    for kind, (write, _) in _VALUES.items():
        if isinstance(value, kind):
            return {kind.__name__: write(value)}
    raise TypeMismatch(f"{shown(value)} is not a value of a column; give numbers, texts, bytes, dates or times")


def _unpacked(value: Any, depth: int) -> Any:
    if depth > NESTING_MAX:
        raise ValueError("nests too deep")
    if isinstance(value, list):
        return tuple(_unpacked(each, depth + 1) for each in value)
    if not isinstance(value, dict):
        return value
    ((name, content),) = value.items()
    if name in _NODES:
        kind: Any = _NODES[name]
        return kind(*_unpacked(content, depth + 1))
    for kind, (_, read) in _VALUES.items():
        if kind.__name__ == name:
            return read(content)
    raise ValueError(f"there is no {shown(name)}")
