"""Conditions of scans and changes: a caller's `where` as a program, and the facts about columns that prune partitions.

A *program in place* reads only fixed columns in memory, runs as a vector and is short: a kernel that holds the GIL may
run it over rows in place. All other programs run over copies of rows, without the GIL.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidemark.engine.base.errors import ProgramInvalid, TypeMismatch
from tidemark.engine.programs import program_layout as p
from tidemark.engine.programs.compiled import compile_filter
from tidemark.engine.programs.condition_ranges import is_never, known_of
from tidemark.engine.programs.expressions import Expression
from tidemark.engine.programs.interpreter import Program
from tidemark.engine.schema.partition_pruning import Known, partitions_for
from tidemark.engine.types.base import shown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tidemark.engine.schema.definition import TableDefinition
    from tidemark.engine.table.table import Table

COST_PER_CALL = 128
SLOTS_MAX = 8_192


class Condition:
    """A caller's `where`, compiled; `expression` is None if it was a program."""

    __slots__ = ("cost", "expression", "known", "names", "program")

    def __init__(self, definition: TableDefinition, where: Any) -> None:
        """Compile `where`. Raises: TypeMismatch, ProgramInvalid, NoSuchColumn."""
        self.expression: Expression | None = None
        self.known: dict[str, Known] = {}
        if isinstance(where, Program):
            _check_program(definition, where)
            self.program = where
        elif isinstance(where, Expression):
            self.program = compile_filter(definition, where)
            self.expression = where
            self.known = known_of(where)
        else:
            raise TypeMismatch(f"{definition.name}: where must be an expression or a Program, got {shown(where)}")
        self.names = names_of(definition, self.program)
        self.cost = self.program.facts.cost

    def numbers(self, table: Table, partitions: Sequence[str] | None) -> list[int]:
        """Return fragment numbers of partitions that may have accepted rows. Raises: NoSuchPartition."""
        numbers = table.numbers_of(partitions)
        if not self.known or len(numbers) == 1 and not is_never(self.known):
            return numbers
        found = set(partitions_for(table.definition, self.known))
        return [number for number in numbers if number in found]


def names_of(definition: TableDefinition, program: Program) -> list[str]:
    """Return the columns a program reads, and the key if the program can fail: the error names the row by its key."""
    names = [definition.columns[position].name for position in program.columns]
    return list(dict.fromkeys([*names, *definition.primary_key])) if program.facts.may_fail else names


def _check_program(definition: TableDefinition, program: Program) -> None:
    made_for = program.definition
    # Dropped columns too: they decide where in a row the others are.
    if (made_for.columns, made_for.dropped, made_for.primary_key) != (
        definition.columns,
        definition.dropped,
        definition.primary_key,
    ):
        raise ProgramInvalid(
            f"{definition.name}: the program was built for another definition, that of {made_for.name}; build it again",
            table=definition.name,
        )
    words = program.words
    if words[p.H_OUTPUTS] or words[p.H_ACCUMULATORS] or words[p.H_PARAMETERS] or words[p.H_KEY_WORDS]:
        raise ProgramInvalid(
            f"{definition.name}: a condition must not write columns, aggregate or take parameters; leave them out",
            table=definition.name,
        )


def slots_per_call(cost: int) -> int:
    """Return the number of slots that a call with a program of this cost may examine."""
    return max(1, min(SLOTS_MAX // p.VECTOR_ROWS, COST_PER_CALL // max(cost, 1))) * p.VECTOR_ROWS
