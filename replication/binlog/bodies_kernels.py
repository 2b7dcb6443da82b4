"""Kernels that decode MySQL's row bodies: they first locate each value, then read column by column.

A body comes from a file or a peer. Every length is checked before it is followed. A row of zero bytes is refused,
because a body could hold infinitely many. The room for cells that a caller passes bounds the rows of one call. Kernels
touch private memory only.
"""

# mypy: ignore-errors

from __future__ import annotations

import numpy as np

from tidemark.engine.jit.kernel import helper, kernel
from tidemark.replication.binlog import rows_layout as B
from tidemark.replication.binlog.values_kernels import (
    NO_VALUE,
    decimal_bytes,
    extend_sign,
    fraction_bytes,
    take_big,
    take_date,
    take_datetime,
    take_decimal,
    take_little,
    take_time,
    take_timestamp,
)

_YEAR_ZERO = 1900


@helper
def _value_bytes(codes, code):
    """Return the size in bytes of a value that is not a string."""
    kind = codes[code + B.RW_CODE]
    if kind == B.ROW_DECIMAL:
        return decimal_bytes(codes[code + B.RW_SIZE], codes[code + B.RW_SCALE])
    if kind == B.ROW_DATE:
        return 3
    if kind == B.ROW_TIME:
        return 3 + fraction_bytes(codes[code + B.RW_SCALE])
    if kind == B.ROW_DATETIME:
        return 5 + fraction_bytes(codes[code + B.RW_SCALE])
    if kind == B.ROW_TIMESTAMP:
        return 4 + fraction_bytes(codes[code + B.RW_SCALE])
    return codes[code + B.RW_SIZE]


@helper
def _find_image(cells, cell, body, size, at, codes, first, columns):
    """Find the cells of one image, whose codes begin at `first`; return its end, -1 if that is past the body."""
    nulls = at
    at += (columns + 7) >> 3
    if at > size:
        return -1
    for number in range(columns):
        if np.int64(body[np.uint64(nulls + (number >> 3))]) & (1 << (number & 7)):
            cells[np.uint64(cell + number)] = B.CELL_NULL
            continue
        code = (first + number) * B.ROW_CODE_WORDS
        if codes[code + B.RW_CODE] == B.ROW_STRING:
            prefix = codes[code + B.RW_SIZE]
            if at + prefix > size:
                return -1
            length = take_little(body, at, prefix)
            at += prefix
        else:
            length = _value_bytes(codes, code)
        if length < 0 or length > size - at:
            return -1
        cells[np.uint64(cell + number)] = at << B.CELL_SIZE_BITS | length
        at += length
    return at


@kernel(
    "int64(int64[::1], int64[::1], Array(uint8, 1, 'C', readonly=True), int64, int64[::1], int64, int64)",
    nogil=True,
)
def find_cells(cells, ends, body, start, codes, before_columns, after_columns):
    """Locate the values of the rows from byte `start` on: before_columns + after_columns cells for each row, in the
    order of `codes`. ends[i] gets the end of row i. An absent image has no columns, a present one has at least one.

    Returns the number of rows, at most ends.size; -1 - row for a row that is not whole.
    """
    columns = before_columns + after_columns
    size = body.size
    if columns < 1 or columns * B.ROW_CODE_WORDS > codes.size or columns * ends.size > cells.size or start < 0:
        return -1
    row = 0
    at = start
    while at < size and row < ends.size:
        if before_columns > 0:
            at = _find_image(cells, row * columns, body, size, at, codes, 0, before_columns)
        if at >= 0 and after_columns > 0:
            cell = row * columns + before_columns
            at = _find_image(cells, cell, body, size, at, codes, before_columns, after_columns)
        if at < 0:
            return -1 - row
        ends[row] = at
        row += 1
    return row


