"""The standard row: id int64, b float64, ts int64, name 20 bytes, flags uint32 (48 bytes); seeded."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pyarrow as pa

import tidemark as tm

SEED = 20_261_121
COLUMNS = [
    tm.Column("id", tm.Int64),
    tm.Column("b", tm.Float64),
    tm.Column("ts", tm.Int64),
    tm.Column("name", tm.Binary(20)),
    tm.Column("flags", tm.UInt32),
]
PACK = struct.Struct("<qdq20sI")
ROW_BYTES = 48
B_OFFSET = 8  # of column b in the packed row


def make_table(first: int, count: int, seed: int = SEED) -> pa.Table:
    """Rows with the ids first … first + count - 1, shuffled, as an Arrow table."""
    rng = np.random.default_rng([seed, first])
    names = rng.bytes(count * 20)
    return pa.table(
        {
            "id": pa.array(rng.permutation(count) + first),
            "b": pa.array(rng.random(count)),
            "ts": pa.array(np.arange(first, first + count)),
            "name": pa.FixedSizeBinaryArray.from_buffers(pa.binary(20), count, [None, pa.py_buffer(names)]),
            "flags": pa.array(rng.integers(0, 2**32, count, dtype=np.uint32)),
        }
    )


def to_tuples(table: pa.Table) -> list[tuple[Any, ...]]:
    """The rows as Python tuples."""
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


def packed(table: pa.Table) -> tuple[np.ndarray, np.ndarray]:
    """Keys (8 big-endian bytes) and packed rows of a table as structured arrays, without Python per row."""
    rows = np.empty(len(table), dtype=[("id", "<i8"), ("b", "<f8"), ("ts", "<i8"), ("name", "V20"), ("flags", "<u4")])
    for name in ("id", "b", "ts", "flags"):
        rows[name] = table.column(name).to_numpy()
    names = table.column("name").combine_chunks()
    rows["name"] = np.frombuffer(names.buffers()[1], dtype="V20", count=len(table), offset=20 * names.offset)
    return rows["id"].astype(">i8"), rows


assert PACK.size == ROW_BYTES
