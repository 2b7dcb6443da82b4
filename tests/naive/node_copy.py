"""The expected results of the kernels of node restart, derived from the layout alone, slot by slot."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tidemark.engine.log import redo_layout as r
from tidemark.engine.memory import arena_layout as a
from tidemark.engine.memory.arena import address_of
from tidemark.engine.store.node_copy_layout import F_UNCOPIED, ROWID_END

Key = tuple[int, ...]


@dataclass
class Slots:
    """The slots of a fragment: rows by ROWID with epoch and key; epochs of the empty ones that were used."""

    rows: dict[int, tuple[int, Key]] = field(default_factory=dict)
    empty: dict[int, int] = field(default_factory=dict)
    pages: dict[int, int] = field(default_factory=dict)  # of each logical page: epoch of slots that never were used


def slots_of(mem: Any, fragment: int) -> Slots:
    """Every slot of a fragment with all of its keys in the fixed part."""
    found = Slots()
    for logical in range(int(mem[address_of(fragment) + a.F_PAGES])):
        middle = int(mem[address_of(fragment) + a.F_MAP + (logical >> 18)])
        page = int(mem[int(mem[middle + (logical >> 9 & 511)]) + (logical & 511)])
        if page <= 0:
            found.pages[logical] = -1 - page if page < 0 else 0
            continue
        base = page * a.PAGE_WORDS
        found.pages[logical] = int(mem[base + a.PG_EMPTIED])
        for slot in range(int(mem[base + a.PG_FRESH])):
            row = base + a.PAGE_HEADER_WORDS + slot * int(mem[address_of(fragment) + a.F_ROW_WORDS])
            epoch = int(mem[row + 1])
            if int(mem[row]) >> a.STATE_SHIFT & a.STATE_MASK == a.LIVE:
                key = tuple(int(mem[row + 2 + i]) for i in range(int(mem[address_of(fragment) + a.F_KEY_WORDS])))
                found.rows[logical << 16 | slot] = (epoch, key)
            else:
                found.empty[logical << 16 | slot] = max(epoch, int(mem[base + a.PG_EMPTIED]))
    return found


def is_changed(epoch: int, since: int) -> bool:
    """A slot of epoch 0 has none that is known."""
    return epoch == 0 or epoch > since


@dataclass
class Items:
    """A slice: rows as (ROWID, epoch, key), ranges as (first, end), the end exclusive."""

    rows: list[tuple[int, int, Key]] = field(default_factory=list)
    ranges: list[tuple[int, int]] = field(default_factory=list)


def parse(mem: Any, fragment: int, words: Any) -> Items:
    """The items of a slice without disk parts."""
    found, at = Items(), 0
    while at < len(words):
        if words[at] < 0:
            found.ranges.append((-1 - int(words[at]), int(words[at + 1])))
            at += 2
            continue
        fixed = int(mem[address_of(fragment) + a.F_FIXED_WORDS])
        var = int(words[at + 3 + fixed]) & 0xFFFFFFFF if mem[address_of(fragment) + a.F_HAS_VAR] else 0
        key = tuple(int(each) for each in words[at + 3 : at + 3 + int(mem[address_of(fragment) + a.F_KEY_WORDS])])
        found.rows.append((int(words[at]), int(words[at + 1]), key))
        at += 3 + fixed + var
    return found


def check_scan(slots: Slots, items: Items, since: int, start: int, stop: int, with_empty: bool) -> None:
    """Every changed row is there, every changed empty slot is in a range if these are wanted, and no row is in one."""
    changed = [(at, *row) for at, row in sorted(slots.rows.items()) if start <= at < stop and is_changed(row[0], since)]
    assert items.rows == changed
    if not with_empty:
        assert not items.ranges
        return

    def covered(rowid: int) -> bool:
        return any(first <= rowid < last for first, last in items.ranges)

    assert not any(covered(at) for at in slots.rows)
    assert all(covered(at) for at, epoch in slots.empty.items() if start <= at < stop and is_changed(epoch, since))
    for logical, emptied in slots.pages.items():
        last = logical << 16 | 0xFFFF
        if start <= last < stop and is_changed(emptied, since) and (last & 0xFFFF) > 2_000:
            assert covered(last)
    if stop == ROWID_END:
        assert items.ranges[-1][1] == ROWID_END


def in_the_way(slots: Slots, items: Items) -> set[int]:
    """Rows that must go before the items can be put in their places."""
    found: set[int] = set()
    at_key = {key: at for at, (_, key) in slots.rows.items()}
    for rowid, _, key in items.rows:
        if rowid in slots.rows and slots.rows[rowid][1] != key:
            found.add(rowid)
        if at_key.get(key, rowid) != rowid:
            found.add(at_key[key])
    for first, last in items.ranges:
        found |= {at for at in slots.rows if first <= at < last}
    return found


def operations(words: Any, start: int, stop: int) -> list[tuple[int, int, int, int, int]]:
    """The operations among records: (word, kind, identity, first ROWID, rows)."""
    found, at = [], start
    while at < stop:
        kind = int(words[at]) & 0xFF
        size = r.TRANSACTION_WORDS if kind == r.KIND_TRANSACTION else int(words[at]) >> r.WORDS_SHIFT
        if kind in (r.KIND_INSERT, r.KIND_UPDATE, r.KIND_DELETE):
            place = int(words[at + 2])
            rows = place >> r.COUNT_SHIFT if kind == r.KIND_INSERT else 1
            found.append((at, kind, int(words[at + 1]), place & r.ROWID_MASK, rows))
        at += size
    return found


def position_of(mem: Any, fragment: int) -> int:
    """First ROWID that was not copied."""
    left = int(mem[address_of(fragment) + F_UNCOPIED])
    return left - 1 if left else ROWID_END
