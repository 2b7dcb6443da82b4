"""The programs that expressions compile to: filters, updates, aggregates (docs/internals/access.md, section 3)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from decimal import Context
from decimal import Decimal as PythonDecimal
from typing import TYPE_CHECKING, Any, NamedTuple

from tidemark.engine.programs import program_layout as p
from tidemark.engine.programs.expression_compiler import Compiler
from tidemark.engine.programs.expressions import Col, Expression, as_expression
from tidemark.engine.programs.instruction_set import FLOAT, INTEGER
from tidemark.engine.programs.interpreter import Program, bits_float
from tidemark.engine.programs.lowering import Kind, Lowering
from tidemark.engine.programs.shapes import numbered
from tidemark.engine.programs.templates import Template
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


class Compiled(NamedTuple):
    """The program of an expression with its own constants, and what binds others.

    `structures` is what the constants decide (`engine/programs/lowering.py`); `functions` are those of aggregates.
    """

    template: Template
    lowerings: Sequence[Lowering]
    structures: tuple[Any, ...]
    functions: Sequence[tuple[str, Kind, bool]] = ()

    @property
    def program(self) -> Program:
        """The program."""
        return self.template.program


def _finish(compiler: Compiler, no: str, functions: Sequence[tuple[str, Kind, bool]] = ()) -> Compiled:
    compiler.asm.exit_ok()
    compiler.asm.label(no)
    compiler.asm.exit_refuse()
    return Compiled(
        compiler.asm.finish_template(), tuple(compiler.lowerings), tuple(compiler.structures), tuple(functions)
    )


def compile_filter(definition: TableDefinition, where: Expression) -> Compiled:
    """Compile a program that accepts the rows for which the condition is true. Raises: ProgramInvalid, NoSuchColumn,
    TypeMismatch, ValueOutOfRange.
    """
    (where,), constants = numbered([where])
    compiler = Compiler(definition, constants)
    no = compiler.label()
    _where(compiler, where, no)
    return _finish(compiler, no)


def compile_update(
    definition: TableDefinition, changes: Mapping[str, Any], where: Expression | None = None
) -> Compiled:
    """Compile a program that gives columns new values in the rows for which the condition is true. A change that is no
    expression needs no program: its column is only checked.

    All new values are computed from the row as it was. Raises: as `compile_filter`.
    """
    (where, *values), constants = numbered([where, *changes.values()])
    compiler = Compiler(definition, constants, updates=True)
    no = compiler.label()
    _where(compiler, where, no)
    for name, value in zip(changes, values, strict=True):
        if isinstance(value, Expression):
            if name in definition.primary_key:
                raise compiler.refuse(f"key column {name!r} cannot be changed; delete the row and insert another")
            compiler.assign(name, value)
        else:
            compiler.column(name)
    return _finish(compiler, no)


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


def argument(what: Any) -> Expression | None:
    """Return the argument of an aggregate as an expression; None: rows."""
    return None if what is None else Col(what) if isinstance(what, str) else as_expression(what)


def compile_aggregates(
    definition: TableDefinition, functions: Sequence[tuple[str, Any]], where: Expression | None = None
) -> Compiled:
    """Compile a program that aggregates the rows for which the condition is true.

    functions: (function, argument) pairs. A function is count, sum, min or max; an argument is a column's name, an
    expression, or None (count: rows). Raises: ProgramInvalid, NoSuchColumn.
    """
    (where, *nodes), constants = numbered([where, *(argument(what) for _, what in functions)])
    compiler = Compiler(definition, constants)
    no = compiler.label()
    _where(compiler, where, no)
    kinds: list[tuple[str, Kind, bool]] = []
    for number, (function, node) in enumerate(zip([each for each, _ in functions], nodes, strict=True)):
        if function not in ("count", "sum", "min", "max"):
            raise compiler.refuse(f"aggregates are count, sum, min and max, got {shown(function)}")
        null = compiler.label()
        if function == "count":
            kind = Kind(INTEGER)
            if node is not None:
                some = compiler.label()
                compiler.null_test(node, null, some)
                compiler.asm.label(some)
            compiler.asm.load_const(0, 1)
        else:
            _, kind = compiler.value(as_expression(node), list(range(p.REGISTERS)), null)
            if function == "sum" and kind.calendar is not None:
                raise compiler.refuse("calendar values have no sum")
        compiler.asm.aggregate(function, 0, number, kind.type)
        compiler.asm.label(null)
        is_decimal = isinstance(node, Col) and isinstance(compiler.column(node.name).type, Decimal)
        kinds.append((function, kind, kind.scale > 0 or is_decimal))
    return _finish(compiler, no, kinds)
