"""A node in a process of its own that prints the messages it receives; arguments `number` and `1=port,2=port`."""

from __future__ import annotations

import sys
import threading
from typing import Any

from tests.node_group.carriers import CLOCK, HOST, SECRET, STORE
from tidemark.replication.node_group.carrier import Carrier, Secrets
from tidemark.replication.node_group.conversation import Conversation
from tidemark.replication.node_group.messages import Groups
from tidemark.replication.node_group.party import NodeParty


def say(node: int, store: bytes, message: Any) -> None:
    """Print a message on a line."""
    shown = f"Groups from {message.first}" if isinstance(message, Groups) else message
    sys.stdout.write(f"{node} {shown}\n")
    sys.stdout.flush()


def pause(conversation: Conversation) -> None:
    """Serve a conversation without a message, for ever."""
    threading.Event().wait()


if __name__ == "__main__":
    number = int(sys.argv[1])
    peers = {int(each.split("=")[0]): (HOST, int(each.split("=")[1])) for each in sys.argv[2].split(",")}
    carrier = Carrier(
        NodeParty(STORE, number, 1), peers[number], peers, Secrets(SECRET), CLOCK, say, lambda node: None, pause
    )
    carrier.start()
    threading.Event().wait()
