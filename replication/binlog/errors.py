"""Where bytes of a binlog came from, and the one error of bytes that cannot be."""

from __future__ import annotations

from typing import NamedTuple

from tidemark.engine.base.errors import BinlogDamaged


class Origin(NamedTuple):
    """The file and position an event was read from."""

    file: str
    position: int

    @property
    def shown(self) -> str:
        """For messages."""
        return f"{self.file} at {self.position}"

    def damaged(self, what: str) -> BinlogDamaged:
        """The error of an event that `what`."""
        return BinlogDamaged(
            f"{self.shown}: the event {what}; the file is damaged, take it from another site or a backup",
            file=self.file,
            position=self.position,
        )
