"""The configuration of a node group: all nodes that may be members, with their addresses; the same at every node."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tidemark.engine.base.errors import SchemaInvalid
from tidemark.replication.node_group.view import (
    ARBITRATOR,
    MEMBERS_MAX,
    Member,
    Times,
    View,
    check_address,
    check_member,
    first_view,
)
from tidemark.replication.wire.wire import parse_address

Address = tuple[str, int]
ARBITRATOR_NAME = "arbitrator"
ONLY_GROUP = 1  # the number of the node group
FORM = f"1=HOST:PORT,2=HOST:PORT,{ARBITRATOR_NAME}=HOST:PORT"


def shown(address: Address) -> str:
    """Return an address in the form that views hold."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@dataclass(frozen=True)
class Placement:
    """Which node group holds a fragment: node groups by number, each with its nodes, all of which hold the same rows
    (D9). So far there is one, which holds everything. Code that needs the place of a fragment asks here, so that a
    second group changes only the code that creates the map.

    Fragments of a table are assigned to the groups in turn, and each table starts one group after the table before it.
    So the fragments of one table are spread evenly, and so are tables with one fragment each. Added fragments move no
    others.
    """

    groups: Mapping[int, frozenset[int]]

    def group_of(self, table_id: int, fragment: int) -> int:
        """Return the number of the node group that holds a fragment."""
        numbers = sorted(self.groups)
        return numbers[(table_id + fragment) % len(numbers)]

    def to_dict(self, fragments: Iterable[tuple[int, int]]) -> dict[int, dict[str, object]]:
        """Return the nodes of each group, and how many of these fragments (table, number) it holds, for `status()`."""
        held = [self.group_of(*each) for each in fragments]
        return {
            number: {"nodes": sorted(nodes), "fragments": held.count(number)}
            for number, nodes in sorted(self.groups.items())
        }


@dataclass(frozen=True)
class GroupConfiguration:
    """Nodes by their number, and the arbitrator, which has number 0 and no rows; None if there is none.

    Raises: SchemaInvalid for values that no view can hold.
    """

    members: dict[int, Address]
    arbitrator: Address | None = None
    times: Times = field(default_factory=Times)

    def __post_init__(self) -> None:
        if not 0 < len(self.members) <= MEMBERS_MAX:
            raise SchemaInvalid(f"a node group has 1 to {MEMBERS_MAX} nodes, got {len(self.members)}: {FORM}")
        for number in self.members:
            check_member(self.member(number))
        places = list(self.peers.values())
        for place in places:
            check_address(shown(place))
            if not place[1]:
                raise SchemaInvalid(f"a node needs a port, got {shown(place)}")
            if places.count(place) > 1:
                raise SchemaInvalid(f"two members of the group have the address {shown(place)}; give each its own")

    @classmethod
    def parse(cls, text: str, times: Times | None = None) -> GroupConfiguration:
        """Parse "1=host:port,2=host:port,arbitrator=host:port"; the arbitrator is optional. Raises: SchemaInvalid."""
        members: dict[int, Address] = {}
        arbitrator = None
        for each in text.split(","):
            name, equals, place = (part.strip() for part in each.partition("="))
            if not equals:
                raise SchemaInvalid(f"a group must be given as {FORM}, got {each.strip()!r}")
            address = parse_address(place)
            if name == ARBITRATOR_NAME and arbitrator is None:
                arbitrator = address
            elif name.isascii() and name.isdigit() and len(name) < 4 and int(name) not in members:
                members[int(name)] = address
            else:
                raise SchemaInvalid(f"{name[:40]!r} is not a number of a node, or appears twice; give {FORM}")
        return cls(members, arbitrator, times or Times())

    @property
    def peers(self) -> dict[int, Address]:
        """Addresses by number, including that of the arbitrator."""
        return self.members if self.arbitrator is None else {ARBITRATOR: self.arbitrator, **self.members}

    @property
    def placement(self) -> Placement:
        """Which nodes hold which fragments: there is one node group, of all nodes."""
        return Placement({ONLY_GROUP: frozenset(self.members)})

    def address_of(self, number: int) -> Address:
        """Return the address of a node or of the arbitrator. Raises: SchemaInvalid if there is none."""
        if number not in self.peers:
            what = f"node {number}" if number != ARBITRATOR else "arbitrator"
            raise SchemaInvalid(f"the group has no {what}: {self}")
        return self.peers[number]

    def member(self, number: int) -> Member:
        """Return a node in the form that views hold. Raises: SchemaInvalid if the group has no such node."""
        if number not in self.members:
            raise SchemaInvalid(f"the group has no node {number}: {self}")
        return Member(number, shown(self.members[number]))

    def first_view(self) -> View:
        """Return view 0 of this group. It must be the same at all nodes, or they could not agree on view 1."""
        return first_view("" if self.arbitrator is None else shown(self.arbitrator))

    def __str__(self) -> str:
        """Return the text that `parse` takes."""
        nodes = [f"{number}={shown(address)}" for number, address in self.members.items()]
        return ",".join(nodes if self.arbitrator is None else [*nodes, f"{ARBITRATOR_NAME}={shown(self.arbitrator)}"])
