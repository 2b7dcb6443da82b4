"""Expressions as lists of nodes in post-order, children first: what clients send, and what definitions keep as JSON.

A node is [kind, number of children, values]. Its depth does not count, and building it executes nothing: each kind is
one known class, made through the checks of its constructor.
"""

from __future__ import annotations

import datetime
import decimal
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from typing import Any

from tidemark.engine.base.errors import TypeMismatch
from tidemark.engine.programs.expressions import (
    Arithmetic,
    Col,
    Compare,
    Constant,
    Expression,
    Junction,
    Like,
    Member,
    Not,
    NullTest,
)
from tidemark.engine.types import from_json
from tidemark.engine.types.base import plain, shown, type_of

NODES: Mapping[str, type[Expression]] = {
    kind.__name__: kind for kind in (Col, Constant, Arithmetic, Compare, Junction, Not, NullTest, Member, Like)
}
# Declared types of the fields of expressions that hold other nodes.
_ONE, _MANY = "Expression", "tuple[Expression, ...]"


class InvalidNodes(ValueError):
    """A list is not the nodes of an expression."""


def nodes_of(expression: Expression) -> list[list[Any]]:
    """Return the nodes of an expression."""
    nodes: list[list[Any]] = []
    ahead = [expression]
    while ahead:
        node = ahead.pop()
        parts: list[Expression] = []
        values = []
        for field in fields(node):  # type: ignore[arg-type]
            content = getattr(node, field.name)
            if field.type == _ONE:
                parts.append(content)
            elif field.type == _MANY:
                parts += content
            else:
                values.append(content)
        nodes.append([type(node).__name__, len(parts), *values])
        ahead += parts
    return nodes[::-1]


def expression_of(nodes: Iterable[Any]) -> Expression:
    """Return the expression of nodes, built with a stack of those that have no parent yet. Raises: InvalidNodes,
    ProgramInvalid.
    """
    made: list[Expression] = []
    for name, count, *values in nodes:
        kind: Any = NODES.get(name)
        if kind is None:
            raise InvalidNodes("an expression has a part of an unknown kind")
        roles = [field.type for field in fields(kind)]
        least = roles.count(_ONE)
        is_right = type(count) is int and (count >= least if _MANY in roles else count == least)
        if not is_right or count > len(made) or len(values) != sum(role not in (_ONE, _MANY) for role in roles):
            raise InvalidNodes(f"{name} of an expression lacks parts it needs")
        parts, given = iter(made[len(made) - count :]), iter(values)
        del made[len(made) - count :]
        made.append(kind(*[_argument(name, role, parts, given) for role in roles]))
    if len(made) != 1:
        raise InvalidNodes("an expression has parts that belong to nothing")
    return made[0]


def _argument(name: str, role: Any, parts: Iterator[Expression], given: Iterator[Any]) -> Any:
    if role == _ONE:
        return next(parts)
    if role == _MANY:
        return tuple(parts)
    value = next(given)
    known = {"str": str, "bool": bool, "bytes": bytes, "Any": type(value)}
    if type(value) is not known[role] or isinstance(value, Expression):
        raise InvalidNodes(f"{name} of an expression has a {type(value).__name__} for {role}")
    return value


# --- as JSON --------------------------------------------------------------------------------------
# Values that JSON does not have, or changes, are objects of one member, named after their kind.
_WRITERS: tuple[tuple[type, str, Callable[[Any], Any]], ...] = (
    (float, "float", float.hex),
    (bytes, "bytes", bytes.hex),
    (decimal.Decimal, "decimal", str),
    (datetime.datetime, "datetime", datetime.datetime.isoformat),
    (datetime.date, "date", datetime.date.isoformat),
    (datetime.time, "time", datetime.time.isoformat),
    (datetime.timedelta, "timedelta", lambda value: [value.days, value.seconds, value.microseconds]),
)
_READERS: dict[str, Callable[[Any], Any]] = {
    "float": float.fromhex,
    "bytes": bytes.fromhex,
    "decimal": decimal.Decimal,
    "datetime": datetime.datetime.fromisoformat,
    "date": datetime.date.fromisoformat,
    "time": datetime.time.fromisoformat,
    "timedelta": lambda parts: datetime.timedelta(*parts),
    "value": lambda parts: from_json({"type": parts[0]}).loaded(_from_json(parts[1])),
}


def to_text(expression: Expression) -> str:
    """Return an expression as canonical JSON: of equal trees the text is equal. Raises: TypeMismatch for a constant
    that cannot be kept.
    """
    nodes = [[*node[:2], *map(_to_json, node[2:])] for node in nodes_of(expression)]
    return json.dumps(nodes, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def from_text(text: str) -> Expression:
    """Return the expression that `to_text` wrote. Raises: InvalidNodes, ProgramInvalid."""
    try:
        return expression_of([*node[:2], *map(_from_json, node[2:])] for node in json.loads(text))
    except InvalidNodes:
        raise
    except (ValueError, TypeError, LookupError, ArithmeticError, AttributeError, RecursionError) as error:
        raise InvalidNodes(f"not an expression: {shown(text)}") from error


def _to_json(value: Any) -> Any:
    value = plain(value)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, str):
        return str.__str__(value)
    for kind, name, written in _WRITERS:
        if isinstance(value, kind):
            return {name: written(value)}
    known = type_of(value)
    if known is None:
        raise TypeMismatch(f"a check cannot keep {shown(value)}; compare with a plain value of the column's type")
    return {"value": [repr(known), _to_json(known.stored(value))]}


def _from_json(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    ((name, content),) = value.items()
    return _READERS[name](content)
