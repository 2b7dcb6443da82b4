"""The changes of transactions, read from the log: row changes in batches of one table and kind, and schema changes.

Kernels list the records of one piece (a group, or a block of a spool file). Records are ordered by table, and by kind
where kinds alternate; changes of one row keep their order. The changes of a transaction to one row are joined into one,
unless it moves values of a unique index in a way that only its steps in their order show (`must_join`).
A transaction is in one piece unless it spooled; then rows that it changed more than once are deferred to its end.

A transaction that was open while a table or a partition was dropped has records after the drop. They changed no row, so
`ChangeReader` ignores records of what was dropped before them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tidemark.engine.base.errors import RedoDamaged, SchemaInvalid
from tidemark.engine.log.records import InvalidRecord, schema_of
from tidemark.engine.log.redo_layout import (
    ANY_VALUE_MASK,
    AUTHOR_SHIFT,
    FRAGMENT_MASK,
    FRAGMENT_SHIFT,
    KIND_DELETE,
    KIND_INSERT,
    KIND_NOOP,
    KIND_REFRESH,
    KIND_SCHEMA,
    KIND_UPDATE,
    TABLE_MASK,
)
from tidemark.engine.log.row_changes_kernels import copy_records, join_rows, list_records, list_rows, place_rows
from tidemark.engine.log.row_changes_layout import (
    LIST_STATE_WORDS,
    LS_AT,
    LS_BEFORE,
    LS_COUNT,
    LS_TXID,
    PART_NONE,
    RC_AT,
    RC_IDENTITY,
    RC_KIND,
    RC_ROWS,
    RC_STOP,
    RC_TXID,
    RECORD_LIST_WORDS,
    ROW_LIST_WORDS,
    RW_AFTER_DISK,
    RW_BEFORE,
    RW_BEFORE_DISK,
    RW_IS_AGAIN,
    RW_KIND,
    RW_PLACE,
    RW_TAIL,
    RW_TXID,
)
from tidemark.engine.memory.arena import NOTHING
from tidemark.engine.memory.arena_layout import COUNT_SHIFT, ST_INVARIANT, ST_MORE, ST_SPACE
from tidemark.engine.rows.column_output import decode_rows
from tidemark.engine.rows.key_hashes import hash_images
from tidemark.engine.rows.row_format import RowFormat
from tidemark.engine.schema.definition import TableDefinition
from tidemark.engine.schema.partitions_layout import HH_FIXED_WORDS, HH_FRAGMENTS, HH_WORDS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tidemark.engine.memory.arena import Words
    from tidemark.engine.schema.partition import Partition

_RECORDS_GUESS_SHIFT = 4  # a guess: a record has 16 words or more
_EXTRA_WORDS = 4_096
_RUNS_MIN = 16
_HASHES = 1 << 30  # with the tag, 59 bits tell keys apart; two keys that collide only keep their order


@dataclass(frozen=True)
class RowChanges:
    """Changes of rows of one table, all of one kind: KIND_INSERT, KIND_UPDATE, KIND_DELETE, KIND_REFRESH.

    `before` and `after`: the positions in `words` at which images start, None if the kind has none. Images have the
    form of `row_format`; with disk columns, they have a disk part only where the flags say so. The before-images of
    KIND_REFRESH (of an absent row) have the key only. A table that did not log before-images yields no UPDATEs and
    DELETEs. `before`, `after`, `txids`, `any_values` and `authors` have one number for each row.
    """

    row_format: RowFormat
    kind: int
    words: Words
    before: Words | None
    after: Words | None
    before_has_disk: bool
    after_has_disk: bool
    txids: Words
    any_values: Words
    authors: Words

    @property
    def count(self) -> int:
        """The number of rows."""
        return len(self.txids)


@dataclass(frozen=True)
class SchemaChange:
    """A logged change of the schema, and the table's definition before and after it, None where there is none."""

    change: dict[str, Any]
    before: TableDefinition | None
    after: TableDefinition | None
    txid: int


@dataclass(frozen=True)
class LoadAdopted:
    """An adopted bulk load: the number of its rows, all of one table, and `parts`, which reads them on request."""

    row_format: RowFormat
    job: int
    rows: int
    parts: Callable[[], Iterator[RowChanges | SchemaChange]]


Change = RowChanges | SchemaChange | LoadAdopted


