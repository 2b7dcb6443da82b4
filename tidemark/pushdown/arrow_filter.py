"""Filters of pyarrow as conditions of Tidemark.

pyarrow shows the parts of an expression in one documented form: a Substrait message (`Expression.to_substrait`), which
is protobuf. The few messages that a filter is made of are read here; every other part is left out. Numbers of fields
are those of Substrait's `algebra.proto` and `extended_expression.proto`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from tidemark.engine.base.decimals import scaled
from tidemark.engine.base.errors import Rejected
from tidemark.engine.programs.expressions import Col, Compare, Constant, Expression, Member, Not, NullTest, joined
from tidemark.pushdown.necessary import NESTING_MAX, UNKNOWN

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc

_COMPARED = {"equal": "eq", "not_equal": "ne", "lt": "lt", "lte": "le", "gt": "gt", "gte": "ge"}
_SWAPPED = {"eq": "eq", "ne": "ne", "lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}
_EPOCH = datetime(1970, 1, 1)
# Expression, ExtendedExpression and the messages in them.
_LITERAL, _SELECTION, _FUNCTION, _IF_THEN, _SINGULAR_OR_LIST = 1, 2, 3, 6, 8
_VARINT, _FIXED64, _SIZED, _FIXED32 = 0, 1, 2, 5


class _Message:
    """One protobuf message: its fields by number, numbers as they are and all others as bytes."""

    def __init__(self, octets: bytes) -> None:
        self._fields: dict[int, list[Any]] = {}
        for number, value in _fields_of(octets):
            self._fields.setdefault(number, []).append(value)

    def __contains__(self, number: int) -> bool:
        return number in self._fields

    def value(self, number: int, default: Any = 0) -> Any:
        return self._fields.get(number, [default])[-1]

    def inner(self, *path: int) -> _Message:
        """Return the message at the end of a path of fields, empty if there is none."""
        found = self
        for number in path:
            found = _Message(found.value(number, b""))
        return found

    def all(self, number: int) -> list[_Message]:
        return [_Message(each) for each in self._fields.get(number, [])]


def _fields_of(octets: bytes) -> Iterator[tuple[int, Any]]:
    place = 0
    while place < len(octets):
        key, place = _varint(octets, place)
        wire = key & 7
        if wire == _VARINT:
            value, place = _varint(octets, place)
            yield key >> 3, value - (1 << 64) if value >= 1 << 63 else value
            continue
        size = {_FIXED64: 8, _FIXED32: 4}.get(wire, 0)
        if wire == _SIZED:
            size, place = _varint(octets, place)
        yield key >> 3, octets[place : place + size]
        place += size


def _varint(octets: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while octets[place] >= 0x80:
        value |= (octets[place] & 0x7F) << shift
        shift += 7
        place += 1
    return value | octets[place] << shift, place + 1


def condition_of(filter: pc.Expression, schema: pa.Schema) -> tuple[Expression, list[str]]:
    """Return a filter over columns of a schema as a condition, with Unknown for each part that is not translated, and
    the columns that the filter reads.
    """
    import pyarrow as pa

    try:
        message = _Message(bytes(filter.to_substrait(_plain(schema))))
    except pa.ArrowException:  # it has parts that Substrait lacks
        return UNKNOWN, schema.names
    reader = _Reader(message, schema.names)
    try:
        return reader.condition(message.inner(3, 1), 0), list(reader.read)
    except Rejected:  # more parts than a condition may have
        return UNKNOWN, schema.names


def _plain(schema: pa.Schema) -> pa.Schema:
    """Return the schema with types that Substrait has. For others pyarrow adds casts, which it does not write."""
    import pyarrow as pa

    kinds = []
    for kind in schema.types:
        if pa.types.is_dictionary(kind) or pa.types.is_large_string(kind):
            kind = pa.string()
        elif pa.types.is_fixed_size_binary(kind) or pa.types.is_large_binary(kind):
            kind = pa.binary()
        kinds.append(kind)
    return pa.schema(list(zip(schema.names, kinds, strict=True)))


class _Reader:
    """Reads the expressions of one message; `read` has the columns found."""

    def __init__(self, message: _Message, names: list[str]) -> None:
        self._names = names
        functions = [each.inner(3) for each in message.all(2)]
        self._functions = {each.value(2): each.value(3, b"").decode().partition(":")[0] for each in functions}
        self.read: dict[str, None] = {}

    def condition(self, node: _Message, depth: int) -> Expression:
        if depth > NESTING_MAX:
            self.read = dict.fromkeys(self._names)
            return UNKNOWN
        if _IF_THEN in node:
            return self._if_then(node.inner(_IF_THEN), depth + 1)
        if _SINGULAR_OR_LIST in node:
            return self._member(node.inner(_SINGULAR_OR_LIST), depth + 1)
        if _FUNCTION in node:
            return self._function(node.inner(_FUNCTION), depth + 1)
        found = self._operand(node, depth)
        return found if isinstance(found, Col) else UNKNOWN

    def _function(self, node: _Message, depth: int) -> Expression:
        name = self._functions.get(node.value(1), "")
        arguments = [each.inner(3) for each in node.all(4)]
        if name in ("and", "or", "not"):
            found = [self.condition(each, depth) for each in arguments]
            return Not(found[0]) if name == "not" else joined(name == "and", *found)
        operands = [self._operand(each, depth) for each in arguments]
        if name in ("is_null", "is_not_null") and isinstance(operands[0], Col):
            return NullTest(operands[0]) if name == "is_null" else Not(NullTest(operands[0]))
        if name in _COMPARED:
            one, other = operands
            if isinstance(one, Col) and isinstance(other, Constant):
                return Compare(_COMPARED[name], one, other)
            if isinstance(one, Constant) and isinstance(other, Col):
                return Compare(_SWAPPED[_COMPARED[name]], other, one)
        return UNKNOWN

    def _if_then(self, node: _Message, depth: int) -> Expression:
        """Return `if a then b else NULL` as b: it is true or false only where b is."""
        clauses = node.all(1)
        found = [(self.condition(each.inner(1), depth), self.condition(each.inner(2), depth)) for each in clauses]
        otherwise = node.inner(2)
        if len(found) == 1 and 29 in otherwise.inner(_LITERAL):
            return found[0][1]
        self.condition(otherwise, depth)
        return UNKNOWN

    def _member(self, node: _Message, depth: int) -> Expression:
        value = self._operand(node.inner(1), depth)
        options = tuple(self._operand(each, depth) for each in node.all(2))
        is_known = isinstance(value, Col) and all(isinstance(each, Constant) for each in options)
        return Member(value, options) if is_known else UNKNOWN

    def _operand(self, node: _Message, depth: int) -> Expression:
        """Return a column or a constant. For any other expression note its columns and return UNKNOWN."""
        if _SELECTION in node:
            field = node.inner(_SELECTION, 1, 2)
            name = self._names[field.value(1)]
            self.read[name] = None
            return Col(name) if 2 not in field else UNKNOWN
        if _LITERAL in node:
            return _constant(node.inner(_LITERAL))
        if not any(number in node for number in (_FUNCTION, _IF_THEN, _SINGULAR_OR_LIST)):
            self.read = dict.fromkeys(self._names)  # a cast, or an expression unknown here, with columns in it
            return UNKNOWN
        self.condition(node, depth)
        return UNKNOWN


def _moment(microseconds: int) -> datetime:
    return _EPOCH + timedelta(microseconds=microseconds)


def _decimal(octets: bytes) -> Decimal:
    message = _Message(octets)
    number = int.from_bytes(message.value(1, b""), "little", signed=True)
    return scaled(number, message.value(3))


def _of_extension(octets: bytes) -> Any:
    """Return an unsigned number that pyarrow wrote as an extension; None for other extensions, such as long text."""
    message = _Message(octets).inner(2)
    if message.value(1, b"").endswith(b".UInt64Value"):
        return message.inner(2).value(1) & (1 << 64) - 1
    return None


_VALUES: dict[int, Callable[[Any], Any]] = {
    1: bool,
    **dict.fromkeys((2, 3, 5, 7), int),
    10: lambda octets: struct.unpack("<f", octets)[0],
    11: lambda octets: struct.unpack("<d", octets)[0],
    12: bytes.decode,
    13: bytes,
    14: _moment,
    16: lambda days: date(1970, 1, 1) + timedelta(days=days),
    17: lambda microseconds: (_EPOCH + timedelta(microseconds=microseconds)).time(),
    24: _decimal,
    27: lambda microseconds: _moment(microseconds).replace(tzinfo=UTC),
    33: _of_extension,
}


def _constant(literal: _Message) -> Expression:
    for number, read in _VALUES.items():
        if number in literal:
            try:
                value = read(literal.value(number))
            except OverflowError:  # a date or time that Python cannot represent
                return UNKNOWN
            return UNKNOWN if value is None else Constant(value)
    return Constant(None) if 29 in literal else UNKNOWN
