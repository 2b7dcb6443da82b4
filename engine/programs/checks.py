"""The checks of a version of a table, compiled: one program accepts the rows that break any of them (ADR 0039)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tidemark.engine.base.errors import ProgramInvalid, Rejected, SchemaInvalid
from tidemark.engine.memory.arena import NOTHING
from tidemark.engine.programs import program_layout as p
from tidemark.engine.programs.expression_nodes import InvalidNodes, from_text, to_text
from tidemark.engine.programs.expression_programs import compile_filter
from tidemark.engine.programs.expressions import Expression, Junction, Not
from tidemark.engine.programs.running import ERRORS, Running
from tidemark.engine.schema.check_definition import CheckDefinition
from tidemark.engine.types.base import shown

if TYPE_CHECKING:
    from tidemark.engine.memory.arena import Words
    from tidemark.engine.programs.interpreter import Program
    from tidemark.engine.programs.running import Judged
    from tidemark.engine.schema.definition import TableDefinition


def check_definition(name: str, condition: Any) -> CheckDefinition:
    """Return the definition of a check. Raises: InvalidName; SchemaInvalid for what is no expression; TypeMismatch for
    a constant that cannot be kept.
    """
    if not isinstance(condition, Expression):
        raise SchemaInvalid(f"check {shown(name)} must be an expression of tm.col(), got {shown(condition)}")
    return CheckDefinition(name, to_text(condition))


def check_definitions(checks: Any) -> tuple[CheckDefinition, ...]:
    """Return the definitions of checks given as {name: condition}; None: none. Raises: as `check_definition`."""
    if checks is None:
        return ()
    if not isinstance(checks, Mapping):
        raise SchemaInvalid(f'checks are given by name, as {{"positive": tm.col("n") >= 0}}, got {shown(checks)}')
    return tuple(check_definition(name, condition) for name, condition in checks.items())


def conditions_of(checks: Sequence[CheckDefinition]) -> dict[str, Expression]:
    """Return the condition of each check by its name. Raises: SchemaInvalid for nodes of no expression."""
    return {check.name: _condition(check) for check in checks}


def _condition(check: CheckDefinition) -> Expression:
    try:
        return from_text(check.nodes)
    except InvalidNodes as error:
        raise SchemaInvalid(f"check {check.name} is invalid: {error}", check=check.name) from error


class Checks:
    """The checks of a version of a table. Several threads may use it."""

    __slots__ = ("_each", "_running")

    def __init__(self, definition: TableDefinition, checks: Sequence[CheckDefinition]) -> None:
        """Compile checks, at least one. Raises: ProgramInvalid, SchemaInvalid, TypeMismatch, ValueOutOfRange."""
        negated = [Not(_condition(check)) for check in checks]
        # Each for itself first: an error names the check. NULL is not true, so its negation accepts no row.
        self._each = [(check, _running(definition, check, each)) for check, each in zip(checks, negated, strict=True)]
        self._running = self._each[0][1]
        if len(checks) > 1:
            self._running = Running(compile_filter(definition, Junction(False, tuple(negated))).program)

    @property
    def program(self) -> Program:
        """The program that accepts the rows that break a check."""
        return self._running.program

    def broken(self, table: Judged, entries: Words, offsets: Words) -> Words:
        """Return the places of the rows that break a check or cannot be judged, up to one that cannot, ascending.
        offsets: of images in private memory.
        """
        verdicts = self._running.run(table, entries, offsets)[1][0]
        found: Words = ((verdicts & p.VERDICT_OK != 0) | (verdicts == p.VERDICT_ERROR)).nonzero()[0]
        return found

    def reason(self, table: Judged, entries: Words, offset: int) -> tuple[CheckDefinition, str]:
        """Return the first check that a row breaks, and why it cannot be judged, "" if it is false."""
        offsets = np.array([offset], dtype=np.int64)
        for check, running in self._each:
            _, planes = running.run(table, entries, offsets, NOTHING)
            verdict, code = int(planes[0, 0]), int(planes[1, 0])
            if verdict & p.VERDICT_OK:
                return check, ""
            if verdict == p.VERDICT_ERROR:
                return check, ERRORS[code][1] if code in ERRORS else f"error {code}"
        raise ProgramInvalid(f"{table.name}: no check refuses the row that all together refuse; report this")


def _running(definition: TableDefinition, check: CheckDefinition, negated: Expression) -> Running:
    try:
        return Running(compile_filter(definition, negated).program)
    except Rejected as error:
        raise type(error)(
            f"check {check.name}: {error.message}", **{"table": definition.name, **error.evidence, "check": check.name}
        ) from error
