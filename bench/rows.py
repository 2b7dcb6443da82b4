"""The standard row: id int64, b float64, ts int64, name 20 bytes, flags uint32 (48 bytes); seeded."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pyarrow as pa

import tidemark as tm

COLUMNS = [
    tm.Column("id", tm.Int64),
    tm.Column("b", tm.Float64),
    tm.Column("ts", tm.Int64),
    tm.Column("name", tm.Binary(20)),
    tm.Column("flags", tm.UInt32),
]
PACK = struct.Struct("<qdq20sI")
ROW_BYTES = 48


def make_rows(count: int, seed: int = 20_261_121) -> tuple[pa.Table, list[tuple[Any, ...]]]:
    """The rows as an Arrow table and as Python tuples, ids shuffled."""
    rng = np.random.default_rng(seed)
    names = rng.bytes(count * 20)
    table = pa.table(
        {
            "id": pa.array(rng.permutation(count)),
            "b": pa.array(rng.random(count)),
            "ts": pa.array(np.arange(count)),
            "name": pa.FixedSizeBinaryArray.from_buffers(pa.binary(20), count, [None, pa.py_buffer(names)]),
            "flags": pa.array(rng.integers(0, 2**32, count, dtype=np.uint32)),
        }
    )
    return table, list(zip(*(column.to_pylist() for column in table.columns), strict=True))
