"""Many rows at a time: the `_many` calls and scans, with no Python code per row (D2).

Batches are validated and encoded whole before the first row is changed; kernels process them in bounded slices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import numpy as np

from tidemark.engine.access import snapshot_reads
from tidemark.engine.access.checks import refuse_broken
from tidemark.engine.access.computed_values import filled_batch
from tidemark.engine.access.disk_reading import grown
from tidemark.engine.access.reads_kernels import read_rows
from tidemark.engine.access.statuses import REFUSALS, check_released, is_locked, missing, row_refused, settle
from tidemark.engine.base.errors import SnapshotTooOld
from tidemark.engine.log.redo_layout import OPERATION_WORDS
from tidemark.engine.memory import arena_layout as a
from tidemark.engine.memory.arena import NOTHING
from tidemark.engine.memory.touch_ahead import TouchAhead
from tidemark.engine.rows.column_input import Batch, rows_expected, to_columns
from tidemark.engine.rows.column_output import decode_rows
from tidemark.engine.rows.column_patch import encode_columns_patch
from tidemark.engine.rows.columnar import EncodedKeys, EncodedRows, check_columns, encode_keys, encode_rows
from tidemark.engine.rows.key_hashes import hash_images, order_by_fragment
from tidemark.engine.schema.partitions_layout import HH_FRAGMENTS
from tidemark.engine.table.table import TableAltered
from tidemark.engine.txn.operations_kernels import put_rows, touch_rows
from tidemark.engine.txn.transaction import PAD_WORDS

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemark.engine.access.scan_batch import ScanBatch
    from tidemark.engine.memory.arena import Words
    from tidemark.engine.rows.row_format import RowFormat
    from tidemark.engine.table.table import Table
    from tidemark.engine.txn.transaction import Transaction
    from tidemark.engine.txn.views import View

Progress = Callable[[int, int, str], None]
P = ParamSpec("P")
R = TypeVar("R")
RESERVE_ROWS_MIN = 4_096  # per fragment
PUT_SLICE_ROWS = 1_000  # about 200 µs per kernel call, which holds the GIL
SLOT_WORDS = 4  # of a row beside its image: header, entry of the primary index
UNIQUE_SHARE = 2  # a row's entry in a unique index takes as long as this many rows
READ_SLICE_ROWS = 2_000


def insert_many(txn: Transaction, table: Table, data: Any, progress: Progress | None = None) -> int:
    """Insert rows; return how many. All or none. Raises: DuplicateKey (`row` is the position in `data`)."""
    return _put_many(txn, table, data, a.MODE_INSERT, progress)


def write_many(txn: Transaction, table: Table, data: Any, progress: Progress | None = None) -> int:
    """Insert rows or replace those with the same keys; return how many. All or none."""
    return _put_many(txn, table, data, a.MODE_WRITE, progress)


def _put_many(txn: Transaction, table: Table, data: Any, mode: int, progress: Progress | None) -> int:
    txn.check(locks=True)
    expected = rows_expected(data)
    with TouchAhead(txn.mem) as touched:
        return by_batches(txn, table, data, progress, _put_batch, mode, expected, touched, needs_all=True)


def _put_batch(txn: Transaction, table: Table, batch: Batch, mode: int, expected: int, touched: TouchAhead) -> int:
    if table.format.computed:
        batch = batch._replace(columns=filled_batch(txn, table, batch.columns, batch.first_row))
    encoded = encode_rows(table.format, batch)
    ahead = max(expected - batch.first_row, encoded.count)
    _make_room(txn, table, encoded, ahead)
    if encoded.count:
        row_words = encoded.images.size // encoded.count + SLOT_WORDS
        touched.begin(ahead * row_words if mode == a.MODE_INSERT else 0, txn.buf, txn.desc)
    if mode == a.MODE_INSERT:
        _reserve_index(table, ahead)
    put_images(txn, table, encoded, mode, batch.first_row)
    return encoded.count


def _make_room(txn: Transaction, table: Table, encoded: EncodedRows, ahead: int) -> None:
    """Grow the transaction's buffer for encoded rows, and for as many as are ahead, once instead of doubling it many
    times. Rows of a run share one record header, so there are far fewer headers than rows.
    """
    images, count = encoded.images, encoded.count
    room = images.size + (count // 64 + 16) * OPERATION_WORDS
    used = int(txn.mem[txn.desc + a.X_USED])
    if count and txn.buf.size < used + room <= txn.store.transaction_words - PAD_WORDS and txn.spool is None:
        settle(txn, table, a.ST_SPACE, room, None, room * ahead // count)


def retried(call: Callable[Concatenate[Transaction, Table, P], R]) -> Callable[Concatenate[Transaction, Table, P], R]:
    """Make a call in a savepoint, and repeat it for the newest version of the table if columns were added or got wider
    meanwhile. Its arguments must be such that it can be repeated: no iterators.
    """

    @wraps(call)
    def repeated(txn: Transaction, table: Table, /, *arguments: P.args, **named: P.kwargs) -> R:
        while True:
            try:
                with txn.savepoint():
                    return call(txn, table, *arguments, **named)
            except (TableAltered, SnapshotTooOld) as error:
                table = table.in_force(txn, error)

    return repeated


def _reserve_index(table: Table, rows: int) -> None:
    """Grow the index for many new rows at once: gradual growth moves each entry several times."""
    share = rows // len(table.fragments)
    if share < RESERVE_ROWS_MIN:
        return
    for fragment in table.fragments:
        table.reserve_index(fragment, table.arena.word(fragment, a.F_INDEX_COUNT) + share)


def put_images(txn: Transaction, table: Table, encoded: EncodedRows, mode: int, first_row: int) -> None:
    """Insert, write or update encoded rows, sorted by fragment so that inserts become runs.

    Raises: CheckFailed, DuplicateKey, RowNotFound and NoPartition (`row` counts from `first_row`); TableAltered, which
    callers handle; and as `settle`.
    """
    images, offsets, count = encoded.images, encoded.offsets, encoded.count
    if count == 0:
        return
    if table.format.has_disk and not offsets.size:
        offsets = np.arange(count + 1, dtype=np.int64) * table.format.fixed_words
    hashes, order = _hashed(txn, table, images, offsets, count, mode, first_row)
    _make_room(txn, table, encoded, 0)
    put_each(txn, table, images, offsets, order, hashes, count, mode, first_row)


def put_each(
    txn: Transaction,
    table: Table,
    images: Words,
    offsets: Words,
    order: Words,
    hashes: Words,
    count: int,
    mode: int,
    first_row: int | None,
) -> None:
    """Do `put_images` in the order given. first_row: None for a call of one row, which errors do not number."""
    checks = table.checks
    if checks is not None and not txn.is_decided:
        if table.newest.stamp != table.stamp:
            raise TableAltered  # they are those of the newest version, and read the column that was added
        refuse_broken(table, checks, images, offsets, count, first_row)
    fixed_words = table.format.fixed_words
    slice_rows = PUT_SLICE_ROWS // (1 + UNIQUE_SHARE * len(table.uniques))
    position = 0
    deadline: float | None = None
    while position < count:
        rows = (images, offsets, order, hashes, position, min(position + slice_rows, count), mode | table.stamp)
        status = put_rows(txn.mem, table.handle, txn.desc, txn.buf, *rows)
        if status == a.ST_ALTERED:
            raise TableAltered
        position = int(txn.mem[txn.desc + a.X_ROW])
        if status in (a.OK, a.ST_MORE):
            deadline = None
            continue
        row = int(order[position]) if order.size else position
        image = images[int(offsets[row]) if offsets.size else row * fixed_words :]
        if status in REFUSALS:
            raise row_refused(txn, table, status, image, None if first_row is None else first_row + row)
        words, key = images.size // count + 4_096, None
        if first_row is None:
            words = images.size + 16
            # The row whose lock stops the call may have another primary key, and the same key in a unique index.
            key = None if table.uniques else table.format.decode_key(table.format.image_key(image))
        deadline = settle(txn, table, status, words, deadline, key=key)
    if txn.view is not None and table.uniques:
        starts = offsets[:count] if offsets.size else np.arange(count, dtype=np.int64) * fixed_words
        check_released(txn, table, images, starts)


def _hashed(
    txn: Transaction, table: Table, images: Words, offsets: Words, count: int, mode: int, first_row: int
) -> tuple[Words, Words]:
    """Return (hash of each image's key, order in which the rows are put: by fragment, or as given)."""
    header = table.hash_header
    key_words = 0 if table.format.key_in_var else table.format.key_words
    hashes, found = hash_images(header, key_words, images, offsets, count)
    if found != count:
        image = images[int(offsets[found]) if offsets.size else found * table.format.fixed_words :]
        status = a.ST_PARTITION if mode in (a.MODE_INSERT, a.MODE_WRITE) else a.ST_MISSING
        raise row_refused(txn, table, status, image, first_row + found)
    fragments = int(header[HH_FRAGMENTS])
    # Keep the order of the batch: a row may take a unique key that an earlier row releases.
    if fragments == 1 or (mode != a.MODE_INSERT and table.unique_columns):
        return hashes, NOTHING
    return hashes, order_by_fragment(hashes, fragments)[0]


def touch_many(txn: Transaction, table: Table, keys: EncodedKeys, mode: int, first_row: int) -> None:
    """Lock or delete rows by key. Raises: RowNotFound."""
    position = touch_keys(txn, table, keys, mode)
    if position < keys.count:
        raise missing(table, table.format.decode_key(key_words_of(keys, position)), first_row + position)


def lock_keys(txn: Transaction, table: Table, keys: EncodedKeys) -> Words:
    """Lock the rows that exist; return, for each key, 1 if it has a row, else 0."""
    txn.check(locks=True)
    table.check()
    found = np.zeros(keys.count, dtype=np.int64)
    touch_keys(txn, table, keys, a.MODE_LOCK, found)
    return found


def touch_keys(
    txn: Transaction,
    table: Table,
    keys: EncodedKeys,
    mode: int,
    found: Words = NOTHING,
    skip_locked: bool = False,
    key: Any = None,
) -> int:
    """Lock, find, delete, or begin the update of rows by key, up to the first key without a row; return how many.

    found: as for `touch_rows`. skip_locked: end at a row that another transaction has locked, too. key: of one row.
    Raises: as `settle`.
    """
    position = 0
    deadline: float | None = None
    while position < keys.count:
        stop = min(position + PUT_SLICE_ROWS, keys.count)
        place = (txn.mem, table.handle, txn.desc, txn.buf, keys.keys, keys.key_offsets, keys.key_stride)
        status = touch_rows(*place, position, stop, mode, found)
        position = int(txn.mem[txn.desc + a.X_ROW])
        if status == a.OK:
            deadline = None
        elif status == a.ST_MISSING:
            break
        elif status == a.ST_BUSY and skip_locked:
            if is_locked(txn):
                break
        else:
            ahead = table.format.fixed_words + 16 if key is not None else (keys.count - position) * 8 + 4_096
            deadline = settle(txn, table, status, ahead, deadline, key=key)
    return position


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
        touch_many(txn, table, encoded, a.MODE_DELETE, 0)
    return encoded.count


def update_many(txn: Transaction, table: Table, data: Any, progress: Progress | None = None) -> int:
    """Change the given columns of the rows with the keys in `data`; return how many. All or none. Columns not given
    stay as they are; Python rows must all give the same columns.

    Raises: RowNotFound (`row` is the position in `data`), and errors of validation.
    """
    return by_batches(txn, table, data, progress, _update_batch)


def by_batches(
    txn: Transaction,
    table: Table,
    data: Any,
    progress: Progress | None,
    call: Callable[..., int],
    *arguments: Any,
    needs_all: bool = False,
) -> int:
    """Make a call for each batch of `data`, which has the columns given, or all if `needs_all`; return the sum of what
    it returns. All or none.
    """
    txn.check(locks=True)
    table.check()
    rows = total = 0
    with txn.savepoint():
        for batch in to_columns(data, table.definition, fill_in=needs_all):
            if not batch.columns.num_rows:
                check_columns(table.format, batch.columns, needs_all=needs_all)
                continue
            total += retried(call)(txn, table, batch, *arguments)
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
        touch_many(txn, table, keys, a.MODE_LOCK, first_row)
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
    put_images(txn, table, patched, a.MODE_UPDATE_KEPT if keeps_disk else a.MODE_UPDATE, first_row)


def read_keys(table: Table, keys: EncodedKeys, txn: Transaction | None, with_disk: bool) -> tuple[Words, Words, int]:
    """Return entries of the rows found, in the order of the keys: (words, image offsets, rows). All rows are read at
    one instant.
    """
    table.check()
    with table.view_for(txn, is_one_call=not with_disk and keys.count <= READ_SLICE_ROWS) as view:
        found = snapshot_reads.read_keys(view, table, keys, True) if with_disk else _read_keys(view, table, keys)
        if not view.view:
            table.refuse_moved()
        return found


def _read_keys(view: View, table: Table, keys: EncodedKeys) -> tuple[Words, Words, int]:
    out = np.empty(max(keys.count * (a.ENTRY_WORDS + table.format.fixed_words + 8), 1_024), dtype=np.int64)
    offsets = np.empty(keys.count + 1, dtype=np.int64)
    state = np.zeros(3, dtype=np.int64)
    while int(state[2]) < keys.count:
        stop = min(int(state[2]) + READ_SLICE_ROWS, keys.count)
        table.check()
        reader = (table.mem, table.handle, view.view, view.desc, view.buf)
        given = (keys.keys, keys.key_offsets, keys.key_stride, int(state[2]), stop)
        status = view.settled(read_rows(*reader, *given, out, offsets, state))
        if status == a.ST_DROPPED:
            raise table.gone()
        if status == a.ST_CHANGED:
            found = int(state[0])
            more, places, count = snapshot_reads.read_keys(view, table, keys, False, int(state[2]))
            used = int(state[1])
            return np.concatenate([out[:used], more]), np.concatenate([offsets[:found], places + used]), found + count
        if status != a.OK and not view.view:
            state[:] = 0  # start again: the rows must be read by one call
        if status not in (a.OK, a.ST_MORE):
            out = grown(out, int(state[1]), a.ST_SPACE - status)
    found = int(state[0])
    return out[: int(state[1])], offsets[:found], found


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
    stride = a.ENTRY_WORDS + row_format.fixed_words
    is_dense = count == 0 or int(offsets[count - 1]) == a.ENTRY_WORDS + (count - 1) * stride
    if row_format.has_var or row_format.has_disk or not is_dense:
        return decode_rows(row_format, entries, offsets, count, columns, extra)
    return decode_rows(row_format, entries[a.ENTRY_WORDS :], stride, count, columns, extra)


def scan(
    table: Table,
    txn: Transaction | None,
    limit: int | None = None,
    columns: Sequence[str] | None = None,
    numbers: Sequence[int] | None = None,
) -> Iterator[ScanBatch]:
    """Yield all rows, or those of some fragments, as `snapshot_reads.scan`. The rows are those committed when the scan
    began, and those that the transaction has changed when the scan reaches them.
    """
    table.check()
    with table.view_for(txn) as view:
        numbers = table.numbers_of(None) if numbers is None else numbers
        yield from snapshot_reads.scan(view, table, columns, limit, numbers)
