"""Row events of a source as changes of a table of the store, in batches.

An update or delete of a missing row, or an insert of an existing one, means that the two sides differ. This stops the
ingest, unless it is tolerated. No Python code runs per row, except for keys that occur again within a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tidemark.engine.applied.applied_rows import (
    APPLIED,
    EXISTS,
    apply_deletes,
    apply_inserts,
    apply_updates,
    apply_upserts,
)
from tidemark.engine.base.errors import (
    CheckFailed,
    DuplicateKey,
    Error,
    NoSuchColumn,
    NoSuchTable,
    Rejected,
    RowNotFound,
    Unsupported,
    ValueOutOfRange,
)
from tidemark.engine.queries.key_columns import get_many
from tidemark.engine.rows.row_format import Words
from tidemark.replication.binlog import events as e
from tidemark.replication.binlog.position import Position
from tidemark.replication.binlog.reader import present
from tidemark.replication.binlog.row_plan import BodyReader, DecodedRows
from tidemark.replication.binlog.table_map import TableMap
from tidemark.replication.ingest.duplicates import (
    has_duplicates,
    key_numbers,
    last_of_each,
    slices_of_distinct_keys,
    slices_of_moves,
)
from tidemark.replication.ingest.source_types import SOURCE_TYPES

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemark.engine.store.store import Store
    from tidemark.engine.table.table import Table
    from tidemark.engine.txn.transaction import Transaction

_TARGETS_MAX = 512


class Target:
    """How row events of one kind, with one table map and one set of columns, change one version of a table."""

    def __init__(self, table: Table, found: TableMap, rows: e.Rows, origin: Position) -> None:
        """Raises: Unsupported, NoSuchColumn."""
        self.table, self.map, self.kind = table, found, rows.kind
        definition = table.definition
        self.names = _names(found, origin)
        kinds = {column.name: column.type for column in definition.columns}
        self.before, self.after = present(rows)
        for position in self.after if rows.kind != e.DELETE else self.before:
            if self.names[position] not in kinds:
                raise NoSuchColumn(
                    f"{origin.text}: {definition.name} has no column {self.names[position]!r} here; add it",
                    table=definition.name,
                    column=self.names[position],
                )
        places = {name: position for position, name in enumerate(self.names)}
        self.keys = [places.get(name, -1) for name in definition.primary_key]
        image = self.after if rows.kind == e.WRITE else self.before
        if not set(self.keys) <= set(image):
            raise origin.unsupported(
                f"rows of {definition.name} come without its primary key; give the table at the source the same one"
            )
        known = {position: kinds[name] for position, name in enumerate(self.names) if name in kinds}
        self.converted = {
            position: convert
            for position, kind in known.items()
            if (convert := SOURCE_TYPES[type(kind)].of_events) is not None
        }
        targets = {position: kind for position, kind in known.items() if position not in self.converted}
        if rows.kind == e.WRITE:
            _check_left_out(table, {self.names[position] for position in self.after}, origin)
        try:
            self.reader = BodyReader(
                found.types,
                self.before,
                self.after,
                targets,
                wanted_before=frozenset(self.keys),
                names=[f"{found.name}.{name}" for name in self.names],
            )
        except Unsupported as error:
            text = f"{error.message}, or leave the table out with a filter"
            raise origin.unsupported(text, table=definition.name) from error
        self.has_unique = bool(definition.indexes) and any(index.is_unique for index in definition.indexes)

    def batch(self, columns: dict[int, pa.Array], positions: Sequence[int], origin: Position) -> pa.RecordBatch:
        """Return the columns at some positions under the store's names."""
        import pyarrow as pa

        arrays = []
        for at in positions:
            column, convert = columns[at], self.converted.get(at)
            if convert is not None:
                column = convert(column, f"{self.map.name}.{self.names[at]}", origin.text)
            arrays.append(column)
        return pa.RecordBatch.from_arrays(arrays, names=[self.names[position] for position in positions])


def _names(found: TableMap, origin: Position) -> list[str]:
    names = [column.name for column in found.columns]
    if None in names:
        raise origin.unsupported(
            f"rows of {found.name} name no columns; SET GLOBAL binlog_row_metadata=FULL at the source and copy anew"
        )
    return [name or "" for name in names]


def _check_left_out(table: Table, given: set[str], origin: Position) -> None:
    """Check that the server's defaults of the columns that a new row leaves out are known. Raises: Unsupported."""
    for column in table.definition.columns:
        if column.name not in given and (not column.has_default or column.computed is not None):
            raise origin.unsupported(
                f"a new row of {table.name} leaves {column.name} out, whose default at the source is not known here;"
                " SET GLOBAL binlog_row_image=FULL at the source and copy the table anew, or set the default here",
                table=table.name,
                column=column.name,
            )


