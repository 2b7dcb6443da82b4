"""What must hold at every moment of a run: N1 to N4 of docs/node-group.md, section 8, and one living side."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from replication.node_group.simulation.node import Entry, SimulatedNode
from replication.node_group.view import View

if TYPE_CHECKING:
    from replication.node_group.simulation.world import World


def holds(entries: list[Entry], sequence: int, chain: int) -> bool:
    """Whether a log has exactly this history up to a sequence."""
    return sequence == 0 or (len(entries) >= sequence and entries[sequence - 1].chain == chain)


class Promises:
    """Everything that was decided and acknowledged, seen from outside."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.views: dict[int, View] = {}
        self.acknowledged: list[Entry] = []
        self.opened = 0  # number of the newest view that has opened

    @property
    def newest(self) -> View | None:
        """The newest view that somebody has on disk, or is about to."""
        return self.views[max(self.views)] if self.views else None

    @property
    def end(self) -> tuple[int, int]:
        """What was acknowledged last: its sequence, and the digest of all before."""
        return len(self.acknowledged), self.acknowledged[-1].chain if self.acknowledged else 0

    def check_view(self, view: View) -> None:
        """A node acts on a view (N2)."""
        if view.number == 0:
            return
        known = self.views.get(view.number)
        if known is not None:
            if known != view:
                self._world.break_promise(f"N2: two views {view.number}: {known} and {view}")
            return
        self.views[view.number] = view
        before = self.views.get(view.number - 1)
        if before is None:
            return
        if not view.numbers & before.numbers:
            self._world.break_promise(f"N2: nobody of {before} is in {view}")
        sequence, chain = self.end
        for number in view.numbers:
            if not self._world.nodes[number].is_blank() and not holds(
                self._world.nodes[number].entries(), sequence, chain
            ):
                self._world.break_promise(f"N2: node {number} is in {view} without all of {sequence} groups")

    def check_open(self, node: SimulatedNode, view: View) -> None:
        """A primary takes transactions: its members have equal logs, nobody else may serve a read."""
        world, machine = self._world, node.node
        assert machine is not None
        if view.number < self.opened:
            return  # heard too late that all its members were there: nobody answers in it any more
        self.opened = view.number
        sequence, chain = self.end
        log = node.log
        if not holds(log.entries, sequence, chain):
            world.break_promise(f"an acknowledged commit is lost: {view} opens without all of {sequence} groups")
        for other in world.nodes.values():
            if other.node is None or other is node:
                continue
            if other.number in view.numbers and not other.is_blank():
                if not holds(other.entries(), log.last, log.at(log.last).chain):
                    world.break_promise(f"N3: {view} opens, and the log of node {other.number} is another one")
            if other.node.view.number < view.number and other.node.may_show(other.node.view.number, other.now):
                world.break_promise(f"{view} opens while node {other.number} serves reads in {other.node.view}")

    def check_acknowledged(self, node: SimulatedNode, sequence: int) -> None:
        """Commits are acknowledged: every member has them, synced and applied (N1)."""
        world, log, machine = self._world, node.log, node.node
        assert machine is not None
        view = machine.view
        known = len(self.acknowledged)
        last = log.at(sequence).chain
        common = min(known, sequence)
        if not holds(log.entries, common, self.acknowledged[common - 1].chain if common else 0):
            world.break_promise(f"N3: node {node.number} acknowledges {sequence} in another history")
        self.acknowledged += log.entries[known:sequence]
        newest = self.newest
        assert newest is not None
        for number in view.numbers if view == newest else newest.numbers:
            if not world.nodes[number].is_blank() and not holds(world.nodes[number].entries(), sequence, last):
                world.break_promise(f"N1: {sequence} is acknowledged in view {view.number} without node {number}")

    def check_read(self, node: SimulatedNode, sequence: int, chain: int, applied: Iterable[Entry]) -> None:
        """A read was served that began behind the acknowledgement of `sequence` (N4)."""
        if not holds(list(applied), sequence, chain):
            self._world.break_promise(f"N4: node {node.number} served a read older than group {sequence}")
