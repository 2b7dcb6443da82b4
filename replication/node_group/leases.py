"""Leases: how long a node may serve reads, and how long ago it agreed to the reads of others.

A reader asks all members with each heartbeat, and counts from the *sending* of the heartbeat to which they agreed.
Delays of question or answer therefore only shorten a lease. A member that agrees counts from that moment, which is
later, by its own clock (docs/internals/node-group.md, *Leases*).
"""

from __future__ import annotations

from tidemark.replication.node_group.view import Times, View

SERIALS_KEPT = 16


class Leases:
    """The leases of one process of a node. Times are seconds of its own clock."""

    def __init__(self, times: Times, now: float) -> None:
        self._lease_s = times.lease_ms / 1_000
        self._settle_s = times.settle_ms / 1_000
        self._began = now
        self._sent: dict[int, float] = {}
        self._held: dict[int, float] = {}  # by member: when the question was sent to which it agreed
        self._granted: dict[int, float] = {}

    # --- as a reader ------------------------------------------------------------------------------------
    def asked(self, serial: int, now: float) -> None:
        """A heartbeat is sent."""
        self._sent[serial] = now
        while len(self._sent) > SERIALS_KEPT:
            del self._sent[next(iter(self._sent))]

    def agreed(self, member: int, serial: int) -> None:
        """A member agrees to reads after a heartbeat."""
        sent = self._sent.get(serial)
        if sent is not None:
            self._held[member] = max(sent, self._held.get(member, sent))

    def end(self) -> None:
        """The view is over; agreements of it count no more."""
        self._sent.clear()
        self._held.clear()

    def holds(self, view: View, now: float) -> bool:
        """Whether enough members agree to reads at this moment."""
        wanted = view.readers - 1
        since = now - self._lease_s
        return sum(at > since for at in self._held.values()) >= wanted

    # --- as a member that agrees ------------------------------------------------------------------------
    def agree(self, member: int, now: float) -> None:
        """This node agrees to the reads of a member, whose heartbeat has arrived now."""
        self._granted[member] = now

    def ages_ms(self, nodes: frozenset[int], now: float) -> tuple[tuple[int, int], ...]:
        """For each node, how long ago this node agreed. Agreements of the process before this one are unknown."""
        return tuple((node, int(1_000 * (now - self._granted.get(node, self._began)))) for node in sorted(nodes))

    def settled_at(self, age_ms: int, told_at: float) -> float:
        """When a lease has certainly ended to which another member had agreed so long before its report, which has
        arrived now.
        """
        return told_at - age_ms / 1_000 + self._settle_s

    def all_settled_at(self, decided: float) -> float:
        """When every lease of older views has ended, whichever members agreed: a quorum had stopped before the
        decision.
        """
        return decided + self._settle_s
