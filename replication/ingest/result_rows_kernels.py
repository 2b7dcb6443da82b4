"""A kernel that finds the values of query results as a MySQL server sends them: packets of text values.

The bytes come from a peer, so every length is checked before it is followed. Cells are those of
`replication/binlog/bodies_kernels.py`, whose kernels copy the values. The kernel touches private memory only.
"""

# mypy: ignore-errors

from __future__ import annotations

import numpy as np

from tidemark.engine.jit.kernel import helper, kernel
from tidemark.replication.binlog import rows_layout as B
from tidemark.replication.binlog.values_kernels import take_little
from tidemark.replication.ingest import result_rows_layout as W


@helper
def _find_row(cells, cell, octets, at, end, columns):
    """Find the cells of the row in bytes at … end; return False if its values do not fill these bytes."""
    for number in range(columns):
        if at >= end:
            return False
        length = np.int64(octets[np.uint64(at)])
        at += 1
        if length == W.VALUE_NULL:
            cells[np.uint64(cell + number)] = B.CELL_NULL
            continue
        if length > W.VALUE_NULL:
            prefix = 2 if length == W.LENGTH_2 else 3 if length == W.LENGTH_3 else 8 if length == W.LENGTH_8 else 0
            if prefix == 0 or prefix > end - at:
                return False
            length = take_little(octets, at, prefix)
            at += prefix
        if length < 0 or length > end - at:
            return False
        cells[np.uint64(cell + number)] = at << B.CELL_SIZE_BITS | length
        at += length
    return at == end


@kernel("int64(int64[::1], int64[::1], Array(uint8, 1, 'C', readonly=True), int64, int64, int64)", nogil=True)
def find_result_cells(cells, ends, octets, start, stop, columns):
    """Find the values of the rows in bytes start … stop, `columns` cells for each row; ends[i] gets the end of row i.

    Stops before an incomplete packet, the packet that ends the result, an error packet, and a packet of maximum length,
    which is only the beginning of a row. Returns the number of rows, at most ends.size; -1 - row for a row
    whose lengths contradict each other.
    """
    if columns < 1 or columns * ends.size > cells.size or start < 0 or stop > octets.size:
        return -1
    row = 0
    at = start
    while row < ends.size and stop - at >= W.PACKET_HEADER_BYTES:
        size = take_little(octets, at, 3)
        begin = at + W.PACKET_HEADER_BYTES
        if size == W.PACKET_BYTES_MAX or size > stop - begin:
            break
        if size > 0:
            first = np.int64(octets[np.uint64(begin)])
            if first == W.PACKET_ERROR or (first == W.PACKET_END and size < W.PACKET_END_BYTES_MAX):
                break
        if not _find_row(cells, row * columns, octets, begin, begin + size, columns):
            return -1 - row
        at = begin + size
        ends[row] = at
        row += 1
    return row
