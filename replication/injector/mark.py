"""The mark `stopped`: later changes of the store are not in its binlog (invariant I2 of `attached.py`).

It has a module of its own, because a store that is opened without its binlog leaves the mark too, and should not load
the code that writes binlogs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidemark.engine.files.protocol import Files

FOLDER = "binlog"
STOPPED = "binlog/stopped"


def leave_mark(files: Files) -> None:
    """Leave the mark if the store has a binlog: later changes and losses are not in the binlog. Durable on return."""
    if files.exists(FOLDER):
        if not files.exists(STOPPED):
            files.close(files.create(STOPPED))
        # Also for an older mark, because its creator may have been killed before its sync: later commits depend on it.
        files.sync_directory(FOLDER)
