"""Naive twins of `recovery/backup/restore_kernels.py`: rows of a fragment in a dict, changed one by one."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tests.naive.backup import Row

INSERT, UPDATE, DELETE = 2, 3, 4
VAR_KEPT_FLAG = 1 << 8
NO_VALUES = [1 | 1 << 56]


class DoesNotFit(Exception):
    """A change meets a row it does not fit."""


@dataclass(frozen=True)
class Shape:
    """A fragment, and how its rows are to be."""

    fixed: int
    has_var: bool
    var_since: int
    key_words: int  # 0: in the var part
    table: int
    fragment: int
    slots: int

    def has_var_at(self, version: int) -> bool:
        """Whether images of a version have a var part."""
        return self.has_var and version >= self.var_since


@dataclass(frozen=True)
class Change:
    """One operation of the log on rows that follow one another."""

    epoch: int
    kind: int
    rowid: int
    author: int
    version: int
    images: list[tuple[list[int], list[int]]]  # fixed image and var part of each row; a DELETE has none
    is_kept: bool = False  # the var part stays

    def words(self, shape: Shape) -> list[int]:
        """Return the words of a record after its epoch."""
        body: list[int] = []
        for fixed, var in self.images:
            body += fixed
            if shape.has_var_at(self.version) and not self.is_kept:
                body += var
        size = 4 + len(body)
        count = len(self.images) if self.kind == INSERT else 1
        flags = VAR_KEPT_FLAG if self.is_kept else 0
        identity = shape.table | shape.fragment << 32 | self.version << 44
        return [
            self.epoch,
            self.kind | flags | size << 16,
            identity,
            self.rowid | count << 48,
            self.author << 32,
            *body,
        ]


def key_of(row: Row, shape: Shape) -> list[int]:
    """The canonical key."""
    if shape.key_words:
        return row.fixed[: shape.key_words]
    return row.var[1 : 1 + (row.var[0] >> 44 & 0xFFF)]


def apply(rows: dict[int, Row], change: Change, shape: Shape) -> None:
    """Change the rows. Raises: DoesNotFit."""
    has_var = shape.has_var_at(change.version)
    if change.kind == INSERT:
        for number, (fixed, var) in enumerate(change.images):
            if change.rowid + number in rows:
                raise DoesNotFit
            rowid = change.rowid + number
            rows[rowid] = Row(rowid, change.epoch, change.author, fixed, var if has_var else [], [])
        return
    old = rows.get(change.rowid)
    if old is None:
        raise DoesNotFit
    if change.kind == DELETE:
        del rows[change.rowid]
        return
    fixed, var = change.images[0]
    var = var if has_var and not change.is_kept else old.var
    new = replace(old, epoch=change.epoch, author=change.author, fixed=fixed, var=var)
    if key_of(new, shape) != key_of(old, shape):
        raise DoesNotFit
    rows[change.rowid] = new


def entry(row: Row, shape: Shape) -> list[int]:
    """The entry of a local checkpoint."""
    place = row.author | shape.table << 16 | shape.fragment << 47
    return [row.rowid, row.epoch, place, *row.fixed, *((row.var or NO_VALUES) if shape.has_var else [])]
