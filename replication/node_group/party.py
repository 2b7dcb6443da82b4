"""The identity that a process of a node group shows in the handshake, and the peers it accepts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from tidemark.engine.base.errors import FrameRejected, PeerRefused, SchemaInvalid
from tidemark.replication.node_group.view import ARBITRATOR, NODE_NUMBER_MAX, NUMBER_MAX
from tidemark.replication.wire.handshake import is_store_id

NO_STORE = "0" * 32  # a directory that is still empty
PROCESS_BYTES = 8
NO_PROCESS = "0" * 2 * PROCESS_BYTES
INCARNATION_MAX = (1 << 63) - 1
# The purpose of a link, which the connecting side names.
LISTENS, MESSAGES, CONVERSATION = "", "messages", "conversation"
OPTIONS_MAX, OPTION_TEXT_MAX = 40, 60  # they leave most of a frame of the handshake free
OptionValue = str | int | bool
PURPOSES = (LISTENS, MESSAGES, CONVERSATION)


@dataclass(frozen=True)
class NodeParty:
    """One side of a link inside a site.

    store: its UUID in hex, zeros if it has none yet; the view machines check the store with each message. node: its
    number, 0 for the arbitrator. incarnation: of two processes with one number, the one with the higher incarnation
    counts. process: random digits that distinguish processes. options: those that must be equal at all nodes of a
    group, by name; empty for the arbitrator. others: the peers it accepts; not sent. view: number of the newest view
    that it knows, 0 if it knows of no group. founds: it is about to found one.
    """

    store: str
    node: int
    incarnation: int
    purpose: str = LISTENS
    process: str = NO_PROCESS
    options: Mapping[str, OptionValue] = field(default_factory=dict)
    others: frozenset[int] = frozenset()
    view: int = 0
    founds: bool = False

    fields: ClassVar[dict[str, type]] = {
        "store": str,
        "node": int,
        "incarnation": int,
        "purpose": str,
        "process": str,
        "options": dict,
        "view": int,
        "founds": bool,
    }
    caller: ClassVar[str] = "calling node"
    called: ClassVar[str] = "node called"

    def check(self) -> None:
        """Check the values. Raises: SchemaInvalid."""
        if not ARBITRATOR <= self.node <= NODE_NUMBER_MAX or not 0 <= self.incarnation <= INCARNATION_MAX:
            raise SchemaInvalid(f"the number of a node must be {ARBITRATOR} to {NODE_NUMBER_MAX}, got {self.node}")
        if not 0 <= self.view <= NUMBER_MAX:
            raise SchemaInvalid(f"the number of a view must be 0 to {NUMBER_MAX}, got {self.view}")
        if not is_store_id(self.store) or self.purpose not in PURPOSES or not _is_process(self.process):
            raise SchemaInvalid("a node is named by the 32 digits of its store's UUID and 16 of its process")
        if len(self.options) > OPTIONS_MAX or not all(map(_is_option, self.options.items())):
            raise SchemaInvalid("options of a node have short names and short values")

    def peer_from(self, content: dict[str, Any]) -> Self:
        """Return the other side, as its part of the handshake describes it. Raises: FrameRejected; PeerRefused for a
        node that this one does not accept.
        """
        peer = type(self)(**{name: content[name] for name in self.fields})
        try:
            peer.check()
        except SchemaInvalid as error:
            raise FrameRejected(f"the node in the handshake is invalid: {error.message}") from None
        if (peer.purpose == LISTENS) == (self.purpose == LISTENS):
            raise PeerRefused("a node that calls must call one that listens, and name its purpose")
        if peer.node not in self.others:
            raise PeerRefused(
                f"node {peer.node} is not one this node talks to; compare the groups that both sides were given"
            )
        if self.options and peer.options:
            self._compare(peer)
        return peer

    def _compare(self, peer: NodeParty) -> None:
        """Raises: PeerRefused, which names the first option that differs, with both values."""
        for name in sorted(self.options.keys() | peer.options.keys()):
            own, other = self.options.get(name), peer.options.get(name)
            if own != other:
                raise PeerRefused(
                    f"{name} is {other!r} at node {peer.node} and {own!r} at node {self.node}; open all nodes of a"
                    " group with the same",
                    option=name,
                )


def _is_option(option: tuple[str, object]) -> bool:
    name, value = option
    return (
        name.isidentifier() and max(len(name), len(repr(value))) <= OPTION_TEXT_MAX and type(value) in (str, int, bool)
    )


def _is_process(text: str) -> bool:
    return len(text) == 2 * PROCESS_BYTES and all(each in "0123456789abcdef" for each in text)
