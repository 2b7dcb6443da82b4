"""Compares two copies of a store slot by slot: row or none, image, epoch, author (docs/internals/node-group.md, N6)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tidemark.engine.memory.arena_layout import ENTRY_WORDS
from tidemark.engine.store.node_copy import ChangeScan, items_of
from tidemark.engine.store.node_copy_layout import ROWID_END

if TYPE_CHECKING:
    from tidemark.engine.store.store import Store
    from tidemark.engine.table.table import Table

SLOTS = 65_536
OUT_WORDS = 1 << 16
ALL = -1  # every row has changed after this epoch


def different_slots(one: Store, other: Store, most: int = 100) -> list[str]:
    """Return the differences of two stores, a line for each table or row, at most `most`; empty if they are equal.

    Both must be at the end of the same group, with no writer. Only memory is compared here; `recovery/verification`
    reads the rows with their disk parts and compares the values.
    """
    found: list[str] = []
    names = sorted({*one.tables.by_name, *other.tables.by_name})
    for name in names:
        tables = (one.tables.by_name.get(name), other.tables.by_name.get(name))
        if tables[0] is None or tables[1] is None or tables[0].definition != tables[1].definition:
            found.append(f"{name}: the definitions differ")
            continue
        for number in tables[0].by_number:
            found.extend(_different_rows(tables[0], tables[1], number, most - len(found)))
        if len(found) >= most:
            break
    return found[:most]


def _different_rows(one: Table, other: Table, number: int, most: int) -> list[str]:
    first, second = rows_by_rowid(one, number), rows_by_rowid(other, number)
    found = []
    for rowid in sorted({*first, *second}):
        rows = (first.get(rowid), second.get(rowid))
        if rows[0] != rows[1]:
            shown = [f"epoch {_epoch(row)}" if row is not None else "no row" for row in rows]
            what = " and ".join(shown) if shown[0] != shown[1] else f"different words, both {shown[0]}"
            found.append(f"{one.name} fragment {number} ROWID {rowid >> 16}.{rowid & 0xFFFF}: {what}")
        if len(found) >= most:
            break
    return found


def _epoch(entry: bytes) -> int:
    return int(np.frombuffer(entry, dtype=np.int64)[0])


def rows_by_rowid(table: Table, number: int) -> dict[int, bytes]:
    """Return epoch, author and image of every row of a fragment, by ROWID. The place of the disk part, which may differ
    between copies, is left out.
    """
    scan = ChangeScan(table.mem, OUT_WORDS)
    last = table.format.layout.fixed_words - 1
    found: dict[int, bytes] = {}
    at = 0
    while at < ROWID_END:
        changes = scan.next(table.by_number[number], at, ALL, False, SLOTS)
        at, words = changes.stop, changes.words
        starts = items_of(words, table).images - ENTRY_WORDS
        for start, stop in zip(starts, np.append(starts, words.size)[1:], strict=True):
            if table.format.has_disk:
                words[start + ENTRY_WORDS + last] = 0
            found[int(words[start])] = words[start + 1 : stop].tobytes()
    return found
