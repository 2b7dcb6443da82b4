"""What must hold at every moment of a run: N1 to N4 and N7 of docs/internals/node-group.md, and one living side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.simulation.nodes.node import Entry, SimulatedNode
from tidemark.replication.node_group.view import View

if TYPE_CHECKING:
    from tests.simulation.nodes.world import World


def holds(entries: list[Entry], sequence: int, chain: int) -> bool:
    """Whether a log has exactly this history up to a sequence."""
    return sequence == 0 or (len(entries) >= sequence and entries[sequence - 1].chain == chain)


@dataclass
class Shared:
    """A group that was acknowledged when every member of a view had it in memory, and the nodes that died with it."""

    sequence: int
    chain: int
    view: View
    lost: set[int]


class Promises:
    """Everything decided and acknowledged, as an outside observer knows it."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.views: dict[int, View] = {}
        self.acknowledged: list[Entry] = []
        self.shared: list[Shared] = []  # groups after those in `acknowledged`
        self.opened = 0  # number of the newest view that has opened

    @property
    def newest(self) -> View | None:
        """The newest view that a node has on disk, or is about to write."""
        return self.views[max(self.views)] if self.views else None

    @property
    def end(self) -> tuple[int, int]:
        """The last group acknowledged to any client: its sequence, and the digest of everything up to it."""
        if self.shared:
            return self.shared[-1].sequence, self.shared[-1].chain
        return self.on_disk

    @property
    def on_disk(self) -> tuple[int, int]:
        """The same for the groups that every member had on disk."""
        return len(self.acknowledged), self.acknowledged[-1].chain if self.acknowledged else 0

    def check_view(self, view: View) -> None:
        """Check a view when a node acts on it (N2)."""
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
            self._world.break_promise(f"N2: no node of {before} is in {view}")
        sequence, chain = self.on_disk
        for number in view.numbers:
            if not self._world.nodes[number].is_blank() and not holds(
                self._world.nodes[number].entries(), sequence, chain
            ):
                self._world.break_promise(f"N2: node {number} is in {view} without all of {sequence} groups")

    def check_open(self, node: SimulatedNode, view: View) -> None:
        """Check a primary that starts to take transactions: its members have equal logs, no other node serves a
        read.
        """
        world, machine = self._world, node.node
        assert machine is not None
        if view.number < self.opened:
            return  # it learned too late that all its members were there: no node answers in this view any more
        self.opened = view.number
        self._check_shared_kept(node, view)
        sequence, chain = self.end
        log = node.log
        if not holds(log.entries, sequence, chain):
            world.break_promise(f"an acknowledged commit is lost: {view} opens without all of {sequence} groups")
        for other in world.nodes.values():
            if other.node is None or other is node:
                continue
            if other.number in view.numbers and not other.is_blank():
                if not holds(other.log.entries[: other.log.applied], log.last, log.at(log.last).chain):
                    world.break_promise(f"N3: {view} opens, and the log of node {other.number} is another one")
            if other.node.view.number < view.number and other.node.may_show(other.node.view.number, other.now):
                world.break_promise(f"{view} opens while node {other.number} serves reads in {other.node.view}")

    def check_acknowledged(self, node: SimulatedNode, sequence: int) -> None:
        """Check acknowledged commits: every member has them, synced and applied (N1)."""
        world, log, machine = self._world, node.log, node.node
        assert machine is not None
        view = machine.view
        known = len(self.acknowledged)
        last = log.at(sequence).chain
        common = min(known, sequence)
        if not holds(log.entries, common, self.acknowledged[common - 1].chain if common else 0):
            world.break_promise(f"N3: node {node.number} acknowledges {sequence} in another history")
        self.acknowledged += log.entries[known:sequence]
        self.shared = [each for each in self.shared if each.sequence > sequence]
        newest = self.newest
        assert newest is not None
        for number in view.numbers if view == newest else newest.numbers:
            if not world.nodes[number].is_blank() and not holds(world.nodes[number].entries(), sequence, last):
                world.break_promise(f"N1: {sequence} is acknowledged in view {view.number} without node {number}")

    def check_shared(self, node: SimulatedNode, sequence: int) -> None:
        """Check commits acknowledged to clients that wait for no disk: every member has them in memory."""
        world, log, machine = self._world, node.log, node.node
        assert machine is not None
        known = self.end[0]
        for each in range(known + 1, sequence + 1):
            self.shared.append(Shared(each, log.at(each).chain, machine.view, set()))
        for number in machine.view.numbers:
            other = world.nodes[number]
            entries = other.durable if other.machine is None else other.log.entries
            if not other.is_blank() and not holds(entries, sequence, log.at(sequence).chain):
                for kept in self.shared[-1:]:
                    kept.lost.add(number)  # it has died since it acknowledged the group
                if other.machine is not None and other.node is not None and not other.node.is_frozen:
                    world.break_promise(f"{sequence} is shared in view {machine.view.number} without node {number}")

    def forgotten(self, node: SimulatedNode) -> None:
        """Note that a process has died, with the groups that it had in memory only."""
        for each in self.shared:
            if node.number in each.view.numbers and not holds(node.durable, each.sequence, each.chain):
                each.lost.add(node.number)

    def _check_shared_kept(self, node: SimulatedNode, view: View) -> None:
        """A view may open without a shared group only if the nodes that died with it, and the arbitrator, are a
        quorum.
        """
        for at, each in enumerate(self.shared):
            if holds(node.log.entries, each.sequence, each.chain):
                continue
            voters = len(each.lost) + bool(each.view.arbitrator)
            if not each.lost or voters < each.view.quorum:
                self._world.break_promise(
                    f"a shared commit is lost: {view} opens without group {each.sequence}, which {sorted(each.lost)} of"
                    f" {each.view} have lost"
                )
            self._world.note("shared lost", node.number, each.sequence)
            del self.shared[at:]
            return

    def check_read(self, node: SimulatedNode, sequence: int, chain: int, applied: list[Entry]) -> None:
        """Check a read that was served and began after the acknowledgement of `sequence` (N4); it shows nothing that is
        not acknowledged (N7). So no read shows less than one that had ended before it began, at any node.
        """
        if not holds(applied, sequence, chain):
            self._world.break_promise(f"N4: node {node.number} served a read older than group {sequence}")
        if len(applied) > self.end[0]:
            self._world.break_promise(f"N7: node {node.number} showed group {len(applied)}, which may be lost")
