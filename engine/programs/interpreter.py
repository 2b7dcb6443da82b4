"""Interpreted programs: `Assembler` builds one, `Program` is a verified one, kernels run it.

The instructions are in docs/internals/access.md, section 2.

Invariant: the words of a `Program` have passed the verifier and never change afterwards, so kernels need not check them
again (numba treats read-only arrays as another type, so only this rule protects them). A program reads rows as they
were: its writes go to outputs, and no later read sees them.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tidemark.engine.base.errors import ProgramInvalid
from tidemark.engine.base.words_layout import WORD_BYTES
from tidemark.engine.programs import program_layout as p
from tidemark.engine.programs.facts import Facts
from tidemark.engine.programs.group_memory import new_groups
from tidemark.engine.programs.instruction_set import (
    CONDITIONS,
    FLOAT,
    INSTRUCTIONS,
    INTEGER,
    OPCODES,
    PSEUDO_COLUMNS,
    TYPE_FLAGS,
    Fields,
    join,
    split,
)
from tidemark.engine.programs.patterns import tokens_of
from tidemark.engine.programs.verifier import (
    Verifier,
    flags_of,
    geometry,
    key_words,
    limit_bytes,
    needs_of,
    padding_of,
)
from tidemark.engine.rows import columns_layout as c
from tidemark.engine.rows.column_words import column_class, column_words
from tidemark.engine.schema.names import no_such_column
from tidemark.engine.schema.row_shape import compute_layout
from tidemark.engine.types.base import is_int, shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from tidemark.engine.schema.definition import TableDefinition

    Words = NDArray[np.int64]

_PSEUDO_NAMES = {name: number for number, (name, _) in PSEUDO_COLUMNS.items()}
_WORD_BITS = 64
_WIDE_CLASSES = (c.CLASS_WIDE, c.CLASS_WIDE_UNSIGNED)
COMPARISONS = CONDITIONS[:6]
AGGREGATES = ("count", "sum", "min", "max")
_DOUBLE = struct.Struct("<d")
_LONG = struct.Struct("<q")


def float_bits(value: float) -> int:
    """Return the bits of a float as a signed word."""
    (bits,) = _LONG.unpack(_DOUBLE.pack(value))
    return int(bits)


def bits_float(bits: int) -> float:
    """Return the float of a signed word's bits."""
    (value,) = _DOUBLE.unpack(_LONG.pack(bits))
    return float(value)


