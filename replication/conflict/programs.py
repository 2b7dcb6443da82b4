"""The interpreted programs of the conflict functions.

The values of an event are parameters, so that a program of a table is built once. Columns and epochs are compared as
unsigned numbers: unlike in NDB, a `BIGINT UNSIGNED` of 2**63 or more is above all smaller ones. NULL in the resolve
column counts as 0, as in NDB.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemark.engine.base.errors import SchemaInvalid
from tidemark.engine.programs.instruction_set import INTEGER, WIDE
from tidemark.engine.programs.interpreter import Assembler
from tidemark.engine.types import UInt32, UInt64
from tidemark.replication.conflict.functions import Check
from tidemark.replication.settings.conflict_function import LOW_MASK, saturated_from

if TYPE_CHECKING:
    from tidemark.engine.programs.interpreter import Program
    from tidemark.engine.schema.definition import TableDefinition

REFUSED_CODE = 9999  # a program refused the row

# Parameters by check.
VALUE = 0  # the event's value of the resolve column, as a signed word; EPOCH: max replicated epoch
IMAGE_ORDER = 1  # GREATEST: event's after-image compared with the row, -1, 0 or 1
SITE_ORDER = 2  # GREATEST: the event's site compared with the row's author, -1, 0 or 1

_SIGN = -(1 << 63)
_WORD = 1 << 64
_EVENT, _ROW, _SPARE = 1, 2, 3


def _exits(assembler: Assembler) -> Program:
    assembler.label("refuse")
    assembler.exit_refuse(REFUSED_CODE)
    assembler.label("accept")
    assembler.exit_ok()
    return assembler.finish()


def _load_compared(assembler: Assembler, table: TableDefinition, column: str) -> str:
    """Load the event's value and the row's value into registers of one type, in which they order as unsigned numbers;
    return the type.
    """
    kind = table.columns[table.position(column)].type
    if kind not in (UInt32, UInt64):
        raise SchemaInvalid(f"resolve column {column!r} must be UInt32 or UInt64, it is {kind!r}")
    assembler.load_parameter(_EVENT, VALUE)
    if kind == UInt32:
        assembler.read(_ROW, column)
        assembler.branch_not_null(_ROW, "known")
        assembler.load_const(_ROW, 0)
        assembler.label("known")
        return INTEGER
    # A value from 2**63 on is passed as a negative word.
    assembler.load_const(_SPARE, 0)
    assembler.branch_registers("ge", _EVENT, _SPARE, "small")
    assembler.operate("integer_to_wide", _EVENT, _EVENT)
    assembler.load_wide(_SPARE, _WORD)
    assembler.operate("wide_add_exact", _EVENT, _EVENT, _SPARE)
    assembler.branch("widened")
    assembler.label("small")
    assembler.operate("integer_to_wide", _EVENT, _EVENT)
    assembler.label("widened")
    assembler.read(_ROW, column)
    assembler.branch_not_null(_ROW, "known")
    assembler.load_wide(_ROW, 0)
    assembler.label("known")
    return WIDE


def value_program(table: TableDefinition, column: str, check: Check) -> Program:
    """Return the program of EQUAL, GREATER or GREATEST over the resolve column."""
    assembler = Assembler(table)
    kind = _load_compared(assembler, table, column)
    assembler.branch_registers("eq" if check is Check.EQUAL else "gt", _EVENT, _ROW, "accept", kind=kind)
    if check is Check.GREATEST:
        assembler.branch_registers("lt", _EVENT, _ROW, "refuse", kind=kind)
        assembler.load_const(4, 0)
        assembler.load_parameter(5, IMAGE_ORDER)
        assembler.branch_registers("gt", 5, 4, "accept")
        assembler.branch_registers("lt", 5, 4, "refuse")
        assembler.load_parameter(6, SITE_ORDER)
        assembler.branch_registers("ge", 6, 4, "accept")
    return _exits(assembler)


def epoch_program(table: TableDefinition, bits: int) -> Program:
    """Return the program of EPOCH. It accepts a row that a replica wrote, and a row that the peer has confirmed: its
    epoch, as NDB reads it back with `bits`, is not above the parameter VALUE.
    """
    assembler = Assembler(table)
    assembler.load_const(_EVENT, 0)
    assembler.read_pseudo(_ROW, "author")
    assembler.branch_registers("ne", _ROW, _EVENT, "accept")
    assembler.read_pseudo(_ROW, "epoch")
    assembler.load_const(_SPARE, LOW_MASK)
    assembler.operate("and", 4, _ROW, _SPARE)
    assembler.load_const(5, saturated_from(bits))
    assembler.branch_registers("lt", 4, 5, "read")
    assembler.operate("or", _ROW, _ROW, _SPARE)
    assembler.label("read")
    assembler.load_parameter(_EVENT, VALUE)
    assembler.load_const(_SPARE, _SIGN)
    assembler.operate("xor", _EVENT, _EVENT, _SPARE)
    assembler.operate("xor", _ROW, _ROW, _SPARE)
    assembler.branch_registers("le", _ROW, _EVENT, "accept")
    return _exits(assembler)


def author_program(table: TableDefinition) -> Program:
    """Return the program of AUTHOR. It accepts a row that a replica wrote."""
    assembler = Assembler(table)
    assembler.load_const(_EVENT, 0)
    assembler.read_pseudo(_ROW, "author")
    assembler.branch_registers("ne", _ROW, _EVENT, "accept")
    return _exits(assembler)


def program_of(check: Check, table: TableDefinition, column: str | None = None, bits: int = 0) -> Program | None:
    """Return the program of a check, None for Check.NONE; `column` for checks of values, `bits` for EPOCH."""
    if check is Check.NONE:
        return None
    if check is Check.EPOCH:
        return epoch_program(table, bits)
    if check is Check.AUTHOR:
        return author_program(table)
    if column is None:
        raise SchemaInvalid("a check of values needs the resolve column")
    return value_program(table, column, check)
