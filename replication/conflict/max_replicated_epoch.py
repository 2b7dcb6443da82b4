"""The max replicated epoch (MRE): the highest own epoch known to be applied at the peer.

An epoch transaction uses the value from its beginning; only its commit raises the value. The value falls if the rows of
`ndb_apply_status` are gone when a channel starts: it is then unknown what the peer has applied.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass


def starting_epoch(rows: Iterable[tuple[int, int]], own_id: int, ignored: Collection[int] = ()) -> int:
    """Return the MRE at the start of an applier, from the rows (server id, epoch) of `ndb_apply_status`: the highest
    epoch of the own id and of `ignored` ids, those of other servers of the same cluster; 0 without such rows.
    """
    return max((epoch for server_id, epoch in rows if server_id == own_id or server_id in ignored), default=0)


def source_epoch(rows: Iterable[tuple[int, int]], source_id: int) -> int:
    """Return the epoch last applied from a source; 0 for none."""
    return max((epoch for server_id, epoch in rows if server_id == source_id), default=0)


@dataclass
class MaxReplicatedEpoch:
    """The state of one site: the status variable shows `value`, an epoch transaction compares with `frozen`."""

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
        """Note that a row of `ndb_apply_status` was written; return whether its epoch is one of this site."""
        if server_id != self.own_id and server_id not in self.ignored:
            return False
        self.pending = max(self.pending, epoch)
        return True

    def commit(self) -> None:
        """Note that the epoch transaction has committed."""
        self.value = max(self.value, self.pending)
        self.pending = 0

    def roll_back(self) -> None:
        """Note that the epoch transaction was rolled back."""
        self.pending = 0

    def reset(self) -> None:
        """Reset at the start of a channel, which then takes the value from the rows of `ndb_apply_status`."""
        self.value = self.frozen = self.pending = 0
