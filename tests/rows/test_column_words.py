"""Column words read back with a plain Python reader give the values that were encoded."""

from __future__ import annotations

import struct

import numpy as np
import pytest

import tidemark as tm
from tidemark.engine.rows import columns_layout as c
from tidemark.engine.rows.column_words import column_class, column_words
from tidemark.engine.rows.row_format import RowFormat
from tidemark.engine.schema.definition import TableDefinition


def definition() -> TableDefinition:
    columns = [
        tm.Column("id", tm.Int32),
        tm.Column("small", tm.Int16, nullable=True),
        tm.Column("wide", tm.Decimal(30, 2)),
        tm.Column("big", tm.UInt64, nullable=True),
        tm.Column("real", tm.Float32),
        tm.Column("name", tm.VarChar(20), nullable=True, default="none given"),
        tm.Column("code", tm.Char(3)),
        tm.Column("note", tm.VarChar(50), default="x", storage="disk"),
        tm.Column("level", tm.UInt8, nullable=True, storage="disk"),
    ]
    return TableDefinition(1, 1, "main.t", tuple(columns), ("id",), tablespace="main")


def test_column_words_of_fixed_columns_point_to_their_bytes() -> None:
    table = definition()
    layout = RowFormat(table).layout
    words, _ = column_words(layout, range(len(table.columns)))
    rows = words.reshape(-1, c.COLUMN_WORDS)
    assert rows[:, c.CW_PART].tolist() == [0, 0, 0, 0, 0, 1, 0, 4, 3]
    assert rows[:, c.CW_BYTES].tolist() == [4, 2, 16, 8, 4, 80, 12, 200, 1]
    image = np.frombuffer(RowFormat(table).encode_row((-7, None, 3, 2**64 - 1, 0.5, None, "ab", "n", 9)), np.uint8)
    at = rows[:, c.CW_AT]
    assert struct.unpack_from("<i", image, at[0]) == (-7,)
    assert struct.unpack_from("<Q", image, at[3]) == (2**64 - 1,)
    assert bytes(image[at[6] : at[6] + 12]) == b"ab" + bytes(10)
    assert image[rows[1, c.CW_NULL_BYTE]] & rows[1, c.CW_NULL_MASK]
    assert not image[rows[3, c.CW_NULL_BYTE]] & rows[3, c.CW_NULL_MASK]
    assert rows[0, c.CW_NULL_BYTE] == -1


def test_column_words_of_a_default_point_into_the_constants() -> None:
    table = definition()
    words, constants = column_words(RowFormat(table).layout, [7, 5, 2])
    rows = words.reshape(-1, c.COLUMN_WORDS)
    assert len(constants) % 8 == 0
    for row, expected in zip(rows, [b"x", b"none given", None], strict=True):
        start = int(row[c.CW_MISSING])
        assert (None if start < 0 else constants[start : start + int(row[c.CW_MISSING_BYTES])]) == expected


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (tm.Int8, c.CLASS_SIGNED),
        (tm.UInt32, c.CLASS_UNSIGNED),
        (tm.UInt64, c.CLASS_WIDE_UNSIGNED),
        (tm.Float32, c.CLASS_FLOAT32),
        (tm.Float64, c.CLASS_FLOAT64),
        (tm.Decimal(18, 3), c.CLASS_SIGNED),
        (tm.Decimal(19, 3), c.CLASS_WIDE),
        (tm.Bool, c.CLASS_UNSIGNED),
        (tm.Enum("a", "b"), c.CLASS_UNSIGNED),
        (tm.Timestamp, c.CLASS_SIGNED),
        (tm.Blob, c.CLASS_BYTES),
        (tm.Binary(4), c.CLASS_BYTES),
    ],
)
def test_column_class_decides_how_bytes_are_read(kind: object, expected: int) -> None:
    assert column_class(kind) == expected  # type: ignore[arg-type]
