"""How a node without a group looks for one: it asks the other nodes, and the arbitrator, over the handshake of a link.

A node that is to found a group does so only if no other process knows of one. So a node that has lost its directory and
is started by the command of its first start joins the group that the others have. Rules:
docs/internals/node-group.md, *Founding a group*.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING

from tidemark.engine.base.errors import PeerError, PeerRefused, StoreClosed
from tidemark.replication.node_group.configuration import shown
from tidemark.replication.node_group.view import ARBITRATOR, is_second, second_group
from tidemark.replication.wire.wire import is_connection_refused

if TYPE_CHECKING:
    from tidemark.engine.base.clock import Clock
    from tidemark.replication.node_group.carrier import Address, Carrier
    from tidemark.replication.node_group.conversation import Peer

_log = logging.getLogger("tidemark.node")

PAUSE_SECONDS = 0.2
RIVAL_SECONDS = 5.0  # a node that was about to found is waited for, even while it does not listen
NO_STORE = bytes(16)


class Search:
    """The questions of one node to all others; it owns the carrier until `close`."""

    def __init__(self, carrier: Carrier, number: int, peers: Mapping[int, Address], store: bytes, clock: Clock) -> None:
        """carrier: listens, and is not started yet. peers: addresses of nodes and arbitrator by number. store: the UUID
        in this node's record, zeros if it has none.
        """
        self._carrier = carrier
        self._number = number
        self._peers = {node: address for node, address in peers.items() if node != number}
        self._store = store
        self._clock = clock
        self._rivals: dict[int, float] = {}  # nodes about to found a group, and when each was last heard
        self._founds = False
        self._said = ""
        self.refusal: PeerRefused | None = None  # why this node is in no group; shown by `status`
        carrier.start()

    def close(self) -> None:
        """End the carrier. A second call does nothing."""
        self._carrier.close()

    # --- for a node without a record -------------------------------------------------------------------
    def group_store(self, stop: threading.Event) -> bytes:
        """Ask until a node has a store; return its UUID. Raises: StoreClosed if this node is stopped."""
        while not stop.is_set():
            known, silent = self._ask_all(False)
            stores = [peer for peer in known.values() if any(peer.store)]
            if stores:
                return max(stores, key=lambda peer: peer.view).store
            refusals = [error for error in silent.values() if isinstance(error, PeerRefused)]
            self.refusal = refusals[0] if refusals else None
            stop.wait(PAUSE_SECONDS)
        raise StoreClosed("the node was stopped before it had reached its group")

    # --- for a node that is to found a group -----------------------------------------------------------
    def store_unless_founding(self, is_alone: bool, stop: threading.Event) -> bytes | None:
        """Ask until it is certain whether another process knows a group. Return the UUID of its store, or None if this
        node must found one. is_alone: an operator vouches for the processes that do not answer.

        Of two nodes that are about to found, the one with the lower number does. Each reports so to callers before it
        asks itself, so at least one hears of the other.

        Raises: PeerRefused if this node's directory belongs to another store than the group; StoreClosed if this node
        is stopped.
        """
        while not stop.is_set():
            has_said = self._founds  # before this round of questions began
            known, silent = self._ask_all(True)
            group = max(
                (peer for peer in known.values() if _knows_group(peer)), key=lambda peer: peer.view, default=None
            )
            if group is not None and group.store not in (self._store, NO_STORE) and any(self._store):
                raise PeerRefused(
                    f"node {group.node} has a group, and the directory of this node was made for another one; give this"
                    " node an empty directory, which joins"
                )
            if group is not None:
                _log.warning(
                    "no group is founded: %s knows one, in view %d; this node joins it", _name(group.node), group.view
                )
                return group.store
            is_led = self._note_rivals(known)
            waits = {} if is_alone else {node: e for node, e in silent.items() if not is_connection_refused(e)}
            if has_said and not self._rivals and not waits:
                return None
            self._say(founds=not is_led)
            self._explain(waits)
            if has_said or is_led or waits:
                stop.wait(PAUSE_SECONDS)
        raise StoreClosed("the node was stopped before it had founded its group")

    def founded(self, store: bytes, incarnation: int) -> None:
        """Report to callers the store of the group that this node founds."""
        self._carrier.become(store.hex(), incarnation)

    def check_lone(self) -> None:
        """Check, for a node that founded a group and is still alone in it, that no other process that answers knows
        another group. Raises: PeerRefused.
        """
        known, _ = self._ask_all(True)
        for peer in known.values():
            if any(peer.store) and peer.store != self._store and is_second(self._number, peer.node, peer.view):
                raise PeerRefused(second_group(peer.node, peer.view))

    # --- questions -------------------------------------------------------------------------------------
    def _ask_all(self, with_arbitrator: bool) -> tuple[dict[int, Peer], dict[int, PeerError]]:
        """Ask each process once; return what those that answer say of themselves, and why the others do not answer."""
        known: dict[int, Peer] = {}
        silent: dict[int, PeerError] = {}
        for node in sorted(self._peers):
            if node == ARBITRATOR and not with_arbitrator:
                continue
            try:
                conversation = self._carrier.converse(node)
            except PeerError as error:
                silent[node] = error
                _log.debug("%s: %s", _name(node), error.message)
                continue
            conversation.close()
            known[node] = conversation.peer
        return known, silent

    def _note_rivals(self, known: Mapping[int, Peer]) -> bool:
        """Note which other nodes are about to found a group; return whether one of them has a lower number."""
        now = self._clock.monotonic()
        self._rivals = {
            node: at for node, at in self._rivals.items() if node not in known and now - at < RIVAL_SECONDS
        } | {node: now for node, peer in known.items() if peer.founds}
        return any(node < self._number for node in self._rivals)

    def _say(self, founds: bool) -> None:
        if founds != self._founds:
            self._founds = founds
            self._carrier.announce(founds=founds)

    def _explain(self, waits: Mapping[int, PeerError]) -> None:
        """Say, once for each reason, why no group is founded yet."""
        self.refusal = None
        if not waits:
            return
        node, error = next(iter(waits.items()))
        address, (why, _, _) = shown(self._peers[node]), error.message.partition(";")
        self.refusal = PeerRefused(
            f"no group is founded: {_name(node)} at {address} does not answer ({why}), and it may run with a"
            " group; start it or make it reachable; if this is the first start of the group, found it"
            " alone (--found-alone)"
        )
        if self.refusal.message != self._said:
            self._said = self.refusal.message
            _log.warning("%s", self.refusal.message)


def _knows_group(peer: Peer) -> bool:
    """Whether a process knows that a group exists. An arbitrator with a record has voted for the first view of one, of
    which it may not have heard.
    """
    return peer.view > 0 or (peer.node == ARBITRATOR and any(peer.store))


def _name(node: int) -> str:
    return "the arbitrator" if node == ARBITRATOR else f"node {node}"
