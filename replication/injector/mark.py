"""Marks for changes that are not in a binlog: the file `stopped`, and the incident that replaces a bulk load.

The file says that later changes of the store are not in its binlog (invariant I2 of `attached.py`). A store that is
opened without its binlog leaves it too, so this module loads no code that writes binlogs.

If `log_load_rows` is off, an incident whose text names the load replaces the rows of a bulk load. Every reader of
binlogs stops at an incident: a replica of Tidemark or MySQL, and `mysqlbinlog | mariadb`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from tidemark.engine.files.protocol import Files

FOLDER = "binlog"
STOPPED = "binlog/stopped"


def leave_mark(files: Files) -> None:
    """Leave the mark if the store has a binlog: it says that the binlog lacks later changes. Durable on return."""
    if files.exists(FOLDER):
        if not files.exists(STOPPED):
            files.close(files.create(STOPPED))
        # An older mark is synced too: later commits depend on it, and its creator may have been killed before the sync.
        files.sync_directory(FOLDER)


_TEXT = re.compile(r"load ([0-9a-f]{16}) of (\d+) rows in epoch (\d+) is not in the binlog: (.+)", re.DOTALL)


class LoadMark(NamedTuple):
    """A load whose rows are not in the binlog. They come before everything else in its epoch."""

    job: int
    rows: int
    epoch: int
    table: str

    @property
    def text(self) -> str:
        """The text of the incident; the name of the table is last, because the 255 bytes of the event may truncate
        it.
        """
        return f"load {self.job:016x} of {self.rows} rows in epoch {self.epoch} is not in the binlog: {self.table}"


def load_mark(text: str) -> LoadMark | None:
    """Return the mark in the text of an incident; None for any other incident."""
    found = _TEXT.fullmatch(text)
    return None if found is None else LoadMark(int(found[1], 16), int(found[2]), int(found[3]), found[4])
