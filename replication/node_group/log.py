"""The log of a node, as its machine sees it."""

from __future__ import annotations

from typing import Protocol

from tidemark.replication.node_group.messages import Group


class Log(Protocol):
    """REDO groups by sequence: 1, 2, 3 … without a gap. Calls only begin a change; an event reports its end."""

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
        """The sequence up to which the disk was asked to sync groups. If they stay unsynced for long, the disk is
        bad.
        """
        ...

    @property
    def epoch(self) -> int:
        """The epoch that is open here. A new primary leads in an epoch after the newest that is open at any member."""
        ...

    def groups(self, first: int, last: int) -> tuple[Group, ...]:
        """Return groups from `first` on, as many as may be sent at once; none if the log begins after `first`."""
        ...

    def take(self, first: int, groups: tuple[Group, ...]) -> None:
        """Append, apply and sync groups of the primary, from `last` + 1 on; `LogGrew` reports progress. Groups that
        cannot be applied yet are left out; the primary sends them again.
        """
        ...

    def cut_behind(self, epoch: int, sequence: int) -> None:
        """Go back to the end of an epoch that was completed by the node group, and whose last REDO group is `sequence`;
        `LogCut` reports the end.
        """
        ...
