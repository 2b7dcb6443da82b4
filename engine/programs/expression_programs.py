"""The programs that expressions compile to: filters, updates, aggregates (docs/internals/access.md, section 3)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from decimal import Context
from decimal import Decimal as PythonDecimal
from typing import TYPE_CHECKING, Any

from tidemark.engine.programs import program_layout as p
from tidemark.engine.programs.expression_compiler import Compiler, Kind
from tidemark.engine.programs.expressions import Col, Expression, as_expression
from tidemark.engine.programs.instruction_set import FLOAT, INTEGER
from tidemark.engine.programs.interpreter import Program, bits_float
from tidemark.engine.schema.types import Decimal
from tidemark.engine.schema.types_base import shown

if TYPE_CHECKING:
    from tidemark.engine.schema.definition import TableDefinition

# A sum of 192 bits has at most 58 digits.
_EXACT = Context(prec=64)


def _where(compiler: Compiler, where: Expression | None, no: str) -> None:
    if where is not None:
        yes = compiler.label()
        compiler.jump(where, yes, no)
        compiler.asm.label(yes)


def _finish(compiler: Compiler, no: str) -> Program:
    compiler.asm.exit_ok()
    compiler.asm.label(no)
    compiler.asm.exit_refuse()
    return compiler.asm.finish()


def compile_filter(definition: TableDefinition, where: Expression) -> Program:
    """Compile a program that accepts the rows for which the condition is true. Raises: ProgramInvalid, NoSuchColumn."""
    compiler = Compiler(definition)
    no = compiler.label()
    _where(compiler, where, no)
    return _finish(compiler, no)


def compile_update(
    definition: TableDefinition, changes: Mapping[str, Any], where: Expression | None = None
) -> tuple[Program, dict[str, Any]]:
    """Compile a program that gives columns new values in the rows for which the condition is true. Return it with the
    changes that need no program: plain values, to be set in every row it accepts.

    All new values are computed from the row as it was. Raises: ProgramInvalid, NoSuchColumn.
    """
    compiler = Compiler(definition, updates=True)
    no = compiler.label()
    _where(compiler, where, no)
    plain_values: dict[str, Any] = {}
    for name, value in changes.items():
        if isinstance(value, Expression):
            if name in definition.primary_key:
                raise compiler.refuse(f"key column {name!r} cannot be changed; delete the row and insert another")
            compiler.assign(name, value)
        else:
            compiler.column(name)
            plain_values[name] = value
    return _finish(compiler, no), plain_values


class Aggregates:
    """A program that aggregates rows, and how to read its accumulators; one `work` may serve for many batches."""

    def __init__(self, program: Program, functions: Sequence[tuple[str, Kind, bool]]) -> None:
        self.program = program
        self._functions = functions

    def results(self, work: Any) -> list[Any]:
        """Return one value for each aggregate: None for sum, min and max of no values. Sums of integers are exact."""
        return [self._result(work, number) for number in range(len(self._functions))]

    def _result(self, work: Any, number: int) -> Any:
        function, kind, is_decimal = self._functions[number]
        count, low, high = self.program.accumulator(work, number)
        if function == "count":
            return count
        if count == 0:
            return None
        if kind.type == FLOAT:
            rest = bits_float(high) if function == "sum" else 0.0
            total = bits_float(low)
            return total + rest if math.isfinite(total) else total
        value = self.program.integer_sum(work, number) if function == "sum" else (high << 64) + low % (1 << 64)
        if kind.calendar is not None:
            return kind.calendar.loaded(value)
        return _EXACT.scaleb(PythonDecimal(value), -kind.scale) if is_decimal else value


def compile_aggregates(
    definition: TableDefinition, functions: Sequence[tuple[str, Any]], where: Expression | None = None
) -> Aggregates:
    """Compile a program that aggregates the rows for which the condition is true.

    functions: (function, argument) pairs. A function is count, sum, min or max; an argument is a column's name, an
    expression, or None (count: rows). Raises: ProgramInvalid, NoSuchColumn.
    """
    compiler = Compiler(definition)
    no = compiler.label()
    _where(compiler, where, no)
    kinds: list[tuple[str, Kind, bool]] = []
    for number, (function, what) in enumerate(functions):
        if function not in ("count", "sum", "min", "max"):
            raise compiler.refuse(f"aggregates are count, sum, min and max, got {shown(function)}")
        null = compiler.label()
        if function == "count":
            kind = Kind(INTEGER)
            if what is not None:
                node = Col(what) if isinstance(what, str) else as_expression(what)
                some = compiler.label()
                compiler.null_test(node, null, some)
                compiler.asm.label(some)
            compiler.asm.load_const(0, 1)
        else:
            node = Col(what) if isinstance(what, str) else as_expression(what)
            _, kind = compiler.value(node, list(range(p.REGISTERS)), null)
            if function == "sum" and kind.calendar is not None:
                raise compiler.refuse("calendar values have no sum")
        compiler.asm.aggregate(function, 0, number, kind.type)
        compiler.asm.label(null)
        is_plain = isinstance(what, str) or isinstance(what, Col)
        is_decimal = is_plain and isinstance(compiler.column(getattr(what, "name", what)).type, Decimal)
        kinds.append((function, kind, kind.scale > 0 or is_decimal))
    return Aggregates(_finish(compiler, no), kinds)
