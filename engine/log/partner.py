"""The commit partner: who gets the groups of a log beside the disk, and without whom none is acknowledged (N1).

A log has none unless a node group is led from here (docs/node-group.md, section 1).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from tidemark.engine.log.group import Group


class CommitPartner(Protocol):
    """Called by the thread that commits or leads the writing. An exception of `send`, `wait` or `share` ends the store:
    rows are changed already, and no caller may be told so; commits under way end in CommitOnFailedStore. One of `offer`
    reaches the caller, and nothing is queued. A KeyboardInterrupt is no failure: the call is made again, with the same
    sequence and the same words.
    """

    def offer(self, txid: int, names: tuple[str, ...]) -> None:
        """Files a transaction's group will name, sealed and synced: to be sent before that group. No latch is held, so
        commits of others go on; a transaction that is interrupted here is rolled back, and the files are swept.
        """
        ...

    def send(self, group: Group) -> None:
        """The next group, sealed and not written yet; `files` are the names it was offered with. Its words are to be
        copied: the header is sealed again when it is written. Sent again, of one sequence, it counts once.
        """
        ...

    def wait(self, sequence: int) -> None:
        """Return when every live member has the group. It is synced here, and published as durable behind this."""
        ...

    def share(self, sequence: int) -> None:
        """Return when every live member has the group in memory, applied; nobody need have synced it."""
        ...

    def epoch_closed(self, epoch: int, sequence: int) -> None:
        """`epoch` is open from the group of this sequence on, older ones are closed; groups before it may not be sent
        yet. The commit latch is held: to be noted, at once, and never raises. One that an interrupt keeps from being
        told is told by the header of the next group.
        """
        ...
