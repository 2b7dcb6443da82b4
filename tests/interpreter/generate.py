"""Random tables, rows and programs from one seeded generator; every program is one the verifier lets pass."""

from __future__ import annotations

import datetime
import random
import struct
import uuid
from decimal import Decimal
from typing import Any

import numpy as np

from tests.interpreter.machine import ARITHMETIC, DIVISIONS, ONE_OPERAND, Row
from tidemark.engine import types as t
from tidemark.engine.programs import program_layout as p
from tidemark.engine.programs.instruction_set import FLOAT, INSTRUCTIONS, INTEGER, WIDE
from tidemark.engine.programs.interpreter import Assembler, Program
from tidemark.engine.programs.verifier import CLASS_TYPES
from tidemark.engine.rows.column_words import column_class
from tidemark.engine.rows.row_format import RowFormat
from tidemark.engine.schema.column import ABSENT, Column
from tidemark.engine.schema.definition import TableDefinition

KINDS: list[Any] = [
    *(t.Int8, t.Int16, t.Int32, t.Int64, t.UInt8, t.UInt16, t.UInt32, t.UInt64, t.Float32, t.Float64, t.Bool),
    *(t.Date, t.Time, t.DateTime, t.Timestamp, t.Decimal(9, 2), t.Decimal(18, 0), t.Decimal(38, 10)),
    *(t.Char(1), t.Char(7), t.Binary(8), t.Binary(13), t.Enum("a", "b", "ü")),
    *(t.VarChar(12), t.VarBinary(20), t.Text, t.Blob, t.UUID, t.JSON),
]
LETTERS = "ab%_\\üж"
FLOATS = [0.0, -0.0, 1.5, -2.25, float("inf"), -float("inf"), float("nan"), 1e300, 3.0]
LONGS = [0, 1, -1, 2, 3, 63, 2**31, -(2**31), 2**63 - 1, -(2**63), 7, 2**32]


def value_of(kind: Any, r: random.Random) -> Any:
    """A value of a type, often an extreme one."""
    if isinstance(kind, t.Integer):
        return r.choice(
            [kind.minimum, kind.maximum, r.randint(kind.minimum, kind.maximum), max(kind.minimum, -1), 1, 0]
        )
    if isinstance(kind, t.Floating):
        number = r.choice(FLOATS)
        return number if kind.bits == 64 or number != 1e300 else 1.25
    if isinstance(kind, t.Decimal):
        most = 10**kind.precision - 1
        return (
            kind.loaded(kind.stored(0)) + Decimal(r.choice([0, 1, -1]))
            if r.random() < 0.5 and kind.scale < kind.precision
            else kind.loaded(most if kind.width == 8 else most.to_bytes(16, "little", signed=True))
        )
    if isinstance(kind, (t.Char, t.VarChar)):
        return "".join(r.choice(LETTERS) for _ in range(r.randint(0, kind.length)))
    if isinstance(kind, (t.Binary, t.VarBinary)):
        return bytes(r.choice(b"ab\0\xff%") for _ in range(r.randint(0, kind.length)))
    if isinstance(kind, t.Enum):
        return r.choice(kind.members)
    day = datetime.date(r.choice([1, 1970, 9999]), r.randint(1, 12), r.randint(1, 28))
    moment = datetime.datetime(day.year, day.month, day.day, r.randint(0, 23), 5, 7, 9)
    return {
        "Bool": r.random() < 0.5,
        "Date": day,
        "Time": moment.time(),
        "DateTime": moment,
        "Timestamp": moment.replace(tzinfo=datetime.UTC),
        "Text": "".join(r.choice(LETTERS) for _ in range(r.randint(0, 20))),
        "Blob": bytes(r.choice(b"ab\0\xff%") for _ in range(r.randint(0, 20))),
        "UUID": uuid.UUID(int=r.choice([0, 1, 1 << 64, r.getrandbits(128)])),
        "JSON": r.choice([{"a": [r.choice(LONGS), None]}, [], "a", 1.5, {"a": {"b": r.choice(LETTERS)}}]),
    }[repr(kind)]


