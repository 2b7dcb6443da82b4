"""Conditions with what they are in plain Python: three-valued, row by row. It shares no code with the store."""

from __future__ import annotations

import operator
import random
from collections.abc import Callable
from typing import Any, NamedTuple

import tidemark as tm

COLUMNS = [
    tm.Column("id", tm.Int64),
    tm.Column("a", tm.Int32, nullable=True),
    tm.Column("b", tm.Int64, nullable=True),
    tm.Column("s", tm.VarChar(8), nullable=True),
    tm.Column("f", tm.Float64, nullable=True),
]
NAMES = tuple(column.name for column in COLUMNS)
WORDS = ["", "a", "ab", "b", "ba", "zz"]
COMPARED: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
Row = dict[str, Any]


class Rule(NamedTuple):
    """A condition, and its value for a row: True, False or None."""

    condition: Any
    of: Callable[[Row], bool | None]


def row_of(rng: random.Random, key: int) -> Row:
    def drawn(value: Any) -> Any:
        return None if rng.random() < 0.2 else value

    return {
        "id": key,
        "a": drawn(rng.randrange(-3, 4)),
        "b": drawn(rng.randrange(-3, 4)),
        "s": drawn(rng.choice(WORDS)),
        "f": drawn(rng.choice([-1.5, 0.0, 0.5, 2.0])),
    }


def rule(rng: random.Random, depth: int = 2) -> Rule:
    """A condition of random operators."""
    kind = rng.choice(["leaf", "not", "and", "or"]) if depth else "leaf"
    if kind == "leaf":
        return _leaf(rng)
    one = rule(rng, depth - 1)
    if kind == "not":
        return Rule(~one.condition, lambda row: _negated(one.of(row)))
    other = rule(rng, depth - 1)
    if kind == "and":
        return Rule(one.condition & other.condition, lambda row: _least(one.of(row), other.of(row)))
    return Rule(
        one.condition | other.condition, lambda row: _negated(_least(_negated(one.of(row)), _negated(other.of(row))))
    )


def _negated(value: bool | None) -> bool | None:
    return None if value is None else not value


def _least(one: bool | None, other: bool | None) -> bool | None:
    """AND: False is less than NULL, and NULL is less than True."""
    return False if False in (one, other) else None if None in (one, other) else True


def _leaf(rng: random.Random) -> Rule:
    kind = rng.choice(["constant", "constant", "sum", "columns", "null", "member", "text", "prefix"])
    name = rng.choice(["a", "b"])
    number = rng.randrange(-3, 4)
    sign = rng.choice(list(COMPARED))
    compare = COMPARED[sign]
    if kind == "null":
        return Rule(tm.col(name).is_null(), lambda row: row[name] is None)
    if kind == "member":
        some = rng.sample(range(-3, 4), 3)
        return Rule(tm.col(name).isin(some), lambda row: None if row[name] is None else row[name] in some)
    if kind == "prefix":
        return Rule(tm.col("s").starts_with("a"), lambda row: None if row["s"] is None else row["s"].startswith("a"))
    if kind == "text":
        word = rng.choice(WORDS)
        return Rule(compare(tm.col("s"), word), lambda row: _of(compare, row["s"], word))
    if kind == "columns":
        return Rule(compare(tm.col("a"), tm.col("b")), lambda row: _of(compare, row["a"], row["b"]))
    if kind == "sum":
        return Rule(
            compare(tm.col("a") + tm.col("b"), number),
            lambda row: _of(compare, None if None in (row["a"], row["b"]) else row["a"] + row["b"], number),
        )
    name = rng.choice(["a", "b", "f"])
    return Rule(compare(tm.col(name), number), lambda row: _of(compare, row[name], number))


def _of(compare: Callable[[Any, Any], Any], one: Any, other: Any) -> bool | None:
    return None if one is None or other is None else bool(compare(one, other))


def broken(rules: dict[str, Rule], row: Row) -> list[str]:
    """The names of the checks that a row breaks, in their order."""
    return [name for name, each in rules.items() if each.of(row) is False]
