"""The version store by its layout, walked in plain Python: the rows of every open snapshot, one after another.

It shares no code with the kernels it checks, except the constants.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from tidemark.engine.memory import arena_layout as a
from tidemark.engine.memory.arena import address_of
from tidemark.engine.rows.lcp_layout import (
    ENTRY_FRAGMENT_MASK,
    ENTRY_FRAGMENT_SHIFT,
    ENTRY_TABLE_MASK,
    ENTRY_TABLE_SHIFT,
)
from tidemark.engine.txn import versions_layout as v


class Version(NamedTuple):
    """One entry of the ring."""

    position: int
    ended: int
    table: int
    fragment: int
    rowid: int
    epoch: int
    disk: int


def versions(mem: Any) -> Iterator[Version]:
    """All entries of the ring, oldest first; each is at a valid place."""
    size = int(mem[a.S_VERSION_RING_WORDS])
    position, head = int(mem[a.S_VERSION_TAIL]), int(mem[a.S_VERSION_HEAD])
    assert 0 <= head - position <= size
    before = 0
    while position < head:
        at = int(mem[a.S_VERSION_RING]) + position % size
        words = int(mem[at + v.V_WORDS])
        assert words > 0 and words % v.V_UNIT_WORDS == 0 and position % size + words <= size
        ended = int(mem[at + v.V_ENDED])
        assert ended >= before, "entries are in order of their ends"
        before = ended
        if mem[at + v.V_FRAGMENT]:
            row = at + v.V_ROW
            place = int(mem[row + 2])
            yield Version(
                position,
                ended,
                (place >> ENTRY_TABLE_SHIFT) & ENTRY_TABLE_MASK,
                (place >> ENTRY_FRAGMENT_SHIFT) & ENTRY_FRAGMENT_MASK,
                int(mem[row]),
                int(mem[row + 1]),
                int(mem[at + v.V_DISK]) & v.V_DISK_MASK,
            )
        position += words
    assert position == head


def open_epochs(mem: Any) -> list[int]:
    """Epochs of the open snapshots."""
    first = int(mem[a.S_VIEW_LIST])
    slots = [mem[first + number * a.VW_WORDS :][: a.VW_WORDS].tolist() for number in range(int(mem[a.S_VIEW_HIGH]))]
    views = [slot for slot in slots if slot[a.VW_ID]]
    assert len(views) == int(mem[a.S_VIEW_COUNT])
    assert not any(mem[first + a.VW_WORDS * len(slots) : first + v.VIEW_LIST_WORDS : a.VW_WORDS])
    newest = max(((view[a.VW_EPOCH], view[a.VW_TICK]) for view in views), default=(0, 0))
    assert (int(mem[a.S_VIEW_EPOCH]), int(mem[a.S_VIEW_TICK])) == newest
    return sorted(view[a.VW_EPOCH] for view in views if view[a.VW_TICK] == a.TICK_MASK)


def live(mem: Any, fragment: int) -> Iterator[tuple[int, int]]:
    """(ROWID, epoch) of the committed rows of a fragment."""
    for logical in range(int(mem[address_of(fragment) + a.F_PAGES])):
        middle = int(mem[address_of(fragment) + a.F_MAP + (logical >> 18)])
        page = int(mem[int(mem[middle + ((logical >> 9) & 511)]) + (logical & 511)])
        if page <= 0:
            continue
        base = page << a.PAGE_SHIFT
        for slot in range(int(mem[base + a.PG_FRESH])):
            row = base + a.PAGE_HEADER_WORDS + slot * int(mem[address_of(fragment) + a.F_ROW_WORDS])
            if (int(mem[row]) >> a.STATE_SHIFT) & a.STATE_MASK == a.LIVE:
                yield logical << 16 | slot, int(mem[row + 1])


def shown(mem: Any, table: Any, epoch: int) -> set[tuple[int, int, int]]:
    """(fragment number, ROWID, epoch) of the rows a snapshot shows of a table, as it had it."""
    found: list[tuple[int, int, int]] = []
    for number, fragment in table.by_number.items():
        found += [(number, rowid, since) for rowid, since in live(mem, fragment) if since <= epoch]
    for each in versions(mem):
        if each.table == table.table_id and each.epoch <= epoch < each.ended:
            found.append((each.fragment, each.rowid, each.epoch))
    assert len(set(found)) == len(found), "a row is shown once"
    return set(found)


def has_lost(mem: Any, epoch: int) -> bool:
    """Whether a disk part that a snapshot shows, or that follows one, is lost."""
    return any(each.disk == v.DISK_LOST and epoch < each.ended for each in versions(mem))
