"""Hypothesis strategies for table definitions and rows, and the values that rows must be read back as."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import json
import math
import struct
import uuid

from hypothesis import strategies as st

from tidemark.engine import types as t
from tidemark.engine.schema.column import STORAGES, Column
from tidemark.engine.schema.definition import TableDefinition
from tidemark.engine.store.schema_changes import without_column

_TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=12)
_FIXED_TYPES = [
    *(t.Int8, t.Int16, t.Int32, t.Int64, t.UInt8, t.UInt16, t.UInt32, t.UInt64, t.Float32, t.Float64, t.Bool),
    *(t.Date, t.Time, t.DateTime, t.Timestamp, t.Decimal(9, 2), t.Decimal(18, 0), t.Decimal(38, 10)),
    *(t.Char(1), t.Char(7), t.Binary(1), t.Binary(8), t.Binary(13), t.Binary(20), t.Enum("a", "b", "ü"), t.UUID),
]
_VAR_TYPES = [t.VarChar(12), t.VarBinary(20)]
_LOB_TYPES = [t.Text, t.Blob, t.JSON]
DOCUMENTS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | _TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXT, inner, max_size=3),
    max_leaves=8,
)


def values(kind, is_key=False):
    """Values of a type, extremes included."""
    if isinstance(kind, t.Integer):
        return st.integers(kind.minimum, kind.maximum) | st.sampled_from([kind.minimum, kind.maximum])
    if isinstance(kind, t.Floating):
        return st.floats(width=kind.bits, allow_nan=not is_key) | st.sampled_from([0.0, -0.0, math.inf])
    if isinstance(kind, t.Decimal):
        limit = 10**kind.precision - 1
        number = st.integers(-limit, limit) | st.sampled_from([limit, -limit])
        return number.map(lambda n: decimal.Decimal(n).scaleb(-kind.scale, decimal.Context(prec=80)))
    if isinstance(kind, (t.Binary, t.VarBinary)):
        return st.binary(max_size=kind.length)
    if isinstance(kind, t.Enum):
        return st.sampled_from(kind.members)
    if isinstance(kind, t.Char):
        return _TEXT.map(lambda text: text[: kind.length].rstrip("\0"))
    return {
        "Bool": st.booleans(),
        "Date": st.dates(),
        "Time": st.times(),
        "DateTime": st.datetimes(),
        "Timestamp": st.datetimes(timezones=st.just(datetime.UTC)),
        "Text": _TEXT,
        "Blob": st.binary(max_size=40),
        "VarChar(12)": _TEXT,
        "UUID": st.uuids() | st.sampled_from([uuid.UUID(int=0), uuid.UUID(int=1 << 64)]),
        "JSON": DOCUMENTS.filter(lambda document: document is not None),
    }[repr(kind)]


@st.composite
def definitions(draw):
    """Definitions with a key of one to three columns anywhere among the others."""
    keys = draw(st.lists(st.sampled_from(_FIXED_TYPES + _VAR_TYPES), min_size=1, max_size=3))
    others = draw(
        st.lists(st.tuples(st.sampled_from(_FIXED_TYPES + _VAR_TYPES + _LOB_TYPES), st.booleans()), max_size=10)
    )
    columns = [Column(f"k{place}", kind) for place, kind in enumerate(keys)]
    columns += [Column(f"c{place}", kind, nullable) for place, (kind, nullable) in enumerate(others)]
    names = tuple(column.name for column in columns if column.name[0] == "k")
    columns = draw(st.permutations(columns))
    kinds = st.sampled_from(_FIXED_TYPES + _VAR_TYPES + _LOB_TYPES)
    added = draw(st.lists(st.tuples(kinds, st.booleans()), max_size=3))
    for place, (kind, nullable) in enumerate(added):
        before = None if nullable else kind.loaded(kind.stored(draw(values(kind))))
        columns.append(Column(f"a{place}", kind, nullable, added=2, before=before))
    definition = TableDefinition(1, 2, "t", tuple(columns), tuple(draw(st.permutations(names))))
    for name in draw(st.sets(st.sampled_from([column.name for column in columns]))) - set(names):
        definition = without_column(definition, name)
    return definition


@st.composite
def disk_definitions(draw):
    """The same with at least one disk column, any others on disk or in memory."""
    definition = draw(definitions())
    columns = [
        dataclasses.replace(column, storage=draw(st.sampled_from(STORAGES)))
        if column.name not in definition.primary_key and not column.added
        else column
        for column in definition.columns
    ]
    kind = draw(st.sampled_from(_FIXED_TYPES + _VAR_TYPES + _LOB_TYPES))
    columns.insert(draw(st.integers(0, len(columns))), Column("d", kind, draw(st.booleans()), storage="disk"))
    return dataclasses.replace(definition, columns=tuple(columns), tablespace="main")


def column_values(definition, column):
    kind = values(column.type, column.name in definition.primary_key)
    return kind | st.none() if column.nullable else kind


def rows(definition):
    """Tuples in column order."""
    return st.tuples(*(column_values(definition, column) for column in definition.columns))


def of_arrow(value, kind):
    """The Python value of what pyarrow gives for a value of a column."""
    if value is None or kind not in (t.UUID, t.JSON):
        return value
    return uuid.UUID(bytes=value) if kind == t.UUID else json.loads(value)


def rows_of_arrow(batch, columns):
    """The rows of a batch with these columns, as Python values."""
    kinds = [column.type for column in columns]
    return [tuple(map(of_arrow, row.values(), kinds)) for row in batch.to_pylist()]


def expected(value, kind, is_key=False):
    """The value that is read back, made comparable (NaN and the sign of zero included)."""
    if value is None:
        return None
    if isinstance(kind, t.Binary):
        return value.ljust(kind.length, b"\0")
    if isinstance(kind, t.Floating):
        value = value + 0.0 if is_key else value
        return struct.pack("<d", value) if value == value else "nan"
    return value


def expected_row(row, definition):
    return [
        expected(value, column.type, column.name in definition.primary_key)
        for value, column in zip(row, definition.columns, strict=True)
    ]
