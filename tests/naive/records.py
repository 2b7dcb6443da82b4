"""Records of the log read from lists of words: a word that is not there raises IndexError."""

from __future__ import annotations

from dataclasses import dataclass

TRANSACTION, INSERT, UPDATE, DELETE, READ, SCHEMA, FILES, BEFORE = 1, 2, 3, 4, 6, 7, 8, 10
Record = tuple[int, int]  # kind, words


def record_of(words: list[int]) -> Record | None:
    """Return the record that the words begin with, None if it is invalid."""
    kind, size = words[0] % 256, words[0] // 65_536
    if kind == TRANSACTION:
        size = 4
    least = 2 if kind in (READ, SCHEMA, FILES) else 4
    return (kind, size) if 1 <= kind <= BEFORE and least <= size <= len(words) else None


def transaction_of(words: list[int]) -> tuple[int, int] | None:
    """Return the total words of a transaction and the kind of its first record, 0 for none; None if it is invalid."""
    size = words[0] // 65_536
    if words[0] % 256 != TRANSACTION or not 4 <= size <= len(words):
        return None
    return size, words[4] % 256 if size > 4 else 0


def frames_of(words: list[int], start: int) -> tuple[list[tuple[int, int, int]], int]:
    """Return (offset, kind, end) of the records from words[start] on, and the offset of the first that is invalid, -1
    for none.
    """
    found = []
    while start < len(words):
        record = record_of(words[start:])
        if record is None:
            return found, start
        found.append((start, record[0], start + record[1]))
        start += record[1]
    return found, -1


def transactions_of(words: list[int], start: int) -> tuple[list[tuple[int, int, int]], int]:
    """Return the same of transactions, with the kind of the first record of each."""
    found = []
    while start < len(words):
        transaction = transaction_of(words[start:])
        if transaction is None:
            return found, start
        found.append((start, transaction[1], start + transaction[0]))
        start += transaction[0]
    return found, -1


@dataclass
class Operation:
    """The words of an operation, taken apart; rows None: an INSERT of no rows, of too many, or past
    the end of its page."""

    table: int
    fragment: int
    version: int
    rowid: int
    rows: int | None
    author: int
    flags: int


def operation_of(words: list[int]) -> Operation:
    """Take the first four words of an operation apart."""
    head, identity, place, tail = (each % (1 << 64) for each in words[:4])
    rowid, rows = place % (1 << 48), place // (1 << 48)
    found: int | None = 1
    if head % 256 == INSERT:
        found = rows if 0 < rows < 2_048 and rowid % 65_536 + rows <= 65_536 else None
    table, fragment, version = identity % (1 << 32), identity // (1 << 32) % 4_096, identity // (1 << 44) % 65_536
    return Operation(table, fragment, version, rowid, found, tail // (1 << 32) % 65_536, head // 256 % 256)


def disk_words_of(words: list[int]) -> int | None:
    """Return the words of the disk part that the words begin with, None if it is invalid."""
    size = words[0] % (1 << 32) if words else 0
    return size if 1 <= size <= len(words) else None
