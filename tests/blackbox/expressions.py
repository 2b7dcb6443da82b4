"""Conditions and new values as plain tuples: what the model makes of them, and the expression that the store gets.

A condition is (operation, column, constant ...) or ("and" | "or", one, other) or ("not", one). A new value is a plain
value, or Sum(column, number), which stands for `tm.col(column) + number`.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from tests.blackbox.kinds import Kind, Refused, order

_COMPARED = ("<", "<=", ">", ">=", "==", "!=")


@dataclass(frozen=True)
class Sum:
    """The value of a column and a number, added."""

    column: str
    number: int | float


def names_in(condition: Any) -> set[str]:
    """Return the columns of a condition."""
    if condition is None:
        return set()
    if condition[0] in ("and", "or"):
        return names_in(condition[1]) | names_in(condition[2])
    return names_in(condition[1]) if condition[0] == "not" else {condition[1]}


def constants_in(condition: Any) -> list[tuple[str, Any]]:
    """Return the constants of a condition, each with its column."""
    if condition is None:
        return []
    if condition[0] in ("and", "or", "not"):
        return [each for part in condition[1:] for each in constants_in(part)]
    given = condition[2] if condition[0] == "in" else condition[2:]
    return [(condition[1], each) for each in given]


def accepts(condition: Any, row: Mapping[str, Any]) -> bool:
    """Whether a condition is true of a row."""
    return condition is None or _truth(condition, row) is True


def _truth(condition: Any, row: Mapping[str, Any]) -> bool | None:
    name = condition[0]
    if name == "not":
        inner = _truth(condition[1], row)
        return None if inner is None else not inner
    if name in ("and", "or"):
        both = _truth(condition[1], row), _truth(condition[2], row)
        if name == "and":
            return False if False in both else None if None in both else True
        return True if True in both else None if None in both else False
    value = row[condition[1]]
    if name == "null":
        return value is None
    if name == "not null":
        return value is not None
    if value is None:
        return None
    if name == "in":
        return any(_same(value, each) for each in condition[2])
    if name == "between":
        return bool(_key(condition[2]) <= _key(value) <= _key(condition[3]))
    if name == "starts":
        return bool(value.startswith(condition[2]))
    if name == "like":
        return re.fullmatch(_pattern(condition[2]), value, re.DOTALL) is not None
    if name in ("==", "!="):
        return _same(value, condition[2]) == (name == "==")
    left, right = _key(value), _key(condition[2])
    return bool({"<": left < right, "<=": left <= right, ">": left > right, ">=": left >= right}[name])


def _key(value: Any) -> Any:
    return order(value)[1:]


def _same(left: Any, right: Any) -> bool:
    return bool(_key(left) == _key(right))


def _pattern(text: str) -> str:
    made, escaped = "", False
    for letter in text:
        if escaped or letter not in "\\%_":
            made, escaped = made + re.escape(letter), False
        elif letter == "\\":
            escaped = True
        else:
            made += ".*" if letter == "%" else "."
    return made


def build(condition: Any) -> Any:
    """Return the store's expression."""
    import tidemark as tm

    if condition is None:
        return None
    name = condition[0]
    if name == "not":
        return ~build(condition[1])
    if name == "and":
        return build(condition[1]) & build(condition[2])
    if name == "or":
        return build(condition[1]) | build(condition[2])
    column = tm.col(condition[1])
    if name == "null":
        return column.is_null()
    if name == "not null":
        return column.is_not_null()
    given = condition[2]
    if name == "in":
        return column.isin(list(given))
    if name == "between":
        return column.between(given, condition[3])
    if name == "starts":
        return column.starts_with(given)
    if name == "like":
        return column.like(given)
    compared = {
        "<": column < given,
        "<=": column <= given,
        ">": column > given,
        ">=": column >= given,
        "==": column == given,
        "!=": column != given,
    }
    return compared[name]


