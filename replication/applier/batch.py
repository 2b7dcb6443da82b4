"""Rows of one table with the same kind of change by one server and the same columns present; no key occurs twice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidemark.replication.applier.key_set import slice_keys
from tidemark.replication.conflict.functions import Kind
from tidemark.replication.settings.any_value import FLAG_READ, FLAG_REFLECT, FLAG_REFRESH

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemark.engine.rows.columnar import EncodedKeys
    from tidemark.engine.table.table import Table
    from tidemark.replication.applier.key_set import Words
    from tidemark.replication.binlog.position import Position

    Columns = dict[str, pa.Array]

NO_TRANSACTION = -1  # in place of a transaction id, for rows without one


@dataclass(frozen=True)
class ChangeBatch:
    """Rows in the order of the log. `event` is the kind of the row event; `before` and `after` are the columns of the
    images by name, None for an image that the kind does not have. Shapes: every column, `transactions` and `keys` have
    `rows` entries.
    """

    table: Table
    event: Kind
    flags: int
    server_id: int
    before: Columns | None
    after: Columns | None
    transactions: Words
    keys: EncodedKeys
    origin: Position

    @property
    def rows(self) -> int:
        return self.keys.count

    @property
    def kind(self) -> Kind:
        """The kind for conflict functions: an update that is a tracked read is a READ."""
        return Kind.READ if self.flags & FLAG_READ and self.event is Kind.UPDATE else self.event

    @property
    def is_reflected(self) -> bool:
        """Whether the rows are changes that a primary has applied and sends back."""
        return bool(self.flags & FLAG_REFLECT)

    @property
    def is_refresh(self) -> bool:
        """Whether the rows are refreshes: rows of a primary in their current state."""
        return bool(self.flags & FLAG_REFRESH)

    def slice(self, start: int, stop: int) -> ChangeBatch:
        """Return the rows [start, stop), without a copy."""
        if start == 0 and stop == self.rows:
            return self
        keys = slice_keys(self.keys, start, stop)
        return self._with(lambda array: array.slice(start, stop - start), self.transactions[start:stop], keys)

    def take(self, places: Words) -> ChangeBatch:
        """Return the rows at `places`, ascending."""
        if places.size == self.rows:
            return self
        return self._with(lambda array: array.take(places), self.transactions[places], self.keys.take(places))

    def _with(self, some: Callable[[pa.Array], pa.Array], transactions: Words, keys: EncodedKeys) -> ChangeBatch:
        before, after = (
            None if image is None else {name: some(array) for name, array in image.items()}
            for image in (self.before, self.after)
        )
        place = (self.table, self.event, self.flags, self.server_id)
        return ChangeBatch(*place, before, after, transactions, keys, self.origin)

    def key_columns(self) -> Columns:
        """Return the columns of the primary key, from an image that has all of them."""
        names = self.table.definition.primary_key
        image = self.before if self.before is not None and set(names) <= set(self.before) else self.after
        return {name: (image or {})[name] for name in names}

    def changes(self, with_values: bool) -> pa.RecordBatch:
        """Return the key, and if `with_values` also the other columns of the after-image, if there is one."""
        import pyarrow as pa

        columns = self.key_columns()
        if with_values and self.after is not None:
            columns.update({name: array for name, array in self.after.items() if name not in columns})
        return pa.RecordBatch.from_arrays(list(columns.values()), list(columns))
