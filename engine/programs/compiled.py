"""A cache of compiled expressions: the same expression over the same version of a table is compiled once.

Two expressions are the same if their trees are equal, including type and spelling of constants: 1 and 1.0, or two
decimals of different scale, may compile to different programs. Programs do not change while they run, so any number of
threads may share one; each thread has its own memory (`engine/access/conditions.py`, `Running`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from tidemark.engine.programs import expression_programs
from tidemark.engine.programs.expressions import Expression

if TYPE_CHECKING:
    from tidemark.engine.programs.expression_programs import Aggregates
    from tidemark.engine.programs.interpreter import Program
    from tidemark.engine.schema.definition import TableDefinition

KEPT_MAX = 256
BYTES_MAX = 4_096  # of one constant
NODES_MAX = 200  # larger trees are compiled each time: lookups would be slow, and the cache would need much memory
_PLAIN = (bool, int, str, bytes, type(None))


class _TooLarge(Exception):
    """Control flow: a tree is too large to keep."""


class _Key:
    """An expression and the version of a table it is compiled for; each version has its own definition object."""

    __slots__ = ("_hash", "_shape", "definition", "what")

    def __init__(self, definition: TableDefinition, what: Sequence[Any]) -> None:
        self.definition = definition
        self.what = what
        count = [0]
        self._shape = tuple(_shape(each, count) for each in what)
        self._hash = hash((id(definition), self._shape))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and self.definition is other.definition and self._shape == other._shape


def _shape(node: Any, count: list[int]) -> Any:
    """Return a tree as nested tuples that are equal if the trees are the same. Raises: _TooLarge."""
    count[0] += 1
    if count[0] > NODES_MAX:
        raise _TooLarge
    if isinstance(node, Expression):
        made: Any = type(node)
        return (made, *(_shape(getattr(node, name), count) for name in _names(made)))
    if isinstance(node, tuple):
        return (tuple, *(_shape(each, count) for each in node))
    kind = type(node)
    if kind in (str, bytes) and len(node) > BYTES_MAX:
        raise _TooLarge
    return (kind, node) if kind in _PLAIN else (kind, repr(node))


@lru_cache(maxsize=64)
def _names(kind: Any) -> tuple[str, ...]:
    return tuple(each.name for each in fields(kind))


@lru_cache(maxsize=KEPT_MAX)
def kept_filter(key: _Key) -> Program:
    return expression_programs.compile_filter(key.definition, key.what[0])


@lru_cache(maxsize=KEPT_MAX)
def _aggregates(key: _Key) -> Aggregates:
    return expression_programs.compile_aggregates(key.definition, key.what[1:], key.what[0])


@lru_cache(maxsize=KEPT_MAX)
def _update(key: _Key) -> Program:
    return expression_programs.compile_update(key.definition, dict(key.what[1:]), key.what[0])[0]


def compile_filter(definition: TableDefinition, where: Expression) -> Program:
    """Compile as `expression_programs.compile_filter` does, with the cache. Raises: the same."""
    try:
        key = _Key(definition, (where,))
    except _TooLarge:
        return expression_programs.compile_filter(definition, where)
    return kept_filter(key)


def compile_aggregates(
    definition: TableDefinition, functions: Sequence[tuple[str, Any]], where: Expression | None = None
) -> Aggregates:
    """Compile as `expression_programs.compile_aggregates` does, with the cache. Raises: the same."""
    try:
        key = _Key(definition, (where, *functions))
    except _TooLarge:
        return expression_programs.compile_aggregates(definition, functions, where)
    return _aggregates(key)


def compile_update(
    definition: TableDefinition, changes: Mapping[str, Any], where: Expression | None = None
) -> tuple[Program, dict[str, Any]]:
    """Compile as `expression_programs.compile_update` does, with the cache; plain values are not part of the program.
    Raises: the same.
    """
    plain = {name: value for name, value in changes.items() if not isinstance(value, Expression)}
    # For a plain change, the program depends only on the column.
    known = [(name, None if name in plain else value) for name, value in changes.items()]
    try:
        key = _Key(definition, (where, *known))
    except _TooLarge:
        return expression_programs.compile_update(definition, changes, where)
    return _update(key), plain
