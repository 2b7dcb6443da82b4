"""Programs that are conditions of a few tests: which outcomes of the tests a program accepts, as a table.

A test compares a number column of the fixed image with a constant, or asks whether it is NULL. However the tests are
joined, by `&`, `|` and `~`, the program is this table and the constants. A kernel that has both needs no machine
(`engine/queries/filters.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tidemark.engine.base.words_layout import WORD_BYTES
from tidemark.engine.programs import program_layout as p
from tidemark.engine.rows import columns_layout as c

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tidemark.engine.programs.instruction_set import Fields

TESTS_MAX = 3
NOT_NULL = p.CONDITIONS_END  # the condition of a test that asks whether there is a value
_ENDS = (p.OP_EXIT_OK, p.OP_EXIT_REFUSE)
_NULL_TESTS = (p.OP_BRANCH_ATTR_EQ_NULL, p.OP_BRANCH_ATTR_NE_NULL)


class ColumnTest(NamedTuple):
    """A test of one column. It does not hold for NULL."""

    column: int  # number among the program's columns
    condition: int  # COND_EQ to COND_GE, or NOT_NULL
    instruction: int  # number of the instruction, which has the constant


class Decision(NamedTuple):
    """The tests of a condition. Bit o of `accepted` is 1 if rows are accepted for which the set o of tests holds."""

    tests: tuple[ColumnTest, ...]
    accepted: int


def decision_of(instructions: Sequence[Fields], columns: Sequence[Sequence[int]]) -> Decision | None:
    """Return the decision that a program without backward branches makes; None if it does anything else.

    columns: the column words of each column.
    """
    tests: dict[int, ColumnTest] = {}
    for at, each in enumerate(instructions):
        if each.opcode == p.OP_BRANCH or each.opcode in _ENDS:
            continue
        found = _test(at, each, columns)
        if found is None or len(tests) == TESTS_MAX:
            return None
        tests[at] = found
    order = list(tests)
    accepted = 0
    for held in range(1 << TESTS_MAX):
        at = 0
        while instructions[at].opcode not in _ENDS:
            each = instructions[at]
            goes = each.opcode == p.OP_BRANCH
            if not goes:
                goes = bool(held >> order.index(at) & 1) != (each.opcode == p.OP_BRANCH_ATTR_EQ_NULL)
            at = each.target if goes else at + 1
        accepted |= (instructions[at].opcode == p.OP_EXIT_OK) << held
    return Decision(tuple(tests.values()), accepted)


def _test(at: int, each: Fields, columns: Sequence[Sequence[int]]) -> ColumnTest | None:
    if each.opcode not in (p.OP_BRANCH_ATTR_OP_ARG, *_NULL_TESTS):
        return None
    column = columns[each.place]
    if column[c.CW_PART] != c.PART_FIXED:
        return None
    if each.opcode in _NULL_TESTS:
        return ColumnTest(each.place, NOT_NULL, at)
    is_plain = column[c.CW_CLASS] not in (c.CLASS_WIDE, c.CLASS_BYTES) and column[c.CW_BYTES] <= WORD_BYTES
    if not is_plain or each.condition > p.COND_GE or not each.flags & p.FL_SQL:
        return None
    return ColumnTest(each.place, each.condition, at)
