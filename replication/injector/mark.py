"""The mark `stopped`: what the store did since is not in its binlog (invariant I2 of `attached.py`).

Apart from the binlog itself, because a store without one leaves the mark too and should not load what writes binlogs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidemark.engine.files.protocol import Files

FOLDER = "binlog"
STOPPED = "binlog/stopped"


def leave_mark(files: Files) -> None:
    """Note that what the store does, or forgets, now is not in its binlog, if it has one. Durable: on return."""
    if files.exists(FOLDER):
        if not files.exists(STOPPED):
            files.close(files.create(STOPPED))
        # Also the name that a process made which was killed before its sync: what commits now rests on it.
        files.sync_directory(FOLDER)