class RowApplier:
    """Applies row bodies to tables of a store. tolerates: accept missing and existing rows."""

    def __init__(self, store: Store, tolerates: bool = False) -> None:
        self._store = store
        self._tolerates = tolerates
        self._targets: dict[tuple[str, int, bytes | None, bytes | None], Target] = {}

    def target(self, found: TableMap, rows: e.Rows, origin: Position) -> Target:
        """Return the target for row events like this one. Raises: NoSuchTable, NoSuchColumn, Unsupported,
        LimitExceeded.
        """
        try:
            table = self._store.tables.named(found.name)
        except NoSuchTable as error:
            raise NoSuchTable(
                f"{origin.text}: the store has no table {found.name}; begin with a copy, or leave it out by a filter",
                table=found.name,
            ) from error
        key = (found.name, rows.kind, rows.before, rows.after)
        known = self._targets.get(key)
        if known is not None and known.table is table and (known.map is found or known.map == found):
            return known
        if len(self._targets) >= _TARGETS_MAX:
            self._targets.clear()
        made = self._targets[key] = Target(table, found, rows, origin)
        return made

    def apply(self, txn: Transaction, target: Target, body: e.Buffer, origin: Position) -> int:
        """Apply the rows of a body; return their number.

        Raises: BinlogDamaged, ValueOutOfRange, DuplicateKey, RowNotFound; Retryable errors, after a rollback.
        """
        total = 0
        for rows in target.reader.chunks(body, origin):
            try:
                if target.kind == e.UPDATE:
                    self._update(txn, target, rows, origin)
                else:
                    self._put_or_delete(txn, target, rows, origin)
            except Rejected as error:
                raise _located(error, target.table.name, origin) from error
            total += rows.count
        return total

    def _put_or_delete(self, txn: Transaction, target: Target, rows: DecodedRows, origin: Position) -> None:
        is_insert = target.kind == e.WRITE
        columns = rows.after if is_insert else rows.before
        batch = target.batch(columns, target.after if is_insert else target.keys, origin)
        numbers, count = key_numbers([columns[position] for position in target.keys])
        for part in slices_of_distinct_keys(numbers) if has_duplicates(numbers, count) else (slice(0, rows.count),):
            some = batch.slice(part.start, part.stop - part.start)
            if not is_insert:
                outcomes = apply_deletes(txn, target.table, some)
            else:
                outcomes = (apply_upserts if self._tolerates else apply_inserts)(txn, target.table, some)
            self._check(target, outcomes, origin)

    def _update(self, txn: Transaction, target: Target, rows: DecodedRows, origin: Position) -> None:
        if _moves(target, rows):
            return self._move(txn, target, rows, origin)
        changed = [position for position in target.after if position not in target.keys]
        if not changed:
            return None
        columns = {**rows.after, **{position: rows.before[position] for position in target.keys}}
        batch = target.batch(columns, [*target.keys, *changed], origin)
        numbers, count = key_numbers([rows.before[position] for position in target.keys])
        if not has_duplicates(numbers, count):
            parts = [batch]
        elif target.has_unique:
            # A value of a unique key may move from row to row, so the order of the source is kept.
            parts = [batch.slice(part.start, part.stop - part.start) for part in slices_of_distinct_keys(numbers)]
        else:
            # All rows of the batch have the same columns, so only the last row of a key counts.
            parts = [batch.take(last_of_each(numbers))]
        for part in parts:
            self._check(target, apply_updates(txn, target.table, part), origin)
        return None

    def _move(self, txn: Transaction, target: Target, rows: DecodedRows, origin: Position) -> None:
        """Apply updates that change keys: delete the old rows, insert the new ones."""
        import pyarrow as pa

        old = target.batch(rows.before, target.keys, origin)
        new = target.batch(rows.after, target.after, origin)
        full_keys = [rows.after.get(position, rows.before[position]) for position in target.keys]
        both = [pa.concat_arrays([rows.before[at], key]) for at, key in zip(target.keys, full_keys, strict=True)]
        numbers, _ = key_numbers(both)
        for part in slices_of_moves(numbers[: rows.count], numbers[rows.count :]):
            size = part.stop - part.start
            keys, changes = old.slice(part.start, size), new.slice(part.start, size)
            whole = get_many(target.table, keys, None, txn)
            if whole.num_rows < size and not self._tolerates:
                raise RowNotFound(f"{target.table.name} lacks a row the source has changed", table=target.table.name)
            if whole.num_rows < size:
                whole = None
            self._check(target, apply_deletes(txn, target.table, keys), origin)
            rest = changes if whole is None else _overlaid(whole, changes)
            put = apply_upserts if self._tolerates else apply_inserts
            self._check(target, put(txn, target.table, rest), origin)

    def _check(self, target: Target, outcomes: Words, origin: Position) -> None:
        if self._tolerates or bool((outcomes == APPLIED).all()):
            return
        name = target.table.name
        if bool((outcomes == EXISTS).any()):
            raise DuplicateKey(f"{name} has a row with a key that the source gives another one", table=name)
        raise RowNotFound(f"{name} lacks a row that the source has changed", table=name)


def _located(error: Error, table: str, origin: Position) -> Error:
    """Return the same error with the table, the position in the source's binlog, and a remedy."""
    if str(error.message).startswith(origin.file):
        return error
    what = error.message if table in error.message else f"{table}: {error.message}"
    remedy = "the two sides differ, copy the table anew"
    if isinstance(error, CheckFailed):
        remedy = "drop the check, or change the row at the source and copy the table anew"
    elif isinstance(error, ValueOutOfRange):
        remedy = "change it at the source and copy the table anew, or leave the table out with a filter"
    return type(error)(f"{origin.text}: {what}; {remedy}", **{**error.evidence, **origin._asdict()})


def _moves(target: Target, rows: DecodedRows) -> bool:
    """Whether the key of a row changes."""
    import pyarrow as pa
    import pyarrow.compute as pc

    for position in target.keys:
        after = rows.after.get(position)
        before = rows.before[position]
        if after is not None and not after.equals(before):
            if pa.types.is_dictionary(after.type):  # an ENUM: equal members have equal numbers
                after, before = after.indices, before.indices
            if pc.any(pc.not_equal(after, before)).as_py():
                return True
    return False


def _overlaid(whole: pa.RecordBatch, changes: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows of `whole` with the columns of `changes` replaced."""
    import pyarrow as pa

    given = dict(zip(changes.schema.names, changes.columns, strict=True))
    names = whole.schema.names
    return pa.RecordBatch.from_arrays([given.get(name, whole[name]) for name in names], names=names)
