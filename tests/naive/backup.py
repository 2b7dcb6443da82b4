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


def filed(row: Row, table: int, fragment: int, has_var: bool) -> list[int]:
    """The entry as files have it: a var part the definition does not know left out, no disk reference."""
    fixed = [*row.fixed[:-1], 0]
    return entry(Row(row.rowid, row.epoch, row.author, fixed, row.var if has_var else [], row.disk), table, fragment)


def record(row: Row, identity: int) -> list[int]:
    """The INSERT record of a row of a table with disk columns."""
    image = [*row.fixed[:-1], 0, *row.var, *row.disk]
    return [2 | (4 + len(image)) << 16, identity, row.rowid | 1 << 48, row.author << 32, *image]
