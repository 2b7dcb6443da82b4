"""Naive twin of the set of keys."""

from __future__ import annotations


class Keys:
    def __init__(self) -> None:
        self.known: set[tuple[int, tuple[int, ...]]] = set()

    def add(self, table: int, keys: list[tuple[int, ...]], start: int) -> int:
        """The first row that is known already, or the number of rows."""
        for row in range(start, len(keys)):
            if (table, keys[row]) in self.known:
                return row
            self.known.add((table, keys[row]))
        return len(keys)

    def holds(self, table: int, keys: list[tuple[int, ...]]) -> list[bool]:
        return [(table, key) in self.known for key in keys]
