"""Between replay and indexes: what a restart asks to bring rows from elsewhere before anybody sees the store.

A node restart is a system restart with this in its middle (docs/node-group.md, 4). Until it is at its end nothing but
disk pages has changed, which their UNDO log takes back: a crash leaves the node where its own log ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from tidemark.engine.base.clock import Clock
    from tidemark.engine.store.store import Store
    from tidemark.recovery.system_restart.disk import DiskRestart


@dataclass(frozen=True)
class PrivateStore:
    """A store in memory as replay leaves it: rows without secondary indexes, no log, seen by nobody."""

    store: Store
    disk: DiskRestart
    clock: Clock
    next_sequence: int  # of the group that would follow in its own log


@dataclass(frozen=True)
class CaughtUp:
    """Where the store stands when it has caught up: its log goes on with this sequence, behind the end of this epoch.

    The epoch is the open one here until the first local checkpoint closes it, which then is of its end. With
    `next_epoch`, open on the live node, the stream goes on.
    """

    sequence: int
    epoch: int
    next_epoch: int


class CatchUp(Protocol):
    """Who brings a restarted store up to a live node."""

    store: bytes  # UUID of the live node's store: a directory without one becomes a copy of it
    incarnation: int  # of the live node: this one's is not below it, for transaction ids are not given twice

    def run(self, private: PrivateStore) -> CaughtUp:
        """Change rows, definitions and disk pages as the live node says. Raises: what ends the restart."""
        ...
