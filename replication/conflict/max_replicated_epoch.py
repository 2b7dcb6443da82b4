"""The max replicated epoch (MRE): the highest own epoch known to be applied at the peer.

Frozen for an epoch transaction when it begins, raised by its commit alone. It falls where a channel begins anew and
the rows of `ndb_apply_status` have gone, and with them all that is known to be applied.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass


def starting_epoch(rows: Iterable[tuple[int, int]], own_id: int, ignored: Collection[int] = ()) -> int:
    """MRE by the rows (server id, epoch) of `ndb_apply_status` when an applier starts: the highest of own and ignored
    ids, which are the other servers of the own cluster; 0 without any.
    """
    return max((epoch for server_id, epoch in rows if server_id == own_id or server_id in ignored), default=0)


def source_epoch(rows: Iterable[tuple[int, int]], source_id: int) -> int:
    """The epoch last applied from a source; 0 for none."""
    return max((epoch for server_id, epoch in rows if server_id == source_id), default=0)


@dataclass
class MaxReplicatedEpoch:
    """The state of one site; `value` is what status shows, `frozen` what the running transaction compares with."""

    own_id: int
    ignored: frozenset[int] = frozenset()
    value: int = 0
    frozen: int = 0
    pending: int = 0

    def begin(self) -> int:
        """An epoch transaction begins; returns what its programs use."""
        self.frozen = self.value
        self.pending = 0
        return self.frozen

    def see(self, server_id: int, epoch: int) -> bool:
        """A row of `ndb_apply_status` was written; True if it told of an own epoch."""
        if server_id != self.own_id and server_id not in self.ignored:
            return False
        self.pending = max(self.pending, epoch)
        return True

    def commit(self) -> None:
        """The epoch transaction has committed."""
        self.value = max(self.value, self.pending)
        self.pending = 0

    def roll_back(self) -> None:
        """It has not."""
        self.pending = 0

    def reset(self) -> None:
        """The channel begins: what it goes by is what the rows of `ndb_apply_status` say then."""
        self.value = self.frozen = self.pending = 0
