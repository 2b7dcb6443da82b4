"""Random conditions, each as an expression and as the SQL that means the same."""

from __future__ import annotations

import random
from decimal import Decimal
from operator import eq, ge, gt, le, lt, ne
from typing import Any

import tidemark as tm
from tests.interpreter.generate import value_of
from tidemark.engine.types import Boolean, Enum

Sql = tuple[str, list[Any]]
Leaf = tuple[Any, Sql]

COLUMNS = [
    tm.Column("id", tm.Int64),
    tm.Column("i8", tm.Int8, nullable=True),
    tm.Column("i16", tm.Int16),
    tm.Column("i32", tm.Int32, nullable=True),
    tm.Column("i64", tm.Int64, nullable=True),
    tm.Column("u8", tm.UInt8),
    tm.Column("u32", tm.UInt32, nullable=True),
    tm.Column("u64", tm.UInt64, nullable=True),
    tm.Column("f32", tm.Float32, nullable=True),
    tm.Column("f64", tm.Float64, nullable=True),
    tm.Column("flag", tm.Bool, nullable=True),
    tm.Column("small", tm.Decimal(9, 2), nullable=True),
    tm.Column("large", tm.Decimal(38, 10), nullable=True),
    tm.Column("day", tm.Date, nullable=True),
    tm.Column("moment", tm.DateTime, nullable=True),
    tm.Column("ch", tm.Char(7), nullable=True),
    tm.Column("name", tm.VarChar(12), nullable=True),
    tm.Column("text", tm.Text, nullable=True),
    tm.Column("octets", tm.VarBinary(20), nullable=True),
]
NUMBERS = ["i8", "i16", "i32", "i64", "u8", "u32", "f64"]
TEXTS = ["ch", "name", "text"]
KIND = {column.name: column.type for column in COLUMNS}
OPERATORS = ["==", "!=", "<", "<=", ">", ">="]


def row_of(r: random.Random, key: int) -> tuple[Any, ...]:
    """A row, often with extreme values; floats without NaN, which SQLite takes for NULL."""
    values = [key]
    for column in COLUMNS[1:]:
        value = value_of(column.type, r)
        while value != value:
            value = value_of(column.type, r)
        if column.name in ("large", "small") and r.random() < 0.5:
            value = Decimal(r.randint(-500, 500)).scaleb(-2)
        elif column.name in NUMBERS and r.random() < 0.5:
            value = type(value)(r.randint(0, 12))
        values.append(None if column.nullable and r.random() < 0.2 else value)
    return tuple(values)


def _compare(expression: Any, operator: str, other: Any) -> Any:
    return {"==": eq, "!=": ne, "<": lt, "<=": le, ">": gt, ">=": ge}[operator](expression, other)


def _pattern(r: random.Random) -> str:
    return "".join(r.choice(["a", "b", "%", "_", "\\%", "\\_", "ü", "A"]) for _ in range(r.randint(0, 5)))


class Maker:
    """Makes conditions over the columns that a database can compare."""

    def __init__(
        self, r: random.Random, rows: list[tuple[Any, ...]], names: list[str], kinds: dict[str, Any] = KIND
    ) -> None:
        self.r = r
        self.rows = rows
        self.names = names
        self.kinds = kinds

    def value(self, name: str) -> Any:
        """A value that some row has, or any other."""
        place = list(self.kinds).index(name)
        value = self.r.choice(self.rows)[place]
        while value is None or value != value:
            value = value_of(self.kinds[name], self.r)
        return value

    def leaf(self) -> Leaf:
        """A comparison, a range, a list, a pattern, a test for NULL, or arithmetic."""
        r = self.r
        name = r.choice(self.names)
        column = tm.col(name)
        shape = r.randint(0, 9)
        if shape == 0:
            return column.is_null(), (f"{name} is null", [])
        if shape == 1:
            return column.is_not_null(), (f"{name} is not null", [])
        has_order = not isinstance(self.kinds[name], (Boolean, Enum))
        if shape == 2 and has_order:
            low, high = self.value(name), self.value(name)
            return column.between(low, high), (
                f"{name} between ? and ?",
                [self.bound(name, low), self.bound(name, high)],
            )
        if shape == 3:
            values = [self.value(name) for _ in range(r.randint(1, 4))]
            marks = ", ".join("?" * len(values))
            return column.isin(values), (f"{name} in ({marks})", [self.bound(name, each) for each in values])
        texts = [each for each in TEXTS if each in self.names]
        if shape in (4, 5) and texts:
            name, pattern = r.choice(texts), _pattern(r)
            return tm.col(name).like(pattern), (f"{name} like ? escape '\\'", [pattern])
        numbers = [each for each in ("i8", "i16", "i32", "u8") if each in self.names]
        if shape == 6 and numbers:
            one, other = r.choice(numbers), r.choice(numbers)
            factor, operator, least = r.randint(-3, 3), r.choice(OPERATORS), r.randint(-20, 20)
            expression = _compare(tm.col(one) * factor + tm.col(other), operator, least)
            sql = f"cast({one} as bigint) * {factor} + cast({other} as bigint) {_sql(operator)} {least}"
            return expression, (sql, [])
        if shape == 7 and len(numbers) > 1:
            one, other, operator = r.choice(numbers), r.choice(numbers), r.choice(OPERATORS)
            return _compare(tm.col(one), operator, tm.col(other)), (f"{one} {_sql(operator)} {other}", [])
        value, operator = self.value(name), r.choice(OPERATORS)
        if not has_order:
            operator = r.choice(OPERATORS[:2])
        return _compare(column, operator, value), (f"{name} {_sql(operator)} ?", [self.bound(name, value)])

    def bound(self, name: str, value: Any) -> Any:
        """A parameter of SQL."""
        return value

    def condition(self, depth: int = 0) -> Leaf:
        """Leaves joined."""
        if depth == 3 or self.r.random() < 0.35:
            return self.leaf()
        one, (sql, values) = self.condition(depth + 1)
        if self.r.random() < 0.25:
            return ~one, (f"not ({sql})", values)
        other, (more, others) = self.condition(depth + 1)
        if self.r.random() < 0.5:
            return one & other, (f"({sql}) and ({more})", values + others)
        return one | other, (f"({sql}) or ({more})", values + others)


def _sql(operator: str) -> str:
    return {"==": "=", "!=": "<>"}.get(operator, operator)
