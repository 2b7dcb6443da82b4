"""The file and position of a binlog event, and the error for a damaged one."""

from __future__ import annotations

from typing import NamedTuple

from tidemark.engine.base.errors import BinlogDamaged


class Origin(NamedTuple):
    """The file and position that an event was read from."""

    file: str
    position: int

    @property
    def shown(self) -> str:
        """The origin as text, for messages."""
        return f"{self.file} at {self.position}"

    def damaged(self, what: str) -> BinlogDamaged:
        """Return the error for a damaged event; `what` is the predicate of its message."""
        return BinlogDamaged(
            f"{self.shown}: the event {what}; the file is damaged, take it from another site or a backup",
            file=self.file,
            position=self.position,
        )
