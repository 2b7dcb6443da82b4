"""Indexes at a restart: never on disk, built from the rows after REDO (docs/internals/access.md, 8).

The store is not in use yet. Two threads collect and sort the key words of fragments without the GIL; the runs are
merged into leaves in order. For unique indexes, tags and places go into a hash table that is large enough from the
start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidemark.engine.index.index_layout import INDEX_READY
from tidemark.engine.index.stored import StoredIndex, kinds_of
from tidemark.recovery.system_restart.load import PARTS, Progress, run_parts

if TYPE_CHECKING:
    from tidemark.engine.index.ordered import OrderedIndex
    from tidemark.engine.index.stored import AnyIndex
    from tidemark.engine.index.unique import UniqueHash
    from tidemark.engine.schema.index_definition import IndexDefinition
    from tidemark.engine.store.store import Store
    from tidemark.engine.table.table import Table


def build_indexes(store: Store, progress: Progress | None = None) -> int:
    """Build every index of every definition; return the number of entries.

    progress: called with (indexes built, indexes in all, "indexes"). Raises: MemoryExhausted.
    """
    entries = 0
    wanted = [(table, definition) for table in store.tables.by_name.values() for definition in table.definition.indexes]
    for number, (table, definition) in enumerate(wanted, 1):
        entries += _build(table, definition)
        if progress is not None:
            progress(number, len(wanted), "indexes")
    return entries


def _build(table: Table, definition: IndexDefinition) -> int:
    return sum(_build_part(table, table.make_index(definition, kind, INDEX_READY)) for kind in kinds_of(definition))


def _build_part(table: Table, index: AnyIndex) -> int:
    runs: dict[int, Any] = {}
    parts = min(PARTS, len(table.fragments))

    def collect(tree: OrderedIndex | UniqueHash) -> list[Any]:
        def work(part: int) -> None:
            for fragment in table.fragments[part::parts]:
                runs[fragment] = tree.collect(fragment)

        run_parts(parts, work)
        return [runs[fragment] for fragment in table.fragments]

    if isinstance(index, StoredIndex):
        index.tree.load(index.tree.merge(collect(index.tree)))
    else:
        index.tree.load(collect(index.tree))
    table.adopt_index(index)
    return index.tree.counters()["entries"]