def definition_of(r: random.Random) -> TableDefinition:
    """A table with any key, columns in memory and on disk."""
    keys = [Column(f"k{n}", r.choice([k for k in KINDS if k.keyable])) for n in range(r.randint(1, 3))]
    others = []
    for n in range(r.randint(1, 9)):
        kind = r.choice(KINDS)
        nullable = r.random() < 0.5
        default = {"default": value_of(kind, r)} if r.random() < 0.3 else {}
        others.append(Column(f"c{n}", kind, nullable, storage=r.choice(["memory", "memory", "disk"]), **default))
    columns = keys + others
    r.shuffle(columns)
    for n in range(r.choice([0, 0, 1, 3])):  # added later: in the var part, whatever the type
        kind = r.choice(KINDS)
        held = value_of(kind, r) if r.random() < 0.7 else None
        default = {} if held is None else {"default": held}
        columns.append(Column(f"a{n}", kind, held is None or r.random() < 0.5, added=2, before=held, **default))
    names = [column.name for column in keys]
    r.shuffle(names)
    has_disk = any(column.is_disk for column in columns)
    return TableDefinition(1, 2, "t", tuple(columns), tuple(names), tablespace="main" if has_disk else None)


class Batch:
    """Rows of one table, as entries and as what the naive machine reads; some lack their last var columns."""

    def __init__(self, definition: TableDefinition, r: random.Random, count: int) -> None:
        row_format = RowFormat(definition)
        pieces: list[np.ndarray] = []
        self.rows: list[Row] = []
        offsets = []
        at = 0
        for rowid in range(count):
            row = Row([], r.choice([0, 5, 2**40 + 3]), r.randint(0, 2), rowid, r.randint(0, 3))
            row.parameters = tuple(r.choice(LONGS) for _ in range(p.PARAMETERS_MAX))
            values = [
                None if column.nullable and r.random() < 0.3 else value_of(column.type, r)
                for column in definition.columns
            ]
            for position in definition.key_positions:
                while values[position] != values[position]:
                    values[position] = value_of(definition.columns[position].type, r)
            image = row_format.encode_row(tuple(values))
            row.values = stored(row_format, definition, image, values)
            if row_format.has_var and not row_format.has_disk and r.random() < 0.2:
                image = self._without_last(row_format, image, row)
            pieces += [np.array([row.rowid, row.epoch, row.author | 1 << 16 | row.fragment << 47]), image]
            offsets.append(at + 3)
            at += 3 + len(image)
            self.rows.append(row)
        self.entries = np.concatenate(pieces).astype(np.int64)
        self.offsets = np.array(offsets, dtype=np.int64)
        self.parameters = np.array([row.parameters for row in self.rows], dtype=np.int64).T.reshape(-1).copy()

    @staticmethod
    def _without_last(row_format: RowFormat, image: np.ndarray, row: Row) -> np.ndarray:
        """The image as written before the last var column was added."""
        from tidemark.engine.rows.row_var import build_var_part, split_var_part

        if not row_format.layout.var_places:
            return image
        cut = row_format.fixed_words
        part = split_var_part(memoryview(image).cast("B"), cut * 8)
        last = row_format.layout.var_places[-1]
        default, kind = last.column.when_absent, last.column.type
        row.values[last.position] = None if default is None or default is ABSENT else kind.stored(default)
        if isinstance(kind, t.Float32.__class__) and row.values[last.position] is not None and kind.bits == 32:
            row.values[last.position] = struct.unpack("<f", struct.pack("<f", row.values[last.position]))[0]
        shorter = build_var_part(part.key, part.values[:-1])
        return np.concatenate([image[:cut], np.frombuffer(shorter, dtype=np.int64)])


def stored(row_format: RowFormat, definition: TableDefinition, image: np.ndarray, given: list[Any]) -> list[Any]:
    """Stored values by position: what the decoder gives back, stored again (Float32 is rounded on the way)."""
    decoded = row_format.decode_row(image, 0)
    return [
        None if value is None else column.type.stored(value)
        for column, value in zip(definition.columns, decoded, strict=True)
    ]


