"""Compile expressions to programs: types come from the table, a constant gets the type of the column that it is
compared with, and conditions become jumps.

A condition jumps to one label where it is true and to another where it is false or NULL, and its negation is pushed
down to the leaves, so that three-valued logic needs no third value. Arithmetic has one more label for NULL.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from decimal import Decimal as PythonDecimal
from typing import TYPE_CHECKING, Any

from tidemark.engine.base.errors import ProgramInvalid
from tidemark.engine.programs import lowering
from tidemark.engine.programs import program_layout as p
from tidemark.engine.programs.expressions import (
    NEGATED,
    SWAPPED,
    Arithmetic,
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
from tidemark.engine.programs.instruction_set import FLOAT, INTEGER, WIDE
from tidemark.engine.programs.lowering import Kind, Lowered, Lowering
from tidemark.engine.programs.templates import TemplateAssembler
from tidemark.engine.programs.verifier import CLASS_TYPES
from tidemark.engine.rows.column_words import column_class
from tidemark.engine.schema.names import no_such_column
from tidemark.engine.types.base import counted

if TYPE_CHECKING:
    from tidemark.engine.schema.column import Column
    from tidemark.engine.schema.definition import TableDefinition
    from tidemark.engine.types import ColumnType

_Jump = tuple[Expression, str, str, bool]  # a condition, its labels for true and for false, whether it is negated


def kind_of(kind: ColumnType) -> Kind | None:
    """Return the kind of a column of this type; None for characters, bytes, Bool and Enum, which are not numbers."""
    if not kind.has_arithmetic and not kind.step_us:
        return None
    return Kind(CLASS_TYPES[column_class(kind)], kind.scale, kind if kind.step_us else None)


def _remedy(wanted: ColumnType, found: Kind) -> str:
    if wanted.python is not PythonDecimal:
        return "compute with whole numbers, and divide by //, or change a column of floats or decimals"
    digits = counted(wanted.scale, "digit")
    if found.type == FLOAT:
        return f"compute with Decimal values of at most {digits} after the point, without floats and /"
    return f"round the constants so that the result has at most {digits} after the point, got {found.scale}"


def _with_members(node: Junction, negated: bool) -> list[tuple[Expression, bool]]:
    """Return (operand, whether it is negated) pairs. Adjacent equalities or inequalities of one column are merged into
    one Member, which is true and false for the same rows and looks for each value once.
    """
    # Equalities under | and inequalities under & become one Member. Negation exchanges & and |; if the result is an &,
    # the Member is negated.
    is_and = node.is_and != negated
    wanted = "ne" if node.is_and else "eq"
    found: list[tuple[Expression, bool]] = []
    run: list[Constant] = []
    name = None
    for each in (*node.operands, None):
        equality = None if each is None else _equality(each, wanted)
        if equality is not None and equality[0] == name:
            run.append(equality[1])
            continue
        if len(run) > 1 and name is not None:
            found[-1] = Member(Col(name), tuple(run)), is_and
        if each is not None:
            found.append((each, negated))
        name, run = (None, []) if equality is None else (equality[0], [equality[1]])
    return found


def _equality(node: Expression, wanted: str) -> tuple[str, Constant] | None:
    """Return (column, constant) if the node compares them by the condition `wanted`, else None."""
    if not isinstance(node, Compare) or node.condition != wanted:
        return None
    if isinstance(node.left, Col) and isinstance(node.right, Constant):
        return node.left.name, node.right
    if isinstance(node.left, Constant) and isinstance(node.right, Col):
        return node.right.name, node.left
    return None


class Compiler:
    """Emits the code of several expressions, one after the other, into one assembler.

    constants: the number of each Constant and each Like, by identity. What they decide is in `structures`.
    """

    def __init__(self, definition: TableDefinition, constants: Mapping[int, int], updates: bool = False) -> None:
        self.definition = definition
        self.asm = TemplateAssembler(definition, updates)
        self.lowerings: list[Lowering] = []
        self.structures: list[Any] = []
        self._constants = constants
        self._stored = 0
        self._columns = {column.name: column for column in definition.columns}
        self._labels = 0
        self._needs: dict[int, int] = {}  # of parts of the expression being compiled, by identity

    def label(self) -> str:
        """Return a new label."""
        self._labels += 1
        return f"_{self._labels}"

    def refuse(self, what: str) -> ProgramInvalid:
        """Return the error that refuses an expression."""
        return lowering.refused(self.definition.name, what)

    def column(self, name: str) -> Column:
        """Return the column. Raises: NoSuchColumn."""
        if name not in self._columns:
            raise no_such_column(self.definition.name, name, self._columns)
        return self._columns[name]

    def _lowered(
        self, function: Callable[..., Lowered], arguments: tuple[Any, ...], node: Constant | Like | Sequence[Constant]
    ) -> tuple[Any, list[tuple[Any, int]]]:
        """Lower a constant, or those of a list; return the structure, and the stored forms with their numbers."""
        nodes = (node,) if isinstance(node, Expression) else tuple(node)
        values = [each.pattern if isinstance(each, Like) else each.value for each in nodes]
        is_list = not isinstance(node, Expression)
        structure, stored = function(*arguments, values if is_list else values[0])
        numbers = tuple(self._constants.get(id(each), -1) for each in nodes)
        self.lowerings.append(Lowering(function, arguments, numbers, is_list))
        self.structures.append(structure)
        first = self._stored
        self._stored += len(stored)
        return structure, [(form, first + number) for number, form in enumerate(stored)]

    # --- conditions -----------------------------------------------------------------------------------
    def jump(self, node: Expression, yes: str, no: str, negated: bool = False) -> None:
        """Go to `yes` where the condition (negated: its opposite) is true, to `no` where it is false or NULL."""
        ahead: list[_Jump | str] = [(node, yes, no, negated)]
        while ahead:
            each = ahead.pop()
            if isinstance(each, str):
                self.asm.label(each)
                continue
            node, yes, no, negated = each
            if isinstance(node, Not):
                ahead.append((node.inner, yes, no, not negated))
            elif isinstance(node, Junction):
                ahead += reversed(self._junction(node, yes, no, negated))
            else:
                self._leaf(node, yes, no, negated)

    def _junction(self, node: Junction, yes: str, no: str, negated: bool) -> list[_Jump | str]:
        is_and = node.is_and != negated
        steps: list[_Jump | str] = []
        operands = _with_members(node, negated)
        for operand, is_negated in operands[:-1]:
            middle = self.label()
            steps += [(operand, middle, no, is_negated) if is_and else (operand, yes, middle, is_negated), middle]
        operand, is_negated = operands[-1]
        return [*steps, (operand, yes, no, is_negated)]

    def _leaf(self, node: Expression, yes: str, no: str, negated: bool) -> None:
        if isinstance(node, Compare):
            self._compare(node, NEGATED[node.condition] if negated else node.condition, yes, no)
        elif isinstance(node, Member):
            self._member(node, yes, no, negated)
        elif isinstance(node, NullTest):
            self.null_test(node.inner, no if negated else yes, yes if negated else no)
        elif isinstance(node, Like):
            self._like(node, yes, no, negated)
        elif isinstance(node, Col) and self.column(node.name).type.python is bool:
            self.asm.branch_stored("eq", node.name, 0 if negated else 1, yes)
            self.asm.branch(no)
        else:
            raise self.refuse("a condition is needed, such as a comparison or a Bool column")

    def _member(self, node: Member, yes: str, no: str, negated: bool) -> None:
        found, missed = (no, yes) if negated else (yes, no)
        if negated and node.values:
            # NULL is neither in the list nor not in it.
            known = self.label()
            self.null_test(node.inner, no, known)
            self.asm.label(known)
        run: list[Constant] = []
        for value in (*node.values, None):
            if isinstance(value, Constant):
                missed = no if value.value is None else missed
                if isinstance(node.inner, Col):
                    run.append(value)
                    continue
            # Values that may fail in a row keep their place among the constants.
            if run and isinstance(node.inner, Col):
                self._equal(self.column(node.inner.name), run, found)
                run = []
            if value is not None and not (isinstance(value, Constant) and value.value is None):
                after = self.label()
                self._compare(Compare("eq", node.inner, value), "eq", found, after)
                self.asm.label(after)
        self.asm.branch(missed)

    def _equal(self, column: Column, values: Sequence[Constant], yes: str) -> None:
        """Go to `yes` where the column has one of the values, each looked for once; else continue."""
        _, stored = self._lowered(lowering.member, (self.definition.name, column), values)
        for form, number in stored:
            self.asm.compare("eq", column.name, form, number, yes)

    def null_test(self, inner: Expression, yes: str, no: str) -> None:
        """Go to `yes` where the operand is NULL, else to `no`."""
        if isinstance(inner, Col):
            self.column(inner.name)
            self.asm.branch_column_null(inner.name, yes)
        else:
            self.value(inner, list(range(p.REGISTERS)), yes)
        self.asm.branch(no)

    def _like(self, node: Like, yes: str, no: str, negated: bool) -> None:
        if not isinstance(node.inner, Col) or not self.column(node.inner.name).type.has_patterns:
            raise self.refuse("like() and starts_with() are for columns of characters or bytes")
        octets = not self.column(node.inner.name).type.is_text
        condition = "not_like" if negated else "like"
        _, ((tokens, number),) = self._lowered(lowering.pattern, (), node)
        self.asm.compare(condition, node.inner.name, tokens, number, yes, octets)
        self.asm.branch(no)

    def _compare(self, node: Compare, condition: str, yes: str, no: str) -> None:
        left, right = node.left, node.right
        if isinstance(left, Constant) and not isinstance(right, Constant):
            left, right, condition = right, left, SWAPPED[condition]
        if isinstance(right, Constant) and right.value is None:
            self.asm.branch(no)
        elif isinstance(left, Col) and isinstance(right, Constant):
            self._compare_constant(self.column(left.name), condition, right, yes, no)
        elif isinstance(left, Col) and isinstance(right, Col) and self._alike(left.name, right.name):
            self.asm.branch_columns(condition, left.name, right.name, yes)
            self.asm.branch(no)
        else:
            registers = list(range(p.REGISTERS))
            one, other, kind = self._operands(left, right, registers, no)
            self.asm.branch_registers(condition, one, other, yes, kind.type)
            self.asm.branch(no)

    def _alike(self, one: str, other: str) -> bool:
        first, second = self.column(one).type, self.column(other).type
        kinds = kind_of(first), kind_of(second)
        if kinds[0] is None or kinds[1] is None:
            if first.comparison_group != second.comparison_group:
                raise self.refuse(f"columns {one!r} and {other!r} cannot be compared with each other")
            return True
        return kinds[0] == kinds[1]

    def _compare_constant(self, column: Column, condition: str, constant: Constant, yes: str, no: str) -> None:
        found, stored = self._lowered(lowering.compared, (self.definition.name, column, condition), constant)
        if isinstance(found, bool):
            self.asm.branch_column_null(column.name, no)
            self.asm.branch(yes if found else no)
            return
        ((form, number),) = stored
        self.asm.compare(found, column.name, form, number, yes)
        self.asm.branch(no)

    # --- arithmetic -----------------------------------------------------------------------------------
    def need(self, node: Expression) -> int:
        """Return the number of registers that a node needs, by Sethi and Ullman; arithmetic needs at least two."""
        if not isinstance(node, Arithmetic):
            return 1
        if id(node) not in self._needs:
            one, other = self.need(node.left), self.need(node.right)
            self._needs[id(node)] = one + 1 if one == other else max(one, other, 2)
        return self._needs[id(node)]

    def value(self, node: Expression, free: list[int], null: str, beside: Kind | None = None) -> tuple[int, Kind]:
        """Load the value into the first free register; go to `null` where it is NULL. Return register and kind.

        beside: the kind of the other operand, to which a constant is fitted.
        """
        if not free:
            raise self.refuse(f"the expression is too deep: it needs more than {p.REGISTERS} registers")
        register = free[0]
        if isinstance(node, Col):
            column = self.column(node.name)
            kind = kind_of(column.type)
            if kind is None:
                raise self.refuse(f"column {node.name!r} is not a number")
            self.asm.read(register, node.name)
            if column.nullable:
                self.asm.branch_null(register, null)
            return register, kind
        if isinstance(node, Constant):
            return register, self._load(node, register, null, beside)
        if not isinstance(node, Arithmetic):
            raise self.refuse("a condition is used where a number is needed")
        shift = self._calendar_shift(node, free, null)
        if shift is not None:
            return shift
        as_float = node.operator == "/"
        one, other, kind = self._operands(node.left, node.right, free, null, node.operator == "*", as_float)
        return self._operate(node.operator, one, other, kind, register, null)

    def _load(self, node: Constant, register: int, null: str, beside: Kind | None) -> Kind:
        kind, stored = self._lowered(lowering.number, (self.definition.name, beside), node)
        if kind is None:
            self.asm.load_null(register)
            self.asm.branch_null(register, null)
            return Kind(INTEGER)
        ((form, number),) = stored
        self.asm.load(register, kind.type, form, number)
        return kind  # type: ignore[no-any-return]

    def _calendar_shift(self, node: Arithmetic, free: list[int], null: str) -> tuple[int, Kind] | None:
        """Emit a calendar column plus or minus a timedelta, exactly; None if there is no timedelta."""
        left, right = node.left, node.right
        if node.operator == "+" and isinstance(left, Constant) and isinstance(left.value, timedelta):
            left, right = right, left
        if not isinstance(right, Constant) or not isinstance(right.value, timedelta):
            return None
        register, kind = self.value(left, free, null)
        if kind.calendar is None or node.operator not in "+-":
            raise self.refuse("a timedelta is added to a Date, Time, DateTime or Timestamp, or subtracted from it")
        _, ((amount, number),) = self._lowered(lowering.span, (self.definition.name, kind.calendar), right)
        self._spare(free)
        self.asm.load(free[1], INTEGER, amount, number)
        self.asm.operate("add_exact" if node.operator == "+" else "sub_exact", register, register, free[1])
        return register, kind

    def _spare(self, free: list[int]) -> None:
        if len(free) < 2:
            raise self.refuse(f"the expression is too deep: it needs more than {p.REGISTERS} registers")

    def _operands(
        self,
        left: Expression,
        right: Expression,
        free: list[int],
        null: str,
        product: bool = False,
        as_float: bool = False,
    ) -> tuple[int, int, Kind]:
        """Load both values into registers, converted to one type and, except for products, to one scale. Return both
        registers and the kind.
        """
        self._spare(free)
        first, second = (left, right), False
        # A constant comes second, so that it is fitted to the other operand; NULL comes first, as nothing else matters.
        is_fitted = isinstance(left, Constant) and left.value is not None and not isinstance(right, Constant)
        if self.need(right) > self.need(left) or is_fitted:
            first, second = (right, left), True
        one, kind = self.value(first[0], free, null)
        rest = [each for each in free if each != one]
        calendar = kind.calendar
        if calendar is not None and isinstance(first[1], Constant):
            other, other_kind = rest[0], kind
            _, ((form, number),) = self._lowered(lowering.moment, (calendar,), first[1])
            self.asm.load(other, INTEGER, form, number)
        else:
            other, other_kind = self.value(first[1], rest, null, None if product or as_float else kind)
        rest = [each for each in rest if each != other]
        if second:
            one, other, kind, other_kind = other, one, other_kind, kind
        if kind.calendar != other_kind.calendar:
            raise self.refuse("calendar values are compared with values of their own type only")
        scale = kind.scale + other_kind.scale if product else max(kind.scale, other_kind.scale)
        if as_float or FLOAT in (kind.type, other_kind.type):
            self._to_float(one, kind, rest)
            self._to_float(other, other_kind, rest)
            return one, other, Kind(FLOAT)
        if not product:
            self._scale_up(one, kind, scale, rest)
            self._scale_up(other, other_kind, scale, rest)
        if WIDE in (kind.type, other_kind.type):
            for register, each in ((one, kind), (other, other_kind)):
                if each.type == INTEGER:
                    self.asm.operate("integer_to_wide", register, register)
            return one, other, Kind(WIDE, scale)
        return one, other, Kind(INTEGER, scale, kind.calendar)

    def _to_float(self, register: int, kind: Kind, rest: list[int]) -> None:
        if kind.type == FLOAT:
            return
        self.asm.operate("integer_to_float" if kind.type == INTEGER else "wide_to_float", register, register)
        if kind.scale:
            if kind.scale > sys.float_info.max_10_exp:
                raise self.refuse(f"a decimal of {kind.scale} digits after the point is beyond the range of floats")
            self._spare([register, *rest])
            self.asm.load_float(rest[0], float(10**kind.scale))
            self.asm.operate("float_div", register, register, rest[0])

    def _scale_up(self, register: int, kind: Kind, scale: int, rest: list[int]) -> None:
        if kind.scale == scale:
            return
        if kind.type == WIDE or scale - kind.scale > 18:
            raise self.refuse("decimals of more than 18 digits are added and compared with their own scale only")
        self._spare([register, *rest])
        self.asm.load_const(rest[0], 10 ** (scale - kind.scale))
        self.asm.operate("mul_exact", register, register, rest[0])

    def _operate(self, operator: str, one: int, other: int, kind: Kind, register: int, null: str) -> tuple[int, Kind]:
        if kind.calendar is not None:
            raise self.refuse("calendar values are compared, and moved by a timedelta; there is no other arithmetic")
        names = {
            FLOAT: {"+": "add", "-": "sub", "*": "mul", "/": "div", "//": "floordiv", "%": "mod"},
            INTEGER: {"+": "add_exact", "-": "sub_exact", "*": "mul_exact", "//": "floordiv", "%": "mod"},
            WIDE: {"+": "wide_add_exact", "-": "wide_sub_exact"},
        }[kind.type]
        divides = operator in ("/", "//", "%")
        if operator not in names or (divides and kind.scale):
            raise self.refuse(f"{operator} does not take UInt64 and decimals; convert them to floats with / 1.0 first")
        name = f"float_{names[operator]}" if kind.type == FLOAT else names[operator]
        self.asm.operate(name, register, one, other, zero_null=divides)
        if divides:
            self.asm.branch_null(register, null)
        return register, kind

    # --- new values of columns ------------------------------------------------------------------------
    def assign(self, name: str, node: Expression) -> None:
        """Write the value of an expression to a column, NULL where it is NULL."""
        column = self.column(name)
        wanted = kind_of(column.type)
        if wanted is None:
            raise self.refuse(f"column {name!r} is not a number; give it a plain value")
        null, done = self.label(), self.label()
        free = list(range(p.REGISTERS))
        register, kind = self.value(node, free, null)
        rest = [each for each in free if each != register]
        if kind.calendar != wanted.calendar:
            raise self.refuse(f"{column.type!r} column {name!r} cannot take such a value")
        if wanted.type == FLOAT:
            self._to_float(register, kind, rest)
        elif kind.type == FLOAT or kind.scale > wanted.scale:
            raise self.refuse(
                f"column {name!r} of type {column.type!r} cannot take fractions exactly; {_remedy(column.type, kind)}"
            )
        else:
            self._scale_up(register, kind, wanted.scale, rest)
            if kind.type != wanted.type:
                self.asm.operate(f"{kind.type}_to_{wanted.type}", register, register)
        self.asm.write(name, register)
        self.asm.branch(done)
        self.asm.label(null)
        self.asm.load_null(0)
        self.asm.write(name, 0)
        self.asm.label(done)
