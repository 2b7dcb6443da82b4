"""Which nodes a client asks: `Links` over links with given answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tidemark.engine.base.clock import ManualClock
from tidemark.engine.base.errors import NotPrimary, PeerError, PeerTimeout, PeerUnproved
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

    def __init__(self, timeout_ms: int | None = 1_000, **nodes: Callable[[Any], Any]) -> None:
        super().__init__([A, B], b"", None, ManualClock(), timeout_ms)
        self.nodes = nodes
        self.cause: Exception | None = None  # of the refusal of a dead node

    def take(self, address: Address) -> Any:
        """Return a link, unless the node is dead."""
        if address[0] not in self.nodes:
            raise PeerError("no link; connect again") from self.cause
        self._store = "the group's"
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


@pytest.mark.parametrize(
    ("timeout_ms", "cause", "seconds"),
    [(None, ConnectionRefusedError(), 1), (None, TimeoutError(), 10), (3_000, ConnectionRefusedError(), 3)],
)
def test_client_of_addresses_that_refuse_waits_a_second_unless_it_is_told_how_long(
    timeout_ms: int | None, cause: Exception, seconds: int
) -> None:
    """Story: `connect` to a port on which nothing listened took ten seconds."""
    links = SaidLinks(timeout_ms)
    links.cause, begun = cause, links.clock.monotonic()
    with pytest.raises(PeerTimeout, match=f"no node answered within {seconds} s.*no link"):
        links.until(links.learn)
    assert seconds <= links.clock.monotonic() - begun < seconds + 0.1


def test_client_waits_for_a_node_that_has_answered_before_as_for_one_that_is_silent() -> None:
    links = SaidLinks(None, a=lambda what: VIEW if what == ["where"] else "a")
    assert links.ask_primary(["call"]) == "a"
    links.nodes, links.cause = {}, ConnectionRefusedError()
    with pytest.raises(PeerTimeout, match="within 10 s: no link"):
        links.ask_primary(["call"])


def test_client_waits_on_if_one_address_refuses_and_another_is_silent() -> None:
    links = SaidLinks(None)
    refused = links.take

    def take(address: Address) -> Any:
        links.cause = ConnectionRefusedError() if address == A else TimeoutError()
        return refused(address)

    links.take = take  # type: ignore[method-assign]
    with pytest.raises(PeerTimeout, match="within 10 s"):
        links.until(links.learn)


def test_client_that_was_let_in_before_goes_on_if_a_node_claims_another_secret() -> None:
    """The claim is not proved: any host on the path can send it."""
    links = SaidLinks(a=lambda what: VIEW if what == ["where"] else "a")
    assert links.ask_primary(["call"]) == "a"

    def claims(_what: Any) -> Any:
        raise PeerUnproved("the secrets differ", claimed="PeerUnauthenticated")

    links.nodes = {"a": claims}
    with pytest.raises(PeerTimeout, match="the secrets differ"):
        links.ask_primary(["call"])
