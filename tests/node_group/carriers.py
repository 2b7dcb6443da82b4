"""Carriers of one site in a test, and the messages they received."""

from __future__ import annotations

import threading
from typing import Any

from tests.ports import free_port
from tests.waiting import wait_until
from tidemark.engine.base.clock import SystemClock
from tidemark.replication.node_group.carrier import Address, Carrier, Secrets
from tidemark.replication.node_group.conversation import Conversation
from tidemark.replication.node_group.party import NodeParty

SECRET = b"a secret of all nodes"
STORE = "ab" * 16
HOST = "127.0.0.1"
CLOCK = SystemClock()


def free_address() -> Address:
    """Return an address at which nothing listens."""
    return HOST, free_port()


class Site:
    """The addresses of all nodes, and the settings that their carriers share."""

    def __init__(self, numbers: tuple[int, ...] = (1, 2), secrets: Secrets | None = None) -> None:
        self.peers = {number: free_address() for number in numbers}
        self.secrets = secrets or Secrets(SECRET)
        self._ends: list[End] = []

    def end(self, number: int, incarnation: int = 1, **changes: Any) -> End:
        """Start a process of a node and return its end."""
        made = End(self, number, incarnation, **changes)
        self._ends.append(made)
        return made

    def close(self) -> None:
        """Close all carriers."""
        for each in self._ends:
            each.carrier.close()


class End:
    """A carrier, and the messages it received."""

    def __init__(
        self,
        site: Site,
        number: int,
        incarnation: int = 1,
        store: str = STORE,
        secrets: Secrets | None = None,
        listen: Address | None = None,
        peers: dict[int, Address] | None = None,
    ) -> None:
        self.came: list[tuple[int, bytes, Any]] = []
        self.gone: list[int] = []
        self.served: list[Conversation] = []
        self.is_serving = threading.Event()
        self.may_end = threading.Event()
        self.is_taking = False
        self.may_take = threading.Event()
        self.may_take.set()
        own = NodeParty(store, number, incarnation)
        address = listen or site.peers[number]
        self.carrier = Carrier(
            own,
            address,
            site.peers if peers is None else peers,
            secrets or site.secrets,
            CLOCK,
            self._received,
            self.gone.append,
            self._serve,
        )
        self.carrier.start()

    def _received(self, node: int, store: bytes, message: Any) -> None:
        self.is_taking = True
        self.may_take.wait()
        self.came.append((node, store, message))

    def _serve(self, conversation: Conversation) -> None:
        self.served.append(conversation)
        self.is_serving.set()
        self.serve(conversation)

    def serve(self, conversation: Conversation) -> None:
        """Serve a conversation: stay in it until the test lets it end."""
        self.may_end.wait()

    def messages(self, kind: type | None = None) -> list[Any]:
        """Return the messages received so far, of one kind if given."""
        return [each for _, _, each in list(self.came) if kind is None or isinstance(each, kind)]

    def is_connected(self, node: int) -> bool:
        """Whether there is a link that carries messages to this node."""
        sender = self.carrier.senders.get(node)
        return sender is not None and sender.is_connected

    def wait_for(self, *nodes: int) -> None:
        """Wait until there are links to these nodes."""
        wait_until(lambda: all(self.is_connected(node) for node in nodes))
