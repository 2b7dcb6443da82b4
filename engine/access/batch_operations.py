"""Many rows at a time: the `_many` calls and scans, with no Python code per row (D2).

Batches are validated and encoded whole before the first row is changed; kernels process them in bounded slices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from tidemark.engine.access import snapshot_reads
from tidemark.engine.access.disk_reading import grown
from tidemark.engine.access.reads_kernels import lock_found, read_rows
from tidemark.engine.access.row_operations import check_released, is_new, no_partition, refused, settle
from tidemark.engine.access.scan_batch import SCAN_BATCH_ROWS, ScanBatch
from tidemark.engine.access.snapshot_reads import fragment_scan
from tidemark.engine.base.errors import DuplicateKey, Rejected, RowNotFound
from tidemark.engine.log.redo_layout import OPERATION_WORDS
from tidemark.engine.memory.arena import NOTHING
from tidemark.engine.memory.arena_layout import (
    ENTRY_WORDS,
    F_INDEX_COUNT,
    MODE_DELETE,
    MODE_INSERT,
    MODE_LOCK,
    MODE_UPDATE,
    MODE_UPDATE_KEPT,
    MODE_WRITE,
    OK,
    ST_ALTERED,
    ST_CHANGED,
    ST_DROPPED,
    ST_DUPLICATE,
    ST_MISSING,
    ST_MORE,
    ST_PARTITION,
    ST_SPACE,
    ST_UNIQUE,
    X_ROW,
    X_USED,
)
from tidemark.engine.memory.touch_ahead import TouchAhead
from tidemark.engine.rows.column_input import Batch, rows_expected, to_columns
from tidemark.engine.rows.column_output import decode_rows
from tidemark.engine.rows.column_patch import encode_columns_patch
from tidemark.engine.rows.columnar import EncodedKeys, EncodedRows, check_columns, encode_keys, encode_rows
from tidemark.engine.rows.key_hashes import hash_images, order_by_fragment
from tidemark.engine.schema.partitions_layout import HH_FRAGMENTS
from tidemark.engine.table.table import TableAltered
from tidemark.engine.txn.operations_kernels import delete_disk_rows, put_disk_rows, put_rows, touch_rows
from tidemark.engine.txn.transaction import PAD_WORDS

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemark.engine.access.snapshot_reads import Shown
    from tidemark.engine.memory.arena import Words
    from tidemark.engine.rows.row_format import RowFormat
    from tidemark.engine.table.table import Table
    from tidemark.engine.txn.transaction import Transaction
    from tidemark.engine.txn.views import View

Progress = Callable[[int, int, str], None]
R = TypeVar("R")
RESERVE_ROWS_MIN = 4_096  # per fragment
PUT_SLICE_ROWS = 1_000  # about 200 µs per kernel call, which holds the GIL
SLOT_WORDS = 4  # of a row beside its image: header, entry of the primary index
UNIQUE_SHARE = 2  # a row's entry in a unique index takes as long as this many rows
READ_SLICE_ROWS = 2_000


def insert_many(txn: Transaction, table: Table, data: Any, progress: Progress | None = None) -> int:
    """Insert rows; return how many. All or none. Raises: DuplicateKey (`row` is the position in `data`)."""
    return _put_many(txn, table, data, MODE_INSERT, progress)


def write_many(txn: Transaction, table: Table, data: Any, progress: Progress | None = None) -> int:
    """Insert rows or replace those with the same keys; return how many. All or none."""
    return _put_many(txn, table, data, MODE_WRITE, progress)


def _put_many(txn: Transaction, table: Table, data: Any, mode: int, progress: Progress | None) -> int:
    txn.check(locks=True)
    total = 0
    expected = rows_expected(data)
    with txn.savepoint(), TouchAhead(txn.mem) as touched:
        for batch in to_columns(data, table.definition):
            if not batch.columns.num_rows:
                check_columns(table.format, batch.columns, needs_all=True)
                continue
            total += retry_if_altered(txn, table, _put_batch, batch, mode, expected - total, touched)
            if progress is not None:
                progress(total, -1, "rows")
    return total


def _put_batch(txn: Transaction, table: Table, batch: Batch, mode: int, ahead: int, touched: TouchAhead) -> int:
    encoded = encode_rows(table.format, batch)
    ahead = max(ahead, encoded.count)
    _make_room(txn, table, encoded, ahead)
    if encoded.count:
        row_words = encoded.images.size // encoded.count + SLOT_WORDS
        touched.begin(ahead * row_words if mode == MODE_INSERT else 0, txn.buf, txn.desc)
    if mode == MODE_INSERT:
        _reserve_index(table, ahead)
    put_images(txn, table, encoded, mode, batch.first_row)
    return encoded.count


def _make_room(txn: Transaction, table: Table, encoded: EncodedRows, ahead: int) -> None:
    """Grow the transaction's buffer for encoded rows, and for as many as are ahead, once instead of doubling it many
    times. Rows of a run share one record header, so there are far fewer headers than rows.
    """
    images, count = encoded.images, encoded.count
    room = images.size + (count // 64 + 16) * OPERATION_WORDS
    used = int(txn.mem[txn.desc + X_USED])
    if count and txn.buf.size < used + room <= txn.store.transaction_words - PAD_WORDS and txn.spool is None:
        settle(txn, table, ST_SPACE, room, None, room * ahead // count)


def retry_if_altered(txn: Transaction, table: Table, call: Callable[..., R], *arguments: Any) -> R:
    """Make a call, and repeat it for the newest version of the table if columns were added meanwhile."""
    while True:
        try:
            with txn.savepoint():
                return call(txn, table, *arguments)
        except TableAltered:
            table = table.newest


def _reserve_index(table: Table, rows: int) -> None:
    """Grow the index for many new rows at once: gradual growth moves each entry several times."""
    share = rows // len(table.fragments)
    if share < RESERVE_ROWS_MIN:
        return
    for fragment in table.fragments:
        table.reserve_index(fragment, table.arena.word(fragment, F_INDEX_COUNT) + share)


def put_images(txn: Transaction, table: Table, encoded: EncodedRows, mode: int, first_row: int) -> None:
    """Insert, write or update encoded rows, sorted by fragment so that inserts become runs.

    Raises: DuplicateKey, RowNotFound and NoPartition (`row` counts from `first_row`); TableAltered, which callers
    handle; and as `settle`.
    """
    images, offsets, count = encoded.images, encoded.offsets, encoded.count
    if count == 0:
        return
    put_kernel: Any = put_rows
    if table.format.has_disk:
        put_kernel = put_disk_rows
        if not offsets.size:
            offsets = np.arange(count + 1, dtype=np.int64) * table.format.fixed_words
    hashes, order = _hashed(table, images, offsets, count, mode, first_row)
    _make_room(txn, table, encoded, 0)
    position = 0
    deadline: float | None = None
    slice_rows = PUT_SLICE_ROWS // (1 + UNIQUE_SHARE * len(table.uniques))
    while position < count:
        stop = min(position + slice_rows, count)
        rows = (images, offsets, order, hashes, position, stop, mode | table.stamp)
        status = put_kernel(txn.mem, table.handle, txn.desc, txn.buf, *rows)
        if status == ST_ALTERED:
            raise TableAltered
        position = int(txn.mem[txn.desc + X_ROW])
        if status in (OK, ST_MORE):
            deadline = None
            continue
        if status in (ST_DUPLICATE, ST_MISSING, ST_PARTITION, ST_UNIQUE):
            row = int(order[position]) if order.size else position
            if status == ST_UNIQUE:
                at = int(offsets[row]) if offsets.size else row * table.format.fixed_words
                raise refused(txn, table, images[at:], first_row + row)
            raise _refused(table, images, offsets, row, first_row, status)
        deadline = settle(txn, table, status, images.size // count + 4_096, deadline)
    if txn.view is not None and table.uniques:
        starts = offsets[:count] if offsets.size else np.arange(count, dtype=np.int64) * table.format.fixed_words
        check_released(txn, table, images, starts)


def _hashed(table: Table, images: Words, offsets: Words, count: int, mode: int, first_row: int) -> tuple[Words, Words]:
    """Return (hash of each image's key, order in which the rows are put: by fragment, or as given)."""
    header = table.hash_header
    key_words = 0 if table.format.key_in_var else table.format.key_words
    hashes, found = hash_images(header, key_words, images, offsets, count)
    if found != count:
        raise _refused(table, images, offsets, found, first_row, ST_PARTITION if is_new(mode) else ST_MISSING)
    fragments = int(header[HH_FRAGMENTS])
    # Keep the order of the batch: a row may take a unique key that an earlier row releases.
    if fragments == 1 or (mode != MODE_INSERT and table.unique_columns):
        return hashes, NOTHING
    return hashes, order_by_fragment(hashes, fragments)[0]


def _refused(table: Table, images: Words, offsets: Words, row: int, first_row: int, status: int) -> Rejected:
    at = int(offsets[row]) if offsets.size else row * table.format.fixed_words
    end = int(offsets[row + 1]) if offsets.size else at + table.format.fixed_words
    key = table.format.decode_key(table.format.image_key(images[at:end]))
    if status == ST_PARTITION:
        return no_partition(table, key, first_row + row)
    if status == ST_DUPLICATE:
        return DuplicateKey(
            f"{table.name}: row {first_row + row} has key {table.format_key(key)}, which exists or appears twice in the"
            " batch; nothing was inserted",
            table=table.name,
            key=key,
            row=first_row + row,
        )
    return RowNotFound(
        f"{table.name}: row {first_row + row}: no row has key {table.format_key(key)}; nothing was changed",
        table=table.name,
        key=key,
        row=first_row + row,
    )


def touch_many(
    txn: Transaction, table: Table, keys: EncodedKeys, mode: int, first_row: int, skips_missing: bool = False
) -> None:
    """Lock or delete rows by key. Raises: RowNotFound, unless keys without a row are skipped."""
    position = 0
    deadline: float | None = None
    while position < keys.count:
        stop = min(position + PUT_SLICE_ROWS, keys.count)
        place = (txn.mem, table.handle, txn.desc, txn.buf, keys.keys, keys.key_offsets, keys.key_stride)
        if mode == MODE_DELETE and table.format.has_disk:
            status = delete_disk_rows(*place, position, stop)
        else:
            status = touch_rows(*place, position, stop, mode)
        position = int(txn.mem[txn.desc + X_ROW])
        if status == OK:
            deadline = None
            continue
        if status == ST_MISSING and skips_missing:
            position += 1
            continue
        if status == ST_MISSING:
            key = table.format.decode_key(key_words_of(keys, position))
            raise RowNotFound(
                f"{table.name}: row {first_row + position}: no row has key {table.format_key(key)};"
                " nothing was changed",
                table=table.name,
                key=key,
                row=first_row + position,
            )
        deadline = settle(txn, table, status, (keys.count - position) * 8 + 4_096, deadline)


def lock_keys(txn: Transaction, table: Table, keys: EncodedKeys) -> Words:
    """Lock the rows that exist; return, for each key, 1 if it has a row, else 0."""
    txn.check(locks=True)
    table.check()
    found = np.zeros(keys.count, dtype=np.int64)
    position = 0
    deadline: float | None = None
    while position < keys.count:
        stop = min(position + PUT_SLICE_ROWS, keys.count)
        place = (txn.mem, table.handle, txn.desc, keys.keys, keys.key_offsets, keys.key_stride)
        status = lock_found(*place, position, stop, found)
        position = int(txn.mem[txn.desc + X_ROW])
        deadline = None if status == OK else settle(txn, table, status, 4_096, deadline)
    return found


def key_words_of(keys: EncodedKeys, row: int) -> Words:
    if keys.key_offsets.size:
        return keys.keys[int(keys.key_offsets[row]) : int(keys.key_offsets[row + 1])]
    return keys.keys[row * keys.key_stride : row * keys.key_stride + keys.key_words]


def delete_many(txn: Transaction, table: Table, keys: Any) -> int:
    """Delete rows by key; return how many. All or none. Raises: RowNotFound (`row` is the position in `keys`)."""
    txn.check(locks=True)
    table.check()
    encoded = encode_keys(table.format, keys)
    with txn.savepoint():
        touch_many(txn, table, encoded, MODE_DELETE, 0)
    return encoded.count


def update_many(txn: Transaction, table: Table, data: Any, progress: Progress | None = None) -> int:
    """Change the given columns of the rows with the keys in `data`; return how many. All or none. Columns not given
    stay as they are; Python rows must all give the same columns.

    Raises: RowNotFound (`row` is the position in `data`), and errors of validation.
    """
    return by_batches(txn, table, data, progress, _update_batch)


def by_batches(
    txn: Transaction, table: Table, data: Any, progress: Progress | None, call: Callable[..., int], *arguments: Any
) -> int:
    """Make a call for each batch of `data`, which has the columns given; return the sum of what it returns. All or
    none.
    """
    txn.check(locks=True)
    table.check()
    rows = total = 0
    with txn.savepoint():
        for batch in to_columns(data, table.definition, fill_in=False):
            if not batch.columns.num_rows:
                check_columns(table.format, batch.columns, needs_all=False)
                continue
            total += retry_if_altered(txn, table, call, batch, *arguments)
            rows += batch.columns.num_rows
            if progress is not None:
                progress(rows, -1, "rows")
    return total


def read_locked(
    txn: Transaction, table: Table, keys: EncodedKeys, first_row: int, with_disk: bool
) -> tuple[Words, Words]:
    """Lock rows and read them; return (entries, image offset of each). Raises: RowNotFound, also for rows of a
    partition that is dropped before they are read.
    """
    while True:
        touch_many(txn, table, keys, MODE_LOCK, first_row)
        images, offsets, found = read_keys(table, keys, txn, with_disk)
        if found == keys.count:
            return images, offsets


def _update_batch(txn: Transaction, table: Table, batch: Batch) -> int:
    columns, key_names = batch.columns, table.definition.primary_key
    names = [name for name in columns.schema.names if name not in key_names]
    keys = encode_keys(table.format, columns, batch.first_row)
    return change_columns(txn, table, keys, columns.select(names), batch.first_row)


def change_columns(txn: Transaction, table: Table, keys: EncodedKeys, columns: pa.RecordBatch, first_row: int) -> int:
    """Lock rows and change the given columns; return how many. Raises: RowNotFound."""
    with_disk = table.format.touches_disk(columns.schema.names)
    images, offsets = read_locked(txn, table, keys, first_row, with_disk)
    put_changed(txn, table, columns, images, offsets, first_row)
    return keys.count


def put_changed(
    txn: Transaction, table: Table, columns: pa.RecordBatch, images: Words, offsets: Words, first_row: int = 0
) -> None:
    """Update locked rows, given by their images: row i gets the values of row i of `columns`. Raises: as `put_images`,
    and errors of validation.
    """
    patched = encode_columns_patch(table.format, columns, images, offsets, first_row)
    keeps_disk = table.format.has_disk and not table.format.touches_disk(columns.schema.names)
    put_images(txn, table, patched, MODE_UPDATE_KEPT if keeps_disk else MODE_UPDATE, first_row)


def read_keys(table: Table, keys: EncodedKeys, txn: Transaction | None, with_disk: bool) -> tuple[Words, Words, int]:
    """Return entries of the rows found, in the order of the keys: (words, image offsets, rows). All rows are read at
    one instant.
    """
    table.check()
    with table.view_for(txn, is_one_call=not with_disk and keys.count <= READ_SLICE_ROWS) as view:
        return snapshot_reads.read_keys(view, table, keys, True) if with_disk else _read_keys(view, table, keys)


def _read_keys(view: View, table: Table, keys: EncodedKeys) -> tuple[Words, Words, int]:
    out = np.empty(max(keys.count * (ENTRY_WORDS + table.format.fixed_words + 8), 1_024), dtype=np.int64)
    offsets = np.empty(keys.count + 1, dtype=np.int64)
    state = np.zeros(3, dtype=np.int64)
    while int(state[2]) < keys.count:
        stop = min(int(state[2]) + READ_SLICE_ROWS, keys.count)
        table.check()
        reader = (table.mem, table.handle, view.view, view.desc, view.buf)
        given = (keys.keys, keys.key_offsets, keys.key_stride, int(state[2]), stop)
        status = view.settled(read_rows(*reader, *given, out, offsets, state))
        if status == ST_DROPPED:
            raise table.gone()
        if status == ST_CHANGED:
            found = int(state[0])
            more, places, count = snapshot_reads.read_keys(view, table, keys, False, int(state[2]))
            used = int(state[1])
            return np.concatenate([out[:used], more]), np.concatenate([offsets[:found], places + used]), found + count
        if status != OK and not view.view:
            state[:] = 0  # start again: the rows must be read by one call
        if status not in (OK, ST_MORE):
            out = grown(out, int(state[1]), ST_SPACE - status)
    found = int(state[0])
    return out, offsets[:found], found


def decode_entries(
    row_format: RowFormat,
    entries: Words,
    offsets: Words,
    count: int,
    columns: Sequence[str] | None,
    extra: Mapping[str, Words] | None = None,
) -> pa.RecordBatch:
    """Do `decode_rows` for entries in order. Consecutive entries without var and disk parts have one size, so a stride
    replaces their offsets.
    """
    stride = ENTRY_WORDS + row_format.fixed_words
    is_dense = count == 0 or int(offsets[count - 1]) == ENTRY_WORDS + (count - 1) * stride
    if row_format.has_var or row_format.has_disk or not is_dense:
        return decode_rows(row_format, entries, offsets, count, columns, extra)
    return decode_rows(row_format, entries[ENTRY_WORDS:], stride, count, columns, extra)


def scan(
    table: Table,
    txn: Transaction | None,
    limit: int | None = None,
    columns: Sequence[str] | None = None,
    numbers: Sequence[int] | None = None,
    view: View | None = None,
) -> Iterator[ScanBatch]:
    """Yield all rows, or those of some fragments, fragment by fragment in ROWID order, with disk parts if one of
    `columns` (None: all) is on disk. The rows are those committed when the scan began, and those that the transaction
    has changed when the scan reaches them. view: of a scan that has begun.

    A partition dropped meanwhile yields no more rows. Raises: NoSuchTable if the table is dropped meanwhile,
    SnapshotTooOld, and errors of reading disk pages.
    """
    table.check()
    with table.view_for(txn) if view is None else nullcontext(view) as shown:
        yield from scan_from(shown, table, limit, columns, numbers)


def scan_from(
    view: Shown,
    table: Table,
    limit: int | None,
    columns: Sequence[str] | None,
    numbers: Sequence[int] | None,
    first_rowid: int = 0,
) -> Iterator[ScanBatch]:
    """Do `scan` by an open view. first_rowid: where to begin in the first fragment."""
    left = limit
    with_disk = table.format.needs_disk(columns)
    for number in table.numbers_of(None) if numbers is None else numbers:
        fragment = table.by_number.get(number)
        if fragment is None:
            continue
        part = fragment_scan(view, table, fragment, with_disk)
        part.continue_at(first_rowid)
        first_rowid = 0
        while not part.is_end and number in table.by_number and (left is None or left > 0):
            batch = part.next(SCAN_BATCH_ROWS if left is None else min(left, SCAN_BATCH_ROWS))
            view.advance(number, part.rowid)
            table.check()
            left = None if left is None else left - batch.count
            if batch.count:
                yield batch
        table.check()
