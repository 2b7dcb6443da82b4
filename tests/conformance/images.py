"""The images of each `binlog_type` by the names of columns, as the models of the tests log changes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from tidemark.replication.settings.binlog_type import BinlogType

Event = Literal["WRITE_ROW", "UPDATE_ROW", "DELETE_ROW"]
WRITE_ROW: Final = "WRITE_ROW"
UPDATE_ROW: Final = "UPDATE_ROW"
DELETE_ROW: Final = "DELETE_ROW"


class Image(NamedTuple):
    """An event and the columns of its images, in table order; None for an image that the event does not have."""

    event: Event
    before: tuple[str, ...] | None
    after: tuple[str, ...] | None


@dataclass(frozen=True)
class Images:
    """The images of a table that is logged so."""

    how: BinlogType

    def insert(self, columns: Sequence[str], key: Collection[str]) -> Image:
        """Return the image of a new row, which is always whole."""
        return Image(WRITE_ROW, None, tuple(columns))

    def update(self, columns: Sequence[str], key: Collection[str], changed: Collection[str]) -> Image:
        """Return the image of a changed row; a reader of minimal images must not require the key in the after-image."""
        keys = tuple(name for name in columns if name in key)
        if self.how.is_full:
            wide = tuple(columns)
        elif self.how.is_update and self.how.is_minimal:
            wide = tuple(name for name in columns if name in changed)
        else:
            wide = tuple(name for name in columns if name in key or name in changed)
        if not self.how.is_update:
            return Image(WRITE_ROW, None, wide)
        return Image(UPDATE_ROW, keys if self.how.is_minimal else wide, wide)

    def delete(self, columns: Sequence[str], key: Collection[str]) -> Image:
        """Return the image of a deleted row: whole, or its key."""
        is_whole = self.how.is_full and not (self.how.is_minimal and self.how.is_update)
        return Image(DELETE_ROW, tuple(name for name in columns if is_whole or name in key), None)
