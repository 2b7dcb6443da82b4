"""Naive twin of the dependency tracker: dicts, sets and recursion by hand."""

from __future__ import annotations


class Tracker:
    def __init__(self) -> None:
        self.seen: list[int] = []
        self.owner: dict[tuple[int, tuple[bytes, ...]], int] = {}
        self.follows: dict[int, set[int]] = {}
        self.marked: set[int] = set()

    def see(self, id_: int) -> None:
        if id_ not in self.follows:
            self.seen.append(id_)
            self.follows[id_] = set()

    def track(self, id_: int, table: int, key: tuple[bytes, ...]) -> None:
        self.see(id_)
        before = self.owner.get((table, key))
        self.owner[table, key] = id_
        if before is not None and before != id_:
            self.follows[before].add(id_)
            if before in self.marked:
                self.mark(id_)

    def mark(self, id_: int) -> int:
        self.see(id_)
        waiting, new = [id_], 0
        while waiting:
            each = waiting.pop()
            if each not in self.marked:
                self.marked.add(each)
                new += 1
                waiting += self.follows[each]
        return new
