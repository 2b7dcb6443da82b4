"""Naive twins of `recovery/backup/entries_kernels.py`: entries as lists of words, one by one."""

from __future__ import annotations

from dataclasses import dataclass

ENTRY = 3
VAR_MASK = (1 << 32) - 1


@dataclass
class Row:
    """One row as a scan of a snapshot gives it."""

    rowid: int
    epoch: int
    author: int
    fixed: list[int]
    var: list[int]  # word 0 has its length; empty: no var part
    disk: list[int]  # likewise


def entry(row: Row, table: int, fragment: int) -> list[int]:
    """The entry in the form of a scan."""
    place = row.author | table << 16 | fragment << 47
    return [row.rowid, row.epoch, place, *row.fixed, *row.var, *row.disk]


def filed(row: Row, table: int, fragment: int, has_var: bool, has_disk: bool) -> list[int]:
    """The entry as a rows file has it: a var part the definition does not know left out, no disk reference."""
    fixed = [*row.fixed[:-1], 0] if has_disk else row.fixed
    return entry(Row(row.rowid, row.epoch, row.author, fixed, row.var if has_var else [], row.disk), table, fragment)


def live_map(rows: list[Row], slots: int, words: int) -> list[int]:
    """The live map of rows."""
    bits = {(row.rowid >> 16) * slots + (row.rowid & 0xFFFF) for row in rows}
    found = []
    for word in range(words):
        value = sum(1 << bit for bit in range(64) if word * 64 + bit in bits)
        found.append(value - (1 << 64) if value >> 63 else value)
    return found


def record(row: Row, identity: int) -> list[int]:
    """The INSERT record of a row of a table with disk columns."""
    image = [*row.fixed[:-1], 0, *row.var, *row.disk]
    return [2 | (4 + len(image)) << 16, identity, row.rowid | 1 << 48, row.author << 32, *image]


def is_entry_list(words: list[int], shape: list[int]) -> bool:
    """Whether words are entries as a rows file may have them."""
    fixed, has_var, has_disk, table, fragment, slots, since, epoch = shape
    at, last = 0, -1
    while at < len(words):
        if at + ENTRY + fixed > len(words):
            return False
        rowid, changed, place = words[at : at + ENTRY]
        end = at + ENTRY + fixed
        for is_there in (has_var, has_disk):
            if is_there:
                if end >= len(words) or not 1 <= words[end] & VAR_MASK <= len(words) - end:
                    return False
                end += words[end] & VAR_MASK
        is_placed = (place >> 16) & ((1 << 31) - 1) == table and (place >> 47) & 0xFFF == fragment
        is_there = last < rowid < 1 << 48 and rowid & 0xFFFF < slots
        if not (is_placed and is_there and (since or -1) < changed <= epoch):
            return False
        last, at = rowid, end
    return True


def rows_at(words: list[int], shape: list[int]) -> list[Row]:
    """The rows of valid entries, with their ROWIDs only."""
    fixed, has_var, has_disk = shape[:3]
    at, rows = 0, []
    while at < len(words):
        rows.append(Row(words[at], words[at + 1], 0, [], [], []))
        at += ENTRY + fixed
        for is_there in (has_var, has_disk):
            at += words[at] & VAR_MASK if is_there else 0
    return rows


def found(
    words: list[int], shapes: dict[int, tuple[int, bool, int]], wanted: tuple[int, int, int, bool, bool], live: set[int]
) -> list[int] | None:
    """Where the images of chosen entries begin, with the bits of `live` cleared; None if the words are no such entries.

    shapes: fixed words, has var and fragments of each table. wanted: as in the kernel. live: bits; {-1}: all.
    """
    table, fragment, slots, has_disk, is_newest = wanted
    at, places = 0, []
    while at < len(words):
        if at + ENTRY > len(words):
            return None
        rowid, epoch, place = words[at : at + ENTRY]
        own, number = (place >> 16) & ((1 << 31) - 1), (place >> 47) & 0xFFF
        fixed, has_var, count = shapes.get(own, (0, False, 0))
        is_wrong = number >= count or not 0 <= rowid < 1 << 48 or epoch < 0
        if is_wrong or (fragment >= 0 and (own, number) != (table, fragment)):
            return None
        end = at + ENTRY + fixed
        for is_there in (has_var, has_disk and own == table):
            if is_there:
                if end >= len(words) or not 1 <= words[end] & VAR_MASK <= len(words) - end:
                    return None
                end += words[end] & VAR_MASK
        if end > len(words):
            return None
        if own == table:
            bit = (rowid >> 16) * slots + (rowid & 0xFFFF)
            is_chosen = bit in live or live == {-1}
            if live != {-1} and (rowid & 0xFFFF >= slots or (is_newest and not is_chosen)):
                return None
            live.discard(bit)
            if is_chosen:
                places.append(at + ENTRY)
        at = end
    return places