class ChangeReader:
    """Reads pieces of the log in order and follows the schema."""

    def __init__(self, definitions: Iterable[TableDefinition]) -> None:
        """definitions: the tables, with their partitions, that exist at the first record to be read."""
        # Whether all changes of a transaction to a row of a table are joined, even if a server that takes one row after
        # the other could not take them so.
        self.must_join: Callable[[TableDefinition], bool] = lambda definition: False
        self.formats: dict[int, RowFormat] = {}
        self._partitions: dict[int, NDArray[np.bool_]] = {}  # by table, then by fragment number: whether it exists
        for definition in definitions:
            self._take_up(definition)

    def copy(self) -> ChangeReader:
        """Return another reader with the same schema."""
        made = ChangeReader(())
        made.must_join = self.must_join
        made.formats = dict(self.formats)
        made._partitions = dict(self._partitions)
        return made

    def _take_up(self, definition: TableDefinition) -> None:
        self.formats[definition.table_id] = RowFormat(definition)
        self._partitions[definition.table_id] = _present(definition.partition)

    def skim(self, words: Words, start: int, stop: int) -> None:
        """Follow the schema through words[start:stop], without row changes. Raises: RedoDamaged."""
        records = _listed(words, start, stop, 0)
        for record in records[records[:, RC_KIND] == KIND_SCHEMA]:
            self._schema_change(words, record)

    def piece(self, words: Words, start: int, stop: int) -> Iterator[RowChanges | SchemaChange]:
        """Yield the changes of words[start:stop], whole transactions. Raises: RedoDamaged."""
        records = _listed(words, start, stop, 0)
        yield from self._changes(words, records)

    def spooled(
        self, txid: int, blocks: Iterable[tuple[Words, int, int]], again: Iterable[tuple[Words, int, int]]
    ) -> Iterator[RowChanges | SchemaChange]:
        """Yield the changes of a transaction that spooled; `blocks` and `again` are its blocks (words, start, stop).

        Memory: a block, and the records of rows that it changed more than once. Raises: RedoDamaged.
        """
        repeated = self._repeated(txid, blocks)
        if not repeated:
            for words, start, stop in again:
                yield from self._changes(words, _listed(words, start, stop, txid))
            return
        put_off: list[Words] = []
        for words, start, stop in again:
            records = _listed(words, start, stop, txid)
            yield from self._changes(words, records, repeated, put_off)
        words = np.concatenate(put_off)
        records = _listed(words, 0, words.size, txid)
        yield from self._changes(words, records, repeated)

    def _repeated(self, txid: int, blocks: Iterable[tuple[Words, int, int]]) -> dict[int, Words]:
        """Return the places of rows that a spooled transaction changed more than once, by table, ascending."""
        found: dict[int, list[Words]] = {}
        for words, start, stop in blocks:
            records = _listed(words, start, stop, txid)
            for row_format, chosen in self._by_table(records):
                rows = self._rows(words, records, chosen, row_format)
                places = rows[rows[:, RW_IS_AGAIN] != 0, RW_PLACE]
                if places.size:
                    found.setdefault(row_format.definition.table_id, []).append(places)
        return {table_id: np.unique(np.concatenate(places)) for table_id, places in found.items()}

    # --- one piece -------------------------------------------------------------------------------
    def _changes(
        self,
        words: Words,
        records: Words,
        repeated: dict[int, Words] | None = None,
        put_off: list[Words] | None = None,
    ) -> Iterator[RowChanges | SchemaChange]:
        """Yield the changes of listed records. With `repeated` and `put_off`, copy the records of repeated rows to
        `put_off` and omit these rows; with `repeated` alone, yield only these rows.
        """
        schema = np.flatnonzero(records[:, RC_KIND] == KIND_SCHEMA)
        begin = 0
        for place in [*schema.tolist(), len(records)]:
            some = records[begin:place]
            for row_format, chosen in self._by_table(some):
                yield from self._of_table(words, some, chosen, row_format, repeated, put_off)
            if place < len(records):
                yield self._schema_change(words, records[place])
            begin = place + 1

    def _by_table(self, records: Words) -> Iterator[tuple[RowFormat, Words]]:
        """Yield (format of a table, indexes of its records, in order), without records of tables and partitions that
        were dropped while the transaction was open.
        """
        for table_id, chosen in _by_table(records):
            row_format = self.formats.get(table_id)
            if row_format is None:
                continue
            present = self._partitions[table_id]
            numbers = (records[chosen, RC_IDENTITY] >> FRAGMENT_SHIFT) & FRAGMENT_MASK
            if int(numbers.max()) >= present.size:
                raise RedoDamaged(
                    f"the REDO log has a record of a partition {row_format.definition.name} never had; restore from a"
                    " backup"
                )
            is_kept = present[numbers]
            if not is_kept.all():
                chosen = np.ascontiguousarray(chosen[is_kept])
            if chosen.size:
                yield row_format, chosen

    def _of_table(
        self,
        words: Words,
        records: Words,
        chosen: Words,
        row_format: RowFormat,
        repeated: dict[int, Words] | None,
        put_off: list[Words] | None,
    ) -> Iterator[RowChanges]:
        rows = self._rows(words, records, chosen, row_format)
        if repeated is not None:
            places = repeated.get(row_format.definition.table_id, NOTHING)
            near = np.searchsorted(places, rows[:, RW_PLACE])
            hits = (np.append(places, -1)[near] == rows[:, RW_PLACE]) & ~_is_apart(rows)
            if put_off is None:
                rows = rows[hits]
            elif hits.any():
                counts = np.where(records[chosen, RC_KIND] == KIND_INSERT, records[chosen, RC_ROWS] >> COUNT_SHIFT, 1)
                which = np.unique(np.repeat(chosen, counts)[hits])
                out = np.empty(words.size, dtype=np.int64)
                used = int(copy_records(words, records.reshape(-1), which, out, 0))
                put_off.append(out[: max(used, 0)])
                rows = rows[~hits]
        if len(rows):
            found = self._joined_and_imaged(words, np.ascontiguousarray(rows), row_format)
            if found is not None:
                yield from _batches(found, row_format)

    def _joined_and_imaged(self, words: Words, rows: Words, row_format: RowFormat) -> _Imaged | None:
        """Join changes of one transaction to a row, except where a server that takes one after the other could not take
        them joined: a value of a unique index would come to a row before another row has released it.
        """
        definition = row_format.definition
        may_clash = any(index.is_unique for index in definition.indexes) and not self.must_join(definition)
        again = _repeating(rows) if may_clash else NOTHING
        if not again.size:
            return _imaged(words, _joined(rows), row_format)
        found = _imaged(words, _joined(rows.copy()), row_format)
        clashing = NOTHING if found is None else _clashing(found, again, row_format)
        if not clashing.size:
            return found
        return _imaged(words, _joined(rows, np.isin(rows[:, RW_TXID], clashing)), row_format)

    def _rows(self, words: Words, records: Words, chosen: Words, row_format: RowFormat) -> Words:
        """Return the row lists of the chosen records of a table."""
        counts = np.where(records[chosen, RC_KIND] == KIND_INSERT, records[chosen, RC_ROWS] >> COUNT_SHIFT, 1)
        out = np.empty(int(counts.sum()) * ROW_LIST_WORDS, dtype=np.int64)
        flat = np.ascontiguousarray(records).reshape(-1)
        if list_rows(words, flat, chosen, _shape(row_format), out) < 0:
            raise _damaged(row_format)
        return out.reshape(-1, ROW_LIST_WORDS)

    def _schema_change(self, words: Words, record: Words) -> SchemaChange:
        at = int(record[RC_AT]) - 1
        before = after = None
        try:
            change = schema_of(words, at, int(record[RC_STOP]))
            for kind in ("create", "alter"):
                if kind in change:
                    after = TableDefinition.from_json(json.dumps(change[kind]).encode())
            table_id = int(change.get("drop", -1) if after is None else after.table_id)
        except (InvalidRecord, SchemaInvalid, ValueError, TypeError, RecursionError) as error:
            raise _no_record(at) from error
        held = self.formats.pop(table_id, None)
        self._partitions.pop(table_id, None)
        if held is not None:
            before = held.definition
        if after is not None:
            self._take_up(after)
        return SchemaChange(change, before, after, int(record[RC_TXID]))


