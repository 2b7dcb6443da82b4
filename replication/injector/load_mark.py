"""The mark in the binlog that replaces the rows of a bulk load if `log_load_rows` is off: an incident whose text names
the load.

Every reader of binlogs stops at an incident: a replica of Tidemark or MySQL, and `mysqlbinlog | mariadb`.
"""

from __future__ import annotations

import re
from typing import NamedTuple

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
