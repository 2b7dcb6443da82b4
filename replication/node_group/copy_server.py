"""The primary's side of copying a node: one conversation, one `Source`, one thread (docs/internals/node-group.md)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidemark.engine.base.errors import Error, NotPrimary, PeerError, PeerRefused
from tidemark.engine.log.reader import described
from tidemark.recovery.node_restart.log_tail import is_full
from tidemark.recovery.node_restart.messages import End, Plan, Ready, Taken
from tidemark.recovery.node_restart.source import Source
from tidemark.replication.node_group.fetch import send_file
from tidemark.replication.node_group.messages import CopyWanted, FileWanted

if TYPE_CHECKING:
    from tidemark.recovery.node_restart.messages import FromLive, Progress
    from tidemark.replication.node_group.conversation import Conversation
    from tidemark.replication.node_group.store_thread import NodeStore
    from tidemark.replication.node_group.stream import Feed, GroupStream

_log = logging.getLogger("tidemark.node")

POLL_SECONDS = 0.02


class CopyServer:
    """Serves the conversations that other nodes begin with this one, each in a thread of its own."""

    def __init__(
        self, stream: GroupStream, leading: Callable[[], NodeStore | None], opened: Callable[[], NodeStore | None]
    ) -> None:
        """leading: returns the store while this node leads. opened: returns the store while it is open."""
        self._stream = stream
        self._leading = leading
        self._opened = opened
        # By copied node: the holder that keeps the log which the node lacks, and when the node was last heard.
        self._holders: dict[int, tuple[object, float]] = {}
        self.copies: dict[int, Progress] = {}  # by node, under way

    def serve(self, conversation: Conversation) -> None:
        """Answer until the other side ends the conversation, or its copy is complete."""
        try:
            while True:
                wanted = conversation.receive()
                # A new view opens after its members have caught up: they may need files before the primary leads.
                node = self._opened() if isinstance(wanted, FileWanted) else self._leading()
                if node is None:
                    raise NotPrimary("this node does not lead its group; ask the primary")
                if isinstance(wanted, FileWanted):
                    send_file(node.files, wanted.name, conversation)
                elif isinstance(wanted, CopyWanted):
                    self.copy(node, conversation)
                    return
                else:
                    raise PeerError(f"a conversation does not begin with {type(wanted).__name__}")
        except Error as error:
            _log.info("conversation with node %d: %s", conversation.peer.node, error.message)
            conversation.close(error if isinstance(error, PeerError) else PeerRefused(error.message))
        finally:
            conversation.close()

    def copy(self, node: NodeStore, conversation: Conversation) -> None:
        number = conversation.peer.node
        feed = self._stream.feed()  # before `Source` notes the group it starts at, so that no later group is missing
        source = Source(node.store, node.files, node.identity)
        self.copies[number] = source.progress
        try:
            conversation.send(source.welcome())
            ServedCopy(self, node, conversation, source, feed).run()
        finally:
            self._stream.drop(feed)
            source.close()
            self.copies.pop(number, None)

    # --- the log that a copied node still lacks -----------------------------------------------------
    def hold(self, node: NodeStore, number: int, sequence: int, now: float) -> None:
        """Keep the log after this group for a node that has everything up to it: it is in no view yet, so nothing else
        keeps the log for it.

        If transactions need the space, the log is cut anyway, and the node is copied again.
        """
        lsn = None if self._stream.sent is None else self._stream.sent.lsn_of(sequence + 1)
        log = node.store.log
        with node.store.latch:
            holder = self._holders.get(number, (object(), now))[0]
            needed = None if is_full(log) else log.head_lsn if lsn is None else lsn
            log.hold_tail(holder, f"node {number}, which was copied", needed)
            self._holders[number] = (holder, now)

    def release(self, node: NodeStore, members: frozenset[int], since: float) -> None:
        """Stop keeping the log for nodes that are members now, or were last heard before `since`."""
        gone = [number for number, (_, at) in list(self._holders.items()) if number in members or at < since]
        if not gone:
            return
        with node.store.latch:
            for number in gone:
                node.store.log.hold_tail(self._holders.pop(number)[0], f"node {number}", None)


@dataclass(frozen=True)
class ServedCopy:
    """One copy under way."""

    _server: CopyServer
    _node: NodeStore
    _conversation: Conversation
    _source: Source
    _feed: Feed

    def run(self) -> None:
        """Run until the end of the copy is sent. Raises: Error."""
        source, conversation = self._source, self._conversation
        while True:
            message = conversation.try_receive()
            while message is not None:
                if self._send(self._handle(message)):
                    return
                message = conversation.try_receive()
            if self._feed.is_over:
                raise PeerError("the stream has ended, or the node reads it too slowly; it may connect again")
            has_sent = False
            for words in self._feed.take():
                has_sent = True
                if self._send(source.group(described(words))):
                    return
            out = source.step()
            if self._send(out):
                return
            source.read()
            if source.awaited_sequence:
                self._node.store.log.make_durable(source.awaited_sequence)
            elif not out and not has_sent and not source.wants_read:
                conversation.wait(POLL_SECONDS)

    def _handle(self, message: object) -> list[FromLive]:
        source = self._source
        if isinstance(message, Ready):
            return source.begin(message)
        if isinstance(message, Plan):
            source.plan(message)
        elif isinstance(message, Taken):
            source.taken(message)
        else:
            raise PeerError(f"a node that is being copied sent {type(message).__name__}, which it must not")
        return []

    def _send(self, messages: list[FromLive]) -> bool:
        """Send messages; return whether the end was among them. The log is held for the node before the end is sent."""
        for each in messages:
            if isinstance(each, End):
                clock = self._node.store.clock
                self._server.hold(self._node, self._conversation.peer.node, each.sequence, clock.monotonic())
            self._conversation.send(each)
            if isinstance(each, End):
                return True
        return False