def _listed(words: Words, start: int, stop: int, txid: int) -> Words:
    """Return the records of words[start:stop], RECORD_LIST_WORDS each."""
    out = np.empty((64 + ((stop - start) >> _RECORDS_GUESS_SHIFT)) * RECORD_LIST_WORDS, dtype=np.int64)
    while True:
        state = np.zeros(LIST_STATE_WORDS, dtype=np.int64)
        state[LS_AT], state[LS_TXID], state[LS_BEFORE] = start, txid, -1
        status = int(list_records(words, stop, out, state))
        if status != ST_MORE:
            break
        out = np.empty(2 * out.size, dtype=np.int64)
    if status == ST_INVARIANT:
        raise _no_record(int(state[LS_AT]))
    count = int(state[LS_COUNT])
    return out[: count * RECORD_LIST_WORDS].reshape(-1, RECORD_LIST_WORDS)


def _no_record(at: int) -> RedoDamaged:
    return RedoDamaged(f"word {at} of a piece of the REDO log does not begin a record; restore from a backup")


def _by_table(records: Words) -> Iterator[tuple[int, Words]]:
    """Yield (table number, indexes of its records, in order)."""
    if not len(records):
        return
    tables = records[:, RC_IDENTITY] & TABLE_MASK
    order = np.argsort(tables, kind="stable")
    ends = np.append(np.flatnonzero(np.diff(tables[order])) + 1, len(order))
    begin = 0
    for end in ends.tolist():
        yield int(tables[order[begin]]), np.ascontiguousarray(order[begin:end])
        begin = end


