"""The mark `stopped`: later changes of the store are not in its binlog (invariant I2 of `attached.py`).

Separate from the binlog itself, because a store without one leaves the mark too and should not load the code that
writes binlogs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidemark.engine.files.protocol import Files

FOLDER = "binlog"
STOPPED = "binlog/stopped"


def leave_mark(files: Files) -> None:
    """Note that what the store changes, or loses, from now on is not in its binlog, if it has one. Durable on
    return.
    """
    if files.exists(FOLDER):
        if not files.exists(STOPPED):
            files.close(files.create(STOPPED))
        # Also a name whose creator was killed before its sync: commits from now on depend on it.
        files.sync_directory(FOLDER)
