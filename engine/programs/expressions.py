"""Expressions over columns: `col("balance") > 2` builds a tree; nothing is evaluated here.

The contract is in docs/internals/access.md, section 3.
`engine/programs/expression_compiler.py` compiles trees to programs. Every class is immutable; `==` builds a tree, so
expressions cannot be compared or hashed. The number of parts of an expression and its depth are limited when it is
built, so that code that walks it may recurse. Conditions joined by & alone, or by | alone, are one level, however many
there are.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any, NoReturn, Self, cast

from tidemark.engine.base.errors import ProgramInvalid, TypeMismatch, ValueOutOfRange
from tidemark.engine.programs.patterns import check_length
from tidemark.engine.programs.program_layout import PROGRAM_INSTRUCTIONS_MAX
from tidemark.engine.types.base import plain, shown

# A comparison, three parts, takes at least one instruction; so does each part of arithmetic.
PARTS_MAX = 4 * PROGRAM_INSTRUCTIONS_MAX
# Compilation takes two Python calls per level; half of the recursion limit is left to the caller.
DEPTH_MAX = 200
CONDITIONS = ("eq", "ne", "lt", "le", "gt", "ge")
_SIGNS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
SWAPPED = {"eq": "eq", "ne": "ne", "lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}
NEGATED = {"eq": "ne", "ne": "eq", "lt": "ge", "le": "gt", "gt": "le", "ge": "lt"}


class Expression:
    """Base of all expressions, which start with `col()`.

    Operators build larger ones: + - * / // %, comparisons, and & | ~ of conditions, which need parentheses around
    comparisons. Nothing is evaluated before a call takes the expression.

    Every operator and method raises ProgramInvalid if the expression has too many parts or nests too deeply, and
    TypeMismatch for a plain value next to & or |. The truth value of an expression raises TypeMismatch, and so do
    `and`, `or`, `not` and chained comparisons, which take it.

    Examples:
        >>> stock = tm.col("stock")
        >>> condition = (stock > 4) & ~tm.col("name").starts_with("p")
        >>> [row.name for row in db["item"].scan(where=condition)]
        ['cup']
        >>> db["item"].update_where({"stock": stock * 2 + 1}, where=stock < 5)
        1
    """

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]
    parts = 1  # nodes of the tree; a node that occurs in several places counts in each
    depth = 1

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), tuple(getattr(self, field.name) for field in fields(self))  # type: ignore[arg-type]

    def __repr__(self) -> str:
        """Return the Python that makes it, built without recursion."""
        written: list[str] = []
        ahead: list[Any] = [self]
        while ahead:
            each = ahead.pop()
            if isinstance(each, Expression):
                ahead += reversed(_shown_parts(each))
            else:
                written.append(each)
        text = "".join(written)
        return text[1:-1] if isinstance(self, (Arithmetic, Compare, Junction, Not)) else text

    def __bool__(self) -> bool:
        raise TypeMismatch(
            "an expression has no truth value; use &, | and ~ instead of and, or and not, and put comparisons into"
            " parentheses"
        )

    def __eq__(self, other: object) -> Compare:  # type: ignore[override]
        return _compare("eq", self, other if isinstance(other, Expression) else operand(other))

    def __ne__(self, other: object) -> Compare:  # type: ignore[override]
        return _compare("ne", self, other if isinstance(other, Expression) else operand(other))

    def __lt__(self, other: object) -> Compare:
        return _compare("lt", self, other if isinstance(other, Expression) else operand(other))

    def __le__(self, other: object) -> Compare:
        return _compare("le", self, other if isinstance(other, Expression) else operand(other))

    def __gt__(self, other: object) -> Compare:
        return _compare("gt", self, other if isinstance(other, Expression) else operand(other))

    def __ge__(self, other: object) -> Compare:
        return _compare("ge", self, other if isinstance(other, Expression) else operand(other))

    def __add__(self, other: object) -> Arithmetic:
        return _arithmetic("+", self, other if isinstance(other, Expression) else _constant(other))

    def __radd__(self, other: object) -> Arithmetic:
        return _arithmetic("+", _constant(other), self)

    def __sub__(self, other: object) -> Arithmetic:
        return _arithmetic("-", self, other if isinstance(other, Expression) else _constant(other))

    def __rsub__(self, other: object) -> Arithmetic:
        return _arithmetic("-", _constant(other), self)

    def __mul__(self, other: object) -> Arithmetic:
        return _arithmetic("*", self, other if isinstance(other, Expression) else _constant(other))

    def __rmul__(self, other: object) -> Arithmetic:
        return _arithmetic("*", _constant(other), self)

    def __truediv__(self, other: object) -> Arithmetic:
        return _arithmetic("/", self, other if isinstance(other, Expression) else _constant(other))

    def __rtruediv__(self, other: object) -> Arithmetic:
        return _arithmetic("/", _constant(other), self)

    def __floordiv__(self, other: object) -> Arithmetic:
        return _arithmetic("//", self, other if isinstance(other, Expression) else _constant(other))

    def __rfloordiv__(self, other: object) -> Arithmetic:
        return _arithmetic("//", _constant(other), self)

    def __mod__(self, other: object) -> Arithmetic:
        return _arithmetic("%", self, other if isinstance(other, Expression) else _constant(other))

    def __rmod__(self, other: object) -> Arithmetic:
        return _arithmetic("%", _constant(other), self)

    def __neg__(self) -> Arithmetic:
        return _arithmetic("-", _constant(0), self)

    def __and__(self, other: object) -> Junction:
        return joined(True, self, condition(other))

    def __rand__(self, other: object) -> Junction:
        return joined(True, condition(other), self)

    def __or__(self, other: object) -> Junction:
        return joined(False, self, condition(other))

    def __ror__(self, other: object) -> Junction:
        return joined(False, condition(other), self)

    def __invert__(self) -> Not:
        return Not(self)

    def is_null(self) -> NullTest:
        """Return a condition that is true where this expression is NULL.

        Examples:
            >>> db["item"].scan(where=tm.col("stock").is_null()).count()
            0
        """
        return NullTest(self)

    def is_not_null(self) -> Not:
        """Return a condition that is true where this expression is not NULL.

        Examples:
            >>> db["item"].scan(where=tm.col("stock").is_not_null()).count()
            3
        """
        return Not(NullTest(self))

    def isin(self, values: Iterable[object]) -> Member:
        """Return a condition that is true where this expression equals one of the values.

        Raises: TypeMismatch if `values` is not iterable, or is a str or bytes.

        Examples:
            >>> db["item"].scan(where=tm.col("name").isin(["pen", "bag"])).count()
            2
        """
        if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
            raise TypeMismatch(f"isin takes a list, a set or another iterable of values, got {shown(values)}")
        return Member(self, tuple(as_expression(value) for value in values))

    def between(self, low: object, high: object) -> Junction:
        """Return a condition that is true where low <= this expression <= high.

        Examples:
            >>> db["item"].scan(where=tm.col("stock").between(5, 10)).count()
            2
        """
        return joined(True, Compare("ge", self, as_expression(low)), Compare("le", self, as_expression(high)))

    def like(self, pattern: str | bytes) -> Like:
        """Return a condition that matches a pattern: % matches any characters, _ one, and a backslash makes the next
        character literal. Case matters.

        The time for a row is linear in its value, except for a `_` between two letters between two %. Such a row
        takes at most 64 steps for each byte, else the scan ends in ProgramFailed.

        Raises: TypeMismatch for a pattern that is neither str nor bytes; ValueOutOfRange for a lone surrogate;
        LimitExceeded for more than 8 MiB.

        Examples:
            >>> db["item"].scan(where=tm.col("name").like("_e%")).count()
            1
        """
        return Like(self, _pattern(pattern, "a pattern"))

    def starts_with(self, prefix: str | bytes) -> Like:
        """Return a condition that is true where this expression begins with the prefix.

        Raises: as `like`.

        Examples:
            >>> db["item"].scan(where=tm.col("name").starts_with("c")).count()
            1
        """
        octets = _pattern(prefix, "a prefix")
        for letter in (b"\\", b"%", b"_"):
            octets = octets.replace(letter, b"\\" + letter)
        return Like(self, _pattern(octets + b"%", "a prefix"))


def _pattern(given: object, what: str) -> bytes:
    """Return a pattern as bytes. Raises: TypeMismatch, ValueOutOfRange, LimitExceeded."""
    value = plain(given)
    if isinstance(value, str):
        try:
            value = value.encode()
        except UnicodeEncodeError:
            raise ValueOutOfRange(f"{what} is valid Unicode, got a lone surrogate in {shown(value)}") from None
    if not isinstance(value, bytes):
        raise TypeMismatch(f"{what} is str or bytes, got {shown(value)}")
    check_length(value)
    return bytes(value)


# Nodes are made by every call of a program. A slot of a mutable object is set in 5 ns, of a frozen one in 60. So a node
# is filled as an object of the base of its class, which has the slots; then it becomes one of the class, and is frozen.
_node = dataclass(frozen=True, init=False, eq=False, repr=False)


class _ColSlots(Expression):
    __slots__ = ("name",)


class _ConstantSlots(Expression):
    __slots__ = ("value",)


class _Inner(Expression):
    """A node with others below it: it counts its parts."""

    __slots__ = ("depth", "parts")

    def _count(self, parts: int, depth: int) -> None:
        """Raises: ProgramInvalid for more than PARTS_MAX parts, or if it nests deeper than DEPTH_MAX."""
        if parts > PARTS_MAX:
            raise ProgramInvalid(f"an expression has at most {PARTS_MAX} parts, got {parts}; ask in several calls")
        if depth > DEPTH_MAX:
            raise ProgramInvalid(
                f"an expression nests at most {DEPTH_MAX} deep, got {depth}; join more terms in each level"
            )
        self.parts = parts
        self.depth = depth


class _ArithmeticSlots(_Inner):
    __slots__ = ("left", "operator", "right")


class _CompareSlots(_Inner):
    __slots__ = ("condition", "left", "right")


class _JunctionSlots(_Inner):
    __slots__ = ("is_and", "operands")


class _OfOneSlots(_Inner):
    __slots__ = ("inner",)


class _MemberSlots(_Inner):
    __slots__ = ("inner", "values")


class _LikeSlots(_Inner):
    __slots__ = ("inner", "pattern")


@_node
class Col(_ColSlots):
    """A column, by name."""

    __slots__ = ()
    name: str

    def __new__(cls, name: str) -> Self:
        return cast("Self", _column(name))

    def __getitem__(self, part: Any) -> NoReturn:
        raise ProgramInvalid(
            f"a condition compares whole values, not {shown(part)} of column {self.name}; give it a column of its own"
        )


@_node
class Constant(_ConstantSlots):
    """A Python value; its stored form depends on the operand it is combined with."""

    __slots__ = ()
    value: Any

    def __new__(cls, value: Any) -> Self:
        return cast("Self", _constant(value))


@_node
class Arithmetic(_ArithmeticSlots):
    """One of + - * / // %."""

    __slots__ = ()
    operator: str
    left: Expression
    right: Expression

    def __new__(cls, operator: str, left: Expression, right: Expression) -> Self:
        """Raises: as `_Inner._count`."""
        return cast("Self", _arithmetic(operator, left, right))


