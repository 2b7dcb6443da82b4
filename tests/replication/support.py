"""Rows of any table as images in one array of words, each after header words, as in entries."""

from __future__ import annotations

import datetime
import decimal
import math
import uuid

import numpy as np

from tidemark.engine import types as t
from tidemark.engine.memory.arena_layout import ENTRY_WORDS
from tidemark.engine.rows.row_format import RowFormat
from tidemark.engine.schema.column import Column
from tidemark.engine.schema.definition import TableDefinition

MEMBERS = tuple(f"m{number}" for number in range(300))
_TEXTS = ["", "a", "ü" * 7, "\U0001f40b" * 7, 'it\'s \\ "q"\n\t']
# A character of each plane of Unicode, and the last one of all.
_PLANES = "".join(chr(plane << 16 | 0xFFFD) for plane in range(17)) + "\U0010ffff"
_MICROSECOND = datetime.timedelta(microseconds=1)
EXTREMES = {
    **{kind: [kind.minimum, 0, 1, kind.maximum] for kind in (t.Int8, t.Int16, t.Int32, t.Int64)},
    **{kind: [0, 1, kind.maximum // 2 + 1, kind.maximum] for kind in (t.UInt8, t.UInt16, t.UInt32, t.UInt64)},
    t.Float32: [0.0, -1.5, 3.4028234663852886e38, 1.401298464324817e-45],
    t.Float64: [-0.0, 1.7976931348623157e308, 5e-324, math.pi],
    t.Bool: [False, True],
    t.Decimal(1, 0): [decimal.Decimal(n) for n in ("-9", "0", "9")],
    t.Decimal(9, 9): [decimal.Decimal(n) for n in ("-0.999999999", "0", "0.000000001")],
    t.Decimal(10, 2): [decimal.Decimal(n) for n in ("-99999999.99", "0", "0.01", "12345678.90")],
    t.Decimal(18, 5): [decimal.Decimal(n) for n in ("-9999999999999.99999", "0", "1.00001")],
    t.Decimal(19, 10): [decimal.Decimal(n) for n in ("-999999999.9999999999", "0", "-0.0000000001")],
    t.Decimal(38, 0): [decimal.Decimal(n) for n in ("-" + "9" * 38, "0", "9" * 38)],
    t.Decimal(38, 30): [decimal.Decimal(n) for n in ("-99999999." + "9" * 30, "0", "0." + "0" * 29 + "1")],
    t.Char(7): _TEXTS[:4],
    t.Char(255): ["", "x" * 255, "\U0001f40b" * 255],
    t.Binary(1): [b"\0", b"\xff"],
    t.Binary(255): [b"", b"\0" * 254 + b"\1", b"\xff" * 255],
    t.VarChar(63): ["", *_TEXTS, _PLANES, "\U0001f40b" * 63],
    t.VarChar(64): ["", "\U0001f40b" * 64],
    t.VarBinary(255): [b"", b"\0" * 255],
    t.VarBinary(3000): [b"", b"\xff\0" * 1500],
    t.Text: [*_TEXTS, _PLANES, "x" * 70_000],
    t.Blob: [b"", b"\0", bytes(range(256)) * 300],
    t.UUID: [uuid.UUID(int=0), uuid.UUID(int=1 << 64), uuid.UUID(int=(1 << 128) - 1)],
    t.JSON: [{}, {"é": [1, 2.5, None, True, {"a": "\U0001f40b"}]}, 10**30, ["x" * 70_000]],
    t.Enum("a"): ["a"],
    t.Enum(*MEMBERS): [MEMBERS[0], MEMBERS[254], MEMBERS[255], MEMBERS[299]],
    t.Enum(*MEMBERS[:255]): [MEMBERS[0], MEMBERS[254]],
    t.Date: [datetime.date.min, datetime.date(1969, 12, 31), datetime.date(2024, 2, 29), datetime.date.max],
    t.Time: [datetime.time.min, datetime.time(12, 34, 56, 789), datetime.time.max],
    t.DateTime: [
        datetime.datetime.min,
        datetime.datetime(1970, 1, 1) - _MICROSECOND,
        datetime.datetime(2000, 2, 29, 23, 59, 59, 1),
        datetime.datetime.max,
    ],
    t.Timestamp: [
        datetime.datetime.min.replace(tzinfo=datetime.UTC),
        datetime.datetime(2038, 1, 19, 3, 14, 8, tzinfo=datetime.UTC),
        datetime.datetime.max.replace(tzinfo=datetime.UTC),
    ],
}


def every_type(storage="memory", name="d.every") -> TableDefinition:
    """Return a table with a nullable column of every type."""
    columns = [Column("id", t.Int64)]
    columns += [Column(f"c{place}", kind, True, storage=storage) for place, kind in enumerate(EXTREMES)]
    return TableDefinition(7, 1, name, tuple(columns), ("id",), tablespace="main" if storage == "disk" else None)


def extreme_rows() -> list[tuple]:
    """Return rows of `every_type` with each value of `EXTREMES` somewhere, and with each NULL."""
    most = max(map(len, EXTREMES.values()))
    rows = [(number, *(values[number % len(values)] for values in EXTREMES.values())) for number in range(most)]
    rows.append((most, *([None] * len(EXTREMES))))
    for offset in range(3):
        cells = [
            None if (place + offset) % 3 == 0 else values[offset % len(values)]
            for place, values in enumerate(EXTREMES.values())
        ]
        rows.append((most + 1 + offset, *cells))
    return rows


def entries_of(row_format: RowFormat, rows) -> tuple[np.ndarray, np.ndarray]:
    """Return the words, and the word position of each image."""
    pieces, starts, at = [], [], 0
    for number, row in enumerate(rows):
        image = row_format.encode_row(tuple(row))
        pieces += [np.full(ENTRY_WORDS, -1 - number, np.int64), image]
        starts.append(at + ENTRY_WORDS)
        at += ENTRY_WORDS + len(image)
    words = np.concatenate(pieces) if pieces else np.zeros(0, np.int64)
    return words, np.array(starts, np.int64)
