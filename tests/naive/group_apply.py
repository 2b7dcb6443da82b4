"""Naive twins of kernel `group_apply.py`: rows by slot in a dict, changed record by record."""

from __future__ import annotations

from dataclasses import dataclass

TRANSACTION, INSERT, UPDATE, DELETE = 1, 2, 3, 4
VAR_KEPT, DISK_KEPT = 1, 2
Slot = tuple[int, int, int]  # table, fragment, ROWID
Row = tuple[int, int, list[int]]  # epoch, author, fixed words without the last one of tables with disk columns


@dataclass(frozen=True)
class Shape:
    """A table as its records describe it; all of one version."""

    fixed: int
    has_var: bool
    has_disk: bool


def _image(words: list[int], at: int, shape: Shape, flags: int) -> tuple[list[int], int]:
    """Fixed words of the image at a word, and where the next one is."""
    end = at + shape.fixed
    if shape.has_var and not flags & VAR_KEPT:
        end += words[end] & 0xFFFF_FFFF
    if shape.has_disk and not flags & DISK_KEPT:
        end += words[end] & 0xFFFF_FFFF
    return words[at : at + shape.fixed - shape.has_disk], end


def apply(words: list[int], shapes: dict[int, Shape], rows: dict[Slot, Row]) -> None:
    """Apply the records of a sealed group to rows; every one must fit."""
    epoch, at, stop = words[8], 16, 16 + words[11]
    while at < stop:
        kind, flags, size = words[at] & 0xFF, words[at] >> 8 & 0xFF, words[at] >> 16
        if kind == TRANSACTION:
            at += 4
            continue
        if kind in (INSERT, UPDATE, DELETE):
            table, fragment = words[at + 1] & 0xFFFF_FFFF, words[at + 1] >> 32 & 0xFFF
            rowid, author = words[at + 2] & (1 << 48) - 1, words[at + 3] >> 32
            place = (table, fragment, rowid)
            image = at + 4
            if kind == INSERT:
                for number in range(words[at + 2] >> 48):
                    assert (table, fragment, rowid + number) not in rows
                    fixed, image = _image(words, image, shapes[table], flags)
                    rows[table, fragment, rowid + number] = (epoch, author, fixed)
                assert image == at + size
            elif kind == UPDATE:
                assert place in rows
                fixed, image = _image(words, image, shapes[table], flags)
                assert image == at + size
                rows[place] = (epoch, author, fixed)
            else:
                del rows[place]
        at += size
