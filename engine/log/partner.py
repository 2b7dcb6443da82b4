"""The commit partner, which gets every group of a log besides the disk and must confirm it before it counts (N1).

A log has none unless this node leads a node group (docs/internals/node-group.md, *The commit partner*).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from tidemark.engine.log.group import Group


class CommitPartner(Protocol):
    """Called by the thread that commits or leads the writing. An exception in `send`, `wait` or `share` ends the store:
    the rows have changed already, and no error may claim a rollback; commits under way end with CommitOnFailedStore. An
    exception in `offer` reaches the caller, and nothing is queued. A KeyboardInterrupt is no failure: the call is
    repeated with the same sequence and the same words.
    """

    def offer(self, txid: int, names: tuple[str, ...]) -> None:
        """Send the files that a transaction's group will name, sealed and synced, before that group. The caller holds
        no latch, so other commits continue. A transaction that is interrupted here is rolled back, and its files are
        swept.
        """
        ...

    def send(self, group: Group) -> None:
        """Send the next group, sealed and not written yet; its `files` are the names passed to `offer`. Copy its words:
        the header is sealed again when the group is written. A group sent twice with one sequence counts once.
        """
        ...

    def wait(self, sequence: int) -> None:
        """Return when every live member has the group. It is synced here, and published as durable after this call."""
        ...

    def share(self, sequence: int) -> None:
        """Return when every live member has the group in memory, applied; no member need have synced it."""
        ...

    def epoch_closed(self, epoch: int, sequence: int) -> None:
        """Note that `epoch` is open from the group of this sequence on and older epochs are closed; earlier groups may
        not have been sent yet. The caller holds the commit latch: return at once and never raise. If an interrupt
        prevents the call, the header of the next group has the epoch.
        """
        ...
