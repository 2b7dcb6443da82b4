"""A place in a file of a binlog, the parts of the file's name, and the error for damage there."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from tidemark.engine.base.errors import BinlogDamaged, LimitExceeded, Unsupported
from tidemark.replication.binlog.binlog_layout import FIRST_POSITION

_TIMELINE = re.compile(r"-([0-9a-f]{8})\Z")


def base_of(file: str) -> str:
    """Return the base name of the binlog that a file belongs to."""
    return _TIMELINE.sub("", file.rpartition(".")[0])


def timeline_of(file: str) -> str:
    """Return the timeline of a file, "" for the first one of a store."""
    found = _TIMELINE.search(file.rpartition(".")[0])
    return found.group(1) if found else ""


class Position(NamedTuple):
    """A place between two events, or where an event was read: the file, as the index names it, and the byte offset."""

    file: str
    position: int

    def is_start_after(self, file: str) -> bool:
        number, next_number = (int(each.rpartition(".")[2]) for each in (file, self.file))
        return self.position == FIRST_POSITION and base_of(self.file) == base_of(file) and next_number == number + 1

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
