"""Verifies the indexes of a store in memory: trees and hashes, and that index and table agree."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemark.engine.index.unique import StoredUnique

if TYPE_CHECKING:
    from collections.abc import Callable

    from tidemark.engine.store.store import Store
    from tidemark.engine.table.table import AnyIndex, Table


def check_indexes(store: Store, table: Table, report: Callable[[str], None]) -> None:
    """Check every index of a table, in slices that do not block writers for long; `report` gets each problem. The
    caller holds a pin.
    """
    with store.schema_latch:
        table = table.newest
        defined = [each.name for each in table.definition.indexes]
        indexes = table.listed_indexes()
        there = len(table.indexes) + len(table.uniques)
    if table.is_dropped:
        return
    if defined != [index.name for index in indexes] or len(defined) != there:
        report(f"{table.name}: indexes {defined} are defined, {[index.name for index in indexes]} are there")
    for index in indexes:
        _check(store, table, index, report)


def _check(store: Store, table: Table, index: AnyIndex, report: Callable[[str], None]) -> None:
    found = None
    while True:
        # Rows of a dropped partition keep their entries until no reader uses it any more. Read this under the latch:
        # between the partition's publication and its entry in the list of kept partitions there is a sync.
        with store.schema_latch:
            fragments = table.fragments
            is_counted = not store.has_dropped_fragments(table)
        if isinstance(index, StoredUnique):
            found = index.tree.check(store.failure.check, fragments)
        else:
            found = index.tree.check(is_counted, store.failure.check, fragments)
        if index.is_dropped or table.fragments is fragments:
            break
    if found is not None and not index.is_dropped:
        report(f"{table.name}, index {index.name}: {found.what} ({found.evidence})")
