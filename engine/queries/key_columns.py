"""Rows by key as Arrow columns (`get_many`), copied by one kernel; the general path reads what it leaves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tidemark.engine.access.batch_operations import decode_entries, key_words_of, lock_keys, read_keys
from tidemark.engine.access.row_operations import lock_shared
from tidemark.engine.memory.arena_layout import OK, ST_SPACE
from tidemark.engine.programs.running import rows_memory
from tidemark.engine.queries import program_scan_layout as q
from tidemark.engine.queries.columns import TEXT_BYTES, Columns, is_copied
from tidemark.engine.queries.key_columns_kernels import read_columns
from tidemark.engine.rows.column_output import arrow_schema, wanted_names
from tidemark.engine.rows.columnar import encode_keys

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemark.engine.memory.arena import Words
    from tidemark.engine.rows.columnar import EncodedKeys
    from tidemark.engine.rows.row_format import RowFormat
    from tidemark.engine.schema.row_shape import Place
    from tidemark.engine.table.table import Table
    from tidemark.engine.txn.transaction import Transaction
    from tidemark.engine.txn.views import View

FEW_KEYS = 64  # capacity of the columns that are kept for calls with few keys
SLICE_KEYS = 2_000
SHAPES_KEPT = 64


class _Shape(NamedTuple):
    """How the rows of one version of a table become Arrow columns."""

    places: list[Place]
    schema: pa.Schema
    few: Columns  # for FEW_KEYS keys; nothing is copied into it


def _shape_of(row_format: RowFormat, columns: Sequence[str] | None) -> _Shape | None:
    """Return the shape of the named columns, None if the general path must read them. Raises: as `wanted_names`."""
    names = tuple(wanted_names(row_format, columns))
    if names not in row_format.shapes:
        if len(row_format.shapes) >= SHAPES_KEPT:
            row_format.shapes.clear()
        known = dict(zip(row_format.names, row_format.layout.places, strict=True))
        places = [known[name] for name in names]
        shape = None
        if all(map(is_copied, places)):
            few = Columns(places, FEW_KEYS, [TEXT_BYTES] * len(places))
            shape = _Shape(places, arrow_schema(row_format.definition, names), few)
        row_format.shapes[names] = shape
        return shape
    found: _Shape | None = row_format.shapes[names]
    return found


def read_columns_by_key(
    table: Table, keys: EncodedKeys, columns: Sequence[str] | None, txn: Transaction | None
) -> pa.RecordBatch | None:
    """Return the rows with these keys, in the order of the keys, as of one instant; None if the general path must read
    them. Raises: NoSuchColumn, SchemaInvalid.
    """
    shape = _shape_of(table.format, columns)
    if shape is None:
        return None
    sizes = [TEXT_BYTES] * len(shape.places)
    made = shape.few.another() if keys.count <= FEW_KEYS else Columns(shape.places, keys.count, sizes)
    hints = np.empty(keys.count, dtype=np.int64)
    with table.view_for(txn, is_one_call=keys.count <= SLICE_KEYS) as view:
        while True:
            count, status = _read(view, table, keys, made, hints)
            if not view.view:
                table.refuse_moved()
            if status == OK:
                return made.batch(shape.schema, count)
            if status > ST_SPACE:
                return None
            spread = int(made.plan[q.CO_CAPACITY]) // keys.count  # columns for few keys have room for more
            larger = zip(sizes, made.sizes(sizes, count, 0), strict=True)
            sizes = [max(2 * before * spread, size) for before, size in larger]
            made = Columns(shape.places, keys.count, sizes)


def _read(view: View, table: Table, keys: EncodedKeys, made: Columns, hints: Words) -> tuple[int, int]:
    """Return (rows read, status of the kernel)."""
    mem = table.mem
    pages = (mem, mem.view(np.int32), mem.view(np.int16), mem.view(np.uint8))
    state = np.zeros(q.PS_STATE_WORDS, dtype=np.int64)
    status, start = OK, 0
    while status == OK and start < keys.count:
        table.check()
        stop = min(start + SLICE_KEYS, keys.count)
        given = (keys.keys, keys.key_offsets, keys.key_stride, start, stop, hints)
        place = (*pages, table.handle, view.view, view.desc)
        status = int(read_columns(*place, *given, made.plan, rows_memory(), *made.elements, state))
        start = stop
    return int(state[q.PS_ROWS]), status


def get_many(
    table: Table, keys: Any, columns: Sequence[str] | None, txn: Transaction | None, lock: str | None = None
) -> pa.RecordBatch:
    """Return the rows with these keys as an Arrow record batch, in the order of the keys, leaving out keys without a
    row.

    lock: None, "shared" or "exclusive"; held to the end of the transaction.
    """
    table.check()
    with_disk = table.format.needs_disk(columns)
    encoded = encode_keys(table.format, keys)
    if txn is not None and lock == "exclusive":
        lock_keys(txn, table, encoded)
    elif txn is not None and lock == "shared":
        for row in range(encoded.count):  # shared locks are kept in Python
            lock_shared(txn, table, table.format.decode_key(key_words_of(encoded, row)))
    copied = None if with_disk else read_columns_by_key(table, encoded, columns, txn)
    if copied is not None:
        return copied
    entries, offsets, found = read_keys(table, encoded, txn, with_disk)
    return decode_entries(table.format, entries, offsets, found, columns)
