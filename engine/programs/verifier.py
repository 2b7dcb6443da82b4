"""The verifier of interpreted programs: a program that passes it cannot access memory outside its own, whatever row it
reads.

Two passes: first every word of every instruction alone; then, along the paths, the types of the registers. A subroutine
starts with the register types on which all its callers agree. After a call, the register types are those on which all
its returns agree.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tidemark.engine.base.errors import ProgramInvalid
from tidemark.engine.programs import program_layout as p
from tidemark.engine.programs.instruction_set import (
    AGGREGATES,
    BY_FLAGS,
    BYTES_AGGREGATES,
    FLOAT,
    INSTRUCTIONS,
    INTEGER,
    NULL,
    OF_BYTES,
    OF_GROUPS,
    PSEUDO_COLUMNS,
    TYPES,
    WIDE,
    Fields,
    accumulator_of,
    part_of,
    part_words,
    split,
)
from tidemark.engine.rows import columns_layout as c
from tidemark.engine.rows.column_words import column_words
from tidemark.engine.schema.row_shape import compute_layout
from tidemark.engine.types.base import is_int

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tidemark.engine.schema.definition import TableDefinition
    from tidemark.engine.types import ColumnType

    Types = dict[int, str]

_ORDERED = range(p.COND_EQ, p.COND_GE + 1)
_TESTS = {
    INTEGER: (*_ORDERED, *range(p.COND_AND_EQ_MASK, p.COND_AND_NE_ZERO + 1)),
    FLOAT: tuple(_ORDERED),
    WIDE: tuple(_ORDERED),
    "bytes": (*_ORDERED, p.COND_LIKE, p.COND_NOT_LIKE),
}
CLASS_TYPES = {
    c.CLASS_SIGNED: INTEGER,
    c.CLASS_UNSIGNED: INTEGER,
    c.CLASS_FLOAT32: FLOAT,
    c.CLASS_FLOAT64: FLOAT,
    c.CLASS_WIDE: WIDE,
    c.CLASS_WIDE_UNSIGNED: WIDE,
    c.CLASS_BYTES: "bytes",
}
# Marks in the types of registers: the parts of the key that are made, and that the group is found.
_GROUP_FOUND = -1
_PART_MADE = -2  # of the first part; those of the others are below
_PART_NEEDS = {
    c.PART_FIXED: p.NEED_FIXED,
    c.PART_VAR: p.NEED_VAR,
    c.PART_KEY: p.NEED_VAR,
    c.PART_DISK: p.NEED_DISK,
    c.PART_DISK_VAR: p.NEED_DISK,
}


def geometry(definition: TableDefinition) -> dict[int, int]:
    """Return the header words that describe the row format of the table."""
    layout = compute_layout(definition)
    return {
        p.H_FIXED_WORDS: layout.fixed_words,
        p.H_HAS_VAR: int(layout.has_var),
        p.H_DISK_FIXED_WORDS: 0 if layout.disk is None else layout.disk.fixed_words,
        p.H_DISK_HAS_VAR: int(layout.disk is not None and layout.disk.has_var),
    }


def needs_of(instructions: Sequence[Fields], words: NDArray[np.int64]) -> int:
    """Return which planes of rows the instructions read, as bits NEED_…."""
    needs = 0
    for each in instructions:
        fields = INSTRUCTIONS[each.opcode].fields
        if each.opcode == p.OP_READ_ATTR and each.place in PSEUDO_COLUMNS:
            needs |= PSEUDO_COLUMNS[each.place][1]
        elif "column" in fields and each.opcode != p.OP_WRITE_ATTR:
            needs |= _PART_NEEDS[int(words[each.place * c.COLUMN_WORDS + c.CW_PART])]
        if "other" in fields:
            needs |= _PART_NEEDS[int(words[each.value * c.COLUMN_WORDS + c.CW_PART])]
    return needs


def padding_of(types: Sequence[ColumnType]) -> int:
    """Return FL_PADDED if values of these columns have the zero bytes at their end, else 0: characters have not."""
    has_char = any(each.is_text and each.width for each in types)
    return p.FL_PADDED if any(each.is_padded for each in types) and not has_char else 0


def flags_of(instructions: Sequence[Fields], updates: bool) -> int:
    """Return PF_FORWARD and PF_UPDATES of a program."""
    forward = all(
        each.opcode not in (p.OP_CALL, p.OP_RETURN)
        and ("target" not in INSTRUCTIONS[each.opcode].fields or each.target > number)
        for number, each in enumerate(instructions)
    )
    opcodes = {each.opcode for each in instructions}
    # A vector would already have aggregated rows after the last one.
    if p.OP_EXIT_OK_LAST in opcodes and not opcodes.isdisjoint(AGGREGATES):
        forward = False
    return forward * p.PF_FORWARD | updates * p.PF_UPDATES


def key_parts(instructions: Sequence[Fields]) -> list[Fields]:
    """Return the instructions that make parts of a key."""
    return [each for each in instructions if each.opcode in (p.OP_KEY, p.OP_KEY_BYTES)]


def key_words(instructions: Sequence[Fields]) -> int:
    """Return the words of a group's key, with the word of its NULL bits; 0 if the program has no groups."""
    if all(each.opcode not in OF_GROUPS for each in instructions):
        return 0
    return 1 + sum(part_words(each) for each in key_parts(instructions))


