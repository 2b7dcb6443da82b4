"""The errors for a key that another row has in a unique index."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tidemark.engine.base.errors import DuplicateKey
from tidemark.engine.memory.arena_layout import X_UNIQUE

if TYPE_CHECKING:
    from tidemark.engine.memory.arena import Words
    from tidemark.engine.schema.index_definition import IndexDefinition
    from tidemark.engine.table.table import Table
    from tidemark.engine.txn.transaction import Transaction


def refused(txn: Transaction, table: Table, image: Words, row: int | None = None) -> DuplicateKey:
    """Return the error for an image whose key another row has in a unique index, the one in X_UNIQUE of the
    transaction. row: position in a batch.
    """
    handle = int(txn.mem[txn.desc + X_UNIQUE])
    known = [*table.uniques.values(), *table.building.values()]
    definition = next((each.definition for each in known if each.tree.handle == handle), None)
    if definition is None:
        text = f"{table.name}: a unique index that has since been dropped had the key; run it again"
        return DuplicateKey(text, table=table.name, row=row)
    values = table.format.decode_columns(image.data.cast("B"), 0, definition.columns)
    return duplicate(table, definition, values, row)


def duplicate(table: Table, definition: IndexDefinition, values: Sequence[Any], row: int | None = None) -> DuplicateKey:
    """Return the error for a key that two rows would have in a unique index."""
    key = values[0] if len(values) == 1 else tuple(values)
    shown = table.shown_key(key)
    if row is None:
        text = f"index {definition.name} of {table.name} has a row with key {shown}; change that row, or use upsert()"
    else:
        text = f"{table.name}: row {row} has key {shown} in index {definition.name}, which another row has"
        text += "; nothing was changed"
    return DuplicateKey(text, table=table.name, index=definition.name, key=key, row=row)
