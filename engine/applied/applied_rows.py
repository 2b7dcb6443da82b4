"""Changes of another site, in batches, each row with its own outcome (docs/internals/replication.md).

A batch has changes of one kind to one table, and no key twice: otherwise a change would have to see the result of an
earlier one. All rows of a batch are locked, judged by an interpreted program if there is one, and changed if accepted;
the others stay as they are, with an outcome that says why. No Python code runs per row, except for rows that other
transactions insert in the meantime.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

import numpy as np

from tidemark.engine.access.batch_operations import (
    lock_keys,
    put_changed,
    put_images,
    read_keys,
    retried,
    touch_many,
)
from tidemark.engine.base.errors import DuplicateKey, RowNotFound
from tidemark.engine.memory.arena import NOTHING
from tidemark.engine.memory.arena_layout import MODE_DELETE, MODE_INSERT
from tidemark.engine.programs.running import Running
from tidemark.engine.rows.columnar import EncodedKeys, encode_keys, encode_rows
from tidemark.engine.table.table import TableAltered
from tidemark.engine.types.arrow import compute

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemark.engine.memory.arena import Words
    from tidemark.engine.programs.interpreter import Program
    from tidemark.engine.table.table import Table
    from tidemark.engine.txn.transaction import Transaction

# Outcomes of a row.
APPLIED = 0
MISSING = 1  # an update or a delete found no row
EXISTS = 2  # an insert found a row with its key
REFUSED = 3  # the program refused the row
TAKEN = 4  # another row has the same key in a unique index


class Judge:
    """A program that decides which rows may be changed, with up to four parameter words for each row of a batch.

    Shapes: `parameters` (words a row, rows) int64.
    """

    def __init__(self, program: Program, parameters: Words | None = None) -> None:
        self.running = Running(program)
        self.parameters = parameters
        definition = program.definition
        self.names = [definition.columns[position].name for position in program.columns]

    def accepts(self, table: Table, entries: Words, offsets: Words, places: Words) -> Words:
        """Return a mask of the accepted rows. offsets: of their images. places: their positions in the batch.

        Raises: errors of the program in a row.
        """
        given = NOTHING if self.parameters is None else np.ascontiguousarray(self.parameters[:, places]).reshape(-1)
        return self.running.judged(table, entries, offsets, given)[0]


def apply_inserts(txn: Transaction, table: Table, rows: pa.RecordBatch, keys: EncodedKeys | None = None) -> Words:
    """Insert the rows whose keys no row has; return the outcome of each.

    keys: those of `rows`, if the caller has encoded them. Columns not given take their defaults. Raises: errors of
    validation; Retryable errors roll the transaction back.
    """
    return _upserts(txn, table, rows, False, None, keys)


def apply_upserts(
    txn: Transaction, table: Table, rows: pa.RecordBatch, judge: Judge | None = None, keys: EncodedKeys | None = None
) -> Words:
    """Insert rows, or set the given columns of existing rows if `judge` accepts them; return the outcome of each."""
    return _upserts(txn, table, rows, True, judge, keys)


@retried
def _upserts(
    txn: Transaction,
    table: Table,
    rows: pa.RecordBatch,
    updates: bool,
    judge: Judge | None,
    keys: EncodedKeys | None,
) -> Words:
    outcomes = np.full(rows.num_rows, EXISTS, dtype=np.int64)
    keys = keys or _keys(table, rows)
    places = np.arange(rows.num_rows)
    while places.size:
        found = lock_keys(txn, table, keys.take(places))
        if updates:
            _update(txn, table, rows, keys, places[found == 1], judge, outcomes)
        late = _insert(txn, table, rows, places[found == 0], outcomes)
        places = late if updates else late[:0]  # an upsert updates rows that others inserted meanwhile
    return outcomes


@retried
def apply_updates(
    txn: Transaction, table: Table, rows: pa.RecordBatch, judge: Judge | None = None, keys: EncodedKeys | None = None
) -> Words:
    """Set the given columns, except the key, of rows that `judge` accepts; return the outcome of each.

    A change with no column besides the key touches the row; the other site sends it for a read it has tracked.
    """
    outcomes = np.full(rows.num_rows, MISSING, dtype=np.int64)
    keys = keys or _keys(table, rows)
    found = lock_keys(txn, table, keys)
    _update(txn, table, rows, keys, np.flatnonzero(found), judge, outcomes)
    return outcomes


@retried
def apply_deletes(
    txn: Transaction, table: Table, rows: pa.RecordBatch, judge: Judge | None = None, keys: EncodedKeys | None = None
) -> Words:
    """Delete the rows with the keys in `rows`, if `judge` accepts them; return the outcome of each."""
    outcomes = np.full(rows.num_rows, MISSING, dtype=np.int64)
    keys = keys or _keys(table, rows)
    places = np.flatnonzero(lock_keys(txn, table, keys))
    if judge is not None and places.size:
        entries, offsets = _read(txn, table, keys.take(places), table.format.touches_disk(judge.names))
        accepted = judge.accepts(table, entries, offsets, places)
        outcomes[places[~accepted]] = REFUSED
        places = places[accepted]
    if places.size:
        try:
            touch_many(txn, table, keys.take(places), MODE_DELETE, 0)
        except RowNotFound:
            raise TableAltered from None
        outcomes[places] = APPLIED
    return outcomes


def touch_rows_again(txn: Transaction, table: Table, keys: pa.RecordBatch) -> Words:
    """Touch rows without changing them, so that they are sent again (a refresh); MISSING for keys without a row."""
    return apply_updates(txn, table, keys.select(list(table.definition.primary_key)))


def _keys(table: Table, rows: pa.RecordBatch) -> EncodedKeys:
    return encode_keys(table.format, rows.select(list(table.definition.primary_key)))


def _read(txn: Transaction, table: Table, keys: EncodedKeys, with_disk: bool) -> tuple[Words, Words]:
    """Return entries and image offsets of locked rows, in the order of the keys.

    Raises: TableAltered if a partition with some of the rows was dropped meanwhile; the batch then starts again.
    """
    entries, offsets, found = read_keys(table, keys, txn, with_disk)
    if found != keys.count:
        raise TableAltered
    return entries, offsets


def _update(
    txn: Transaction,
    table: Table,
    rows: pa.RecordBatch,
    keys: EncodedKeys,
    places: Words,
    judge: Judge | None,
    outcomes: Words,
) -> None:
    if not places.size:
        return
    row_format = table.format
    names = [name for name in rows.schema.names if name not in table.definition.primary_key]
    with_disk = row_format.touches_disk(names if judge is None else [*names, *judge.names])
    entries, offsets = _read(txn, table, keys.take(places), with_disk)
    if judge is not None:
        accepted = judge.accepts(table, entries, offsets, places)
        outcomes[places[~accepted]] = REFUSED
        places, offsets = places[accepted], np.ascontiguousarray(offsets[accepted])
        if not places.size:
            return
    changes = rows.select(names)
    parts = [np.arange(places.size)]
    while parts:
        part = parts.pop()
        some = changes if part.size == rows.num_rows else changes.take(places[part])
        try:
            # Without a unique index no row is refused, so the caller's savepoint is enough, and the lock becomes the
            # update in place.
            with txn.savepoint() if table.uniques else nullcontext():
                put_changed(txn, table, some, entries, offsets[part])
            outcomes[places[part]] = APPLIED
        except RowNotFound:
            raise TableAltered from None
        except DuplicateKey as error:
            row = int(error.evidence["row"])  # type: ignore[call-overload]
            outcomes[places[part[row]]] = TAKEN
            parts += _parts_without(part, row)


def _parts_without(places: Words, row: int) -> list[Words]:
    """Return parts of a batch without the row that failed, the first one last. The rows after it are halved: if most of
    them fail too, each is tried some log2(rows) times.
    """
    after = places[row + 1 :]
    half = (after.size + 1) // 2
    return [part for part in (after[half:], after[:half], places[:row]) if part.size]


def _insert(txn: Transaction, table: Table, rows: pa.RecordBatch, places: Words, outcomes: Words) -> Words:
    """Insert the rows at `places` of the batch, with keys that were free when looked up. Return the places of rows with
    keys that other transactions have taken since.
    """
    late: list[int] = []
    numbered = table.format.numbered
    if places.size and numbered is not None:
        # The sequence of the table continues after the numbers of these rows.
        most = compute().max(rows.column(numbered.name)).as_py()
        txn.store.sequences.saw(txn.store, table, int(most or 0), is_kept=False)
    parts = [places] if places.size else []
    while parts:
        part = parts.pop()
        encoded = encode_rows(table.format, rows if part.size == rows.num_rows else rows.take(part))
        try:
            with txn.savepoint():
                put_images(txn, table, encoded, MODE_INSERT, 0)
            outcomes[part] = APPLIED
        except DuplicateKey as error:
            # Another transaction inserted the key first, or a unique index has it.
            row = int(error.evidence["row"])  # type: ignore[call-overload]
            if "index" in error.evidence:
                outcomes[part[row]] = TAKEN
            else:
                late.append(int(part[row]))
            parts += _parts_without(part, row)
    return np.array(sorted(late), dtype=np.int64)
