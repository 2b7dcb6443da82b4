"""The expected findings of a verification of disk columns, derived page by page and row by row from the
layout alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from tidemark.engine.disk.cache_layout import SLOT_BITS
from tidemark.engine.disk.disk_layout import (
    DP_ENTRIES,
    ENTRY_FREE,
    ENTRY_MASK,
    PIECE_CHAINED,
    PIECE_CHUNK,
    PIECE_ROWID_MASK,
)
from tidemark.engine.memory.arena_layout import LIVE, LOCK_MASK, STATE_MASK, STATE_SHIFT
from tidemark.recovery.verification.disk_rows_check_layout import DISK_ROW


class Found(NamedTuple):
    """The findings of one page."""

    faults: list[tuple[int, int]]  # what is wrong, ROWID in the piece
    proved: set[int]  # ROWIDs of rows with a valid first piece
    chunks: list[tuple[int, int]]  # reference and ROWID of each
    chains: list[int]  # ROWIDs of chained parts
    pieces: int  # first pieces


def pieces_of(mem: Any, frame: int, page_words: int) -> Iterator[tuple[int, int]]:
    """(slot, address) of every piece on a page."""
    for slot in range(int(mem[frame + DP_ENTRIES])):
        word = int(mem[frame + page_words - 1 - slot])
        if not word & ENTRY_FREE:
            yield slot, frame + (word & ENTRY_MASK)


def is_live(mem: Any, row: int) -> bool:
    return int(mem[row]) >> STATE_SHIFT & STATE_MASK == LIVE


def page_found(mem: Any, frame: int, page_words: int, page: int, rows: Mapping[int, tuple[int, int]]) -> Found:
    """Judge a page with a sound header and pieces of the right length.

    rows: by ROWID, the address of the row and that of its disk reference, committed or not.
    """
    found = Found([], set(), [], [], sum(1 for _, at in pieces_of(mem, frame, page_words) if not mem[at] & PIECE_CHUNK))
    for slot, piece in pieces_of(mem, frame, page_words):
        rowid, reference = int(mem[piece]) & PIECE_ROWID_MASK, page << SLOT_BITS | slot
        row, at = rows.get(rowid, (0, 0))
        is_chunk = bool(mem[piece] & PIECE_CHUNK)
        if is_chunk:
            found.chunks.append((reference, rowid))
        if row and is_live(mem, row) and (is_chunk or int(mem[at]) == reference):
            if not is_chunk:
                found.proved.add(rowid)
            if mem[piece] & PIECE_CHAINED:
                found.chains.append(rowid)
        elif not row or not int(mem[row]) & LOCK_MASK:
            found.faults.append((DISK_ROW, rowid))
    return found


def not_marked(mem: Any, rows: Mapping[int, tuple[int, int]], marked: set[int]) -> list[int]:
    """ROWIDs of committed rows without a mark, in order."""
    return [rowid for rowid in sorted(rows) if is_live(mem, rows[rowid][0]) and rowid not in marked]
