"""Rows of a query as columns of text: packets are read as they arrive, and kernels find their values.

A row is one packet, or several if it exceeds the maximum length of a packet. Such a row is a batch of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from tidemark.engine.base.column_buffers import build_variable
from tidemark.engine.base.errors import PeerRefused
from tidemark.engine.rows.row_format import Words
from tidemark.engine.types.base import Octets
from tidemark.replication.binlog import bodies_kernels as bodies
from tidemark.replication.ingest import result_rows_layout as r
from tidemark.replication.ingest.client import Client, Result
from tidemark.replication.ingest.result_rows_kernels import find_result_cells

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_ROWS = 32_768
BUFFER_BYTES = 4 << 20
_CELLS_MAX = 1 << 20
_PREFIXES = {r.LENGTH_2: 2, r.LENGTH_3: 3, r.LENGTH_8: 8}


def select(client: Client, sql: str) -> Iterator[tuple[int, list[pa.Array]]]:
    """Yield the rows of a query in batches of bounded size: (number of rows, a large_binary array for each column).
    Raises: PeerError.
    """
    import pyarrow as pa

    result = client.select(sql)
    columns = result.columns
    rows_max = max(1, min(BATCH_ROWS, _CELLS_MAX // columns))
    cells, ends = np.empty(rows_max * columns, np.int64), np.empty(rows_max, np.int64)
    buffer: Octets = np.empty(BUFFER_BYTES, np.uint8)
    filled = rows = at = 0
    while True:
        found = find_result_cells(cells[rows * columns :], ends[rows:], buffer, at, filled, columns)
        if found < 0:
            raise _invalid_row()
        rows += found
        at = int(ends[rows - 1]) if rows else 0
        is_over = result.is_over(buffer[at:filled])
        size = int.from_bytes(buffer[at : at + 3].data, "little")
        is_long = filled - at >= r.PACKET_HEADER_BYTES and size == r.PACKET_BYTES_MAX
        if rows and (is_over or is_long or rows == rows_max or filled == len(buffer)):
            yield rows, [_column(buffer, cells, column, columns, rows) for column in range(columns)]
            buffer[: filled - at] = buffer[at:filled].copy()
            filled, rows, at = filled - at, 0, 0
            continue
        if is_over:
            return
        if is_long and not rows:
            row, rest = _long_row(result, bytes(buffer[at:filled]), columns)
            yield 1, [pa.array([value], pa.large_binary()) for value in row]
            if len(rest) > len(buffer):
                buffer = np.empty(2 * len(rest), np.uint8)
            buffer[: len(rest)] = np.frombuffer(rest, np.uint8)
            filled = len(rest)
            continue
        if filled == len(buffer):
            buffer = np.concatenate([buffer, np.empty(len(buffer), np.uint8)])
        filled += result.read_into(buffer[filled:].data)


def _invalid_row() -> PeerRefused:
    return PeerRefused("the lengths in a row from the server contradict each other; check the connection")


def _column(octets: Octets, cells: Words, column: int, columns: int, rows: int) -> pa.Array:
    import pyarrow as pa

    offsets = np.empty(rows + 1, np.int64)
    bitmap = np.zeros((rows + 7) // 8, np.uint8)
    nulls = bodies.measure_strings(offsets, bitmap, cells, column, columns, rows)
    data = np.empty(int(offsets[rows]), np.uint8)
    bodies.copy_strings(data, octets, offsets, cells, column, columns, rows)
    return build_variable(pa.large_binary(), rows, offsets, data, bitmap, nulls)


def _long_row(result: Result, start: bytes, columns: int) -> tuple[list[bytes | None], bytes]:
    """Return (values of a row of several packets, bytes after it)."""
    data = bytearray(start)
    payload = bytearray()
    at, size = 0, r.PACKET_BYTES_MAX
    while size == r.PACKET_BYTES_MAX:
        _fill(result, data, at + r.PACKET_HEADER_BYTES)
        size = int.from_bytes(data[at : at + 3], "little")
        _fill(result, data, at + r.PACKET_HEADER_BYTES + size)
        payload += data[at + r.PACKET_HEADER_BYTES : at + r.PACKET_HEADER_BYTES + size]
        at += r.PACKET_HEADER_BYTES + size
    return _values(bytes(payload), columns), bytes(data[at:])


def _fill(result: Result, data: bytearray, size: int) -> None:
    while len(data) < size:
        piece = bytearray(max(1 << 16, size - len(data)))
        data += piece[: result.read_into(memoryview(piece))]


def _values(payload: bytes, columns: int) -> list[bytes | None]:
    """Return the values of a complete row. Raises: PeerRefused if they do not fill the row exactly."""
    row: list[bytes | None] = []
    at = 0
    for _ in range(columns):
        if at >= len(payload):
            raise _invalid_row()
        size = payload[at]
        at += 1
        if size == r.VALUE_NULL:
            row.append(None)
            continue
        if size > r.VALUE_NULL:
            prefix = _PREFIXES.get(size, 0)
            if not prefix or prefix > len(payload) - at:
                raise _invalid_row()
            size = int.from_bytes(payload[at : at + prefix], "little")
            at += prefix
        row.append(payload[at : at + size])
        at += size
    if at != len(payload):
        raise _invalid_row()
    return row