@_node
class Compare(_CompareSlots):
    """One of eq, ne, lt, le, gt, ge."""

    __slots__ = ()
    condition: str
    left: Expression
    right: Expression

    def __new__(cls, condition: str, left: Expression, right: Expression) -> Self:
        """Raises: ProgramInvalid for an unknown condition, and as `_Inner._count`."""
        if condition not in CONDITIONS:
            raise ProgramInvalid(f"a comparison is one of {', '.join(CONDITIONS)}, got {shown(condition)}")
        return cast("Self", _compare(condition, left, right))


@_node
class Junction(_JunctionSlots):
    """All of the operands, or at least one of them; there is at least one operand."""

    __slots__ = ()
    is_and: bool
    operands: tuple[Expression, ...]

    def __new__(cls, is_and: bool, operands: tuple[Expression, ...]) -> Self:
        """Raises: ProgramInvalid for no operand, and as `_Inner._count`."""
        if not operands:
            raise ProgramInvalid("& and | join conditions, got none")
        parts, depth = sum(each.parts for each in operands), max(each.depth for each in operands)
        return cast("Self", _junction(is_and, operands, 1 + parts, 1 + depth))


class _OfOne(_OfOneSlots):
    __slots__ = ()

    def __new__(cls, inner: Expression) -> Self:
        """Raises: as `_Inner._count`."""
        made: Any = _OfOneSlots()
        made.inner = inner
        made._count(1 + inner.parts, 1 + inner.depth)
        made.__class__ = cls
        return cast("Self", made)


