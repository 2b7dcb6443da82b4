"""The effect of `binlog_type` on a table's changes: whether they are logged, as which event, with which columns.

The row of `mysql.ndb_replication` at the logging site decides. Number 4 behaves as 6. Number 5 is not used: for it, and
for unknown numbers, the options decide.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tidemark.replication.settings.finding import Finding

DEFAULT = 0
NO_LOGGING = 1
UPDATED_ONLY = 2
FULL = 3
USE_UPDATE = 4
UPDATED_ONLY_USE_UPDATE = 6
FULL_USE_UPDATE = 7
UPDATED_ONLY_MINIMAL = 8
FULL_MINIMAL = 9


@dataclass(frozen=True)
class BinlogType:
    """How a table is logged: all columns, or key and changed ones; updates as updates or as writes; minimal images."""

    is_logged: bool
    is_full: bool
    is_update: bool
    is_minimal: bool


_TYPES: Final = {
    NO_LOGGING: BinlogType(False, False, False, False),
    UPDATED_ONLY: BinlogType(True, False, False, False),
    FULL: BinlogType(True, True, False, False),
    USE_UPDATE: BinlogType(True, False, True, False),
    UPDATED_ONLY_USE_UPDATE: BinlogType(True, False, True, False),
    FULL_USE_UPDATE: BinlogType(True, True, True, False),
    UPDATED_ONLY_MINIMAL: BinlogType(True, False, True, True),
    FULL_MINIMAL: BinlogType(True, True, True, True),
}


def binlog_type(
    number: int | None, updated_only: bool = True, update_as_write: bool = True, update_as_minimal: bool = False
) -> tuple[BinlogType, Finding | None]:
    """Return the type of a number; for an unknown number also a finding. None, 0 and unknown numbers follow the
    options.
    """
    known = _TYPES.get(number or DEFAULT)
    if known is not None:
        return known, None
    by_options = BinlogType(True, not updated_only, not update_as_write, update_as_minimal)
    if not number:
        return by_options, None
    text = f"binlog_type {number} is not used; the table is logged by the options, give 0 to 4 or 6 to 9"
    return by_options, Finding("unknown binlog_type", text, "binlog_type")
