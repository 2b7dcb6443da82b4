"""Write the differences of a comparison into the store to be repaired, in bounded transactions."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from tidemark.engine.base.errors import DuplicateKey
from tidemark.recovery.verification.digest_rows import digests

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemark.database import Database
    from tidemark.recovery.verification.compare import Group
    from tidemark.recovery.verification.definitions import Comparable
    from tidemark.session import Transaction

_ATTEMPTS = 10  # to insert rows while another transaction inserts some of them
Keys = dict[str, Any]


class Repair:
    """Makes the rows of a store equal to those of the other side, group by group, and counts its changes."""

    def __init__(self, target: Database, is_a_right: bool, batch_rows: int) -> None:
        self._target = target
        self._is_a_right = is_a_right
        self._batch_rows = batch_rows
        self._counts = dict.fromkeys(("inserted", "updated", "deleted", "skipped"), 0)

    def to_dict(self) -> dict[str, int]:
        return dict(self._counts)

    def apply(self, group: Group, table: Comparable) -> None:
        """Repair the rows of a group. Raises: any error of the calls that write rows."""
        missing, surplus = group.only_a, group.only_b
        right, wrong = group.changed_a, group.changed_b
        if not self._is_a_right:
            missing, surplus, right, wrong = surplus, missing, wrong, right
        for rows in self._slices(surplus):
            done = self._target.run(partial(self._delete, table=table, rows=rows))
            self._count("deleted", done, rows.num_rows)
        for rows in self._slices(missing):
            self._count("inserted", self._insert(table, rows), rows.num_rows)
        for start in range(0, right.num_rows, self._batch_rows):
            good, bad = (each.slice(start, self._batch_rows) for each in (right, wrong))
            done = self._target.run(partial(self._update, table=table, good=good, bad=bad))
            self._count("updated", done, good.num_rows)

    def _slices(self, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        for start in range(0, rows.num_rows, self._batch_rows):
            yield rows.slice(start, self._batch_rows)

    def _count(self, what: str, done: int, rows: int) -> None:
        self._counts[what] += done
        self._counts["skipped"] += rows - done

    def _delete(self, txn: Transaction, table: Comparable, rows: pa.RecordBatch) -> int:
        same = _unchanged(txn, table, rows)
        if same.size:
            txn.delete_many(table.name, _keys(rows.take(same), table))
        return int(same.size)

    def _update(self, txn: Transaction, table: Comparable, good: pa.RecordBatch, bad: pa.RecordBatch) -> int:
        same = _unchanged(txn, table, bad)
        if same.size:
            txn.update_many(table.name, good.take(same))
        return int(same.size)

    def _insert(self, table: Comparable, rows: pa.RecordBatch) -> int:
        def insert(txn: Transaction) -> int:
            held = txn.get_many(table.name, _keys(rows, table), list(table.key), lock="exclusive")
            absent = np.flatnonzero(_places(rows, held, table) < 0)
            if absent.size:
                txn.insert_many(table.name, rows.take(absent))
            return int(absent.size)

        for attempt in range(_ATTEMPTS):
            try:
                return self._target.run(insert)
            except DuplicateKey:
                if attempt == _ATTEMPTS - 1:
                    raise
        return 0


def _keys(rows: pa.RecordBatch, table: Comparable) -> Keys:
    return {name: rows.column(name) for name in table.key}


def _key_words(rows: pa.RecordBatch, table: Comparable) -> np.ndarray:
    """Return the digest of each key, two words that compare as one value."""
    found = digests([rows.column(name) for name in table.key], rows.num_rows)
    return found.view([("first", np.int64), ("second", np.int64)])


def _places(rows: pa.RecordBatch, held: pa.RecordBatch, table: Comparable) -> np.ndarray:
    """Return the position of each row's key in `held`, -1 if it is not there."""
    wanted, there = _key_words(rows, table), _key_words(held, table)
    if not there.size:
        return np.full(wanted.size, -1)
    order = np.argsort(there, order=("first", "second"))
    found = np.minimum(np.searchsorted(there[order], wanted), there.size - 1)
    places = order[found]
    return np.where(there[places] == wanted, places, -1)


def _unchanged(txn: Transaction, table: Comparable, rows: pa.RecordBatch) -> np.ndarray:
    """Lock the rows, and return the positions of those that are still equal to what was compared."""
    held = txn.get_many(table.name, _keys(rows, table), list(table.columns), lock="exclusive")
    places = _places(rows, held, table)
    before, now = (digests(each.columns, each.num_rows).reshape(-1, 2) for each in (rows, held))
    there = np.flatnonzero(places >= 0)
    return np.asarray(there[(before[there] == now[places[there]]).all(axis=1)])
