"""Facts about single columns that follow from a condition: ranges, values and prefixes, for
`engine/schema/partition_pruning.py` and `engine/queries/index_choice.py`. None in a list of values stands for NULL.

Each fact about a column holds for every row the condition accepts. So any one of several facts may be kept, and
omitting a fact is never wrong.
"""

from __future__ import annotations

from typing import Any

from tidemark.engine.base.decimals import comparable
from tidemark.engine.programs.expressions import (
    NEGATED,
    SWAPPED,
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
from tidemark.engine.schema.partition_pruning import Between, Known


def known_of(node: Expression, negated: bool = False) -> dict[str, Known]:
    """Return, by column name, a fact that holds for every row where the condition (negated: its opposite) is true."""
    if isinstance(node, Not):
        return known_of(node.inner, not negated)
    if isinstance(node, Junction):
        found = [known_of(each, negated) for each in node.operands]
        return _of_all(found) if node.is_and != negated else _of_one(found)
    if isinstance(node, Compare):
        return _compared(node, NEGATED[node.condition] if negated else node.condition)
    if isinstance(node, Member) and isinstance(node.inner, Col) and not negated:
        values = [each.value for each in node.values if isinstance(each, Constant)]
        if len(values) == len(node.values):
            return {node.inner.name: tuple(value for value in values if value is not None)}
    if isinstance(node, NullTest) and isinstance(node.inner, Col):
        return {node.inner.name: Between() if negated else (None,)}
    return {}


def valued_columns(node: Expression) -> list[str]:
    """Return the columns of a condition that is true exactly where each of them has one of its values (`known_of`);
    empty for other conditions.
    """
    names: list[str] = []
    for each in node.operands if isinstance(node, Junction) and node.is_and else (node,):
        is_value = isinstance(each, Member) or (isinstance(each, Compare) and each.condition == "eq")
        known = known_of(each) if is_value else {}
        if len(known) != 1:
            return []
        names += known
    return names if len(set(names)) == len(names) else []


def _of_all(found: list[dict[str, Known]]) -> dict[str, Known]:
    """Return the facts about a row that all of the conditions accept."""
    together: dict[str, Known] = {}
    for each in found:
        for name, known in each.items():
            together[name] = _both(together[name], known) if name in together else known
    return together


def _of_one(found: list[dict[str, Known]]) -> dict[str, Known]:
    """Return the facts about a row that at least one of the conditions accepts."""
    possible = [each for each in found if not is_never(each)]
    if len(possible) < 2:
        return possible[0] if possible else found[-1]
    together: dict[str, Known] = {}
    for name in possible[0]:
        if all(name in each for each in possible):
            values = [each[name] for each in possible]
            if not any(isinstance(each, Between) for each in values):
                together[name] = [value for each in values for value in each]  # type: ignore[union-attr]
    return together


def starts_of(node: Expression) -> dict[str, bytes]:
    """Return, by column name, a prefix that the value has in every row for which the condition is true."""
    if isinstance(node, Junction) and node.is_and:
        longest: dict[str, bytes] = {}
        for each in node.operands:
            for name, start in starts_of(each).items():
                longest[name] = max(longest.get(name, b""), start, key=len)
        return longest
    if isinstance(node, Like) and isinstance(node.inner, Col):
        start = _literal_start(node.pattern)
        return {node.inner.name: start} if start else {}
    return {}


def _literal_start(pattern: bytes) -> bytes:
    """Return the literal prefix of a pattern, up to its first wildcard."""
    start = bytearray()
    octets = iter(pattern)
    for octet in octets:
        if octet in b"%_":
            break
        start.append(next(octets, octet) if octet == ord("\\") else octet)
    return bytes(start)


def is_never(known: dict[str, Known]) -> bool:
    """Whether the facts exclude every row."""
    return any(not isinstance(each, Between) and len(each) == 0 for each in known.values())


def _compared(node: Compare, condition: str) -> dict[str, Known]:
    left, right = node.left, node.right
    if isinstance(left, Constant):
        left, right, condition = right, left, SWAPPED[condition]
    if not isinstance(left, Col) or not isinstance(right, Constant):
        return {}
    value = right.value
    if value is None:
        return {left.name: ()}
    if condition == "eq":
        return {left.name: (value,)}
    if condition in ("lt", "le"):
        return {left.name: Between(upper=value, with_upper=condition == "le")}
    if condition in ("gt", "ge"):
        return {left.name: Between(lower=value, with_lower=condition == "ge")}
    return {}


def _both(one: Known, other: Known) -> Known:
    if isinstance(one, Between) and isinstance(other, Between):
        lower = _closer(one.lower, one.with_lower, other.lower, other.with_lower, is_upper=False)
        upper = _closer(one.upper, one.with_upper, other.upper, other.with_upper, is_upper=True)
        return Between(lower[0], upper[0], lower[1], upper[1])
    if isinstance(one, Between) or isinstance(other, Between):
        return other if isinstance(one, Between) else one
    return min(one, other, key=len)


def _closer(one: Any, with_one: bool, other: Any, with_other: bool, is_upper: bool) -> tuple[Any, bool]:
    """Return the tighter of two bounds; the first if they cannot be compared."""
    if one is None or other is None:
        return (other, with_other) if one is None else (one, with_one)
    first, second = comparable(one), comparable(other)
    try:
        is_other = bool(second < first if is_upper else second > first) or (bool(second == first) and not with_other)
    except (TypeError, ArithmeticError):  # a Decimal next to NaN
        is_other = False
    return (other, with_other) if is_other else (one, with_one)
