"""Random predicates, each in the words of DuckDB, polars and pyarrow, and a table of every type to ask them of."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import date, datetime, time
from decimal import Decimal
from operator import eq, ge, gt, le, lt, ne
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

import tidemark as tm
from tests.access import queries
from tests.interpreter.generate import value_of
from tests.store.support import open_memory

COLUMNS = [
    *(replace(each, storage="disk") if each.name == "text" else each for each in queries.COLUMNS),
    tm.Column("clock", tm.Time, nullable=True),
    tm.Column("instant", tm.Timestamp, nullable=True),
    tm.Column("bin", tm.Binary(3), nullable=True),
    tm.Column("blob", tm.Blob, nullable=True),
    tm.Column("kind", tm.Enum("free", "paid", "gone"), nullable=True),
]
INDEXES = ["i32", "i64", "u64", "f64", "large", "day", "instant", "ch", "name", "bin", "kind"]
KINDS = {column.name: column.type for column in COLUMNS}
TEXTS = ["ch", "name", "text"]
OPERATORS = ["=", "<>", "<", "<=", ">", ">="]
ROWS = 1_500
Spans = list[tuple[str, int, int, dict[str, Any]]]
Tree = tuple[Any, ...]


class Stage:
    """A table with indexes, the same rows as a plain Arrow table, and predicates over both."""

    def __init__(self, seed: int, storage: str = "memory") -> None:
        self.r = random.Random(seed)
        self.spans: Spans = []
        self.db = open_memory(
            page_buffer="1 MiB", redo_log="32 MiB", undo_log="16 MiB", tracer=lambda *span: self.spans.append(span)
        )
        self.pools = {column.name: [self._value(column.name) for _ in range(12)] for column in COLUMNS[1:]}
        self.table = self.db.create_table("test.t", COLUMNS, "id")
        self.table.insert_many([(key, *map(self._of_row, COLUMNS[1:])) for key in range(ROWS)])
        for name in INDEXES if storage == "memory" else ():
            self.db.create_index("test.t", f"by_{name}", name)
        self.arrow = self.table.to_arrow()

    def _value(self, name: str) -> Any:
        if name in ("f32", "f64") and self.r.random() < 0.4:
            return self.r.choice([float("nan"), 0.0, -0.0, float("inf"), 1.5])
        return value_of(KINDS[name], self.r)

    def _of_row(self, column: tm.Column) -> Any:
        return None if column.nullable and self.r.random() < 0.2 else self.r.choice(self.pools[column.name])

    def scans(self) -> list[dict[str, Any]]:
        """What the scans since the last call have noted."""
        found = [noted for name, _, _, noted in self.spans if name == "tidemark.scan"]
        self.spans.clear()
        return found

    def _constant(self, name: str) -> Any:
        """A value of a row, another of the type, or one of another type."""
        r = self.r
        if name == "id":
            return r.randint(-5, ROWS + 5)
        value = r.choice(self.pools[name]) if r.random() < 0.7 else self._value(name)
        if r.random() < 0.15:
            if isinstance(value, int) and not isinstance(value, bool):
                return r.choice([value + 0.5, value + 300, value * 2**40, Decimal(value) + Decimal("0.25")])
            if isinstance(value, Decimal):
                return r.choice([int(value), Decimal("0.0000000000001"), 1.5])
            if type(value) is date:
                return datetime(value.year, value.month, value.day, 1)
            if isinstance(value, str) and name != "kind":
                return value + r.choice(["\0", " "])
        return value

    def tree(self, depth: int = 0) -> Tree:
        """A predicate."""
        r = self.r
        if depth == 3 or r.random() < 0.4:
            return self._leaf()
        if r.random() < 0.25:
            return "not", self.tree(depth + 1)
        return r.choice(["and", "and", "or"]), self.tree(depth + 1), self.tree(depth + 1)

    def _leaf(self) -> Tree:
        r = self.r
        name = r.choice(list(KINDS))
        shape = r.choice(["null", "set", "in", "between", "prefix", "compare", "compare", "compare", "columns", "flag"])
        if shape == "flag":
            return "flag", "flag"
        if shape == "columns":
            one, other = r.sample(["i8", "i16", "i32", "u8"], 2)
            return "columns", one, r.choice(OPERATORS), other
        if shape == "prefix":
            name = r.choice(TEXTS)
            return "prefix", name, r.choice(self.pools[name])[: r.randint(1, 3)] or "a"
        if shape == "in":
            values = [self._constant(name) for _ in range(r.randint(1, 4))]
            return "in", name, [each for each in values if type(each) is type(values[0])], r.random() < 0.1
        if shape == "between":
            return "between", name, self._constant(name), self._constant(name)
        if shape in ("null", "set"):
            return shape, name
        return "compare", name, r.choice(OPERATORS), self._constant(name)


def sql(tree: Tree) -> str:
    """A predicate for DuckDB."""
    match tree:
        case "and" | "or", one, other:
            return f"({sql(one)}) {tree[0]} ({sql(other)})"
        case "not", one:
            return f"not ({sql(one)})"
        case "null", name:
            return f'"{name}" is null'
        case "set", name:
            return f'"{name}" is not null'
        case "in", name, values, with_null:
            return f'"{name}" in ({", ".join(map(literal, values))}{", null" if with_null else ""})'
        case "between", name, low, high:
            return f'"{name}" between {literal(low)} and {literal(high)}'
        case "prefix", name, start:
            return f'starts_with("{name}", {literal(start)})'
        case "flag", name:
            return f'"{name}"'
        case "columns", one, operator, other:
            return f'"{one}" {operator} "{other}"'
    _, name, operator, value = tree
    return f'"{name}" {operator} {literal(value)}'


def literal(value: Any) -> str:
    """A constant of DuckDB."""
    match value:
        case bool() | int() | Decimal():
            return format(value, "f") if isinstance(value, Decimal) else str(value)
        case float():
            return f"'{value!r}'::double"
        case str():
            return " || chr(0) || ".join("'" + part.replace("'", "''") + "'" for part in value.split("\0"))
        case bytes():
            return "'" + "".join(f"\\x{octet:02X}" for octet in value) + "'::blob"
        case datetime():
            return f"'{value.isoformat(' ')}'::timestamp{'' if value.tzinfo is None else 'tz'}"
        case date():
            return f"'{value.isoformat()}'::date"
        case time():
            return f"'{value.isoformat()}'::time"
    raise AssertionError(value)


def _compared(one: Any, operator: str, other: Any) -> Any:
    return {"=": eq, "<>": ne, "<": lt, "<=": le, ">": gt, ">=": ge}[operator](one, other)


def for_polars(tree: Tree) -> Any:
    """A predicate for polars."""
    import polars as pl

    match tree:
        case "and", one, other:
            return for_polars(one) & for_polars(other)
        case "or", one, other:
            return for_polars(one) | for_polars(other)
        case "not", one:
            return ~for_polars(one)
        case "null", name:
            return pl.col(name).is_null()
        case "set", name:
            return pl.col(name).is_not_null()
        case "in", name, values, with_null:
            return pl.col(name).is_in([*values, *([None] if with_null else [])])
        case "between", name, low, high:
            return pl.col(name).is_between(low, high, ("both", "left", "right", "none")[len(str(low)) % 4])
        case "prefix", name, start:
            return pl.col(name).str.starts_with(start)
        case "flag", name:
            return pl.col(name)
        case "columns", one, operator, other:
            return _compared(pl.col(one), operator, pl.col(other))
    _, name, operator, value = tree
    column = pl.col(name)
    return _compared(column, operator, value if len(str(value)) % 5 else pl.lit(value))


def for_arrow(tree: Tree) -> Any:
    """A predicate for pyarrow."""
    match tree:
        case "and", one, other:
            return for_arrow(one) & for_arrow(other)
        case "or", one, other:
            return for_arrow(one) | for_arrow(other)
        case "not", one:
            return ~for_arrow(one)
        case "null", name:
            return pc.field(name).is_null(nan_is_null=len(name) == 3)
        case "set", name:
            return pc.field(name).is_valid()
        case "in", name, values, with_null:
            kind = KINDS[name].arrow_type()
            kind = kind.value_type if pa.types.is_dictionary(kind) else kind
            return pc.field(name).isin(pa.array([*values, *([None] if with_null else [])], kind))
        case "between", name, low, high:
            return (pc.field(name) >= low) & (pc.field(name) <= high)
        case "prefix", name, start:
            return pc.starts_with(pc.field(name), start, ignore_case=True)
        case "flag", name:
            return pc.field(name)
        case "columns", one, operator, other:
            return _compared(pc.field(one), operator, pc.field(other))
    _, name, operator, value = tree
    if len(str(value)) % 2:
        return _compared(pc.field(name), operator, value)
    kind = KINDS[name].arrow_type()
    return _compared(
        pc.field(name), operator, pa.scalar(value, kind.value_type if pa.types.is_dictionary(kind) else kind)
    )