@kernel(
    "int64(int64[::1], uint8[::1], Array(uint8, 1, 'C', readonly=True), int64[::1], int64, int64, int64[::1], int64)",
    nogil=True,
)
def read_numbers(target, bitmap, body, cells, cell, step, codes, count):
    """Read the values of a column that is not a string, from cells `cell`, `cell` + `step` …, and set their bits in the
    validity `bitmap`, which the caller has zeroed.

    `codes` are the column's own. A decimal takes two words of `target`, low first, every other value one. Returns the
    number of NULLs, or -1 - row of the first value that is invalid for the column's type.
    """
    kind = codes[B.RW_CODE]
    size = codes[B.RW_SIZE]
    digits = codes[B.RW_SCALE]
    width = 2 if kind == B.ROW_DECIMAL else 1
    if cell < 0 or step < 1 or (count > 0 and cell + (count - 1) * step >= cells.size):
        return -1
    if count * width > target.size or count > bitmap.size << 3:
        return -1
    nulls = 0
    for row in range(count):
        where = cells[np.uint64(cell + row * step)]
        if where == B.CELL_NULL:
            nulls += 1
            target[row * width] = 0
            if width == 2:
                target[row * 2 + 1] = 0
            continue
        bitmap[row >> 3] |= 1 << (row & 7)
        at = where >> B.CELL_SIZE_BITS
        if kind == B.ROW_DECIMAL:
            low, high, sound = take_decimal(body, at, size, digits)
            if not sound:
                return -1 - row
            target[row * 2] = low
            target[row * 2 + 1] = high
            continue
        if kind == B.ROW_DATE:
            value = take_date(body, at)
        elif kind == B.ROW_TIME:
            value = take_time(body, at, digits)
        elif kind == B.ROW_DATETIME:
            value = take_datetime(body, at, digits)
        elif kind == B.ROW_TIMESTAMP:
            value = take_timestamp(body, at, digits)
        elif kind == B.ROW_BIT:
            value = take_big(body, at, size)
        else:
            value = take_little(body, at, size)
            if kind == B.ROW_SIGNED:
                value = extend_sign(value, size)
            elif kind == B.ROW_YEAR:
                value += _YEAR_ZERO if value > 0 else 0
            elif kind == B.ROW_ENUM:
                value -= 1
                # MySQL uses place 0 for a string that is not a member.
                if value < 0 or value >= digits:
                    return -1 - row
        if value == NO_VALUE and kind >= B.ROW_DATE and kind <= B.ROW_TIMESTAMP:
            return -1 - row
        target[row] = value
    return nulls


@kernel("int64(int64[::1], uint8[::1], int64[::1], int64, int64, int64)", nogil=True)
def measure_strings(offsets, bitmap, cells, cell, step, count):
    """Compute the count + 1 offsets of a column of strings, and set the validity `bitmap`, which the caller has zeroed.
    Returns the number of NULLs, or -1 if an array is too short.
    """
    if cell < 0 or step < 1 or (count > 0 and cell + (count - 1) * step >= cells.size):
        return -1
    if count >= offsets.size or count > bitmap.size << 3:
        return -1
    nulls = 0
    total = 0
    offsets[0] = 0
    for row in range(count):
        where = cells[np.uint64(cell + row * step)]
        if where == B.CELL_NULL:
            nulls += 1
        else:
            bitmap[row >> 3] |= 1 << (row & 7)
            total += where & B.CELL_SIZE_MASK
        offsets[row + 1] = total
    return nulls


@kernel(
    "int64(uint8[::1], Array(uint8, 1, 'C', readonly=True), int64[::1], int64[::1], int64, int64, int64)", nogil=True
)
def copy_strings(target, body, offsets, cells, cell, step, count):
    """Copy the bytes that `measure_strings` measured in the same cells; return count, or -1 if an array is too
    short.
    """
    if cell < 0 or step < 1 or (count > 0 and cell + (count - 1) * step >= cells.size):
        return -1
    if count >= offsets.size or offsets[count] > target.size:
        return -1
    for row in range(count):
        begin = np.uint64(offsets[row])
        length = offsets[row + 1] - offsets[row]
        source = np.uint64(cells[np.uint64(cell + row * step)] >> B.CELL_SIZE_BITS)
        for i in range(length):
            target[begin + np.uint64(i)] = body[source + np.uint64(i)]
    return count
