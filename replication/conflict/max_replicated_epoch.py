"""The max replicated epoch (MRE): the highest own epoch known to be applied at the peer.

It is frozen for an epoch transaction when that begins, and raised only by its commit. It falls when a channel begins
anew and the rows of `ndb_apply_status` are gone, and with them the knowledge of what is applied.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass


def starting_epoch(rows: Iterable[tuple[int, int]], own_id: int, ignored: Collection[int] = ()) -> int:
    """Return the MRE by the rows (server id, epoch) of `ndb_apply_status` when an applier starts: the highest epoch of
    own and ignored ids, which are the other servers of the own cluster; 0 without any.
    """
    return max((epoch for server_id, epoch in rows if server_id == own_id or server_id in ignored), default=0)


def source_epoch(rows: Iterable[tuple[int, int]], source_id: int) -> int:
    """Return the epoch last applied from a source; 0 for none."""
    return max((epoch for server_id, epoch in rows if server_id == source_id), default=0)


@dataclass
class MaxReplicatedEpoch:
    """The state of one site; status shows `value`, the running transaction compares with `frozen`."""

    own_id: int
    ignored: frozenset[int] = frozenset()
    value: int = 0
    frozen: int = 0
    pending: int = 0

    def begin(self) -> int:
        """Begin an epoch transaction; return the epoch that its programs use."""
        self.frozen = self.value
        self.pending = 0
        return self.frozen

    def see(self, server_id: int, epoch: int) -> bool:
        """Note that a row of `ndb_apply_status` was written; return whether it is about an own epoch."""
        if server_id != self.own_id and server_id not in self.ignored:
            return False
        self.pending = max(self.pending, epoch)
        return True

    def commit(self) -> None:
        """Note that the epoch transaction has committed."""
        self.value = max(self.value, self.pending)
        self.pending = 0

    def roll_back(self) -> None:
        """Note that it has not committed."""
        self.pending = 0

    def reset(self) -> None:
        """Reset for a channel that begins: the rows of `ndb_apply_status` then give the value."""
        self.value = self.frozen = self.pending = 0
