"""The log of a node, as its machine sees it."""

from __future__ import annotations

from typing import Protocol

from tidemark.replication.node_group.messages import Group


class Log(Protocol):
    """REDO groups by sequence: 1, 2, 3 … without a gap. A call begins a write; an event reports its end."""

    @property
    def last(self) -> int:
        """The sequence of the last group, durable or not."""
        ...

    @property
    def applied(self) -> int:
        """The sequence up to which groups are applied, in memory."""
        ...

    @property
    def synced(self) -> int:
        """The sequence up to which groups are applied and durable."""
        ...

    @property
    def due(self) -> int:
        """The sequence up to which the disk was asked to sync groups. If these stay unsynced for long, the disk is
        bad.
        """
        ...

    @property
    def epoch(self) -> int:
        """The epoch that is open here. A primary that learns of a later one leads in an epoch after that."""
        ...

    def groups(self, first: int, last: int) -> tuple[Group, ...]:
        """Return groups from `first` on, as many as may be sent at once; none if the log begins after it."""
        ...

    def take(self, first: int, groups: tuple[Group, ...]) -> None:
        """Append groups of the primary after `last`, apply and sync them; `LogGrew` reports the end. Groups that cannot
        be applied yet are left out; the primary sends them again.
        """
        ...

    def cut_behind(self, epoch: int, sequence: int) -> None:
        """Go back to the end of an epoch that the group has completed, and whose last group is given; `LogCut` reports
        the end.
        """
        ...
