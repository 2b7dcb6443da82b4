"""The hook between replay and indexes, by which a restart fetches rows from another node before the store is visible.

A node restart is a system restart with this step in its middle (docs/internals/node-group.md). Until its end only disk
pages have changed on disk, and their UNDO log reverts them: after a crash the node is at the end of its own log.
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
    """A store in memory as replay leaves it: rows without secondary indexes, no log, not visible to callers."""

    store: Store
    disk: DiskRestart
    clock: Clock
    next_sequence: int  # sequence of the next group in its own log


@dataclass(frozen=True)
class CaughtUp:
    """The position of a store that has caught up: its log continues with this sequence, after the end of this epoch.

    The epoch is open here until the first local checkpoint closes it; that checkpoint has the rows at its end. The
    stream continues with `next_epoch`, which is open on the live node.
    """

    sequence: int
    epoch: int
    next_epoch: int


class CatchUp(Protocol):
    """Brings a restarted store up to a live node."""

    store: bytes  # UUID of the live node's store: a directory without one becomes a copy of it
    incarnation: int  # that of the live node; this node's must not be lower, or transaction ids would be reused

    def run(self, private: PrivateStore) -> CaughtUp:
        """Change rows, definitions and disk pages to those of the live node. Any error it raises ends the restart."""
        ...