@_node
class Not(_OfOne):
    """The negation; NULL stays NULL."""

    __slots__ = ()
    inner: Expression


@_node
class NullTest(_OfOne):
    """Whether the operand is NULL."""

    __slots__ = ()
    inner: Expression


@_node
class Member(_MemberSlots):
    """Whether the operand equals one of the values."""

    __slots__ = ()
    inner: Expression
    values: tuple[Expression, ...]

    def __new__(cls, inner: Expression, values: tuple[Expression, ...]) -> Self:
        """Raises: as `_Inner._count`."""
        parts, depth = inner.parts, inner.depth
        for each in values:
            parts += each.parts
            depth = max(depth, each.depth)
        made: Any = _MemberSlots()
        made.inner, made.values = inner, values
        made._count(1 + parts, 1 + depth)
        made.__class__ = cls
        return cast("Self", made)


@_node
class Like(_LikeSlots):
    """Whether the operand matches a pattern."""

    __slots__ = ()
    inner: Expression
    pattern: bytes

    def __new__(cls, inner: Expression, pattern: bytes) -> Self:
        """Raises: as `_Inner._count`."""
        made: Any = _LikeSlots()
        made.inner, made.pattern = inner, pattern
        made._count(1 + inner.parts, 1 + inner.depth)
        made.__class__ = cls
        return cast("Self", made)


