"""Carries the messages of a node group between processes: links to all other nodes, reconnected without limit.

Messages of the view machines pass through a bounded queue and a thread for each node, and no sender waits. Each message
arrives once or not at all, messages of one kind in their order. A node restart has links of its own, on which a sender
waits for the receiver (`conversation.py`). Rules: docs/internals/node-group.md, *Messages between nodes*.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from tidemark.engine.base.clock import Clock
from tidemark.engine.base.errors import LimitExceeded, PeerError, PeerRefused
from tidemark.replication.node_group.codec import GROUP_MESSAGES, MESSAGE_BYTES_MAX, decode, encode
from tidemark.replication.node_group.conversation import Conversation
from tidemark.replication.node_group.messages import Groups
from tidemark.replication.node_group.outbox import GROUPS, SMALL, SMALL_BYTES_MAX
from tidemark.replication.node_group.party import CONVERSATION, LISTENS, MESSAGES, PROCESS_BYTES, NodeParty
from tidemark.replication.node_group.peer import IN, Claim, Sender
from tidemark.replication.node_group.view import ARBITRATOR
from tidemark.replication.wire.frame_layout import FRAME_ERROR, FRAME_NODE_MESSAGE, FRAME_NODE_PIECE
from tidemark.replication.wire.handshake import error_payload
from tidemark.replication.wire.pieces import Pieces
from tidemark.replication.wire.server import Server
from tidemark.replication.wire.wire import (
    OpenLink,
    TlsContext,
    Wake,
    call,
    check_secret_at,
    send_last_frame,
    wait_readable,
)

_log = logging.getLogger("tidemark.node")

Address = tuple[str, int]
CONNECT_SECONDS = 4.0
_LANES = {Groups: GROUPS}


@dataclass(frozen=True)
class Secrets:
    """The credentials of links inside a site: the shared secret, and TLS for both directions or for neither."""

    secret: bytes = field(repr=False)
    server_tls: TlsContext | None = None
    client_tls: TlsContext | None = None


class Carrier:
    """The links of one node."""

    def __init__(
        self,
        own: NodeParty,
        listen: Address,
        peers: Mapping[int, Address],
        secrets: Secrets,
        clock: Clock,
        received: Callable[[int, bytes, Any], None],
        gone: Callable[[int], None],
        serve: Callable[[Conversation], None],
    ) -> None:
        """Listen. No node is connected and no message is delivered before `start`; until then `peers` may change.

        own: store, number and incarnation of this node. peers: addresses of the nodes; its own number is skipped.

        received: called with node, UUID of its store (zeros if it has none) and message, by one thread at a time for
        each node. gone: called when a link has broken and the node's host refuses a new one. Both must not block,
        because further messages of that node wait for them. serve: called with a conversation that another node has
        begun, in a thread of its own; the conversation is closed afterwards, and a PeerError that `serve` raises is
        sent to the other side.

        Raises: PeerError if the address is taken, SchemaInvalid.
        """
        for address in peers.values():
            check_secret_at(address, secrets.secret, secrets.client_tls)
        own = replace(own, purpose=LISTENS, process=clock.random_bytes(PROCESS_BYTES).hex())
        own.check()
        self._own = own
        self._peers = peers
        self._secrets = secrets
        self._clock = clock
        self._received = received
        self._gone = gone
        self._serve = serve
        self._mutex = threading.Lock()
        self._claims: dict[int, Claim] = {}
        self.senders: dict[int, Sender] = {}
        self._conversations: set[Conversation] = set()
        self._is_closed = False
        self._server = Server(listen, own, secrets.secret, secrets.server_tls, clock, self._serve_link)
        self.address = self._server.address

    def start(self) -> None:
        """Connect to all other nodes, and receive their messages."""
        others = [node for node in self._peers if node != self._own.node]
        self._server.own = self._own = replace(self._own, others=frozenset(others))
        for node in others:
            self._claims[node] = Claim(node, self._clock)
            self.senders[node] = Sender(
                node, self._claims[node], self._clock, partial(self._call, purpose=MESSAGES), self._gone
            )
        self._server.start()
        for sender in self.senders.values():
            sender.start()

    def close(self) -> None:
        """End all links and conversations, and wait for running callbacks. Queued small messages are sent first; a node
        that receives nothing delays this by at most half a second. A second call does nothing.
        """
        with self._mutex:
            if self._is_closed:
                return
            self._is_closed = True
        for sender in self.senders.values():
            sender.stop()
        with self._mutex:
            conversations = list(self._conversations)
        for conversation in conversations:
            conversation.close()
        for sender in self.senders.values():
            sender.join()
        self._server.close()

    # --- out --------------------------------------------------------------------------------------
    def send(self, node: int, message: Any) -> bool:
        """Queue a message; never block. The words of the message must not change any more.

        Returns False if it was dropped: there is no link, no room, or no such node. A queued message may be lost, too.
        Raises: LimitExceeded for a message longer than any node accepts.
        """
        sender = self.senders.get(node)
        if sender is None:
            return False
        lane = _LANES.get(type(message), SMALL)
        parts = encode(message)
        most = SMALL_BYTES_MAX if lane == SMALL else MESSAGE_BYTES_MAX
        if sum(map(len, parts)) > most:
            raise LimitExceeded(f"a {type(message).__name__} message has more than {most} bytes; split it")
        return sender.send(lane, parts)

    def status(self) -> dict[int, dict[str, Any]]:
        """Return for each other node: whether it is connected, why one side refuses the other, bytes that wait,
        messages dropped since the start.
        """
        return {
            node: {
                "connected": sender.is_connected,
                "refused": None if sender.refused is None else sender.refused.message,
                "waiting_bytes": sender.outbox.waiting_bytes,
                "dropped": sender.outbox.dropped,
            }
            for node, sender in sorted(self.senders.items())
        }

    def refusal(self) -> PeerRefused | None:
        """Return why no other node is connected, if a node refuses this one or is refused; otherwise None."""
        senders = [sender for node, sender in self.senders.items() if node != ARBITRATOR]
        if any(each.is_connected for each in senders):
            return None
        return next((each.refused for each in senders if each.refused is not None), None)

    def become(self, store: str, incarnation: int) -> None:
        """Announce the store that this node has now, or its new incarnation: every link connects again."""
        self._server.own = self._own = replace(self._own, store=store, incarnation=incarnation)
        for sender in self.senders.values():
            sender.renew()

    def announce(self, **changes: Any) -> None:
        """Report to later callers other fields of this node's identity; links that are up stay."""
        self._server.own = self._own = replace(self._own, **changes)

    def converse(self, node: int) -> Conversation:
        """Begin a conversation with a node; the caller closes it. Raises: PeerError."""
        if node not in self.senders:
            raise PeerError(f"node {node} is not configured; compare the group option of all nodes")
        if self._is_closed:
            raise PeerError("this node is closing")
        opened = self._call(node, CONVERSATION)
        wake = Wake()
        try:
            conversation = Conversation(opened, wake, self._clock, partial(self._unregister, wake=wake))
        except PeerError:  # it ended at once
            opened.wire.close()
            wake.close()
            raise
        return self._register(conversation)

    def _call(self, node: int, purpose: str) -> OpenLink:
        own = replace(self._own, purpose=purpose, others=frozenset({node}))
        secrets = self._secrets
        return call(self._peers[node], own, secrets.secret, secrets.client_tls, self._clock, CONNECT_SECONDS)

    # --- in ---------------------------------------------------------------------------------------
    def _serve_link(self, opened: OpenLink, wake: Wake) -> None:
        party: NodeParty = opened.peer
        claim = self._claims[party.node]
        try:
            if party.purpose == CONVERSATION:
                claim.check(party)
                self._converse(opened, wake)
            else:
                self._listen(party, claim, opened, wake)
        except PeerError as error:
            send_last_frame(opened.wire, opened.wire.writer.frame(FRAME_ERROR, error_payload(error)))
            raise

    def _converse(self, opened: OpenLink, wake: Wake) -> None:
        with self._register(Conversation(opened, wake, self._clock, self._unregister)) as conversation:
            try:
                self._serve(conversation)
            except PeerError as error:
                conversation.close(error)
                raise

    def _listen(self, party: NodeParty, claim: Claim, opened: OpenLink, wake: Wake) -> None:
        """Receive the messages of a node until it ends, or until another link replaces this one."""
        wire, store = opened.wire, bytes.fromhex(party.store)
        claim.take(party, IN, wire)
        try:
            self.senders[party.node].hurry()
            wire.wait_long()
            with claim.delivering:
                pass  # waits until the message of the replaced link is handled
            pieces = Pieces(FRAME_NODE_PIECE, MESSAGE_BYTES_MAX)
            frames = iter(opened.early)
            while not self._is_closed:
                for frame in frames:
                    data = frame.payload if frame.kind == FRAME_NODE_MESSAGE else pieces.take(frame)
                    if data is not None:
                        self._deliver(party.node, store, claim, wire, data)
                if wait_readable(wire, wake):
                    frames = wire.reader.feed(wire.receive())
                    claim.heard()
        finally:
            claim.leave(IN, wire)

    def _deliver(self, node: int, store: bytes, claim: Claim, wire: Any, data: bytes | bytearray) -> None:
        message = decode(data, GROUP_MESSAGES)
        with claim.delivering:
            if not claim.is_current(IN, wire):
                raise PeerError("another link has replaced this one")
            self._received(node, store, message)

    # --- conversations ----------------------------------------------------------------------------
    def _register(self, conversation: Conversation) -> Conversation:
        with self._mutex:
            self._conversations.add(conversation)
            is_late = self._is_closed
        if is_late:
            conversation.close()
            raise PeerError("this node is closing")
        return conversation

    def _unregister(self, conversation: Conversation, wake: Wake | None = None) -> None:
        with self._mutex:
            self._conversations.discard(conversation)
        if wake is not None:
            wake.close()
