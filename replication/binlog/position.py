"""A place in a file of a binlog, and the error for damage there."""

from __future__ import annotations

from typing import Any, NamedTuple

from tidemark.engine.base.errors import BinlogDamaged, LimitExceeded, Unsupported
from tidemark.replication.binlog.binlog_layout import FIRST_POSITION


class Position(NamedTuple):
    """A place between two events, or where an event was read: the file, as the index names it, and the byte offset."""

    file: str
    position: int

    def is_start_after(self, file: str) -> bool:
        base, _, number = file.rpartition(".")
        next_base, _, next_number = self.file.rpartition(".")
        return self.position == FIRST_POSITION and base == next_base and int(next_number) == int(number) + 1

    @property
    def text(self) -> str:
        """The position as text, for messages."""
        return f"{self.file} at {self.position}"

    def damaged(self, what: str) -> BinlogDamaged:
        """Return the error for a damaged event; `what` is the predicate of its message."""
        text = f"{self.text}: the event {what}; the file is damaged; copy it from another site or a backup"
        return BinlogDamaged(text, **self._asdict())

    def unsupported(self, what: str, **evidence: Any) -> Unsupported:
        """Return the error for an event that cannot be ingested; `what` is its message."""
        return Unsupported(f"{self.text}: {what}", **self._asdict(), **evidence)

    def too_large(self, size: int, limit: int) -> LimitExceeded:
        """Return the error for an event of too many bytes."""
        return LimitExceeded(f"{self.text}: an event of {size} bytes is larger than {limit}", **self._asdict())
