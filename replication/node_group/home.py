"""What the floor above gives a node: its store, opened as one of a group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from tidemark.engine.files.protocol import Files
    from tidemark.engine.store.group_apply import GroupApplier
    from tidemark.engine.store.store import Store
    from tidemark.recovery.node_restart.joiner import Link
    from tidemark.recovery.node_restart.messages import Welcome


class NodeStore(Protocol):
    """An open store that follows its primary, or leads."""

    store: Store
    files: Files
    identity: tuple[bytes, int]  # UUID and incarnation
    applier: GroupApplier

    def lead(self, epoch: int) -> None:
        """Take transactions from now on, in a GCI behind that of an epoch others have open. Durable on return: the
        incarnation their ids belong to. Raises: StoreFailed, StorageFull.
        """
        ...

    def close(self) -> None:
        """Close it; of one that has failed nothing more is written. Harmless twice."""
        ...


class Home(Protocol):
    """The directory of a node."""

    def open(self, can_create: bool) -> NodeStore:
        """The store as its own files have it, following. Raises: FileMissing if there is none and none may be made,
        and what opening a store raises.
        """
        ...

    def bring_back(self, welcome: Welcome, link: Link, epoch: int, sequence: int) -> NodeStore:
        """The store, brought to where the live node is (`recovery/node_restart`), following. epoch, sequence: as
        `Log.cut_behind` has them. Durable on return: a local checkpoint of that. Raises: what the link raises, and
        what ends a join.
        """
        ...
