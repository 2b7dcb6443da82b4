"""The programs that expressions compile to: filters, updates, aggregates (docs/internals/access.md, section 3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal as PythonDecimal
from typing import TYPE_CHECKING, Any, NamedTuple

from tidemark.engine.programs import program_layout as p
from tidemark.engine.programs.aggregates import BYTES, KEY, Output
from tidemark.engine.programs.expression_compiler import Compiler, kind_of
from tidemark.engine.programs.expressions import Col, Expression, as_expression
from tidemark.engine.programs.instruction_set import FLOAT, INTEGER
from tidemark.engine.programs.interpreter import Program
from tidemark.engine.programs.lowering import Kind, Lowering
from tidemark.engine.programs.shapes import numbered
from tidemark.engine.programs.templates import Template
from tidemark.engine.rows.column_words import column_class
from tidemark.engine.rows.columns_layout import CLASS_BYTES
from tidemark.engine.types.base import shown

if TYPE_CHECKING:
    from tidemark.engine.schema.column import Column
    from tidemark.engine.schema.definition import TableDefinition

FUNCTIONS = ("count", "sum", "min", "max", "mean")
_STORED = Kind(INTEGER)  # what is no number, as its stored number


def _where(compiler: Compiler, where: Expression | None, no: str) -> None:
    if where is not None:
        yes = compiler.label()
        compiler.jump(where, yes, no)
        compiler.asm.label(yes)


class Compiled(NamedTuple):
    """The program of an expression with its own constants, and what binds others.

    `structures` is what the constants decide (`engine/programs/lowering.py`); `outputs` are those of aggregates.
    """

    template: Template
    lowerings: Sequence[Lowering]
    structures: tuple[Any, ...]
    outputs: Sequence[Output] = ()

    @property
    def program(self) -> Program:
        """The program."""
        return self.template.program


def _finish(compiler: Compiler, no: str, outputs: Sequence[Output] = ()) -> Compiled:
    compiler.asm.exit_ok()
    compiler.asm.label(no)
    compiler.asm.exit_refuse()
    return Compiled(
        compiler.asm.finish_template(), tuple(compiler.lowerings), tuple(compiler.structures), tuple(outputs)
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


def argument(what: Any) -> Expression | None:
    """Return the argument of an aggregate as an expression; None: rows."""
    return None if what is None else Col(what) if isinstance(what, str) else as_expression(what)


def compile_aggregates(
    definition: TableDefinition,
    functions: Sequence[tuple[str, Any]],
    where: Expression | None = None,
    keys: Sequence[Expression] = (),
) -> Compiled:
    """Compile a program that aggregates the rows for which the condition is true, with keys in groups.

    functions: (function, argument) pairs. A function is count, sum, min, max or mean; an argument is a column's name,
    an expression, or None (count: rows). Raises: ProgramInvalid, NoSuchColumn.
    """
    given = [argument(what) for _, what in functions]
    (where, *nodes), constants = numbered([where, *keys, *given])
    compiler = Compiler(definition, constants)
    no = compiler.label()
    _where(compiler, where, no)
    outputs: list[Output] = []
    at = 1
    for part, node in enumerate(nodes[: len(keys)]):
        outputs.append(_key(compiler, node, part, at))
        at += 1 if outputs[-1].kind.type in (INTEGER, FLOAT) else 2
    arguments = nodes[len(keys) :]
    of_bytes = [
        function in ("min", "max") and isinstance(node, Col) and _is_of_bytes(compiler.column(node.name))
        for (function, _), node in zip(functions, arguments, strict=True)
    ]
    if keys or any(of_bytes):  # the least bytes of all rows are those of one group
        compiler.asm.group()
    found: list[Output | None] = [None] * len(functions)
    for is_first in (True, False):  # the machine may repeat what it does with bytes, and nothing before it
        for number, ((function, _), node) in enumerate(zip(functions, arguments, strict=True)):
            if of_bytes[number] is not is_first:
                continue
            if function in ("min", "max") and isinstance(node, Col):
                _check_order(compiler, function, compiler.column(node.name))
            make = _extreme_of_bytes if is_first else _aggregate
            found[number] = make(compiler, function, node, number)
    return _finish(compiler, no, [*outputs, *(each for each in found if each is not None)])


def _is_of_bytes(column: Column) -> bool:
    return column_class(column.type) == CLASS_BYTES


def _check_order(compiler: Compiler, function: str, column: Column) -> None:
    if not column.type.has_order:
        name = type(column.type).__name__
        raise compiler.refuse(f"{name} column {column.name!r} has no order, and no {function}")


def _key(compiler: Compiler, node: Expression, part: int, at: int) -> Output:
    """Emit what makes an expression a part of the key, at word `at` of it."""
    if isinstance(node, Col):
        column = compiler.column(node.name)
        if _is_of_bytes(column):
            compiler.asm.key_bytes(node.name, part, at)
            return Output(KEY, Kind(BYTES), column.type, False, at, part)
        kind = kind_of(column.type) or _STORED
        compiler.asm.read(0, node.name)
        compiler.asm.key(0, kind.type, part, at)
        return Output(KEY, kind, column.type, column.type.python is PythonDecimal, at, part)
    null, done = compiler.label(), compiler.label()
    register, kind = compiler.value(node, list(range(p.REGISTERS)), null)
    compiler.asm.branch(done)
    compiler.asm.label(null)
    compiler.asm.load_null(register)
    compiler.asm.label(done)
    compiler.asm.key(register, kind.type, part, at)
    return Output(KEY, kind, None, kind.scale > 0, at, part)


def _extreme_of_bytes(compiler: Compiler, function: str, node: Any, number: int) -> Output:
    compiler.asm.extreme_bytes(function, node.name, number)
    return Output(function, Kind(BYTES), compiler.column(node.name).type, False, number)


def _aggregate(compiler: Compiler, function: str, node: Expression | None, number: int) -> Output:
    if function not in FUNCTIONS:
        raise compiler.refuse(f"aggregates are {', '.join(FUNCTIONS[:-1])} and {FUNCTIONS[-1]}, got {shown(function)}")
    declared = compiler.column(node.name).type if isinstance(node, Col) else None
    null = compiler.label()
    register = 0
    kind = _STORED
    if function == "count":
        if node is not None:
            some = compiler.label()
            compiler.null_test(node, null, some)
            compiler.asm.label(some)
        compiler.asm.load_const(0, 1)
    elif function in ("min", "max") and isinstance(node, Col) and declared is not None and kind_of(declared) is None:
        compiler.asm.read(0, node.name)
    else:
        register, kind = compiler.value(as_expression(node), list(range(p.REGISTERS)), null)
        if function in ("sum", "mean") and kind.calendar is not None:
            raise compiler.refuse(f"calendar values have no {function}")
    compiler.asm.aggregate("sum" if function == "mean" else function, register, number, kind.type)
    compiler.asm.label(null)
    is_decimal = kind.scale > 0 or (declared is not None and declared.python is PythonDecimal)
    return Output(function, kind, declared, is_decimal, number)