def build_changes(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return new values as the store takes them."""
    import tidemark as tm

    return {
        name: tm.col(value.column) + value.number if isinstance(value, Sum) else value
        for name, value in changes.items()
    }


def changed(value: Any, row: Mapping[str, Any], kind: Kind) -> Any:
    """Return a new value over the row as it was. Raises: Refused."""
    if not isinstance(value, Sum):
        return value
    before = row[value.column]
    if before is None:
        return None
    after = before + value.number
    if kind.is_integer:
        least, greatest = kind.bounds()
        if not least <= after <= greatest:
            raise Refused("ValueOutOfRange")
    return after


def draw(rng: random.Random, columns: Mapping[str, Kind], depth: int = 2) -> Any:
    """Return a condition over some of the columns."""
    if depth and rng.random() < 0.35:
        name = rng.choice(("and", "or", "not"))
        one = draw(rng, columns, depth - 1)
        return ("not", one) if name == "not" else (name, one, draw(rng, columns, depth - 1))
    column = rng.choice(sorted(columns))
    kind = columns[column]
    if rng.random() < 0.1:
        return rng.choice(("null", "not null")), column
    value = kind.draw(rng)
    if kind.name in ("Bool", "Enum"):
        return rng.choice(("==", "!=")), column, value
    if kind.is_text and rng.random() < 0.3:
        piece = value[:2].replace("\\", "")
        return ("starts", column, piece) if rng.random() < 0.5 else ("like", column, f"{piece}%")
    if kind.is_bytes and rng.random() < 0.3:
        return "starts", column, value[: rng.randrange(0, 3)]
    if kind.is_integer and rng.random() < 0.15:
        value = rng.choice((2.5, 7.5, 2**70, -(2**70)))
        return rng.choice(_COMPARED), column, value
    if rng.random() < 0.2:
        return "in", column, tuple(kind.draw(rng) for _ in range(rng.randrange(1, 5)))
    if rng.random() < 0.15:
        return "between", column, value, kind.draw(rng)
    return rng.choice(_COMPARED), column, value


def draw_changes(rng: random.Random, columns: Mapping[str, tuple[Kind, bool]]) -> dict[str, Any]:
    """Return new values for one or two columns, given with (type, whether NULL is allowed)."""
    made: dict[str, Any] = {}
    for name in rng.sample(sorted(columns), min(len(columns), rng.randrange(1, 3))):
        kind, nullable = columns[name]
        if (kind.is_integer or kind.name == "Float64") and rng.random() < 0.4:
            made[name] = Sum(name, rng.choice((1, -1, 3, 100)) if kind.is_integer else rng.choice((0.5, -1.25)))
        elif nullable and rng.random() < 0.2:
            made[name] = None
        else:
            made[name] = kind.draw(rng)
    return made


def sql(condition: Any) -> tuple[str, list[Any]]:
    """Return a condition as SQL of SQLite, with its values. Raises: KeyError for what it cannot say alike."""
    name = condition[0]
    if name == "not":
        text, values = sql(condition[1])
        return f"not ({text})", values
    if name in ("and", "or"):
        (one, first), (other, second) = sql(condition[1]), sql(condition[2])
        return f"(({one}) {name} ({other}))", [*first, *second]
    column = f'"{condition[1]}"'
    if name in ("null", "not null"):
        return f"{column} is {name}", []
    if name == "in":
        return f"{column} in ({', '.join('?' * len(condition[2]))})", [plain(each) for each in condition[2]]
    if name == "between":
        return f"{column} between ? and ?", [plain(condition[2]), plain(condition[3])]
    signs = {"==": "=", "!=": "<>", **{each: each for each in ("<", "<=", ">", ">=")}}
    return f"{column} {signs[name]} ?", [plain(condition[2])]


def plain(value: Any) -> Any:
    """Return a value as SQLite keeps it, in the same order. Raises: KeyError if it cannot."""
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, int) and abs(value) >= 2**63 or isinstance(value, Decimal) or value != value:
        raise KeyError(value)
    return value if value is None or isinstance(value, (int, float, str, bytes)) else value.isoformat()