def batch_of(definition: TableDefinition, rows: list[tuple[Any, ...]]) -> tuple[np.ndarray, np.ndarray]:
    """Rows as entries, and their offsets."""
    row_format = RowFormat(definition)
    pieces: list[np.ndarray] = []
    offsets, at = [], 0
    for row in rows:
        image = row_format.encode_row(row)
        pieces += [np.zeros(3, dtype=np.int64), image]
        offsets.append(at + 3)
        at += 3 + len(image)
    return np.concatenate(pieces).astype(np.int64), np.array(offsets, dtype=np.int64)


class Writer:
    """Writes one random program; keeps track of what each register holds, so that the verifier is content."""

    def __init__(self, definition: TableDefinition, r: random.Random, with_loops: bool, updates: bool) -> None:
        self.r = r
        self.definition = definition
        self.updates = updates
        self.with_loops = with_loops
        self.asm = Assembler(definition, updates)
        self.types = [r.choice([INTEGER, INTEGER, FLOAT, WIDE]) for _ in range(6)]
        self.columns: dict[str, list[str]] = {INTEGER: [], FLOAT: [], WIDE: [], "bytes": []}
        for column in definition.columns:
            self.columns[CLASS_TYPES[column_class(column.type)]].append(column.name)
        self.kinds = {column.name: column.type for column in definition.columns}

    def program(self) -> Program:
        """Registers of one type each are loaded first; then anything, with labels everywhere."""
        for register in range(len(self.types)):
            self._load(register)
        length = self.r.randint(1, 25)
        for number in range(length):
            self.asm.label(f"L{number}")
            self._instruction(number, length)
        self.asm.label(f"L{length}")
        self._exit()
        if self.with_loops:
            for name in ("S0", "S1"):
                self.asm.subroutine(name)
                self._operate()
                if self.r.random() < 0.3:
                    self.asm.call(self.r.choice(["S0", "S1"]))
                self.asm.ret()
        return self.asm.finish()

    def _register(self, kind: str) -> int | None:
        found = [n for n, each in enumerate(self.types) if each == kind]
        return self.r.choice(found) if found else None

    def _load(self, register: int) -> None:
        kind, r, asm = self.types[register], self.r, self.asm
        dice = r.random()
        if dice < 0.1:
            asm.load_null(register)
        elif dice < 0.6 and self.columns[kind]:
            asm.read(register, r.choice(self.columns[kind]))
        elif kind == INTEGER:
            if dice < 0.8:
                asm.read_pseudo(register, r.choice(["epoch", "author", "rowid", "fragment", "gci"]))
            elif dice < 0.9:
                asm.load_parameter(register, r.randrange(p.PARAMETERS_MAX))
            else:
                asm.load_const(register, r.choice(LONGS))
        elif kind == FLOAT:
            asm.load_float(register, r.choice(FLOATS))
        else:
            asm.load_wide(register, r.choice([0, 1, -1, 2**64, -(2**64), 2**127 - 1, -(2**127), 2**63]))

    def _operate(self) -> None:
        opcode = self.r.choice(list(ARITHMETIC))
        known = INSTRUCTIONS[opcode]
        registers = [self._register(kind) for _, kind in known.reads]
        target = self._register(str(known.writes))
        if target is None or None in registers:
            self._load(0)
            return
        zero_null = opcode in DIVISIONS and self.r.random() < 0.8
        first = registers[0]
        second = 0 if opcode in ONE_OPERAND else registers[1]
        assert first is not None and second is not None
        # NULL ends the row; most programs should live longer.
        if self.r.random() < 0.9:
            skip = f"skip{id(registers)}{self.r.random()}"
            self.asm.branch_null(first, skip)
            if opcode not in ONE_OPERAND:
                self.asm.branch_null(second, skip)
            self.asm.operate(known.name, target, first, second, zero_null)
            self.asm.label(skip)
        else:
            self.asm.operate(known.name, target, first, second, zero_null)

    def _target(self, number: int, length: int) -> str:
        if self.with_loops and self.r.random() < 0.3:
            return f"L{self.r.randint(0, length)}"
        return f"L{self.r.randint(number + 1, length)}"

    def _exit(self) -> None:
        dice = self.r.random()
        if dice < 0.5:
            self.asm.exit_ok()
        elif dice < 0.97:
            self.asm.exit_refuse(self.r.randint(0, 65535))
        else:
            self.asm.exit_last()

    def _instruction(self, number: int, length: int) -> None:
        r, asm = self.r, self.asm
        target = self._target(number, length)
        dice = r.random()
        if dice < 0.3:
            self._operate()
        elif dice < 0.4:
            self._load(r.randrange(len(self.types)))
        elif dice < 0.45:
            self._exit()
        elif dice < 0.5:
            r.choice([asm.branch_null, asm.branch_not_null])(r.randrange(len(self.types)), target)
        elif dice < 0.58:
            self._compare(target)
        elif dice < 0.8:
            self._branch_column(target)
        elif dice < 0.85:
            name = r.choice(self.definition.columns).name
            r.choice([asm.branch_column_null, asm.branch_column_not_null])(name, target)
        elif dice < 0.9:
            register = r.randrange(len(self.types))
            asm.aggregate(r.choice(["count", "sum", "min", "max"]), register, register, self.types[register])
        elif dice < 0.95 and self.updates:
            self._write()
        elif dice < 0.98 and self.with_loops:
            asm.call(r.choice(["S0", "S1"]))
        elif dice < 0.99:
            asm.branch(target)
        else:
            first = r.randrange(len(self.types))
            same = self._register(self.types[first])
            assert same is not None
            asm.operate("move", first, same)

    def _compare(self, target: str) -> None:
        first = self.r.randrange(len(self.types))
        second = self._register(self.types[first])
        assert second is not None
        skip = f"skip{self.r.random()}"
        if self.r.random() < 0.9:
            self.asm.branch_null(first, skip)
            self.asm.branch_null(second, skip)
        condition = self.r.choice(["eq", "ne", "lt", "le", "gt", "ge"])
        self.asm.branch_registers(condition, first, second, target, self.types[first])
        self.asm.label(skip)

    def _branch_column(self, target: str) -> None:
        r, asm = self.r, self.asm
        kind = r.choice([each for each, names in self.columns.items() if names])
        name = r.choice(self.columns[kind])
        sql = r.random() < 0.5
        condition = r.choice(["eq", "ne", "lt", "le", "gt", "ge"])
        dice = r.random()
        if dice < 0.25:
            asm.branch_columns(condition, name, r.choice(self.columns[kind]), target, sql)
        elif dice < 0.4 and kind in (INTEGER, FLOAT):
            asm.branch_parameter(condition, name, r.randrange(p.PARAMETERS_MAX), target, sql)
        elif dice < 0.6 and kind == INTEGER:
            masks = ["and_eq_mask", "and_ne_mask", "and_eq_zero", "and_ne_zero"]
            asm.branch_column(r.choice(masks), name, r.choice([1, 3, -1, 255]), target, sql)
        elif dice < 0.6 and kind == "bytes":
            pattern = "".join(r.choice(LETTERS + "%%__") for _ in range(r.randint(0, 6)))
            asm.branch_column(r.choice(["like", "not_like"]), name, pattern, target, sql, r.random() < 0.3)
        else:
            asm.branch_column(condition, name, value_of(self.kinds[name], r), target, sql)

    def _write(self) -> None:
        register = self.r.randrange(len(self.types))
        names = [each for each in self.columns[self.types[register]] if each not in self.definition.primary_key]
        if names:
            self.asm.write(self.r.choice(names), register)


def float32(value: float) -> float:
    """The nearest Float32."""
    (rounded,) = struct.unpack("<f", struct.pack("<f", value))
    return float(rounded)
