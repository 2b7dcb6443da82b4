"""The interface through which the public floor provides the store of a node, opened as a member of a group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from tidemark.engine.files.protocol import Files
    from tidemark.engine.store.group_apply import GroupApplier
    from tidemark.engine.store.store import Store
    from tidemark.recovery.node_restart.joiner import Link
    from tidemark.recovery.node_restart.messages import Welcome


class NodeStore(Protocol):
    """An open store that follows its primary, or is the primary's."""

    store: Store
    files: Files
    identity: tuple[bytes, int]  # UUID and incarnation
    applier: GroupApplier

    def lead(self, epoch: int) -> None:
        """Take transactions from now on, in a GCI after that of `epoch`, which other nodes have open. Durable on
        return: the incarnation that their ids contain. Raises: StoreFailed, StorageFull.
        """
        ...

    def close(self) -> None:
        """Close the store; one that has failed writes nothing more. A second call does nothing."""
        ...


class Home(Protocol):
    """The directory of a node."""

    def open(self, can_create: bool) -> NodeStore:
        """Open the store from its own files, as a follower. Raises: FileMissing if there is no store and none may be
        created; the errors of opening a store.
        """
        ...

    def bring_back(self, welcome: Welcome, link: Link, epoch: int, sequence: int) -> NodeStore:
        """Bring the store up to the live node (`recovery/node_restart`), as a follower. epoch, sequence: see
        `Log.cut_behind`. Durable on return: a local checkpoint of that state. Raises: the errors of the link
        and of the join.
        """
        ...
