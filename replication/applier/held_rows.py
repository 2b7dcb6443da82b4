"""Changes that meet a key of a unique index: such keys are judged at the end of an epoch transaction.

The changes of an epoch are applied one after the other, although the source made them together, and a log may have them
in another order than the source: two rows that exchange their values violate the index in between. Such a change is
held, and so are all later changes of the same rows. At the end the rows are deleted and inserted in their final state.

If a row of this site still has such a key, the decision says which row wins. Where the source's wins, the other one is
deleted: otherwise the applier would never reach the later change of the source that resolves the conflict. Elsewhere
the held row stays as it was, and its changes are judged again, at once. Memory grows with the held changes, up to a
limit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tidemark.engine.applied import applied_rows
from tidemark.engine.base.errors import DuplicateKey, LockTimeout, TransactionTooLarge
from tidemark.engine.memory.arena_layout import ENTRY_WORDS
from tidemark.engine.queries import unique_calls
from tidemark.engine.queries.key_columns import get_many
from tidemark.engine.rows.columnar import encode_rows
from tidemark.engine.rows.lcp_layout import ENTRY_AUTHOR_MASK
from tidemark.engine.schema.column import ABSENT
from tidemark.replication.applier.key_set import KeySet
from tidemark.replication.applier.marks import tag_applied
from tidemark.replication.applier.stops import located
from tidemark.replication.conflict.functions import Decision, Kind, Operation, plain

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from tidemark.engine.applied.applied_rows import Judge
    from tidemark.engine.table.table import Table
    from tidemark.engine.txn.transaction import Transaction
    from tidemark.replication.applier.batch import ChangeBatch

    Key = tuple[Any, ...]
    Row = dict[str, Any]
    Words = NDArray[np.int64]

# Estimated memory of a held row while it is applied: its dicts and key, and each column as a Python value.
ROW_BYTES = 1_200
COLUMN_BYTES = 150
ROUNDS_MAX = 20  # of removing rows with the same keys, which other transactions may insert again


class _DoNotFit(Exception):
    """Rows have unique keys of others: what was tried is rolled back."""


class HeldRows:
    """The held rows of one pass."""

    def __init__(
        self,
        txn: Transaction,
        author_of: Callable[[ChangeBatch], int],
        memory_limit_bytes: int = 1 << 40,
        judge_of: Callable[[ChangeBatch, Decision], Judge | None] | None = None,
        take_out: Callable[[ChangeBatch, pa.RecordBatch], None] | None = None,
    ) -> None:
        """`author_of` returns the author of a batch's rows. `judge_of` returns the judge of a batch; None: every change
        wins. `take_out` deletes rows of this site that have unique keys of a batch that wins, and reports them; None:
        no row may have such a key.
        """
        self._txn = txn
        self._author_of = author_of
        self._judge_of = judge_of
        self._take_out = take_out
        self._keys = KeySet(txn.store.tables.seed, memory_limit_bytes)
        self._left_bytes = memory_limit_bytes
        self._batches: dict[int, list[tuple[ChangeBatch, Decision]]] = {}
        self._must_win = False

    @property
    def may_settle_early(self) -> bool:
        """Whether rows are held, and none of them must win."""
        return bool(self._batches) and not self._must_win

    def has_room(self, batch: ChangeBatch) -> bool:
        """Whether all rows of a batch may be held."""
        return _memory_bytes(batch) <= self._left_bytes

    def holds(self, batch: ChangeBatch) -> NDArray[np.bool_]:
        """Return which of the rows must be held because earlier changes of them are held. Shape: (rows,)."""
        return self._keys.holds(batch.table.table_id, batch.keys)

    def hold(self, batch: ChangeBatch, decision: Decision | None = None) -> None:
        """Hold changes, after earlier ones of the same rows. `decision`: None for the one without a conflict function.

        Raises: TransactionTooLarge past the memory limit.
        """
        if not batch.rows:
            return
        decision = decision or plain(batch.kind)
        self._must_win |= decision.wins_keys and batch.kind is not Kind.READ
        self._left_bytes -= _memory_bytes(batch)
        if self._left_bytes < 0:
            raise TransactionTooLarge(
                f"{batch.table.name}: more than {self._keys.count} rows of an epoch transaction wait for keys of"
                " unique indexes that other rows of it release, and they exceed the memory they may take; nothing of"
                " it was applied, open the store with a larger transaction_memory",
                table=batch.table.name,
            )
        table_id = batch.table.table_id
        start = 0
        while start < batch.rows:
            start = self._keys.add(table_id, batch.keys, start) + 1
        self._batches.setdefault(table_id, []).append((batch, decision))

    def settle(self) -> list[tuple[ChangeBatch, Decision, Words]]:
        """Apply the held changes at the end of the epoch transaction; return the batches, in their order, with outcomes
        as in `applied_rows`. A row whose key another row has even now, and wins, stays as it was: all its changes are
        TAKEN.

        Raises: DuplicateKey if two rows of the source that win have the same unique key, or any two rows without
        `take_out`; LockTimeout if other transactions insert rows with such keys again and again.
        """
        return [each for held in self._batches.values() for each in self._settle(held)]

    def _settle(self, held: list[tuple[ChangeBatch, Decision]]) -> list[tuple[ChangeBatch, Decision, Words]]:
        table = held[0][0].table
        there: dict[Key, Row] = {}
        first: dict[Key, int] = {}  # the place in `held` of each row's first change
        firsts: list[list[Key]] = []
        for place, (batch, _) in enumerate(held):
            keys = _keys_of(batch)
            fresh = np.array([first.setdefault(key, place) == place for key in keys], dtype=np.bool_)
            firsts.append([key for key, is_fresh in zip(keys, fresh.tolist(), strict=True) if is_fresh])
            found = batch.take(np.flatnonzero(fresh)).changes(with_values=False)
            for row in get_many(table, found, None, self._txn, "exclusive").to_pylist():
                there[_key(table, row)] = row
        rows = dict(there)
        outcomes = [self._fold(rows, *each, keys) for each, keys in zip(held, firsts, strict=True)]
        changed = [(*each, keys) for each, keys in zip(held, _by_last(held, first, outcomes), strict=True)]
        if held[0][1].wins_keys:
            self._delete(there, changed)
            for batch, _, keys in changed:
                self._restore([rows[key] for key in keys if key in rows], batch, set(rows))
        else:
            stays = self._place_those_that_fit(there, rows, changed)
            for (batch, _), outcome in zip(held, outcomes, strict=True):
                outcome[[key in stays for key in _keys_of(batch)]] = applied_rows.TAKEN
        return [(*each, outcome) for each, outcome in zip(held, outcomes, strict=True)]

    # --- final states ------------------------------------------------------------------------------
    def _fold(self, rows: dict[Key, Row], batch: ChangeBatch, decision: Decision, fresh: list[Key]) -> Words:
        """Apply a batch to `rows`, by key; return the outcomes. `fresh`: rows without an earlier held change. An upsert
        sets the columns it has. A tracked read sets no column, but may insert a missing row.
        """
        keys = _keys_of(batch)
        later = {key for key in keys if key in rows}.difference(fresh)
        refused = self._refused(rows, batch, decision, [place for place, key in enumerate(keys) if key in later])
        outcomes = np.zeros(batch.rows, dtype=np.int64)
        for place, (key, change) in enumerate(zip(keys, batch.changes(with_values=True).to_pylist(), strict=True)):
            row = rows.get(key)
            if place in refused:
                outcomes[place] = applied_rows.REFUSED
            elif row is None and decision.operation in (Operation.UPDATE, Operation.DELETE):
                outcomes[place] = applied_rows.MISSING
            elif row is not None and decision.operation is Operation.INSERT:
                outcomes[place] = applied_rows.EXISTS
            elif decision.operation is Operation.DELETE:
                del rows[key]
            elif row is None:
                rows[key] = change
            elif batch.kind is not Kind.READ:
                rows[key] = {**row, **change}
        return outcomes

    def _refused(self, rows: dict[Key, Row], batch: ChangeBatch, decision: Decision, places: list[int]) -> set[int]:
        """Return the changes at `places` that their judge refuses, by the rows that earlier held changes have made. The
        first change of a row was judged when it came.
        """
        if not places or decision.operation is Operation.INSERT or self._judge_of is None:
            return set()
        judge = self._judge_of(batch, decision)
        if judge is None:
            return set()
        keys = _keys_of(batch)
        entries, offsets = _entries(batch, [rows[keys[place]] for place in places], self._author_of(batch))
        judged = np.array(places, dtype=np.int64)
        return set(judged[~judge.accepts(batch.table, entries, offsets, judged)].tolist())

    # --- rows of the store -------------------------------------------------------------------------
    def _delete(self, there: dict[Key, Row], changed: list[tuple[ChangeBatch, Decision, list[Key]]]) -> None:
        for batch, decision, keys in changed:
            gone = [there[key] for key in keys if key in there]
            if gone:
                given = _as_batch(batch, batch.table.definition.primary_key, gone)
                tag_applied(self._txn, self._author_of(batch), batch.server_id, decision.reflects)
                applied_rows.apply_deletes(self._txn, batch.table, given)

    def _place_those_that_fit(
        self, there: dict[Key, Row], rows: dict[Key, Row], changed: list[tuple[ChangeBatch, Decision, list[Key]]]
    ) -> set[Key]:
        """Bring the rows to their final states, as many as fit together; return the keys of those that stay as they
        are. A row that stays keeps its unique keys, so others may have to stay too.
        """
        # Where a conflict sends the row back, a row that goes in the end stays: the source may have deleted it to make
        # room for this site's row with the key, and must get it back.
        sends_back = [keys for _, decision, keys in changed if decision.sends_back_taken]
        stays = {key for keys in sends_back for key in keys if key not in rows}
        while True:
            taken: set[Key] = set()
            try:
                with self._txn.savepoint():
                    self._delete({key: row for key, row in there.items() if key not in stays}, changed)
                    for batch, decision, keys in changed:
                        placed = [rows[key] for key in keys if key in rows and key not in stays]
                        for names, alike in _by_columns(placed).items():
                            given = _as_batch(batch, names, alike)
                            tag_applied(self._txn, self._author_of(batch), batch.server_id, decision.reflects)
                            outcomes = applied_rows.apply_upserts(self._txn, batch.table, given)
                            failed = np.flatnonzero(outcomes != applied_rows.APPLIED)
                            taken.update(_key(batch.table, alike[place]) for place in failed)
                    if taken:
                        raise _DoNotFit
                return stays
            except _DoNotFit:
                stays |= taken

    def _restore(self, rows: list[Row], batch: ChangeBatch, held: set[Key]) -> None:
        for names, alike in _by_columns(rows).items():
            for _ in range(ROUNDS_MAX):
                tag_applied(self._txn, self._author_of(batch), batch.server_id, False)
                outcomes = applied_rows.apply_upserts(self._txn, batch.table, _as_batch(batch, names, alike))
                alike = [alike[place] for place in np.flatnonzero(outcomes != applied_rows.APPLIED)]
                if not alike:
                    break
                self._clear_way(batch, alike, held)
            else:
                raise LockTimeout(
                    f"{batch.table.name}: other transactions repeatedly insert rows with keys of unique indexes that"
                    " rows of the source have; retry when they have ended"
                )

    def _clear_way(self, batch: ChangeBatch, rows: list[Row], held: set[Key]) -> None:
        """Delete rows of this site that have unique keys of these rows, by `take_out`. Raises: DuplicateKey."""
        table = batch.table
        in_the_way: dict[Key, Row] = {}
        for row in rows:
            for index in table.uniques.values():
                value = tuple(_value(table, row, name) for name in index.definition.columns)
                if None in value or ABSENT in value:
                    continue
                key = value if len(value) > 1 else value[0]
                found = unique_calls.get(self._txn, table, key, index.name, "exclusive")
                if found is None:
                    continue
                other = dict(zip(table.format.names, found, strict=True))
                if self._take_out is None or _key(table, other) in held:
                    shown = _key(table, row)
                    text = f"{table.name}: the row with key {shown} has a key of a unique index that another row has"
                    raise located(DuplicateKey(text, table=table.name, key=shown), batch.origin)
                in_the_way[_key(table, other)] = other
        if in_the_way and self._take_out is not None:
            self._take_out(batch, _as_batch(batch, table.format.names, list(in_the_way.values())))


def _by_last(held: list[tuple[ChangeBatch, Decision]], first: dict[Key, int], outcomes: list[Words]) -> list[list[Key]]:
    """Return, for each batch, the rows whose last change is in it: a row is sent to other sites as of the server that
    made this change. Sent as of an earlier one, it would not reach that one.
    """
    last = dict(first)
    for place, ((batch, _), outcome) in enumerate(zip(held, outcomes, strict=True)):
        if batch.kind is not Kind.READ:
            made = (outcome == applied_rows.APPLIED).tolist()
            last.update((key, place) for key, is_made in zip(_keys_of(batch), made, strict=True) if is_made)
    keys: list[list[Key]] = [[] for _ in held]
    for key, place in last.items():
        keys[place].append(key)
    return keys


def _value(table: Table, row: Row, name: str) -> Any:
    """Return the value of a column in a held row; a missing column has its default, ABSENT if that is computed."""
    if name in row:
        return row[name]
    column = table.definition.columns[table.definition.position(name)]
    return column.missing if column.computed is None else ABSENT


def _as_batch(batch: ChangeBatch, names: Sequence[str], rows: list[Row]) -> pa.RecordBatch:
    import pyarrow as pa

    arrays = [pa.array([row[name] for row in rows], _type_of(batch, name)) for name in names]
    return pa.RecordBatch.from_arrays(arrays, list(names))


def _key(table: Table, row: Row) -> Key:
    return tuple(row[name] for name in table.definition.primary_key)


def _type_of(batch: ChangeBatch, name: str) -> Any:
    """Return the Arrow type of a column's values in Python rows."""
    import pyarrow as pa

    kind = batch.table.definition.columns[batch.table.definition.position(name)].type.arrow_type()
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _memory_bytes(batch: ChangeBatch) -> int:
    """Return the memory that the rows of a batch may take while they are held."""
    images_bytes: int = sum(array.nbytes for image in (batch.before, batch.after) for array in (image or {}).values())
    return images_bytes + batch.rows * (ROW_BYTES + COLUMN_BYTES * len(batch.table.definition.columns))


def _keys_of(batch: ChangeBatch) -> list[Key]:
    """Return the primary keys of a batch as tuples."""
    return [tuple(key.values()) for key in batch.changes(with_values=False).to_pylist()]


def _by_columns(rows: list[Row]) -> dict[tuple[str, ...], list[Row]]:
    """Return the rows by the columns they have."""
    found: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        found.setdefault(tuple(row), []).append(row)
    return found


def _entries(batch: ChangeBatch, rows: list[Row], author: int) -> tuple[Words, Words]:
    """Return entries of rows that are not in the store, as programs take them, and the offsets of their images. Their
    author is the source, which made them last.
    """
    header = np.zeros(ENTRY_WORDS, dtype=np.int64)
    header[ENTRY_WORDS - 1] = min(author, ENTRY_AUTHOR_MASK)
    parts: list[Words] = []
    offsets = np.zeros(len(rows), dtype=np.int64)
    used = 0
    for place, row in enumerate(rows):
        image = encode_rows(batch.table.format, _as_batch(batch, list(row), [row])).images
        parts += [header, image]
        offsets[place] = used + ENTRY_WORDS
        used += ENTRY_WORDS + image.size
    return np.concatenate(parts), offsets
