"""Python values, rows, Arrow tables, expressions and errors as bytes, and back.

The form is MessagePack, with extension types for values that it does not know. Received bytes are never executed or
imported: each type builds one known class, through the checks of its constructor. Invalid bytes are `FrameRejected`.

Received bytes are measured before anything is built from them (`packed_values_kernels.py`). A value nests at most
NESTING_MAX deep, and takes at most VALUE_BYTES_MAX of memory. For each extension type the unpacker calls itself, with
some 40 KiB of C stack, so unlimited nesting would end the process; NESTING_MAX levels take 2 MB at most. A peer can
make Python's hashes of numbers and tuples collide, so keys of maps must be text. An expression is sent as a list of
nodes in post-order, so its depth does not count. A sender measures its values in the same way.
"""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable, Mapping
from typing import Any

import msgpack
import numpy as np

from tidemark.engine.base import errors, limits
from tidemark.engine.base.errors import (
    Error,
    FrameRejected,
    LimitExceeded,
    PeerRefused,
    Rejected,
    TypeMismatch,
    ValueOutOfRange,
)
from tidemark.engine.programs import expressions
from tidemark.engine.programs.expression_nodes import InvalidNodes, expression_of, nodes_of
from tidemark.engine.programs.interpreter import Program
from tidemark.engine.rows.row import row_class
from tidemark.engine.schema.column import ABSENT, Column, column_from_json
from tidemark.engine.schema.computed import Computed, computed_named
from tidemark.engine.schema.definition import TableDefinition
from tidemark.engine.schema.partition import MAXVALUE
from tidemark.engine.types import ColumnType
from tidemark.engine.types import from_json as type_from_json
from tidemark.engine.types.base import plain, shown, type_of
from tidemark.replication.calls import packed_values_kernels as m
from tidemark.replication.wire.arrow_streams import Room, arrow_batch, arrow_bytes, arrow_table, no_limit

NESTING_MAX = 32
VALUE_BYTES_MAX = 1 << 30
_NO_VALUE = (
    *(ValueError, TypeError, LookupError, ArithmeticError, AttributeError, RecursionError),
    msgpack.exceptions.UnpackException,
)
_PACKED = (type(None), bool, int, float, str, bytes)  # what MessagePack knows
_ANY = 1 << 32
_LONG = 16 << 20
# For each extension type: whether its payload is a packed value; the fixed bytes of memory of the built value, and the
# bytes of memory per payload byte, of which one is the unpacker's copy; the most payload bytes. A packed payload value
# is measured separately. The limits guard int() of text, whose time is quadratic in its digits, and JSON, of which two
# bytes may take sixty-four in memory.
KINDS: dict[str, tuple[bool, int, int, int]] = {
    "tuple": (True, 120, 1, _ANY),
    "row": (True, 200, 1, _ANY),
    "decimal": (False, 240, 3, _ANY),
    "date": (False, 160, 3, 64),
    "time": (False, 160, 3, 64),
    "datetime": (False, 160, 3, 64),
    "timedelta": (True, 240, 1, 64),
    "integer": (False, 160, 3, 4_400),
    "arrow table": (False, 8_192, 2, _ANY),
    "arrow batch": (False, 8_192, 2, _ANY),
    "expression": (True, 1_024, 32, _LONG),
    "program": (True, 8_192, 16, _LONG),
    "error": (True, 2_048, 1, _ANY),
    "column": (True, 4_096, 16, _LONG),
    "type": (True, 4_096, 16, _LONG),
    "definition": (False, 16_384, 64, _LONG),
    "absent": (False, 40, 0, 0),
    "maxvalue": (False, 40, 0, 0),
    "value": (True, 240, 3, _ANY),
    "computed": (False, 40, 1, 64),
}
EXTENSIONS = tuple(KINDS)
_MEASURES = np.array(list(KINDS.values()), dtype=np.int64).reshape(-1)
_NUMBERS = {name: number for number, name in enumerate(EXTENSIONS)}
# Row classes are built on demand and cached, so their names are few and short, and classes per message are limited.
FIELDS_MAX = limits.COLUMNS_MAX + 16  # columns and hidden fields of a row
FIELD_CHARACTERS_MAX = 4 * limits.NAME_CHARACTERS_MAX
ROW_CLASSES_MAX = 64  # per message
Definitions = Callable[[str], TableDefinition]


