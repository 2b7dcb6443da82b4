"""The shape of an expression: its tree without the values of its constants, and these values in one order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any, cast

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


def add_shape(node: Any, shape: list[Any], constants: list[Any]) -> None:
    """Append the shape of a tree, in which no two trees are alike, and the values of its constants. A constant's type
    is part of the shape, so that its value decides only what is lowered.
    """
    kind = type(node)
    if kind is Col:
        shape += (Col, node.name)
    elif kind is Constant:
        value = node.value
        shape += (Constant, type(value))
        constants.append(value)
    elif kind is Compare:
        shape += (Compare, node.condition)
        add_shape(node.left, shape, constants)
        add_shape(node.right, shape, constants)
    elif kind is Arithmetic:
        shape += (Arithmetic, node.operator)
        add_shape(node.left, shape, constants)
        add_shape(node.right, shape, constants)
    elif kind is Junction:
        shape += (Junction, bool(node.is_and), len(node.operands))
        for each in node.operands:
            add_shape(each, shape, constants)
    elif kind is Not or kind is NullTest:
        shape.append(kind)
        add_shape(node.inner, shape, constants)
    elif kind is Member:
        shape += (Member, len(node.values))
        add_shape(node.inner, shape, constants)
        for each in node.values:
            add_shape(each, shape, constants)
    elif kind is Like:
        shape.append(Like)
        add_shape(node.inner, shape, constants)
        constants.append(node.pattern)
    else:
        shape += (Expression, kind)  # no tree that compiles


def numbered(nodes: Sequence[Any]) -> tuple[list[Any], dict[int, int]]:
    """Return copies of the trees in which each node occurs once, and the numbers of their Constants and Likes, by
    identity, in the order of `add_shape`. What is no tree is returned as it is.
    """
    numbers: dict[int, int] = {}
    return [_copied(each, numbers) if isinstance(each, Expression) else each for each in nodes], numbers


def _copied(node: Expression, numbers: dict[int, int]) -> Expression:
    if not isinstance(node, (Arithmetic, Compare, Constant, Junction, Like, Member, Not, NullTest)):
        return node
    values: list[Any] = []
    for field in fields(cast(Any, node)):
        value = getattr(node, field.name)
        if isinstance(value, Expression):
            value = _copied(value, numbers)
        elif field.name in ("operands", "values"):
            value = tuple([_copied(each, numbers) for each in value])
        values.append(value)
    made = type(node)(*values)
    if isinstance(made, (Constant, Like)):
        numbers[id(made)] = len(numbers)
    return made
