"""Naive twins of the delete log: deletes read out of records one by one, the ring as a list of single rows."""

from __future__ import annotations

from dataclasses import dataclass, field

TRANSACTION, DELETE = 1, 4
Deleted = tuple[int, int, int, int]  # table, fragment, ROWID, epoch


def deletes_of(words: list[int], start: int, stop: int, epoch: int) -> list[Deleted]:
    """The deletes among records, in order."""
    found, at = [], start
    while at < stop:
        kind = words[at] & 0xFF
        if kind == DELETE:
            found.append(
                (words[at + 1] & 0xFFFF_FFFF, words[at + 1] >> 32 & 0xFFF, words[at + 2] & (1 << 48) - 1, epoch)
            )
        at += 4 if kind == TRANSACTION else words[at] >> 16
    return found


@dataclass
class Ring:
    """Entries as lists of consecutive rows; the oldest is dropped when there are too many."""

    capacity: int
    entries: list[list[Deleted]] = field(default_factory=list)
    cut_epoch: int = 0

    def note(self, row: Deleted) -> None:
        """A row was deleted."""
        if self.entries:
            table, fragment, rowid, epoch = self.entries[-1][-1]
            if row == (table, fragment, rowid + 1, epoch):
                self.entries[-1].append(row)
                return
        self.entries.append([row])
        if len(self.entries) > self.capacity:
            self.cut_epoch = max(self.cut_epoch, self.entries.pop(0)[0][3])

    def rows(self) -> list[Deleted]:
        """All of them, oldest first."""
        return [row for entry in self.entries for row in entry]