class Verifier:
    """Checks the words of one program; `verify` raises ProgramInvalid, which names the instruction."""

    def __init__(self, definition: TableDefinition, columns: Sequence[int], words: NDArray[np.int64]) -> None:
        self.definition = definition
        self.columns = columns
        self.words = words
        self.instructions: list[Fields] = []
        self.outputs: dict[int, int] = {}

    def verify(self) -> None:
        """Run both passes."""
        self._check_frame()
        for number, each in enumerate(self.instructions):
            self._check_words(number, each)
        self._check_summary()
        self._follow_paths()

    def _refuse(self, number: int, what: str) -> ProgramInvalid:
        return ProgramInvalid(
            f"{self.definition.name}: instruction {number} of the program {what}",
            table=self.definition.name,
            instruction=number,
        )

    def _wrong(self, what: str) -> ProgramInvalid:
        return ProgramInvalid(f"{self.definition.name}: the program {what}", table=self.definition.name)

    def _check_frame(self) -> None:
        words = self.words
        if words.size < p.PROGRAM_HEADER_WORDS or words[p.H_MAGIC] != p.PROGRAM_MAGIC << 8 | p.PROGRAM_VERSION:
            raise self._wrong("does not begin with the header of this version")
        columns, count, constants = (int(words[at]) for at in (p.H_COLUMNS, p.H_INSTRUCTIONS, p.H_CONSTANTS))
        if not 1 <= count <= p.PROGRAM_INSTRUCTIONS_MAX:
            raise self._wrong(f"has {count} instructions; 1 to {p.PROGRAM_INSTRUCTIONS_MAX} are possible")
        if columns != len(self.columns) or not 0 <= constants <= words.size:
            raise self._wrong("has lengths that contradict each other")
        start = p.PROGRAM_HEADER_WORDS + columns * c.COLUMN_WORDS
        end = start + count * p.INSTRUCTION_WORDS
        if words[p.H_WORDS] != words.size or end + constants != words.size:
            raise self._wrong("has lengths that contradict each other")
        known = range(len(self.definition.columns))
        if not all(is_int(each) and each in known for each in self.columns) or len(set(self.columns)) != columns:
            raise self._wrong("names columns by positions that the table does not have, or twice")
        described, defaults = column_words(compute_layout(self.definition), self.columns)
        self.column_words = words[p.PROGRAM_HEADER_WORDS : start]
        self.constants = words[end:]
        if not np.array_equal(self.column_words, described) or self.constants.tobytes()[: len(defaults)] != defaults:
            raise self._wrong(f"was made for other columns than those of {self.definition.name}")
        if not 1 <= words[p.H_MAIN] <= count:
            raise self._wrong("has no main part")
        for place in (p.H_ACCUMULATORS, p.H_PARAMETERS, p.H_OUTPUTS):
            most = {p.H_ACCUMULATORS: p.ACCUMULATORS_MAX, p.H_PARAMETERS: p.PARAMETERS_MAX}.get(place, columns)
            if not 0 <= words[place] <= most:
                raise self._wrong(f"has {words[place]} outputs, accumulators or parameters; {most} are possible")
        listed = words[start:end].reshape(-1, p.INSTRUCTION_WORDS).tolist()
        for number, each in enumerate(listed):
            if each[0] >> p.HEAD_BITS or (each[0] & p.FIELD_MASK) not in INSTRUCTIONS:
                raise self._refuse(number, "has an unknown opcode")
            self.instructions.append(split(*each))

    # --- each instruction by itself -------------------------------------------------------------------
    def _check_words(self, number: int, each: Fields) -> None:
        known = INSTRUCTIONS[each.opcode]
        used = {field for field, _ in known.reads} | ({"a"} if known.writes is not None else set())
        for field, register in zip("abc", (each.a, each.b, each.c), strict=True):
            if register >= p.REGISTERS or (register and field not in used):
                raise self._refuse(number, f"names register {register}, which is invalid here")
        if each.flags & ~known.flags or (known.flags & p.TYPE_MASK and each.flags & p.TYPE_MASK not in TYPES):
            raise self._refuse(number, "has invalid flags")
        if "condition" not in known.fields and each.condition:
            raise self._refuse(number, "has an invalid condition")
        if "target" in known.fields:
            self._check_target(number, each)
        main = int(self.words[p.H_MAIN])
        if each.opcode == p.OP_RETURN and number < main:
            raise self._refuse(number, "returns outside a subroutine")
        if number + 1 in (main, len(self.instructions)) and not known.ends:
            raise self._refuse(number, "lets the program fall off its end")
        self._check_numbers(number, each)
        if "column" in known.fields:
            self._check_column(number, each)
        if "condition" in known.fields:
            self._check_condition(number, each)
        if each.opcode == p.OP_WRITE_ATTR:
            self._check_write(number, each)

    def _check_target(self, number: int, each: Fields) -> None:
        main = int(self.words[p.H_MAIN])
        if not 0 <= each.target < len(self.instructions):
            raise self._refuse(number, f"branches to {each.target}, where no instruction is")
        if each.opcode == p.OP_CALL:
            if each.target < main:
                raise self._refuse(number, f"calls {each.target}, which is not a subroutine")
        elif (each.target < main) != (number < main):
            raise self._refuse(number, "branches into or out of a subroutine")

    def _check_numbers(self, number: int, each: Fields) -> None:
        fields = INSTRUCTIONS[each.opcode].fields
        if "code" in fields and not 0 <= each.place <= p.REFUSE_CODE_MAX:
            raise self._refuse(number, f"refuses with {each.place}; codes are 0 to {p.REFUSE_CODE_MAX}")
        if "accumulator" in fields and not 0 <= accumulator_of(each) < self.words[p.H_ACCUMULATORS]:
            raise self._refuse(number, f"names accumulator {accumulator_of(each)}, which is not declared")
        if "parameter" in fields:
            parameter = each.value if "column" in fields else each.place
            if not 0 <= parameter < self.words[p.H_PARAMETERS]:
                raise self._refuse(number, f"names parameter {parameter}, which is not declared")
        bits = {p.OP_LOAD_CONST16: 16, p.OP_LOAD_CONST32: 32}.get(each.opcode)
        if bits is not None and not 0 <= each.value < 1 << bits:
            raise self._refuse(number, f"loads {each.value}, which is not an unsigned number of {bits} bits")
        if each.opcode == p.OP_LOAD_WIDE:
            self._check_constant(number, each.value, 2)

    def _check_constant(self, number: int, at: int, words: int) -> None:
        if not 0 <= at <= len(self.constants) - words:
            raise self._refuse(number, "names a constant that does not exist")

    def _type_of(self, column: int) -> str:
        return CLASS_TYPES[int(self.column_words[column * c.COLUMN_WORDS + c.CW_CLASS])]

    def _check_column(self, number: int, each: Fields) -> None:
        if each.opcode == p.OP_READ_ATTR and each.place in PSEUDO_COLUMNS:
            return
        if not 0 <= each.place < len(self.columns):
            raise self._refuse(number, f"names column {each.place}, which is not declared")
        if each.opcode in (p.OP_READ_ATTR, p.OP_WRITE_ATTR) and self._type_of(each.place) == "bytes":
            raise self._refuse(number, "takes a column of characters or bytes into a register")
        if each.opcode in OF_BYTES and self._type_of(each.place) != "bytes":
            raise self._refuse(number, "takes a column that is not of characters or bytes")

    def _check_condition(self, number: int, each: Fields) -> None:
        kind = self._type_of(each.place)
        if each.condition not in _TESTS[kind]:
            raise self._refuse(number, f"has a condition that {kind} columns do not have")
        if each.flags & p.FL_PADDED:
            self._check_padded(number, each)
        if each.opcode == p.OP_BRANCH_ATTR_OP_ATTR:
            if not 0 <= each.value < len(self.columns):
                raise self._refuse(number, f"names column {each.value}, which is not declared")
            if self._type_of(each.value) != kind or each.condition not in _ORDERED:
                raise self._refuse(number, "compares columns of different types")
        elif each.opcode == p.OP_BRANCH_ATTR_OP_PARAM:
            if kind not in (INTEGER, FLOAT):
                raise self._refuse(number, f"compares a {kind} column with a parameter, which is one word")
        elif kind == "bytes":
            self._check_constant(number, each.value, 1)
            length = int(self.constants[each.value])
            width = p.TOKEN_BYTES if each.condition in (p.COND_LIKE, p.COND_NOT_LIKE) else 1
            if not 0 <= length <= (len(self.constants) - each.value - 1) * 8 // width:
                raise self._refuse(number, "names a constant that does not exist")
        elif kind == WIDE:
            self._check_constant(number, each.value, 2)

    def _check_padded(self, number: int, each: Fields) -> None:
        is_pair = each.opcode == p.OP_BRANCH_ATTR_OP_ATTR
        columns = [each.place, each.value] if is_pair else [each.place]
        is_whole = is_pair or each.condition in (p.COND_LIKE, p.COND_NOT_LIKE)
        if max(columns) >= len(self.columns) or min(columns) < 0 or not is_whole:
            raise self._refuse(number, "has invalid flags")
        if not padding_of([self.definition.columns[self.columns[column]].type for column in columns]):
            raise self._refuse(number, "has invalid flags")

    def _check_write(self, number: int, each: Fields) -> None:
        if not int(self.words[p.H_FLAGS]) & p.PF_UPDATES:
            raise self._refuse(number, "writes a column, but the program is not for updates")
        position = self.columns[each.place]
        column = self.definition.columns[position]
        if column.name in self.definition.primary_key:
            raise self._refuse(number, f"writes key column {column.name!r}")
        if self.outputs.setdefault(each.value, position) != position or not 0 <= each.value < self.words[p.H_OUTPUTS]:
            raise self._refuse(number, "writes to an output of another column")
        limits = column.type.stored_range
        if limits is not None:
            self._check_constant(number, each.target, 4)
            if self.constants[each.target : each.target + 4].tobytes() != limit_bytes(limits):
                raise self._refuse(number, f"has other limits than column {column.name!r}")

    def _check_summary(self) -> None:
        words = self.words
        updates = bool(words[p.H_FLAGS] & p.PF_UPDATES)
        written = sorted(self.outputs)
        if written != list(range(int(words[p.H_OUTPUTS]))) or len(set(self.outputs.values())) != len(written):
            raise self._wrong("writes a column to two outputs, or declares outputs that nothing is written to")
        expected = geometry(self.definition) | {
            p.H_NEEDS: needs_of(self.instructions, self.column_words),
            p.H_FLAGS: flags_of(self.instructions, updates),
            p.H_KEY_WORDS: key_words(self.instructions),
        }
        for place, value in expected.items():
            if words[place] != value:
                raise self._wrong(f"says {words[place]} in word {place} of its header, where {value} is right")
        if words[p.H_KEY_WORDS]:
            self._check_groups()

    def _check_groups(self) -> None:
        """Check what a run that is repeated needs: it runs as a vector, and groups and extremes of bytes come before
        what must not be done twice.
        """
        if not int(self.words[p.H_FLAGS]) & p.PF_FORWARD or self.words[p.H_OUTPUTS]:
            raise self._wrong("has groups together with loops, calls, a last row or outputs")
        made = [(part_of(each), each.value, part_words(each)) for each in key_parts(self.instructions)]
        at = 1
        for number, (part, offset, words) in enumerate(made):
            if part != number or offset != at:
                raise self._wrong("has parts of a key that are not one after the other")
            at += words
        opcodes = [each.opcode for each in self.instructions]
        if len(made) > p.KEY_PARTS_MAX or opcodes.count(p.OP_GROUP) != 1:
            raise self._wrong(f"has {len(made)} parts of a key; {p.KEY_PARTS_MAX} are possible, and one group")
        repeated = max(number for number, opcode in enumerate(opcodes) if opcode in (p.OP_GROUP, *BYTES_AGGREGATES))
        if not set(opcodes[:repeated]).isdisjoint(AGGREGATES):
            raise self._wrong("aggregates numbers before the group and the extremes of bytes")

    # --- along the paths --------------------------------------------------------------------------------
    def _follow_paths(self) -> None:
        """Compute the types of the registers at each instruction; refuse reads of registers that may be unwritten or
        mixed.
        """
        states: dict[int, Types] = {0: {}}
        # The subroutines an instruction may be run in, by their first instruction; -1 is the main part.
        homes: dict[int, set[int]] = {0: {-1}}
        exits: dict[int, Types] = {}
        callers: dict[int, set[int]] = {}
        waiting = [0]
        while waiting:
            number = waiting.pop()
            each = self.instructions[number]
            state = self._after(number, each, states[number])
            if each.opcode == p.OP_CALL:
                callers.setdefault(each.target, set()).add(number)
                if _meet(states, homes, each.target, state, {each.target}):
                    waiting.append(each.target)
                known = exits.get(each.target)
                if known is not None and _meet(states, homes, number + 1, known, homes[number]):
                    waiting.append(number + 1)
            elif each.opcode == p.OP_RETURN:
                for home in homes[number]:
                    agreed = state if home not in exits else _common(exits[home], state)
                    if home not in exits or agreed != exits[home]:
                        exits[home] = agreed
                        waiting.extend(callers.get(home, ()))
            else:
                follow = [] if INSTRUCTIONS[each.opcode].ends else [number + 1]
                if "target" in INSTRUCTIONS[each.opcode].fields:
                    follow.append(each.target)
                for target in follow:
                    if _meet(states, homes, target, state, homes[number]):
                        waiting.append(target)

    def _after(self, number: int, each: Fields, state: Types) -> Types:
        known = INSTRUCTIONS[each.opcode]
        registers = {"a": each.a, "b": each.b, "c": each.c}
        if self.words[p.H_KEY_WORDS]:
            state = self._after_group(number, each, state)
        for field, wanted in known.reads:
            register = registers[field]
            found = state.get(register)
            if found is None:
                raise self._refuse(number, f"reads register {register}, which is not written on every path")
            if found == MIXED:
                raise self._refuse(number, f"reads register {register}, whose type depends on the path")
            if wanted == BY_FLAGS:
                wanted = (
                    self._type_of(each.place) if each.opcode == p.OP_WRITE_ATTR else TYPES[each.flags & p.TYPE_MASK]
                )
            if wanted != NULL and found not in (wanted, NULL):
                raise self._refuse(number, f"takes {wanted}, but register {register} holds {found}")
        if known.writes is None:
            return state
        written = known.writes
        if each.opcode == p.OP_MOVE:
            written = state[each.b]
        elif each.opcode == p.OP_READ_ATTR:
            written = INTEGER if each.place in PSEUDO_COLUMNS else self._type_of(each.place)
        elif written == BY_FLAGS:
            written = TYPES[each.flags & p.TYPE_MASK]
        return {**state, each.a: written}

    def _after_group(self, number: int, each: Fields, state: Types) -> Types:
        """Return the types with the mark that an instruction of groups sets. Raises: ProgramInvalid if what it needs
        is not done on every path.
        """
        parts = len(key_parts(self.instructions))
        needed: set[int]
        made = None
        if each.opcode in (p.OP_KEY, p.OP_KEY_BYTES):
            part = part_of(each)
            needed, made = ({_PART_MADE - part + 1} if part else set()), _PART_MADE - part
        elif each.opcode == p.OP_GROUP:
            needed, made = ({_PART_MADE - parts + 1} if parts else set()), _GROUP_FOUND
        elif each.opcode in (*AGGREGATES, *BYTES_AGGREGATES):
            needed = {_GROUP_FOUND}
        else:
            return state
        if not needed <= state.keys():
            raise self._refuse(number, "comes before the parts of the key, or the group, that it needs")
        return state if made is None else {**state, made: NULL}


MIXED = "mixed"


def _meet(states: dict[int, Types], homes: dict[int, set[int]], target: int, state: Types, home: set[int]) -> bool:
    """Merge the known types at `target` with those of a path; return whether that changed them."""
    if target not in states:
        states[target] = dict(state)
        homes[target] = set(home)
        return True
    joined = _common(states[target], state)
    changed = joined != states[target] or not home <= homes[target]
    states[target] = joined
    homes[target] |= home
    return changed


def _common(one: Types, other: Types) -> Types:
    """Return the types two paths agree on: registers written on both; NULL fits every type."""
    joined = {}
    for register in one.keys() & other.keys():
        first, second = one[register], other[register]
        if first == second or second == NULL:
            joined[register] = first
        else:
            joined[register] = second if first == NULL else MIXED
    return joined


def limit_bytes(limits: tuple[int, int]) -> bytes:
    """Return both limits of a column as two words each."""
    return b"".join(each.to_bytes(16, "little", signed=True) for each in limits)