def measured(data: bytes | bytearray | memoryview) -> int:
    """Return an upper bound of the bytes of memory of a packed value, or a negative code of the kernel. Builds
    nothing.
    """
    stack = np.empty(NESTING_MAX * m.LEVEL_WORDS, dtype=np.int64)
    return int(m.measure_value(np.frombuffer(data, dtype=np.uint8), _MEASURES, stack, VALUE_BYTES_MAX))


def pack(value: Any) -> bytes:
    """Pack a value. Raises: TypeMismatch if it cannot be sent; LimitExceeded if the other side would not build it."""
    try:
        packed = _packed(value)
    except (TypeMismatch, ValueOutOfRange) as error:
        place = _place_of(value)
        raise type(error)(f"{error.message}{place}") if place else error from None
    except RecursionError:
        raise TypeMismatch(f"a value cannot be sent: it nests deeper than {NESTING_MAX}") from None
    count = measured(packed)
    if count == m.TOO_LARGE:
        raise LimitExceeded(f"a call or answer takes more than {VALUE_BYTES_MAX >> 20} MiB of memory; split it")
    if count == m.TOO_DEEP:
        raise TypeMismatch(f"a value cannot be sent: it nests deeper than {NESTING_MAX}")
    if count < 0:
        raise TypeMismatch("a value cannot be sent: a mapping has keys that are not text, or a part is too long")
    return packed


def _packed(value: Any) -> bytes:
    try:
        packed: bytes = msgpack.packb(value, default=_extended, strict_types=True, use_bin_type=True)
        return packed
    except BufferError:  # msgpack takes memory only in one piece
        return _packed(_contiguous(value))
    except UnicodeEncodeError as error:
        raise ValueOutOfRange(f"text is valid Unicode, got a lone surrogate in {shown(error.object)}") from None
    except (TypeError, ValueError, OverflowError) as error:
        raise TypeMismatch(f"a value cannot be sent: {error}") from error


def _place_of(value: Any) -> str:
    """Return where in a value its first part is that cannot be packed, for a message."""
    place = ""
    for _ in range(NESTING_MAX):  # a list may contain itself
        if not isinstance(value, (list, tuple, Mapping)):
            break
        parts = list(value.items() if isinstance(value, Mapping) else enumerate(value))
        wrong = next(((name, part) for name, part in parts if not _is_packable(part)), None)
        if wrong is None:
            break
        which = f"value {wrong[0]}" if isinstance(wrong[0], int) else f"the value of {shown(wrong[0])}"
        place = f" ({which} in {shown(value)})"
        value = wrong[1]
    return place


def _is_packable(value: Any) -> bool:
    try:
        _packed(value)
    except (TypeMismatch, ValueOutOfRange, RecursionError):
        return False
    return True


