"""Programs whose constants are bound later: compiled and verified once, then copied with other constants.

Which instructions an expression compiles to depends on its shape and on the *structure* of its constants
(`engine/programs/lowering.py`). Of all expressions of one shape and one structure only the values in the words differ.
Where a value goes is known from the assembler, and its length is counted here: so a bound program is as safe as the
verified one, whatever the value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tidemark.engine.base.words_layout import WORD_BYTES
from tidemark.engine.programs import program_layout as p
from tidemark.engine.programs.instruction_set import FLOAT, INTEGER, WIDE
from tidemark.engine.programs.interpreter import Assembler, Parameter, Program, counted

if TYPE_CHECKING:
    from collections.abc import Sequence

_LOW = (1 << 64) - 1


class Template:
    """A verified program and the places of its constants.

    `head` are its words without constants of any length, which come last; `places` gives for each constant the word of
    its value, or of its offset.
    """

    __slots__ = ("_late", "_wide", "_words_at", "head", "places", "program")

    def __init__(self, program: Program, places: Sequence[tuple[Parameter, int]]) -> None:
        self.program = program
        self.places = places
        self._words_at = [(each.number, at) for each, at in places if not each.is_wide and not each.element_bytes]
        self._wide = [(each.number, at) for each, at in places if each.is_wide]
        # Constants of any length: number, bytes of an element, and the word of the instruction with their offset.
        self._late = [(each.number, each.element_bytes, at) for each, at in places if each.element_bytes]
        self.head = program.words
        if self._late:
            self.head = program.words[: self.pool_at + int(program.words[self._late[0][2]])].copy()

    @property
    def pool_at(self) -> int:
        """The word of the program where constants begin."""
        return self.program.words.size - int(self.program.words[p.H_CONSTANTS])

    def words_of(self, values: Sequence[Any]) -> Any:
        """Return the words of the program with other constants, given by their numbers: a word, an integer of 128 bits,
        or bytes.
        """
        words = self._with_late(values) if self._late else self.head.copy()
        for number, at in self._words_at:
            words[at] = values[number]
        for number, at in self._wide:
            words[at : at + 2] = _halves(values[number])
        return words

    def _with_late(self, values: Sequence[Any]) -> Any:
        pieces = [self.head.tobytes()]
        at = self.head.size
        pool_at = self.pool_at
        offsets = []
        for number, element_bytes, _ in self._late:
            piece = counted(values[number], element_bytes)
            pieces.append(piece)
            offsets.append(at - pool_at)
            at += len(piece) // WORD_BYTES
        words = np.frombuffer(bytearray(b"".join(pieces)), dtype=np.int64)
        words[p.H_WORDS] = at
        words[p.H_CONSTANTS] = at - pool_at
        for (_, _, place), offset in zip(self._late, offsets, strict=True):
            words[place] = offset
        return words


def _halves(number: int) -> tuple[int, int]:
    low = number & _LOW
    return low - (low >> 63 << 64), number >> 64


class TemplateAssembler(Assembler):
    """An assembler whose instructions may take parameters, each with the value that the first program has."""

    def compare(self, condition: str, name: str, value: Any, parameter: int, label: str, octets: bool = False) -> None:
        """Emit `branch_stored` with a parameter: a word, an integer of 128 bits, bytes, or the tokens of a pattern."""
        self._compare(condition, name, value, label, True, octets, parameter)

    def load(self, register: int, kind: str, value: int, parameter: int) -> None:
        """Load a parameter of that type: an integer, the bits of a float, or an integer of 128 bits."""
        if kind == WIDE:
            wide = Parameter(parameter, is_wide=True)
            self._emit(p.OP_LOAD_WIDE, register, constant=self._wide(value), parameter=wide)
            return
        opcode = {INTEGER: p.OP_LOAD_CONST64, FLOAT: p.OP_LOAD_FLOAT}[kind]
        self._emit(opcode, register, value=value, parameter=Parameter(parameter))

    def key(self, register: int, kind: str, part: int, at: int) -> None:
        """Make a register of that type a part of the row's key, at word `at`."""
        self._emit(p.OP_KEY, register, flags=self._type_flag(kind), place=part, value=at)

    def key_bytes(self, name: str, part: int, at: int) -> None:
        """Make a column of characters or bytes a part of the row's key, at word `at`."""
        self._emit(p.OP_KEY_BYTES, place=self._column(name), value=at, target=part)

    def group(self) -> None:
        """Find the group of the row's key; the aggregates after it are those of the group."""
        self._emit(p.OP_GROUP)

    def extreme_bytes(self, function: str, name: str, accumulator: int) -> None:
        """Take a column of characters or bytes into a min or max of the group."""
        opcode = {"min": p.OP_MIN_BYTES, "max": p.OP_MAX_BYTES}[function]
        self._emit(opcode, place=self._column(name), target=accumulator)
        self._accumulators = max(self._accumulators, accumulator + 1)

    def finish_template(self) -> Template:
        """Return the program, verified, with the places of its parameters. Raises: ProgramInvalid."""
        return Template(*self._assembled())
