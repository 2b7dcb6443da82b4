"""Python values, rows, Arrow tables, expressions and errors as bytes, and back.

MessagePack, with types of our own for what it does not know. Nothing that comes is executed or imported: each type
builds one known class, through the checks of its constructor. What cannot be is `FrameRejected`.
"""

from __future__ import annotations

import datetime
import decimal
from collections import namedtuple
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgpack
import numpy as np

from engine import errors, expressions
from engine.errors import Error, FrameRejected, PeerRefused, Rejected, TypeMismatch
from engine.interpreter import Program
from engine.schema import ABSENT, Column, TableDefinition, column_from_json
from engine.types import from_json as type_from_json
from engine.types_base import ColumnType
from replication.arrow_stream import read_batch, read_stream

if TYPE_CHECKING:
    import pyarrow as pa

EXTENSIONS = (
    "tuple",
    "row",
    "decimal",
    "date",
    "time",
    "datetime",
    "timedelta",
    "integer",
    "arrow table",
    "arrow batch",
    "expression",
    "program",
    "error",
    "column",
    "type",
    "definition",
    "absent",
)
_NUMBERS = {name: number for number, name in enumerate(EXTENSIONS)}
NODES = {
    kind.__name__: kind
    for kind in (
        expressions.Col,
        expressions.Constant,
        expressions.Arithmetic,
        expressions.Compare,
        expressions.Junction,
        expressions.Not,
        expressions.NullTest,
        expressions.Member,
        expressions.Like,
    )
}
COLUMNS_MAX = 4_096
Definitions = Callable[[str], TableDefinition]


def pack(value: Any) -> bytes:
    """A value as bytes. Raises: TypeMismatch for what no call takes."""
    try:
        packed: bytes = msgpack.packb(value, default=_extended, strict_types=True, use_bin_type=True)
        return packed
    except (TypeError, ValueError, OverflowError) as error:
        raise TypeMismatch(f"a value cannot be sent: {error}") from error


def unpack(data: bytes | bytearray | memoryview, definitions: Definitions | None = None) -> Any:
    """The value `pack` was given. definitions: of a table by its name, for programs. Raises: FrameRejected; Rejected
    for a program or expression that cannot be.
    """

    def extended(code: int, payload: bytes) -> Any:
        if not 0 <= code < len(EXTENSIONS):
            raise FrameRejected(f"a value of type {code} is not known here")
        name = EXTENSIONS[code]
        if name == "program":
            return _program(unpack(payload), definitions)
        reader = _READERS[name]
        return reader(payload) if name in _PLAIN else reader(unpack(payload, definitions))

    try:
        return msgpack.unpackb(data, ext_hook=extended, raw=False, strict_map_key=False, use_list=True)
    except Rejected:
        raise
    except FrameRejected:
        raise
    except (ValueError, TypeError, LookupError, ArithmeticError, RecursionError, msgpack.exceptions.UnpackException):
        raise FrameRejected("what came is no value") from None


# --- out ------------------------------------------------------------------------------------------
def _extended(value: Any) -> Any:
    """What MessagePack does not know."""
    if isinstance(value, int) and not isinstance(value, bool):
        return _ext("integer", str(int(value)).encode())
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, tuple):
        names = getattr(value, "_fields", None)
        return _ext("tuple", pack(list(value))) if names is None else _ext("row", pack([list(names), list(value)]))
    for kind, name, packed in _WRITERS:
        if isinstance(value, kind):
            return _ext(name, packed(value))
    found = _arrow(value)
    if found is not None:
        return found
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeMismatch(f"a {type(value).__name__} cannot be sent to another process")


def _ext(name: str, payload: bytes) -> Any:
    return msgpack.ExtType(_NUMBERS[name], payload)


def _expression(value: expressions.Expression) -> bytes:
    parts = [getattr(value, field.name) for field in fields(type(value))]  # type: ignore[arg-type]
    return pack([type(value).__name__, *parts])


def _program_parts(value: Program) -> bytes:
    words = np.ascontiguousarray(value.words).tobytes()
    return pack([value.definition.name, value.definition.version, list(value.columns), words])


def _error(value: Error) -> bytes:
    evidence: dict[str, Any] = {}
    for name, each in value.evidence.items():
        try:
            pack(each)
        except TypeMismatch:
            evidence[name] = str(each)
        else:
            evidence[name] = each
    return pack([type(value).__name__, value.message, evidence])


def _seconds(value: datetime.timedelta) -> bytes:
    return pack([value.days, value.seconds, value.microseconds])


