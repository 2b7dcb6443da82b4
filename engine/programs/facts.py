"""What follows from the instructions of a program: where it may run, what it costs, whether it can fail."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from tidemark.engine.programs import program_layout as p
from tidemark.engine.programs.decisions import Decision, decision_of
from tidemark.engine.programs.instruction_set import AGGREGATES, OF_BYTES, OF_GROUPS
from tidemark.engine.programs.patterns import may_be_slow, tokens_at
from tidemark.engine.rows import columns_layout as c

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from tidemark.engine.programs.instruction_set import Fields

# Bound on the cost of a vector of rows in a call that holds the GIL; an instruction on numbers is 1, about half a µs.
COST_MAX = 128
_BYTES_PER_COST = 4
_KEY_BYTES_PER_COST = 16  # hashed and compared by words
_GROUP_COST = 8
_VAR_COST = 8  # finding the var parts
_BESIDE_IMAGES = p.NEED_DISK | p.NEED_EPOCH | p.NEED_AUTHOR | p.NEED_ROWID | p.NEED_FRAGMENT
_WITHOUT_ERRORS = frozenset(
    [
        *(p.OP_READ_ATTR, p.OP_LOAD_NULL, p.OP_LOAD_CONST16, p.OP_LOAD_CONST32, p.OP_LOAD_CONST64, p.OP_LOAD_FLOAT),
        *(p.OP_LOAD_WIDE, p.OP_MOVE, p.OP_INTEGER_TO_FLOAT, p.OP_INTEGER_TO_WIDE, p.OP_WIDE_TO_FLOAT),
        *(p.OP_BRANCH, p.OP_BRANCH_REG_EQ_NULL, p.OP_BRANCH_REG_NE_NULL, p.OP_EXIT_OK, p.OP_EXIT_REFUSE),
        *(p.OP_BRANCH_ATTR_OP_ARG, p.OP_BRANCH_ATTR_EQ_NULL, p.OP_BRANCH_ATTR_NE_NULL, p.OP_BRANCH_ATTR_OP_ATTR),
        *(p.OP_COUNT, p.OP_SUM, p.OP_MIN, p.OP_MAX, *OF_GROUPS),
    ]
)


class Facts:
    """Facts about the instructions of a program. They hold for every program with other constants too, if each pattern
    is as slow as the one here (`may_be_slow`).
    """

    def __init__(
        self, words: NDArray[np.int64], instructions: Sequence[Fields], columns: int, all_have_vars: bool = True
    ) -> None:
        """all_have_vars: each row of the table has a var part, if any row may have one."""
        described = words[p.PROGRAM_HEADER_WORDS :][: columns * c.COLUMN_WORDS]
        self.columns: list[list[int]] = described.reshape(-1, c.COLUMN_WORDS).tolist()  # column words of each
        self._instructions = instructions
        self._constants = words[words.size - int(words[p.H_CONSTANTS]) :]
        self._is_forward = bool(words[p.H_FLAGS] & p.PF_FORWARD)
        self._needs = int(words[p.H_NEEDS])
        # The most instructions that one row may take.
        self.steps = len(instructions) if self._is_forward else p.PROGRAM_STEPS_MAX
        self.accumulators = int(words[p.H_ACCUMULATORS])
        self._all_have_vars = all_have_vars
        self.key_words = int(words[p.H_KEY_WORDS])

    @cached_property
    def may_fail(self) -> bool:
        """Whether the program can end in an error in a row."""
        return any(each.opcode not in _WITHOUT_ERRORS or self._is_slow(each) for each in self._instructions)

    def _is_slow(self, each: Fields) -> bool:
        """Whether an instruction matches a pattern that may take too many steps."""
        is_pattern = each.opcode == p.OP_BRANCH_ATTR_OP_ARG and each.condition in (p.COND_LIKE, p.COND_NOT_LIKE)
        return is_pattern and may_be_slow(tokens_at(self._constants, each.value))

    @cached_property
    def matches(self) -> int:
        """How many times the program may compare bytes of a row, or match them with a pattern."""
        matches = sum(
            each.opcode in OF_BYTES
            or p.OP_BRANCH_ATTR_OP_ARG <= each.opcode <= p.OP_BRANCH_ATTR_OP_ATTR
            and self.columns[each.place][c.CW_CLASS] == c.CLASS_BYTES
            for each in self._instructions
            if each.opcode not in (p.OP_BRANCH_ATTR_EQ_NULL, p.OP_BRANCH_ATTR_NE_NULL)
        )
        return matches if self._is_forward or not matches else p.PROGRAM_STEPS_MAX

    @cached_property
    def decision(self) -> Decision | None:
        """The few tests that the program consists of; None for any other program."""
        return decision_of(self._instructions, self.columns) if self._is_forward else None

    @cached_property
    def is_of_image(self) -> bool:
        """Whether a kernel that holds the GIL may run the program over one image of a row, of some thousand bytes, and
        take over what it computes without a conversion.
        """
        if not self._is_forward or self._needs & _BESIDE_IMAGES or self.accumulators or self.key_words:
            return False
        if len(self._instructions) > COST_MAX or (self._needs & p.NEED_VAR and not self._all_have_vars):
            return False
        return not any(
            (each.condition in (p.COND_LIKE, p.COND_NOT_LIKE) and self.cost is None)
            or (each.opcode == p.OP_WRITE_ATTR and self.columns[each.place][c.CW_CLASS] == c.CLASS_FLOAT32)
            for each in self._instructions
        )

    @cached_property
    def cost(self) -> int | None:
        """Cost of a vector of rows in place, at most; None if the program must not run in place (over COST_MAX)."""
        if not self._is_forward or self._needs & p.NEED_DISK:
            return None
        if self._needs & p.NEED_VAR and not self._all_have_vars:
            return None
        cost = _VAR_COST if self._needs & p.NEED_VAR else 0
        for each in self._instructions:
            cost += 1
            if each.opcode == p.OP_GROUP:
                cost += _GROUP_COST + self.key_words
            elif each.opcode in AGGREGATES and self.key_words:
                cost += 2  # each row has accumulators of its own
            is_compared = (
                p.OP_BRANCH_ATTR_OP_ARG <= each.opcode <= p.OP_BRANCH_ATTR_OP_ATTR
                and self.columns[each.place][c.CW_CLASS] == c.CLASS_BYTES
            )
            if is_compared or each.opcode in OF_BYTES:
                width = self.columns[each.place][c.CW_BYTES]
                if width == 0:  # Text or Blob
                    return None
                is_pattern = each.condition in (p.COND_LIKE, p.COND_NOT_LIKE)
                times = width if is_pattern else 1
                cost += width * times // (_BYTES_PER_COST if is_compared else _KEY_BYTES_PER_COST) + 4
        return cost if cost <= COST_MAX else None