def _present(partition: Partition) -> NDArray[np.bool_]:
    """Return, by fragment number, whether the partition exists. Numbers of dropped ones are never reused."""
    present = np.zeros(partition.next_number, dtype=np.bool_)
    present[list(partition.numbers)] = True
    return present


def _shape(row_format: RowFormat) -> Words:
    layout = row_format.layout
    shape = [layout.fixed_words, int(layout.has_var), int(row_format.has_disk), layout.var_since]
    return np.array(shape, dtype=np.int64)


def _damaged(row_format: RowFormat) -> RedoDamaged:
    name = row_format.definition.name
    return RedoDamaged(f"the REDO log has a record of {name} without the images it should have; restore from a backup")


def _is_apart(rows: Words) -> NDArray[np.bool_]:
    """Return which of the changes change no row: an unrelated row may be at the place that they name."""
    apart: NDArray[np.bool_] = rows[:, RW_KIND] == KIND_REFRESH
    return apart


def _joined(rows: Words, apart: NDArray[np.bool_] | None = None) -> Words:
    """Return the changes joined to one for each transaction and row, those that are `apart` as they are. The rows given
    are changed.
    """
    if not rows[:, RW_IS_AGAIN].any():
        kinds = rows[:, RW_KIND]
        return rows if not (kinds == KIND_NOOP).any() else np.ascontiguousarray(rows[kinds != KIND_NOOP])
    order = np.lexsort((rows[:, RW_PLACE], _is_apart(rows), rows[:, RW_TXID])).astype(np.int64)
    kept = np.empty(len(rows), dtype=np.int64)
    join_rows(rows.reshape(-1), order, np.zeros_like(kept) if apart is None else apart.astype(np.int64), kept)
    return np.ascontiguousarray(rows[kept != 0])


class _Imaged(NamedTuple):
    """Changes in the form of row lists, and where in `words` their images start, before and after."""

    rows: Words
    words: Words
    images: Words


def _imaged(words: Words, rows: Words, row_format: RowFormat) -> _Imaged | None:
    """Find or assemble the images of joined changes; None if no change is left."""
    # Without its before-image, a change is incomplete: the parts that it left unchanged are not in the log.
    is_untold = (rows[:, RW_BEFORE] == PART_NONE) & np.isin(rows[:, RW_KIND], (KIND_UPDATE, KIND_DELETE))
    if is_untold.any():
        rows = np.ascontiguousarray(rows[~is_untold])
    if not len(rows):
        return None
    shape = _shape(row_format)
    first = 0
    extra = np.empty(_EXTRA_WORDS, dtype=np.int64)
    places = np.zeros(2 * len(rows) + 1, dtype=np.int64)
    while True:
        first = int(place_rows(words, rows.reshape(-1), shape, first, extra, places))
        if first == len(rows):
            break
        if first < 0:
            raise _damaged(row_format)
        larger = np.empty(4 * extra.size, dtype=np.int64)
        larger[: extra.size] = extra
        extra = larger
    used = int(places[-1])
    whole = np.concatenate([words, extra[:used]]) if used else words
    return _Imaged(rows, whole, places[:-1].reshape(-1, 2))


def _repeating(rows: Words) -> Words:
    """Return the transactions that changed a row more than once, without those that were applied: an epoch of another
    site is one transaction here, and has its authors.
    """
    applied = rows[rows[:, RW_TAIL] >> AUTHOR_SHIFT != 0, RW_TXID]
    return np.setdiff1d(rows[rows[:, RW_IS_AGAIN] != 0, RW_TXID], applied)


def _clashing(found: _Imaged, txids: Words, row_format: RowFormat) -> Words:
    """Return those of some transactions in which a row gets a value of a unique index that another row still has."""
    some = np.flatnonzero(np.isin(found.rows[:, RW_TXID], txids))
    if not some.size:  # what they have changed was taken back
        return NOTHING
    owners = found.rows[some, RW_TXID]
    is_clashing = np.zeros(len(some), dtype=np.bool_)
    for index in row_format.definition.indexes:
        if index.is_unique:
            old, new = _numbered(found, some, index.columns, row_format)
            released = np.flatnonzero((old >= 0) & (old != new))
            taken = np.flatnonzero((new >= 0) & (old != new))
            releases = np.full(int(max(old.max(), new.max())) + 1, -1)  # by value, where its holder releases it
            releases[old[released]] = released
            is_clashing[taken] |= releases[new[taken]] > taken
    return np.unique(owners[is_clashing])


