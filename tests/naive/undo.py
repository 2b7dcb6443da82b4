"""Naive twins of the UNDO kernels: records as tuples, buffers as lists."""

from __future__ import annotations

from tidemark.engine.disk.disk_layout import (
    UNDO_ALLOC,
    UNDO_FREE,
    UNDO_MARK_WORDS,
    UNDO_RECORD_WORDS,
    UNDO_RESTART,
    UNDO_UPDATE,
)

Record = list[int]  # its words


def record_at(words: list[int], at: int, stop: int) -> Record | None:
    """The record that begins at `at`, None if none does that ends by `stop`."""
    if at + UNDO_RECORD_WORDS > stop:
        return None
    kind, size = words[at] % 256, words[at] // 65_536
    if words[at] < 0 or words[at] // 256 % 256 or at + size > stop:
        return None
    if kind == UNDO_ALLOC:
        is_right = size == UNDO_RECORD_WORDS
    elif kind in (UNDO_UPDATE, UNDO_FREE):
        is_right = size > UNDO_RECORD_WORDS
    else:
        is_right = UNDO_FREE < kind <= UNDO_RESTART and size == UNDO_MARK_WORDS
    return words[at : at + size] if is_right else None


def records_of(words: list[int], start: int, stop: int) -> list[tuple[int, Record]] | None:
    """Offset and words of every record, None if anything is no record."""
    found = []
    at = start
    while at < stop:
        record = record_at(words, at, stop)
        if record is None:
            return None
        found.append((at, record))
        at += len(record)
    return found


def parsed(words: list[int], start: int, stop: int) -> list[int] | None:
    """Offsets of the records, None if anything is no record or LSNs do not rise."""
    records = records_of(words, start, stop)
    if records is None:
        return None
    lsns = [record[1] for _, record in records]
    is_rising = all(lsn >= 0 for lsn in lsns[:1]) and all(a < b for a, b in zip(lsns, lsns[1:], strict=False))
    return [at for at, _ in records] if is_rising else None


def filtered(words: list[int], start: int, stop: int, restorable: int) -> tuple[list[Record], list[Record]] | None:
    """Records kept and left out."""
    records = records_of(words, start, stop)
    if records is None:
        return None
    kept: list[Record] = []
    dropped: list[Record] = []
    for _, record in records:
        is_dropped = record[0] % 256 == UNDO_UPDATE and record[4] <= restorable
        (dropped if is_dropped else kept).append(record)
    return kept, dropped


class Buffer:
    """The active buffer and the reserved space."""

    def __init__(self, size: int, free: int, lsn: int) -> None:
        self.size, self.free, self.lsn = size, free, lsn
        self.words: list[int] = []
        self.promised: dict[int, int] = {}
        self.records = 0

    def promise(self, transaction: int, words: int) -> bool:
        """96 words a record for padding, 576 once a transaction."""
        charge = words + 96 + (0 if self.promised.get(transaction) else 576)
        if sum(self.promised.values()) + charge > self.free:
            return False
        self.promised[transaction] = self.promised.get(transaction, 0) + charge
        return True

    def append(self, kind: int, values: list[int]) -> int:
        """The record's LSN, -1 if it does not fit."""
        record = [kind + (2 + len(values)) * 65_536, self.lsn, *values]
        if len(self.words) + len(record) > self.size:
            return -1
        self.free -= len(record) + (0 if self.words else 576)
        self.words += record
        self.lsn += 8 * len(record)
        self.records += 1
        return record[1]