# What operators call: a class that is called takes twice as long.
def _column(name: str) -> Col:
    made: Any = _ColSlots()
    made.name = name
    made.__class__ = Col
    return made  # type: ignore[no-any-return]


def _constant(value: object) -> Constant:
    made: Any = _ConstantSlots()
    made.value = value
    made.__class__ = Constant
    return made  # type: ignore[no-any-return]


def _arithmetic(operator: str, left: Expression, right: Expression) -> Arithmetic:
    made: Any = _ArithmeticSlots()
    made.operator, made.left, made.right = operator, left, right
    one, other = left.depth, right.depth
    made._count(1 + left.parts + right.parts, 1 + (one if one > other else other))
    made.__class__ = Arithmetic
    return made  # type: ignore[no-any-return]


def _compare(condition: str, left: Expression, right: Expression) -> Compare:
    made: Any = _CompareSlots()
    made.condition, made.left, made.right = condition, left, right
    one, other = left.depth, right.depth
    made._count(1 + left.parts + right.parts, 1 + (one if one > other else other))
    made.__class__ = Compare
    return made  # type: ignore[no-any-return]


def _junction(is_and: bool, operands: tuple[Expression, ...], parts: int, depth: int) -> Junction:
    made: Any = _JunctionSlots()
    made.is_and, made.operands = is_and, operands
    made._count(parts, depth)
    made.__class__ = Junction
    return made  # type: ignore[no-any-return]


def joined(is_and: bool, one: Expression, other: Expression) -> Junction:
    """Join two conditions by & or |. Operands of a condition that is joined in the same way move up to one level."""
    operands: list[Expression] = []
    parts = depth = 1
    for each in (one, other):
        if isinstance(each, Junction) and each.is_and == is_and:
            operands += each.operands
            parts += each.parts - 1
            depth = max(depth, each.depth)
        else:
            operands.append(each)
            parts += each.parts
            depth = max(depth, each.depth + 1)
    # The count is known without visiting each operand: a loop of |= would visit all of them each time.
    return _junction(is_and, tuple(operands), parts, depth)


def _shown_parts(node: Expression) -> list[Any]:
    """Return the pieces of the Python that makes a node: text, and the expressions between."""
    if isinstance(node, Col):
        return [f"col({node.name!r})"]
    if isinstance(node, Constant):
        return [repr(node.value)]
    if isinstance(node, Arithmetic):
        return ["(", node.left, f" {node.operator} ", node.right, ")"]
    if isinstance(node, Compare):
        return ["(", node.left, f" {_SIGNS[node.condition]} ", node.right, ")"]
    if isinstance(node, Junction):
        return ["(", *_between(" & " if node.is_and else " | ", node.operands), ")"]
    if isinstance(node, Not):
        return ["(~", node.inner, ")"]
    if isinstance(node, NullTest):
        return [node.inner, ".is_null()"]
    if isinstance(node, Member):
        return [node.inner, ".isin([", *_between(", ", node.values), "])"]
    assert isinstance(node, Like)
    try:
        pattern: str | bytes = node.pattern.decode()
    except UnicodeDecodeError:
        pattern = node.pattern
    return [node.inner, f".like({pattern!r})"]


def _between(text: str, nodes: tuple[Expression, ...]) -> list[Any]:
    return [piece for node in nodes for piece in (text, node)][1:]


def operand(value: object) -> Expression:
    """Return the right side of a comparison. Raises: TypeMismatch for None, which equals nothing, not even NULL."""
    if value is None:
        raise TypeMismatch("a comparison with None is never true; use is_null() or is_not_null()")
    return value if isinstance(value, Expression) else _constant(value)


def as_expression(value: object) -> Expression:
    """Return an expression unchanged, and any other value as a constant."""
    return value if isinstance(value, Expression) else Constant(value)


def condition(value: object) -> Expression:
    """Check an operand of & or |. Raises: TypeMismatch for a plain value: usually, parentheses are missing."""
    if isinstance(value, Expression):
        return value
    raise TypeMismatch(f"& and | join conditions, got {shown(value)}; put comparisons into parentheses")


def col(name: str) -> Col:
    """Return the column of that name, for building expressions. The name is checked when a call takes the expression.

    Raises: TypeMismatch if `name` is not a str.

    Examples:
        >>> db["item"].scan(where=tm.col("stock") == 0).to_arrow()["name"].to_pylist()
        ['bag']
    """
    if not isinstance(name, str):
        raise TypeMismatch(f"a column is named by a str, got {shown(name)}")
    return _column(name)