def _numbered(found: _Imaged, some: Words, columns: Sequence[str], row_format: RowFormat) -> tuple[Words, Words]:
    """Return a number for each value that some rows have in some columns, before and after, and their transaction:
    equal for equal ones, -1 without the image, or if one of the values is NULL.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    starts = found.images[some].T.reshape(-1)
    there = np.flatnonzero(starts != PART_NONE)
    rows = decode_rows(row_format, found.words, np.ascontiguousarray(starts[there]), len(there), list(columns))
    whole = np.ones(len(there), dtype=np.bool_)
    numbers = np.tile(found.rows[some, RW_TXID], 2)[there]
    for column in rows.columns:
        whole &= column.is_valid().to_numpy(zero_copy_only=False)
        if pa.types.is_floating(column.type):
            # As in the index, -0.0 and 0.0 are one key, and all NaNs are.
            column = pc.if_else(pc.is_nan(column), np.nan, pc.add(column, pa.scalar(0.0, column.type)))
        values = column.dictionary_encode().indices.fill_null(0).to_numpy().astype(np.int64)
        # Both are less than the count of images, so that one number holds the two.
        numbers = np.unique(numbers, return_inverse=True)[1] * len(there) + values
    out = np.full(len(starts), -1, dtype=np.int64)
    out[there] = np.where(whole, np.unique(numbers, return_inverse=True)[1], -1)
    return out[: len(some)], out[len(some) :]


def _batches(found: _Imaged, row_format: RowFormat) -> Iterator[RowChanges]:
    """Yield runs of one kind, with whole images."""
    rows, whole, images = found
    has_disk = np.stack([rows[:, RW_BEFORE_DISK] != PART_NONE, rows[:, RW_AFTER_DISK] != PART_NONE], axis=1)
    codes = rows[:, RW_KIND] << 4 | has_disk[:, 0] << 3 | has_disk[:, 1] << 2 | (images != PART_NONE) @ (1, 2)
    order = _in_few_runs(whole, images, codes, row_format)
    if order is not None:
        rows, images, codes, has_disk = rows[order], images[order], codes[order], has_disk[order]
    ends = np.append(np.flatnonzero(np.diff(codes)) + 1, len(rows))
    begin = 0
    for end in ends.tolist():
        some, code = slice(begin, end), int(codes[begin])
        tails = rows[some, RW_TAIL]
        yield RowChanges(
            row_format,
            int(rows[begin, RW_KIND]),
            whole,
            np.ascontiguousarray(images[some, 0]) if code & 1 else None,
            np.ascontiguousarray(images[some, 1]) if code & 2 else None,
            bool(has_disk[begin, 0]),
            bool(has_disk[begin, 1]),
            np.ascontiguousarray(rows[some, RW_TXID]),
            tails & ANY_VALUE_MASK,
            tails >> AUTHOR_SHIFT,
        )
        begin = end


def _in_few_runs(words: Words, images: Words, codes: Words, row_format: RowFormat) -> Words | None:
    """Return an order in which changes of one kind are adjacent and those of one key keep their order; None: keep all.

    Small transactions mix kinds, and each run costs as much as a thousand rows. Tables with a unique key besides the
    primary one are not reordered: the applier could insert such a key before an earlier change frees it.
    """
    runs = int(np.count_nonzero(np.diff(codes)))
    if runs < _RUNS_MIN or any(index.is_unique for index in row_format.definition.indexes):
        return None
    starts = np.where(images[:, 1] != PART_NONE, images[:, 1], images[:, 0])
    header = np.zeros(HH_WORDS, dtype=np.int64)
    header[HH_FRAGMENTS], header[HH_FIXED_WORDS] = _HASHES, row_format.fixed_words
    hashes, _ = hash_images(header, row_format.key_words, words, starts, len(starts))
    # The n-th change of a key goes to round n.
    by_key = np.argsort(hashes, kind="stable")
    is_first = np.append(True, np.diff(hashes[by_key]) != 0)
    numbers = np.arange(len(starts))
    rounds = np.empty(len(starts), dtype=np.int64)
    rounds[by_key] = numbers - np.maximum.accumulate(np.where(is_first, numbers, 0))
    order: Words = np.lexsort((codes, rounds))
    return order if np.count_nonzero(np.diff(codes[order])) < runs else None


assert ST_SPACE < PART_NONE