def _contiguous(value: Any) -> Any:
    """Return the same value with bytes for memory that is not in one piece."""
    if isinstance(value, memoryview):
        return value.tobytes()
    if isinstance(value, Mapping):
        return {key: _contiguous(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        parts = [_contiguous(each) for each in value]
        return parts if isinstance(value, list) else value._make(parts) if hasattr(value, "_make") else tuple(parts)
    return value


def unpack(data: bytes | bytearray | memoryview, definitions: Definitions | None = None, room: Room = no_limit) -> Any:
    """Return the value that was packed. definitions: returns the definition of a table by its name, for programs. room:
    called with bytes of memory before they are allocated. Raises: FrameRejected; Rejected for an invalid program or
    expression; errors of `room`.
    """
    count = measured(data)
    if count < 0:
        why = {m.TOO_DEEP: f"nests deeper than {NESTING_MAX}", m.TOO_LARGE: "takes too much memory"}
        raise FrameRejected(f"the value received is invalid: it {why.get(count, 'contradicts itself')}")
    room(count)
    try:
        return _built(data, _Building(definitions, room).extended)
    except _NO_VALUE as error:
        raise FrameRejected(f"the value received is invalid: {type(error).__name__}") from None


def _built(data: bytes | bytearray | memoryview, extended: Callable[[int, bytes], Any]) -> Any:
    return msgpack.unpackb(data, ext_hook=extended, raw=False, use_list=True)


class _Building:
    """Builds the value of one measured message."""

    def __init__(self, definitions: Definitions | None, room: Room) -> None:
        self._definitions = definitions
        self._room = room
        self._classes: dict[tuple[str, ...], Any] = {}

    def extended(self, code: int, payload: bytes) -> Any:
        """Build a value of an extension type."""
        name = EXTENSIONS[code]
        content = _built(payload, self.extended) if KINDS[name][0] else payload
        if name == "row":
            return self._row(content)
        if name == "program":
            return _program(content, self._definitions)
        if name == "arrow table":
            return arrow_table(payload, self._room)
        if name == "arrow batch":
            return arrow_batch(payload, self._room)
        return _READERS[name](content)

    def _row(self, parts: Any) -> Any:
        names, values = parts
        key = tuple(names)
        made = self._classes.get(key)
        if made is None:
            made = self._classes[key] = _row_class_of(key)
            if len(self._classes) > ROW_CLASSES_MAX:
                raise FrameRejected(f"rows of more than {ROW_CLASSES_MAX} kinds came in one message")
        return made(*values)


# --- out ------------------------------------------------------------------------------------------
def _extended(value: Any) -> Any:
    """Convert a value that MessagePack does not know."""
    if isinstance(value, int) and not isinstance(value, bool):
        return _ext("integer", str(int(value)).encode())
    if isinstance(value, np.generic):
        found = plain(value)
        if isinstance(found, np.generic):
            raise TypeMismatch(f"{shown(value)} is no value of Python and cannot be sent")
        return found if isinstance(found, _PACKED) else _extended(found)
    if isinstance(value, tuple):
        names = getattr(value, "_fields", None)
        return (
            _ext("tuple", _packed(list(value))) if names is None else _ext("row", _packed([list(names), list(value)]))
        )
    for kind, name, packed in _WRITERS:
        if isinstance(value, kind):
            return _ext(name, packed(value))
    basics: tuple[Any, ...] = (str, bytes, float, list)
    for basic in basics:  # subclasses
        if isinstance(value, basic):
            return str.__str__(value) if isinstance(value, str) else basic(value)
    found = _arrow(value)
    if found is not None:
        return found
    if isinstance(value, Mapping):
        return dict(value)
    known = type_of(value)
    if known is not None:
        return _ext("value", _packed([repr(known), known.stored(value)]))
    raise TypeMismatch(f"a {type(value).__name__} cannot be sent to another process")


def _moment(value: datetime.datetime | datetime.time) -> bytes:
    """Pack a moment or a time of the day as the text that is equal to it.

    Raises: TypeMismatch for pandas' NaT, and for a zone without an offset, which the text would leave out;
    ValueOutOfRange for parts of a microsecond.
    """
    if value != value:
        raise TypeMismatch(f"{shown(value)} is no moment and cannot be sent; give None for NULL")
    if value.tzinfo is not None and value.utcoffset() is None:
        raise TypeMismatch(f"{shown(value)} has a zone without an offset and cannot be sent; leave the zone out")
    if getattr(value, "nanosecond", 0):
        raise ValueOutOfRange(f"moments have whole microseconds, got {shown(value)}")
    return value.isoformat().encode()


def _ext(name: str, payload: bytes) -> Any:
    return msgpack.ExtType(_NUMBERS[name], payload)


def _expression(value: expressions.Expression) -> bytes:
    return _packed(nodes_of(value))


def _program_parts(value: Program) -> bytes:
    words = np.ascontiguousarray(value.words).tobytes()
    return _packed([value.definition.name, value.definition.version, list(value.columns), words])


def _error(value: Error) -> bytes:
    evidence: dict[str, Any] = {}
    for name, each in value.evidence.items():
        try:
            pack(each)  # separately, because an item that cannot be sent must not hide the error
        except Rejected:
            evidence[name] = shown(each)
        else:
            evidence[name] = each
    return _packed([type(value).__name__, value.message, evidence])


def _seconds(value: datetime.timedelta) -> bytes:
    if getattr(value, "nanoseconds", 0):
        raise ValueOutOfRange(f"spans have whole microseconds, got {shown(value)}")
    return _packed([value.days, value.seconds, value.microseconds])


_WRITERS: tuple[tuple[type, str, Callable[[Any], bytes]], ...] = (
    (decimal.Decimal, "decimal", lambda value: str(value).encode()),
    (datetime.datetime, "datetime", _moment),
    (datetime.date, "date", lambda value: value.isoformat().encode()),
    (datetime.time, "time", _moment),
    (datetime.timedelta, "timedelta", _seconds),
    (expressions.Expression, "expression", _expression),
    (Program, "program", _program_parts),
    (Error, "error", _error),
    (TableDefinition, "definition", TableDefinition.to_json),
    (Column, "column", lambda value: _packed(value.to_json())),
    (ColumnType, "type", lambda value: _packed(value.to_json())),
    (type(ABSENT), "absent", lambda value: b""),
    (Computed, "computed", lambda value: value.name.encode()),
    (type(MAXVALUE), "maxvalue", lambda value: b""),
)


def _arrow(value: Any) -> Any:
    """Pack an Arrow table or batch, or an object that exports an Arrow stream; None for any other value."""
    if not hasattr(value, "__arrow_c_stream__") and not hasattr(value, "__arrow_c_array__"):
        return None
    import pyarrow as pa

    if isinstance(value, pa.RecordBatch):
        return _ext("arrow batch", arrow_bytes(value.schema, [value]))
    table = value if isinstance(value, pa.Table) else pa.table(value)
    return _ext("arrow table", arrow_bytes(table.schema, table.to_batches()))


# --- in -------------------------------------------------------------------------------------------
def _row_class_of(names: tuple[str, ...]) -> Any:
    if len(names) > FIELDS_MAX or not all(isinstance(name, str) for name in names):
        raise FrameRejected("a row does not have the columns it names")
    if any(len(name) > FIELD_CHARACTERS_MAX for name in names):
        raise FrameRejected(f"a row names a column of more than {FIELD_CHARACTERS_MAX} characters")
    return row_class(names)


def _expression_of(nodes: Any) -> expressions.Expression:
    """Raises: ProgramInvalid, FrameRejected."""
    try:
        return expression_of(nodes)
    except InvalidNodes as error:
        raise FrameRejected(str(error)) from None


def _program(parts: Any, definitions: Definitions | None) -> Program:
    name, version, columns, words = parts
    if definitions is None or not isinstance(words, bytes) or len(words) % 8 or not isinstance(name, str):
        raise FrameRejected("a program is not allowed here")
    definition = definitions(name)
    if definition.version != version:
        raise Rejected(f"table {name} was altered since the program was assembled; assemble it again", table=name)
    known = range(len(definition.columns))
    if len(columns) > len(known) or not all(type(each) is int and each in known for each in columns):
        raise FrameRejected("a program has columns its table does not have")
    return Program(definition, columns, np.frombuffer(words, dtype=np.int64))


def _error_of(parts: Any) -> Error:
    name, message, evidence = parts
    if not isinstance(name, str) or not isinstance(message, str) or not isinstance(evidence, dict):
        raise FrameRejected("an error lacks parts it needs")
    kind = getattr(errors, name, None)
    if not isinstance(kind, type) or not issubclass(kind, Error):
        return PeerRefused(f"the other side says: {message}")
    return kind(message, **evidence)


_READERS: dict[str, Callable[[Any], Any]] = {
    "tuple": tuple,
    "decimal": lambda payload: decimal.Decimal(payload.decode()),
    "date": lambda payload: datetime.date.fromisoformat(payload.decode()),
    "time": lambda payload: datetime.time.fromisoformat(payload.decode()),
    "datetime": lambda payload: datetime.datetime.fromisoformat(payload.decode()),
    "timedelta": lambda parts: datetime.timedelta(*parts),
    "value": lambda parts: type_from_json({"type": parts[0]}).loaded(parts[1]),
    "integer": lambda payload: int(payload.decode()),
    "expression": _expression_of,
    "error": _error_of,
    "column": column_from_json,
    "type": type_from_json,
    "definition": TableDefinition.from_json,
    "absent": lambda payload: ABSENT,
    "computed": lambda payload: computed_named(payload.decode()),
    "maxvalue": lambda payload: MAXVALUE,
}