def counted(value: bytes, element_bytes: int) -> bytes:
    """Return a constant of any length: the number of elements, then the elements; whole words."""
    return _LONG.pack(len(value) // element_bytes) + value + bytes(-len(value) % WORD_BYTES)


class Parameter(NamedTuple):
    """A constant of a program that is bound later: its number among them; bytes of an element if it is a string or a
    pattern of any length, else 0; whether it takes two words.
    """

    number: int
    element_bytes: int = 0
    is_wide: bool = False


class Program:
    """A verified program for rows of one table definition.

    `words` is the program for kernels, `columns` the positions of the columns it may touch, in the order of their
    column words, `outputs` the positions of the columns it writes, in the order of the outputs.
    """

    __slots__ = ("_facts", "_template", "columns", "definition", "outputs", "words")

    def __init__(self, definition: TableDefinition, columns: Sequence[int], words: Words) -> None:
        """Verify the program. Shapes: `words` int64, copied. Raises: ProgramInvalid."""
        self.definition = definition
        self.columns = tuple(columns)
        self.words: Words = np.array(words, dtype=np.int64)
        verifier = Verifier(definition, self.columns, self.words)
        verifier.verify()
        self.outputs = tuple(verifier.outputs[number] for number in sorted(verifier.outputs))
        self._template = self
        self._facts: Facts | None = None

    @property
    def facts(self) -> Facts:
        """What follows from the instructions; programs that differ in constants only share it."""
        template = self._template
        if template._facts is None:
            has_all = compute_layout(self.definition).var_since == 0
            template._facts = Facts(self.words, self.instructions, len(self.columns), has_all)
        return template._facts

    @property
    def instructions(self) -> list[Fields]:
        """The instructions, as fields."""
        start = p.PROGRAM_HEADER_WORDS + len(self.columns) * c.COLUMN_WORDS
        end = start + int(self.words[p.H_INSTRUCTIONS]) * p.INSTRUCTION_WORDS
        return [split(*each) for each in self.words[start:end].reshape(-1, p.INSTRUCTION_WORDS).tolist()]

    @property
    def constants(self) -> Words:
        """The constants after the instructions."""
        return self.words[self.words.size - int(self.words[p.H_CONSTANTS]) :]

    @property
    def is_forward(self) -> bool:
        """Whether the program may run over a vector of rows."""
        return bool(self.words[p.H_FLAGS] & p.PF_FORWARD)

    @property
    def needs(self) -> int:
        """Bits NEED_…: the parts of a row that the program reads."""
        return int(self.words[p.H_NEEDS])

    def new_work(self) -> Words:
        """Return memory in which one thread can run the program; accumulators are zero, and there are no groups."""
        if self.words[p.H_KEY_WORDS]:
            return new_groups(self.instructions, int(self.words[p.H_KEY_WORDS]))
        return np.zeros(p.work_words(len(self.outputs)), dtype=np.int64)


def with_constants(template: Program, words: Words) -> Program:
    """Return a program that differs from a verified one in constants only, without verifying it again.

    The caller (`engine/programs/templates.py`) answers for the words: each new constant is of the type and in the place
    of the verified one, or of any length at the end, with its length before it.
    """
    made = object.__new__(Program)
    made.definition = template.definition
    made.columns = template.columns
    made.outputs = template.outputs
    made.words = words
    made._template = template._template
    return made


class Assembler:
    """Builds a program for rows of `definition`: one call per instruction, then `finish()`.

    Registers are numbers below 16. Labels and subroutines are names; they may be used before they are set. Values of
    columns have the same form as in rows. Branches on a column follow SQL's rules for NULL unless `sql` is False.

    A call raises ProgramInvalid for a register, label, number or condition that is invalid, NoSuchColumn for a column
    that the table does not have, and TypeMismatch or ValueOutOfRange for a value that its column cannot hold.

    Args:
        definition: The table's definition, as `table.definition` has it.
        updates: Build a program for updates, which may write columns.

    Examples:
        >>> asm = tm.Assembler(db["item"].definition)
        >>> asm.branch_column("ge", "stock", 5, "enough")
        >>> asm.exit_refuse()
        >>> asm.label("enough")
        >>> asm.exit_ok()
        >>> program = asm.finish()
        >>> sorted(row.name for row in db["item"].scan(where=program))
        ['cup', 'pen']
    """

    def __init__(self, definition: TableDefinition, updates: bool = False) -> None:
        self.definition = definition
        self.updates = updates
        self._layout = compute_layout(definition)
        self._positions = {column.name: position for position, column in enumerate(definition.columns)}
        self._columns: list[int] = []
        self._code: list[tuple[Fields, str | None, bytes | None, Parameter | None]] = []
        self._labels: dict[str, int] = {}
        self._outputs: list[int] = []
        self._subroutines_at: int | None = None
        self._accumulators = 0
        self._parameters = 0

    # --- emitting -------------------------------------------------------------------------------------
    def _refuse(self, what: str) -> ProgramInvalid:
        return ProgramInvalid(f"{self.definition.name}: {what}", table=self.definition.name)

    def _emit(
        self,
        opcode: int,
        a: int = 0,
        b: int = 0,
        c: int = 0,
        *,
        condition: int = 0,
        flags: int = 0,
        place: int = 0,
        value: int = 0,
        target: int = 0,
        label: str | None = None,
        constant: bytes | None = None,
        parameter: Parameter | None = None,
    ) -> None:
        if not all(is_int(each) and 0 <= each < p.REGISTERS for each in (a, b, c)):
            raise self._refuse(f"registers are 0 to {p.REGISTERS - 1}, got {a!r}, {b!r}, {c!r}")
        for each in (place, value):
            if not is_int(each) or not -(1 << _WORD_BITS - 1) <= each < 1 << _WORD_BITS - 1:
                raise self._refuse(f"{shown(each)} is not an integer of 64 bits")
        self._code.append((Fields(opcode, a, b, c, condition, flags, place, value, target), label, constant, parameter))

    def _column(self, name: str) -> int:
        position = self._positions.get(name)
        if position is None:
            raise no_such_column(self.definition.name, name, self._positions)
        if position not in self._columns:
            self._columns.append(position)
        return self._columns.index(position)

    def _padded(self, *numbers: int) -> int:
        return padding_of([self.definition.columns[self._columns[number]].type for number in numbers])

    def label(self, name: str) -> None:
        """Name the next instruction.

        Examples:
            >>> asm.branch_column_null("stock", "end")
            >>> asm.exit_ok()
            >>> asm.label("end")
            >>> asm.exit_refuse()
        """
        if name in self._labels:
            raise self._refuse(f"label {name!r} is set twice")
        self._labels[name] = len(self._code)

    def subroutine(self, name: str) -> None:
        """Begin a subroutine here; the first one ends the main part.

        Examples:
            >>> asm.read(0, "stock")
            >>> asm.call("halve")
            >>> asm.branch_registers("ge", 0, 1, "enough")
            >>> asm.exit_refuse()
            >>> asm.label("enough")
            >>> asm.exit_ok()
            >>> asm.subroutine("halve")
            >>> asm.load_const(1, 2)
            >>> asm.operate("floordiv", 0, 0, 1)
            >>> asm.ret()
            >>> db["item"].scan(where=asm.finish()).count()
            2
        """
        if self._subroutines_at is None:
            self._subroutines_at = len(self._code)
        self.label(name)

    # --- loads, reads, writes -----------------------------------------------------------------------------
    def load_null(self, register: int) -> None:
        """Load NULL, of any type.

        Examples:
            >>> asm.load_null(0)
        """
        self._emit(p.OP_LOAD_NULL, register)

    def load_const(self, register: int, value: int) -> None:
        """Load an integer of 64 bits.

        Examples:
            >>> asm.load_const(0, -5)
        """
        opcode = p.OP_LOAD_CONST64
        if 0 <= value < 1 << 32:
            opcode = p.OP_LOAD_CONST16 if value < 1 << 16 else p.OP_LOAD_CONST32
        self._emit(opcode, register, value=value)

    def load_float(self, register: int, value: float) -> None:
        """Load a float.

        Examples:
            >>> asm.load_float(0, 2.5)
        """
        self._emit(p.OP_LOAD_FLOAT, register, value=float_bits(value))

    def load_wide(self, register: int, value: int) -> None:
        """Load an integer of 128 bits.

        Examples:
            >>> asm.load_wide(0, 1 << 100)
        """
        self._emit(p.OP_LOAD_WIDE, register, constant=self._wide(value))

    def load_parameter(self, register: int, number: int, kind: str = INTEGER) -> None:
        """Load the row's parameter of that number: a word given with each row, an integer or the bits of a float.

        Examples:
            >>> asm.load_parameter(0, 0)
            >>> asm.load_parameter(1, 1, "float")
        """
        self._emit(p.OP_LOAD_PARAM, register, place=number, flags=self._type_flag(kind))
        self._parameters = max(self._parameters, number + 1)

    def read(self, register: int, name: str) -> None:
        """Read the column's stored number: integers as they are, calendar types in days or µs, decimals unscaled.

        Examples:
            >>> asm.read(0, "stock")
            >>> asm.load_const(1, 5)
            >>> asm.branch_registers("ge", 0, 1, "enough")
            >>> asm.exit_refuse()
            >>> asm.label("enough")
            >>> asm.exit_ok()
            >>> db["item"].scan(where=asm.finish()).count()
            2
        """
        self._emit(p.OP_READ_ATTR, register, place=self._column(name))

    def read_pseudo(self, register: int, name: str) -> None:
        """Read fragment, rowid, gci, epoch or author of the row.

        Examples:
            >>> asm.read_pseudo(0, "fragment")
        """
        self._emit(p.OP_READ_ATTR, register, place=_PSEUDO_NAMES[self._known(name, _PSEUDO_NAMES, "pseudo-columns")])

    def write(self, name: str, register: int) -> None:
        """Write the register's value to the column, if the row is accepted.

        Examples:
            >>> asm = tm.Assembler(db["item"].definition, updates=True)
            >>> asm.load_const(0, 0)
            >>> asm.write("stock", 0)
            >>> asm.exit_ok()
            >>> program = asm.finish()
        """
        number = self._column(name)
        position = self._columns[number]
        if position not in self._outputs:
            self._outputs.append(position)
        limits = self.definition.columns[position].type.stored_range
        constant = None if limits is None else limit_bytes(limits)
        self._emit(p.OP_WRITE_ATTR, register, place=number, value=self._outputs.index(position), constant=constant)

    # --- arithmetic -----------------------------------------------------------------------------------------
    def operate(self, name: str, target: int, first: int, second: int = 0, zero_null: bool = False) -> None:
        """Emit an instruction on registers by its name: target ← first OP second. `zero_null`: NULL for x / 0.

        Examples:
            >>> asm.read(0, "stock")
            >>> asm.load_const(1, 3)
            >>> asm.operate("mod", 0, 0, 1, zero_null=True)
        """
        opcode = OPCODES.get(name, 0)
        known = INSTRUCTIONS.get(opcode)
        if known is None or known.writes is None or not known.reads or known.fields:
            raise self._refuse(f"{shown(name)} is not an instruction on registers")
        self._emit(opcode, target, first, second, flags=p.FL_ZERO_NULL if zero_null else 0)

    def add(self, target: int, first: int, second: int) -> None:
        """Add integers, wrapping at 64 bits.

        Examples:
            >>> asm.read(0, "stock")
            >>> asm.read(1, "id")
            >>> asm.add(2, 0, 1)
        """
        self._emit(p.OP_ADD, target, first, second)

    def sub(self, target: int, first: int, second: int) -> None:
        """Subtract integers, wrapping at 64 bits.

        Examples:
            >>> asm.read(0, "stock")
            >>> asm.read(1, "id")
            >>> asm.sub(2, 0, 1)
        """
        self._emit(p.OP_SUB, target, first, second)

    # --- branches -------------------------------------------------------------------------------------------
    def branch(self, label: str) -> None:
        """Continue at the label.

        Examples:
            >>> asm.branch("end")
            >>> asm.label("end")
            >>> asm.exit_ok()
        """
        self._emit(p.OP_BRANCH, label=label)

    def branch_null(self, register: int, label: str) -> None:
        """Continue at the label if the register is NULL.

        Examples:
            >>> asm.read(0, "stock")
            >>> asm.branch_null(0, "unknown")
        """
        self._emit(p.OP_BRANCH_REG_EQ_NULL, register, label=label)

    def branch_not_null(self, register: int, label: str) -> None:
        """Continue at the label unless the register is NULL.

        Examples:
            >>> asm.read(0, "stock")
            >>> asm.branch_not_null(0, "known")
        """
        self._emit(p.OP_BRANCH_REG_NE_NULL, register, label=label)

    def branch_registers(self, condition: str, first: int, second: int, label: str, kind: str = INTEGER) -> None:
        """Continue at the label if `first condition second`: eq, ne, lt, le, gt, ge of registers of that type.

        Examples:
            >>> asm.load_float(0, 0.5)
            >>> asm.load_float(1, 2.5)
            >>> asm.branch_registers("lt", 0, 1, "less", "float")
        """
        opcode = OPCODES[f"branch_{self._known(condition, COMPARISONS, 'conditions on registers')}"]
        self._emit(opcode, first, second, flags=self._type_flag(kind), label=label)

    def branch_column(
        self, condition: str, name: str, value: Any, label: str, sql: bool = True, octets: bool = False
    ) -> None:
        """Continue at the label if `column condition value`: eq … ge, like, not_like, and_eq_mask and the like.
        `octets`: `_` of a LIKE pattern matches one byte, not one code point.

        Examples:
            >>> asm.branch_column("like", "name", "%e%", "found")
            >>> asm.exit_refuse()
            >>> asm.label("found")
            >>> asm.exit_ok()
            >>> db["item"].scan(["name"], where=asm.finish()).to_arrow().to_pylist()
            [{'name': 'pen'}]
        """
        number = self._column(name)
        kind = self.definition.columns[self._columns[number]].type
        if condition in ("like", "not_like"):
            stored: Any = value.encode() if isinstance(value, str) else bytes(value)
        else:
            stored = value if condition.startswith("and_") else kind.operand(kind.stored(value))
        self.branch_stored(condition, name, stored, label, sql, octets)

    def branch_stored(
        self, condition: str, name: str, stored: int | float | bytes, label: str, sql: bool = True, octets: bool = False
    ) -> None:
        """Emit `branch_column` with the value in stored form: an int (of wide columns too), a float, or bytes.

        Examples:
            >>> asm.branch_stored("eq", "name", b"pen", "found")
        """
        self._column(name)  # its error comes first
        if isinstance(stored, bytes) and condition in ("like", "not_like"):
            stored = tokens_of(stored)
        self._compare(condition, name, stored, label, sql, octets)

    def _compare(
        self,
        condition: str,
        name: str,
        value: Any,
        label: str,
        sql: bool,
        octets: bool,
        parameter: int | None = None,
    ) -> None:
        """Emit a comparison of a column with a stored value: a pattern is given by its tokens. parameter: its number if
        it is bound later.
        """
        number = self._column(name)
        is_pattern = condition in ("like", "not_like")
        flags = (p.FL_SQL if sql else 0) | (p.FL_OCTETS if octets else 0)
        if is_pattern:
            flags |= self._padded(number)
        element_bytes, is_wide, constant = 0, False, None
        if isinstance(value, bytes):
            element_bytes = p.TOKEN_BYTES if is_pattern else 1
            constant = counted(value, element_bytes)
        elif isinstance(value, float):
            value = float_bits(value)
        elif column_class(self.definition.columns[self._columns[number]].type) in _WIDE_CLASSES:
            is_wide, constant = True, self._wide(value)
        self._emit(
            p.OP_BRANCH_ATTR_OP_ARG,
            condition=self._condition(condition),
            flags=flags,
            place=number,
            value=0 if constant is not None else int(value),
            label=label,
            constant=constant,
            parameter=None if parameter is None else Parameter(parameter, element_bytes, is_wide),
        )

    def branch_parameter(self, condition: str, name: str, parameter: int, label: str, sql: bool = True) -> None:
        """Continue at the label if `column condition parameter`.

        Examples:
            >>> asm.branch_parameter("ge", "stock", 0, "enough")
        """
        self._emit(
            p.OP_BRANCH_ATTR_OP_PARAM,
            condition=self._condition(condition),
            flags=p.FL_SQL if sql else 0,
            place=self._column(name),
            value=parameter,
            label=label,
        )
        self._parameters = max(self._parameters, parameter + 1)

    def branch_columns(self, condition: str, name: str, other: str, label: str, sql: bool = True) -> None:
        """Continue at the label if `column condition other column`: eq, ne, lt, le, gt, ge.

        Examples:
            >>> asm.branch_columns("lt", "id", "stock", "less")
            >>> asm.exit_refuse()
            >>> asm.label("less")
            >>> asm.exit_ok()
            >>> db["item"].scan(where=asm.finish()).count()
            2
        """
        self._emit(
            p.OP_BRANCH_ATTR_OP_ATTR,
            condition=self._condition(condition),
            flags=(p.FL_SQL if sql else 0) | self._padded(self._column(name), self._column(other)),
            place=self._column(name),
            value=self._column(other),
            label=label,
        )

    def branch_column_null(self, name: str, label: str) -> None:
        """Continue at the label if the column is NULL.

        Examples:
            >>> asm.branch_column_null("stock", "unknown")
        """
        self._emit(p.OP_BRANCH_ATTR_EQ_NULL, place=self._column(name), label=label)

    def branch_column_not_null(self, name: str, label: str) -> None:
        """Continue at the label unless the column is NULL.

        Examples:
            >>> asm.branch_column_not_null("stock", "known")
        """
        self._emit(p.OP_BRANCH_ATTR_NE_NULL, place=self._column(name), label=label)

    def call(self, name: str) -> None:
        """Run a subroutine, then continue with the next instruction.

        Examples:
            >>> asm.call("check")
            >>> asm.exit_ok()
            >>> asm.subroutine("check")
            >>> asm.ret()
            >>> program = asm.finish()
        """
        self._emit(p.OP_CALL, label=name)

    def ret(self) -> None:
        """Return to the instruction after the call.

        Examples:
            >>> asm.call("check")
            >>> asm.exit_ok()
            >>> asm.subroutine("check")
            >>> asm.ret()
            >>> program = asm.finish()
        """
        self._emit(p.OP_RETURN)

    # --- exits and aggregates -----------------------------------------------------------------------------
    def exit_ok(self) -> None:
        """Accept the row.

        Examples:
            >>> asm.exit_ok()
            >>> db["item"].scan(where=asm.finish()).count()
            3
        """
        self._emit(p.OP_EXIT_OK)

    def exit_refuse(self, code: int = p.REFUSE_CODE_DEFAULT) -> None:
        """Refuse the row with a code of 16 bits.

        Examples:
            >>> asm.exit_refuse(900)
            >>> db["item"].scan(where=asm.finish()).count()
            0
        """
        self._emit(p.OP_EXIT_REFUSE, place=code)

    def exit_last(self) -> None:
        """Accept the row, and run no further rows.

        Examples:
            >>> asm.exit_last()
            >>> db["item"].scan(where=asm.finish()).count()
            1
        """
        self._emit(p.OP_EXIT_OK_LAST)

    def aggregate(self, function: str, register: int, accumulator: int, kind: str = INTEGER) -> None:
        """Add the register, unless it is NULL, to an accumulator by count, sum, min or max.

        Examples:
            >>> asm.read(0, "stock")
            >>> asm.aggregate("sum", 0, 0)
            >>> asm.exit_ok()
            >>> program = asm.finish()
        """
        opcode = OPCODES[self._known(function, AGGREGATES, "aggregates")]
        flags = 0 if function == "count" else self._type_flag(kind)
        self._emit(opcode, register, flags=flags, place=accumulator)
        self._accumulators = max(self._accumulators, accumulator + 1)

    # --- the end ------------------------------------------------------------------------------------------
    def finish(self) -> Program:
        """Return the program, verified.

        Raises: ProgramInvalid.

        Examples:
            >>> asm.exit_ok()
            >>> db["item"].scan(where=asm.finish()).count()
            3
        """
        return self._assembled()[0]

    def _assembled(self) -> tuple[Program, list[tuple[Parameter, int]]]:
        """Return the program, verified, and for each parameter the word where its value, or its offset, is. Constants
        of any length come last, in the order of their instructions. Raises: ProgramInvalid.
        """
        described, defaults = column_words(self._layout, self._columns)
        start = p.PROGRAM_HEADER_WORDS + described.size
        pool_at = start + len(self._code) * p.INSTRUCTION_WORDS
        constants = bytearray(defaults)
        offsets: dict[bytes, int] = {}
        places: list[tuple[Parameter, int]] = []
        instructions: list[Fields] = []
        late: list[tuple[int, bytes]] = []
        for fields, label, constant, parameter in self._code:
            each = fields
            if label is not None:
                if label not in self._labels:
                    raise self._refuse(f"label {label!r} is not set")
                each = each._replace(target=self._labels[label])
            place = start + len(instructions) * p.INSTRUCTION_WORDS + p.I_VALUE
            if parameter is not None and parameter.element_bytes:
                late.append((len(instructions), constant or b""))
            elif constant is not None:
                # Equal constants are one, but a parameter has a place of its own.
                at = len(constants) // 8 if parameter is not None else offsets.get(constant, len(constants) // 8)
                if at == len(constants) // 8:
                    constants += constant + bytes(-len(constant) % 8)
                if parameter is None:
                    offsets[constant] = at
                else:
                    place = pool_at + at
                each = each._replace(target=at) if each.opcode == p.OP_WRITE_ATTR else each._replace(value=at)
            if parameter is not None:
                places.append((parameter, place))
            instructions.append(each)
        for number, constant in late:
            instructions[number] = instructions[number]._replace(value=len(constants) // 8)
            constants += constant + bytes(-len(constant) % 8)
        code = np.array([join(each) for each in instructions], dtype=np.int64).reshape(-1)
        pool = np.frombuffer(bytes(constants), dtype=np.int64)
        header = np.zeros(p.PROGRAM_HEADER_WORDS, dtype=np.int64)
        words = np.concatenate([header, described, code, pool])
        main = len(instructions) if self._subroutines_at is None else self._subroutines_at
        values = geometry(self.definition) | {
            p.H_MAGIC: p.PROGRAM_MAGIC << 8 | p.PROGRAM_VERSION,
            p.H_WORDS: words.size,
            p.H_COLUMNS: len(self._columns),
            p.H_INSTRUCTIONS: len(instructions),
            p.H_MAIN: main,
            p.H_CONSTANTS: pool.size,
            p.H_NEEDS: needs_of(instructions, described),
            p.H_FLAGS: flags_of(instructions, self.updates),
            p.H_OUTPUTS: len(self._outputs),
            p.H_ACCUMULATORS: self._accumulators,
            p.H_PARAMETERS: self._parameters,
            p.H_KEY_WORDS: key_words(instructions),
        }
        for place, value in values.items():
            words[place] = value
        return Program(self.definition, self._columns, words), places

    def _known(self, name: str, names: Iterable[str], what: str) -> str:
        """Return `name` if it is one of `names`. Raises: ProgramInvalid."""
        if name not in (known := list(names)):
            raise self._refuse(f"{what} are {', '.join(known)}, got {shown(name)}")
        return name

    def _type_flag(self, kind: str) -> int:
        return TYPE_FLAGS[self._known(kind, TYPE_FLAGS, "types of registers")]

    def _condition(self, name: str) -> int:
        return CONDITIONS.index(self._known(name, CONDITIONS, "conditions"))

    def _wide(self, value: int) -> bytes:
        if not is_int(value) or not -(1 << 127) <= value < 1 << 127:
            raise self._refuse(f"{shown(value)} is not an integer of 128 bits")
        return value.to_bytes(16, "little", signed=True)


__all__ = ["FLOAT", "INTEGER", "Assembler", "Program", "bits_float", "float_bits"]
