"""Records of a transaction for the binlog besides its changes: their author, rows to send again, tracked reads.

Nothing here changes the contents of a row. The records of absent rows and of reads have images with the key alone;
replay skips them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tidemark.engine.access.batch_operations import PUT_SLICE_ROWS, retried
from tidemark.engine.access.statuses import settle
from tidemark.engine.applied.absent_kernels import lock_absent
from tidemark.engine.applied.applied_rows import MISSING, touch_rows_again
from tidemark.engine.base.errors import InvariantBroken
from tidemark.engine.log.redo_layout import ANY_VALUE_READ, FLAG_DISK_KEPT, KIND_REFRESH
from tidemark.engine.memory.arena_layout import AUTHOR_SHIFT, OK, X_ROW
from tidemark.engine.rows.column_values import conform
from tidemark.engine.rows.columnar import encode_arrays
from tidemark.engine.txn.before_images_kernels import note_rows
from tidemark.engine.txn.begin_kernels import tag_transaction

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemark.engine.memory.arena import Words
    from tidemark.engine.schema.column import Column
    from tidemark.engine.table.table import Table
    from tidemark.engine.txn.transaction import Transaction


def tag(txn: Transaction, any_value: int, author: int) -> None:
    """Set any-value (32 bits) and author of later operations. Raises: InvariantBroken unless all operations of the
    transaction have the same author, or 0.
    """
    txn.check()
    if not txn.desc:
        txn.begin()
    if tag_transaction(txn.mem, txn.desc, any_value | author << AUTHOR_SHIFT) != OK:
        raise InvariantBroken("a transaction was given a second author; report this")


def refresh_rows(txn: Transaction, table: Table, keys: pa.RecordBatch) -> Words:
    """Send the present state of rows, or their absence, again; return MISSING for keys without a row.

    `keys` has the key columns, no key twice. An existing row is touched: it gets epoch and author of this transaction.
    An absence is locked: if the row were inserted and committed before this transaction, the absence would be sent
    after the row. A transaction that wants to insert it waits; this one cannot insert it (DuplicateKey).
    """
    outcomes = np.full(keys.num_rows, MISSING, dtype=np.int64)
    places = np.arange(keys.num_rows)
    while places.size:
        some = keys if places.size == keys.num_rows else keys.take(places)
        outcomes[places] = touch_rows_again(txn, table, some)
        places = places[outcomes[places] == MISSING]
        if places.size:
            taken = _note_absent(txn, table, keys.take(places)).astype(bool)
            places = places[~taken]  # others inserted these rows meanwhile: touch them
    return outcomes


def track_reads(txn: Transaction, table: Table, keys: pa.RecordBatch) -> None:
    """Send rows that this transaction has locked for reading, as touched by this transaction (`log_exclusive_reads`).

    A row the transaction changes, earlier or later, is sent as changed. Later operations are untagged.
    """
    tag(txn, ANY_VALUE_READ, 0)
    try:
        touch_rows_again(txn, table, keys)
    finally:
        if not txn.is_ended:
            tag(txn, 0, 0)


@retried
def _note_absent(txn: Transaction, table: Table, keys: pa.RecordBatch) -> Words:
    """Lock keys without a row, and write a record of each that was locked; return 0 for keys that have a row by now."""
    table.check()
    images, offsets = _key_images(table, keys)
    flags = FLAG_DISK_KEPT if table.format.has_disk else 0
    taken = np.zeros(keys.num_rows, dtype=np.int64)
    ahead = images.size // keys.num_rows + 4_096

    def lock(start: int, stop: int) -> int:
        return int(lock_absent(txn.mem, table.handle, txn.desc, images, offsets, start, stop, taken))

    def note(start: int, stop: int) -> int:
        place = (txn.mem, table.fragments[0], txn.desc, txn.buf, images, offsets, taken)
        return int(note_rows(*place, start, stop, KIND_REFRESH, flags))

    for step in (lock, note):
        position = 0
        deadline: float | None = None
        while position < keys.num_rows:
            status = step(position, min(position + PUT_SLICE_ROWS, keys.num_rows))
            position = int(txn.mem[txn.desc + X_ROW])
            deadline = None if status == OK else settle(txn, table, status, ahead, deadline)
    return taken


def _key_images(table: Table, keys: pa.RecordBatch) -> tuple[Words, Words]:
    """Return images with only a key, and their offsets, one more than there are images."""
    row_format = table.format
    arrays = {}
    for place in row_format.layout.places:
        column = place.column
        if place.is_key:
            arrays[place.position] = conform(keys.column(column.name), column, table.name, 0, True)
        else:
            arrays[place.position] = _nothing(column, table.name, keys.num_rows)
    encoded = encode_arrays(row_format, arrays, keys.num_rows, 0, with_disk=False)
    if encoded.stride_words:
        return encoded.images, np.arange(keys.num_rows + 1, dtype=np.int64) * encoded.stride_words
    return encoded.images, encoded.offsets


def _nothing(column: Column, table: str, count: int) -> pa.Array:
    """Return NULLs, or zeros for a column that is not nullable, in the type the encoder expects."""
    import pyarrow as pa

    kind = conform(pa.nulls(0, column.type.input_type()), column, table, 0).type
    if column.nullable:
        return pa.nulls(count, kind)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return pa.repeat(pa.scalar("", kind), count)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return pa.repeat(pa.scalar(b"", kind), count)
    zeros = pa.py_buffer(bytes(-(-count * kind.bit_width // 8)))
    return pa.Array.from_buffers(kind, count, [None, zeros])
