"""The log of a node as its machine asks it."""

from __future__ import annotations

from typing import Protocol

from tidemark.replication.node_group.messages import Group


class Log(Protocol):
    """REDO groups by sequence: 1, 2, 3 … without a gap. A write is begun by a call; an event tells its end."""

    @property
    def last(self) -> int:
        """Sequence of the last group, durable or not."""
        ...

    @property
    def applied(self) -> int:
        """Sequence up to which groups are applied, in memory."""
        ...

    @property
    def synced(self) -> int:
        """Sequence up to which groups are applied and durable."""
        ...

    @property
    def due(self) -> int:
        """Sequence up to which the disk was asked to keep groups: who has not synced them for long has a bad disk."""
        ...

    @property
    def epoch(self) -> int:
        """The epoch that is open here: a primary that was told of a later one leads behind that."""
        ...

    def groups(self, first: int, last: int) -> tuple[Group, ...]:
        """Groups from `first` on, as many as may be sent at once; none if the log begins behind it."""
        ...

    def take(self, first: int, groups: tuple[Group, ...]) -> None:
        """Append groups of the primary behind `last`, apply and sync them; `LogGrew` tells that it is done. Those that
        cannot be applied yet are left out: they come again.
        """
        ...

    def cut_behind(self, epoch: int, sequence: int) -> None:
        """Go back to the end of an epoch that the group has completed, and whose last group is given; `LogCut` tells
        that it is done.
        """
        ...
