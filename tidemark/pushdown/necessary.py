"""Conditions of other engines, weakened until they are true for every row that the other engine accepts.

The other engine checks each row found again, by its own rules. So a condition here may accept too many rows, never too
few: a part whose result may differ for NULL, NaN or padding is left out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, reduce
from typing import TYPE_CHECKING, Any, NamedTuple

from tidemark.engine import types as t
from tidemark.engine.base.errors import Rejected
from tidemark.engine.programs.expressions import (
    NEGATED,
    Col,
    Compare,
    Constant,
    Expression,
    Junction,
    Like,
    Member,
    Not,
    NullTest,
    joined,
)
from tidemark.engine.queries.conditions import Condition

if TYPE_CHECKING:
    from tidemark.engine.schema.definition import TableDefinition
    from tidemark.engine.types import ColumnType

NESTING_MAX = 100  # of a condition that is read by recursion; the parts below are left out
Found = Expression | None  # None: every row


@dataclass(frozen=True, eq=False, repr=False)
class Unknown(Expression):
    """A condition that has no translation."""


UNKNOWN = Unknown()


class Likeness(NamedTuple):
    """Where every engine compares values of a class of column types in the same way: `has_alike(kind, value)` for which
    constants, and `not_negated` which conditions are not the opposite of their negation.
    """

    has_alike: Callable[[Any, Any], bool] = lambda kind, value: True
    not_negated: tuple[str, ...] = ()


_EVERYWHERE = Likeness()
LIKENESSES: dict[type[ColumnType], Likeness] = {
    t.Integer: _EVERYWHERE,
    t.Boolean: _EVERYWHERE,
    # For pyarrow no comparison with NaN is true, so each negated one is; here NaN is above every number. For pyarrow
    # 0.0 is not in a list with -0.0.
    t.Floating: Likeness(not_negated=("gt", "ge", "in")),
    t.Decimal: _EVERYWHERE,
    t.Enum: _EVERYWHERE,
    t.Char: _EVERYWHERE,
    t.VarChar: _EVERYWHERE,
    t.LongText: _EVERYWHERE,
    # Zero bytes at the end do not count here.
    t.Binary: Likeness(lambda kind, value: len(value) == kind.length),
    t.VarBinary: _EVERYWHERE,
    t.LongBinary: _EVERYWHERE,
    t.Uuid: _EVERYWHERE,
    # Others compare the text, here a text is a document.
    t.Document: Likeness(lambda kind, value: False),
    t.CalendarDate: _EVERYWHERE,
    t.TimeOfDay: _EVERYWHERE,
    t.LocalDateTime: _EVERYWHERE,
    t.Instant: _EVERYWHERE,
}


def necessary(node: Expression, definition: TableDefinition) -> Found:
    """Return a condition for a scan that is true wherever `node` is true for the other engine; None: every row."""
    try:
        found = _weakened(node, False, definition)
        if found is not None:
            Condition(definition, found)
        return found
    except Rejected:  # too many parts for one program
        return None


def _weakened(node: Expression, negated: bool, definition: TableDefinition) -> Found:
    if isinstance(node, Not):
        return _weakened(node.inner, not negated, definition)
    if not isinstance(node, Junction):
        return _compiled(_leaf(node, negated, definition), definition)
    is_and = node.is_and != negated
    found = [_weakened(each, negated, definition) for each in node.operands]
    known = [each for each in found if each is not None]
    if not known or (not is_and and len(known) < len(found)):
        return None
    return reduce(partial(joined, is_and), known)


def _compiled(leaf: Found, definition: TableDefinition) -> Found:
    """Return a condition; None if the table rejects it, as for a value out of range or a type without an order."""
    if leaf is not None:
        try:
            Condition(definition, leaf)
        except Rejected:
            return None
    return leaf


def _leaf(node: Expression, negated: bool, definition: TableDefinition) -> Found:
    if isinstance(node, Col):
        return Not(node) if negated else node
    inner = node.left if isinstance(node, Compare) else getattr(node, "inner", None)
    if not isinstance(inner, Col):
        return None
    kind = next((each.type for each in definition.columns if each.name == inner.name), None)
    if kind is None:
        return None
    if isinstance(node, NullTest):
        return Not(node) if negated else node
    if isinstance(node, Compare):
        return _compare(node, kind, negated)
    if isinstance(node, Member):
        return _member(node, kind, negated)
    return node if isinstance(node, Like) and not negated else None


def _compare(node: Compare, kind: ColumnType, negated: bool) -> Found:
    if not isinstance(node.right, Constant) or not _is_alike(kind, node.right.value):
        return None
    if negated and node.condition in LIKENESSES[type(kind)].not_negated:
        return None
    return Compare(NEGATED[node.condition], node.left, node.right) if negated else node


def _member(node: Member, kind: ColumnType, negated: bool) -> Found:
    values = [each.value for each in node.values if isinstance(each, Constant)]
    known = [value for value in values if value is not None]
    if len(values) < len(node.values) or not all(_is_alike(kind, value) for value in known):
        return None
    if negated and "in" in LIKENESSES[type(kind)].not_negated:
        return None
    found = Member(node.inner, tuple(map(Constant, known)))
    # Engines differ on whether NULL is in a list, and on `not in` for NULL.
    if negated:
        return joined(False, Not(found), NullTest(node.inner))
    return found if len(known) == len(values) else joined(False, found, NullTest(node.inner))


def _is_alike(kind: ColumnType, value: Any) -> bool:
    """Whether every engine compares the column with this value in the same way."""
    return value is not None and value == value and LIKENESSES[type(kind)].has_alike(kind, value)
