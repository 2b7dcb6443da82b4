"""Which nodes a client asks: `Links` over links with given answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tidemark.engine.base.clock import ManualClock
from tidemark.engine.base.errors import NotPrimary, PeerError, PeerTimeout
from tidemark.remote.links import Address, Links

A, B = ("a", 1), ("b", 2)
VIEW = {"view": 1, "primary": A, "members": [A, B]}


class SaidLink:
    """A link to one node."""

    is_broken = False

    def __init__(self, answer: Callable[[Any], Any]) -> None:
        self._answer = answer

    def ask(self, what: Any, silent_s: float | None = None) -> Any:
        """Return what the node answers. Raises: what it raises."""
        return self._answer(what)

    def close(self) -> None:
        """Do nothing."""


class SaidLinks(Links):
    """Nodes by address; an address without node is dead."""

    def __init__(self, **nodes: Callable[[Any], Any]) -> None:
        super().__init__([A], b"", None, ManualClock(), 1_000)
        self.nodes = nodes

    def take(self, address: Address) -> Any:
        """Return a link, unless the node is dead."""
        if address[0] not in self.nodes:
            raise PeerError("no link; connect again")
        return SaidLink(self.nodes[address[0]])


def test_node_that_does_not_lead_yet_is_asked_again_when_the_others_are_dead() -> None:
    """Story: the node was forgotten when it answered so, and the client then asked only the dead one, its first
    address.
    """
    links = SaidLinks(a=lambda what: VIEW if what == ["where"] else "a")
    assert links.ask_primary(["call"]) == "a"
    said: list[Any] = []

    def second(what: Any) -> Any:
        said.append(what)
        if what == ["where"]:
            return {**VIEW, "view": 2, "primary": B, "members": [B]} if len(said) > 1 else VIEW
        if said.count(what) == 1:
            raise NotPrimary("this node does not lead yet")
        return "b"

    links.nodes = {"b": second}
    assert links.ask_primary(["call"]) == "b"
    assert said.count(["call"]) == 2


def test_client_of_dead_nodes_times_out() -> None:
    links = SaidLinks()
    with pytest.raises(PeerTimeout, match="no node answered within 1 s: no link"):
        links.ask_primary(["call"])
    assert links.clock.monotonic() >= 1.0
