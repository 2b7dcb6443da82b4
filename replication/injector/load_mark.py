"""What stands in the binlog for the rows of a bulk load where `log_load_rows` is off: an incident whose text says so.

An incident is what every reader of binlogs stops at: a replica of ours and of MySQL, and `mysqlbinlog | mariadb`.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_TEXT = re.compile(r"load ([0-9a-f]{16}) of (\d+) rows in epoch (\d+) is not in the binlog: (.+)", re.DOTALL)


class LoadMark(NamedTuple):
    """A load whose rows the binlog has not. They come before all else of its epoch."""

    job: int
    rows: int
    epoch: int
    table: str

    @property
    def text(self) -> str:
        """As an incident says it; the name of the table stands last, for it may be cut off by the event's 255 bytes."""
        return f"load {self.job:016x} of {self.rows} rows in epoch {self.epoch} is not in the binlog: {self.table}"


def load_mark(text: str) -> LoadMark | None:
    """The mark an incident is; None if it is another one."""
    found = _TEXT.fullmatch(text)
    return None if found is None else LoadMark(int(found[1], 16), int(found[2]), int(found[3]), found[4])