_WRITERS: tuple[tuple[type, str, Callable[[Any], bytes]], ...] = (
    (decimal.Decimal, "decimal", lambda value: str(value).encode()),
    (datetime.datetime, "datetime", lambda value: value.isoformat().encode()),
    (datetime.date, "date", lambda value: value.isoformat().encode()),
    (datetime.time, "time", lambda value: value.isoformat().encode()),
    (datetime.timedelta, "timedelta", _seconds),
    (expressions.Expression, "expression", _expression),
    (Program, "program", _program_parts),
    (Error, "error", _error),
    (TableDefinition, "definition", TableDefinition.to_json),
    (Column, "column", lambda value: pack(value.to_json())),
    (ColumnType, "type", lambda value: pack(value.to_json())),
    (type(ABSENT), "absent", lambda value: b""),
)


def _arrow(value: Any) -> Any:
    """Arrow tables and batches, and whatever gives an Arrow stream; None if it is none of these."""
    if not hasattr(value, "__arrow_c_stream__") and not hasattr(value, "__arrow_c_array__"):
        return None
    import pyarrow as pa

    if isinstance(value, pa.RecordBatch):
        return _ext("arrow batch", arrow_bytes(value.schema, [value]))
    table = value if isinstance(value, pa.Table) else pa.table(value)
    return _ext("arrow table", arrow_bytes(table.schema, table.to_batches()))


def arrow_bytes(schema: pa.Schema, batches: list[pa.RecordBatch]) -> bytes:
    """Batches as an Arrow stream."""
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as stream:
        for batch in batches:
            stream.write_batch(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return data


# --- in -------------------------------------------------------------------------------------------
@lru_cache(maxsize=256)
def _row_class(names: tuple[str, ...]) -> Any:
    return namedtuple("Row", names, rename=True)


def _row(parts: Any) -> Any:
    names, values = parts
    if len(names) != len(values) or len(names) > COLUMNS_MAX or not all(isinstance(name, str) for name in names):
        raise FrameRejected("a row has not the columns it names")
    return _row_class(tuple(names))._make(values)


def _node(parts: Any) -> expressions.Expression:
    name, *values = parts
    kind = NODES.get(name)
    if kind is None or len(values) != len(fields(kind)):
        raise FrameRejected("an expression cannot be")
    for field, value in zip(fields(kind), values, strict=True):
        if not _fits(str(field.type), value):
            raise FrameRejected(f"{name}.{field.name} of an expression cannot be {type(value).__name__}")
    return kind(*values)


def _fits(declared: str, value: Any) -> bool:
    if declared == "Expression":
        return isinstance(value, expressions.Expression)
    if declared.startswith("tuple"):
        return isinstance(value, tuple) and all(isinstance(each, expressions.Expression) for each in value)
    known = {"str": str, "bool": bool, "bytes": bytes}
    return declared == "Any" or type(value) is known.get(declared)


def _program(parts: Any, definitions: Definitions | None) -> Program:
    name, version, columns, words = parts
    if definitions is None or not isinstance(words, bytes) or len(words) % 8:
        raise FrameRejected("a program has no place here")
    definition = definitions(name)
    if definition.version != version:
        raise Rejected(f"table {name} was altered since the program was assembled; assemble it again", table=name)
    return Program(definition, columns, np.frombuffer(words, dtype=np.int64))


def _error_of(parts: Any) -> Error:
    name, message, evidence = parts
    kind = getattr(errors, name, None)
    if not isinstance(kind, type) or not issubclass(kind, Error) or not isinstance(evidence, dict):
        return PeerRefused(f"the other side says: {message}")
    return kind(str(message), **{str(key): value for key, value in evidence.items()})


_PLAIN: frozenset[str] = frozenset(
    ["decimal", "date", "time", "datetime", "integer", "arrow table", "arrow batch", "definition", "absent"]
)
_READERS: dict[str, Callable[[Any], Any]] = {
    "tuple": tuple,
    "row": _row,
    "decimal": lambda payload: decimal.Decimal(payload.decode()),
    "date": lambda payload: datetime.date.fromisoformat(payload.decode()),
    "time": lambda payload: datetime.time.fromisoformat(payload.decode()),
    "datetime": lambda payload: datetime.datetime.fromisoformat(payload.decode()),
    "timedelta": lambda parts: datetime.timedelta(*parts),
    "integer": lambda payload: int(payload.decode()),
    "arrow table": read_stream,
    "arrow batch": read_batch,
    "expression": _node,
    "error": _error_of,
    "column": column_from_json,
    "type": type_from_json,
    "definition": TableDefinition.from_json,
    "absent": lambda payload: ABSENT,
}
