"""The commit partner: it gets every group of a log, and a group counts as durable only after its confirmation (N1).

Only a node that leads a node group has a partner (docs/internals/node-group.md, *The commit partner*).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from tidemark.engine.log.group import Group


class CommitPartner(Protocol):
    """Called by the thread that commits or leads the writing.

    An exception in `send`, `wait` or `share` fails the store: the rows have changed already, so no error may claim a
    rollback, and commits under way end with CommitOnFailedStore. A KeyboardInterrupt does not fail the store: the call
    is repeated with the same sequence and words.
    """

    def send(self, group: Group) -> None:
        """Send the next group, which is sealed but not written yet; the `files` that it names are sealed and synced.
        Copy the words of the group: its header is sealed again when it is written. A group sent again with the same
        sequence counts once.
        """
        ...

    def wait(self, sequence: int) -> None:
        """Return when every live member has the group. The caller has synced it, and then publishes it as durable."""
        ...

    def share(self, sequence: int) -> None:
        """Return when every live member has applied the group in memory; no member need have synced it."""
        ...

    def epoch_closed(self, epoch: int, sequence: int) -> None:
        """Note that `epoch` is open from the group of this sequence on and older epochs are closed; earlier groups may
        not have been sent yet. The caller holds the commit latch: return at once and never raise. If an interrupt
        prevents the call, the header of the next group has the epoch.
        """
        ...
