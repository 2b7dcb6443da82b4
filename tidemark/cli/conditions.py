"""Conditions of --where and keys of --key: a small part of SQL, read into expressions over the columns of a table.

    stock > 5 and (name like 'p%' or name in ('cup', 'bag')) and not note is null

Nothing is evaluated. Names are those of columns, in double quotes if they are no plain words; texts are in single
quotes. A literal takes the type of the column beside it: dates and times are in ISO 8601, bytes in hexadecimal.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal, InvalidOperation
from functools import partial, reduce
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from tidemark.engine.base.errors import Rejected
from tidemark.engine.programs.expressions import Col, Compare, Constant, Expression, Not, joined
from tidemark.engine.types.base import shown

if TYPE_CHECKING:
    from tidemark.engine.schema.column import Column
    from tidemark.engine.schema.definition import TableDefinition

NESTING_MAX = 50
CHARACTERS_MAX = 1 << 20
_TOKEN = re.compile(
    r"""\s*(?:
    (?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)
    | (?P<word>[^\W\d]\w*)
    | (?P<name>"(?:[^"]|"")+")
    | (?P<text>'(?:[^']|'')*')
    | (?P<sign><=|>=|<>|!=|==|[=<>(),+-])
    | (?P<end>$))""",
    re.VERBOSE,
)
_COMPARED = {"=": "eq", "==": "eq", "<>": "ne", "!=": "ne", "<": "lt", "<=": "le", ">": "gt", ">=": "ge"}
_SWAPPED = {"eq": "eq", "ne": "ne", "lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}
_WORDS = frozenset({"and", "or", "not", "is", "null", "in", "like", "between", "true", "false"})


class _Token(NamedTuple):
    kind: str
    text: str
    at: int


class _Literal(NamedTuple):
    """A constant, whose value depends on the column that it is compared with. kind: number, text, word."""

    kind: str
    text: str
    at: int


_Operand = Col | _Literal


def _tokens(text: str) -> list[_Token]:
    found: list[_Token] = []
    at = 0
    while not found or found[-1].kind != "end":
        match = _TOKEN.match(text, at)
        if match is None:
            at += len(text[at:]) - len(text[at:].lstrip())
            what = "the quote is not closed" if text[at] in "'\"" else f"{text[at]!r} has no meaning here"
            raise _wrong(at, what)
        kind = str(match.lastgroup)
        part, begin = match[kind], match.start(kind)
        if kind in ("name", "text"):
            part = part[1:-1].replace(part[0] * 2, part[0])
        elif kind == "word" and part.lower() in _WORDS:
            kind, part = "keyword", part.lower()
        found.append(_Token(kind, part, begin))
        at = match.end()
    return found


def _wrong(at: int, what: str) -> click.UsageError:
    return click.UsageError(f"--where, character {at + 1}: {what}")


class _Parser:
    """Reads one condition by recursive descent."""

    def __init__(self, definition: TableDefinition, text: str) -> None:
        self._definition = definition
        self._tokens = _tokens(text)
        self._next = 0
        self._depth = 0

    def condition(self) -> Expression:
        found = self._any()
        if self._token.kind != "end":
            raise self._unexpected("and, or, or the end")
        return found

    # --- tokens ----------------------------------------------------------------------------------
    @property
    def _token(self) -> _Token:
        return self._tokens[self._next]

    def _take(self, *texts: str) -> str | None:
        """Return the next keyword or sign, and go past it, if it is one of these."""
        token = self._token
        if token.kind in ("keyword", "sign") and token.text in texts:
            self._next += 1
            return token.text
        return None

    def _need(self, text: str) -> None:
        if self._take(text) is None:
            raise self._unexpected(text)

    def _unexpected(self, wanted: str) -> click.UsageError:
        token = self._token
        found = "the condition ends" if token.kind == "end" else f"got {token.text!r}"
        return _wrong(token.at, f"needs {wanted}, {found}")

    # --- conditions ------------------------------------------------------------------------------
    def _any(self) -> Expression:
        found = self._all()
        while self._take("or"):
            found = joined(False, found, self._all())
        return found

    def _all(self) -> Expression:
        found = self._one()
        while self._take("and"):
            found = joined(True, found, self._one())
        return found

    def _one(self) -> Expression:
        self._depth += 1
        if self._depth > NESTING_MAX:
            raise _wrong(self._token.at, f"it nests deeper than {NESTING_MAX}")
        if self._take("not"):
            found: Expression = Not(self._one())
        elif self._take("("):
            found = self._any()
            self._need(")")
        else:
            found = self._test()
        self._depth -= 1
        return found

    def _test(self) -> Expression:
        at = self._token.at
        left = self._operand()
        sign = self._take(*_COMPARED)
        if sign is not None:
            return self._compared(_COMPARED[sign], left, self._operand())
        if not isinstance(left, Col):
            raise _wrong(at, "a condition begins with a column, or compares with one")
        column = self._column(left.name)
        if self._take("is"):
            is_not = self._take("not")
            self._need("null")
            return left.is_not_null() if is_not else left.is_null()
        is_not = self._take("not")
        if self._take("in"):
            found: Expression = left.isin(self._values(column))
        elif self._take("like"):
            found = left.like(_value(column, self._literal()))
        elif self._take("between"):
            low = _value(column, self._literal())
            self._need("and")
            found = left.between(low, _value(column, self._literal()))
        elif column.type.python is bool and not is_not:
            return left
        else:
            raise self._unexpected("a comparison, is null, in, like or between")
        return Not(found) if is_not else found

    def _compared(self, how: str, left: _Operand, right: _Operand) -> Expression:
        if isinstance(left, Col) and isinstance(right, Col):
            return Compare(how, left, right)
        if isinstance(left, Col) and isinstance(right, _Literal):
            return Compare(how, left, Constant(_value(self._column(left.name), right)))
        if isinstance(right, Col) and isinstance(left, _Literal):
            return Compare(_SWAPPED[how], right, Constant(_value(self._column(right.name), left)))
        raise _wrong(left.at if isinstance(left, _Literal) else 0, "a condition compares with a column")

    def _values(self, column: Column) -> list[Any]:
        self._need("(")
        found = [_value(column, self._literal())]
        while self._take(","):
            found.append(_value(column, self._literal()))
        self._need(")")
        return found

    # --- operands --------------------------------------------------------------------------------
    def _operand(self) -> _Operand:
        token = self._token
        if token.kind in ("word", "name"):
            self._next += 1
            self._column(token.text)
            return Col(token.text)
        return self._literal()

    def _column(self, name: str) -> Column:
        return self._definition.found(name)[1]

    def _literal(self) -> _Literal:
        token = self._token
        sign = self._take("-", "+")
        kind, text, _ = self._token
        if kind == "number":
            self._next += 1
            return _Literal("number", f"-{text}" if sign == "-" else text, token.at)
        if kind == "text" and sign is None:
            self._next += 1
            return _Literal("text", text, token.at)
        word = None if sign else self._take("true", "false", "null")
        if word == "null":
            raise _wrong(token.at, "no value equals NULL; write `is null` or `is not null`")
        if word is not None:
            return _Literal("word", word, token.at)
        raise self._unexpected("a number or a text in single quotes" if sign is None else "a number")


# --- values ---------------------------------------------------------------------------------------
def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


_READ: dict[type, tuple[Callable[[str], Any], str]] = {
    int: (lambda text: int(text) if re.fullmatch(r"[+-]?\d+", text) else Decimal(text), "a number"),
    float: (float, "a number"),
    Decimal: (Decimal, "a number"),
    str: (str, "a text"),
    bytes: (bytes.fromhex, "bytes in hexadecimal"),
    bool: (lambda text: {"true": True, "false": False}[text.lower()], "true or false"),
    date: (date.fromisoformat, "a date such as '2026-11-21'"),
    time: (time.fromisoformat, "a time such as '22:05:00'"),
    datetime: (_moment, "a date and time such as '2026-11-21 22:05:00'"),
    uuid.UUID: (uuid.UUID, "a UUID"),
    object: (json.loads, "a JSON document"),
}


def read_value(column: Column, text: str) -> Any:
    """Return the value of a column that a text stands for. Raises: ValueError with what the column takes."""
    read, wanted = _READ[column.type.python]
    try:
        value = read(text)
        if isinstance(value, datetime):
            try:
                column.type.stored(value)
            except Rejected:  # a point in time without a zone is of UTC, as it is shown
                value = value.replace(tzinfo=UTC) if value.tzinfo is None else value
        return value
    except (ValueError, KeyError, InvalidOperation, RecursionError):
        raise ValueError(f"column {column.name} is {column.type!r} and takes {wanted}, got {shown(text)}") from None


def _value(column: Column, literal: _Literal) -> Any:
    is_text = literal.kind == "text"
    if column.type.python is str and not is_text:
        raise _wrong(literal.at, f"column {column.name} is {column.type!r}; put {literal.text} into single quotes")
    try:
        return read_value(column, literal.text)
    except ValueError as error:
        raise _wrong(literal.at, str(error)) from None


def condition_of(definition: TableDefinition, where: str | None, key: Sequence[str] = ()) -> Expression | None:
    """Return the condition of --where and --key; None without either.

    Raises: UsageError with the character for a condition that cannot be read, and for a key with another number of
    values; NoSuchColumn.
    """
    found: list[Expression] = []
    if key:
        names = definition.primary_key
        if len(key) != len(names):
            raise click.UsageError(
                f"--key is given once for each column of the primary key ({', '.join(names)}), got {len(key)}"
            )
        for name, text in zip(names, key, strict=True):
            try:
                found.append(Compare("eq", Col(name), Constant(read_value(definition.found(name)[1], text))))
            except ValueError as error:
                raise click.UsageError(f"--key: {error}") from None
    if where is not None:
        if len(where) > CHARACTERS_MAX:
            raise click.UsageError(f"--where has {len(where):,} characters, more than {CHARACTERS_MAX:,}")
        found.append(_Parser(definition, where).condition())
    return reduce(partial(joined, True), found) if found else None
