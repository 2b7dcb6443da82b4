"""What heartbeats show: which nodes are suspected, and how long reads may be served.

*Failure detection.* A node is suspected when it has not answered heartbeats for a while, or its process is known to be
dead. Only answers count. So a link that works in one direction only counts as down at both ends.

*Leases.* A reader asks all members with each heartbeat. Its lease counts from the *sending* of the heartbeat to which
they agreed, so a delay of the heartbeat or of its answer only shortens the lease. A member counts from the moment at
which it agrees, which is later, by its own clock (docs/internals/node-group.md, *Leases*).
"""

from __future__ import annotations

from collections.abc import Iterable

from tidemark.replication.node_group.view import Times, View

NEVER = 1e18
SERIALS_KEPT = 16


class Detector:
    """The failure detector of one node. Times are seconds of its own clock."""

    def __init__(self, times: Times) -> None:
        self._suspicion_s = times.suspicion_ms / 1_000
        self._heard: dict[int, float] = {}
        self._gone: set[int] = set()

    def begin(self, nodes: Iterable[int], now: float) -> None:
        """Watch these nodes from now on; each has the full time to answer."""
        self._heard = dict.fromkeys(nodes, now)
        self._gone.clear()

    def heard(self, node: int, now: float) -> None:
        """Note that the node has answered."""
        if node in self._heard:
            self._heard[node] = now
            self._gone.discard(node)

    def gone(self, node: int) -> None:
        """Note that the process of the node is dead."""
        if node in self._heard:
            self._gone.add(node)

    def suspects(self, node: int, now: float) -> bool:
        """Return whether the node is suspected; a node that is not watched never is."""
        return node in self._gone or now - self._heard.get(node, now) >= self._suspicion_s

    def suspected(self, now: float) -> set[int]:
        return {node for node, at in self._heard.items() if node in self._gone or now - at >= self._suspicion_s}

    def next_at(self) -> float:
        """Return when the next node becomes suspected if none answers."""
        silent = [at for node, at in self._heard.items() if node not in self._gone]
        return min(silent) + self._suspicion_s if silent else NEVER


class Leases:
    """The leases of one process of a node. Times are seconds of its own clock."""

    def __init__(self, times: Times, now: float) -> None:
        self._lease_s = times.lease_ms / 1_000
        self._settle_s = times.settle_ms / 1_000
        self._began = now
        self._sent: dict[int, float] = {}
        self._held: dict[int, float] = {}  # by member: when the last heartbeat to which it agreed was sent
        self._granted: dict[int, float] = {}  # by reader: when this node last agreed

    # --- as a reader ------------------------------------------------------------------------------------
    def asked(self, serial: int, now: float) -> None:
        """Note that a heartbeat is sent now."""
        self._sent[serial] = now
        while len(self._sent) > SERIALS_KEPT:
            del self._sent[next(iter(self._sent))]

    def agreed(self, member: int, serial: int) -> None:
        """Note that a member agreed to reads in its answer to a heartbeat."""
        sent = self._sent.get(serial)
        if sent is not None:
            self._held[member] = max(sent, self._held.get(member, sent))

    def end(self) -> None:
        """End the lease with its view: what members of that view agreed to no longer counts."""
        self._sent.clear()
        self._held.clear()

    def holds(self, view: View, now: float) -> bool:
        """Return whether enough members agree to reads at this moment."""
        wanted = view.readers - 1
        since = now - self._lease_s
        return sum(at > since for at in self._held.values()) >= wanted

    # --- as a member that agrees ------------------------------------------------------------------------
    def agree(self, member: int, now: float) -> None:
        """Note that this node agrees now to the reads of a member, whose heartbeat has just arrived."""
        self._granted[member] = now

    def ages_ms(self, nodes: frozenset[int], now: float) -> tuple[tuple[int, int], ...]:
        """Return for each node how long ago this node last agreed. If this process never did, its start counts, because
        agreements of the process before it are unknown.
        """
        return tuple((node, int(1_000 * (now - self._granted.get(node, self._began)))) for node in sorted(nodes))

    def settled_at(self, age_ms: int, received_at: float) -> float:
        """Return when a lease has certainly ended, if another member agreed to it `age_ms` before it sent the report
        that arrived at `received_at`.
        """
        return received_at - age_ms / 1_000 + self._settle_s

    def all_settled_at(self, decided: float) -> float:
        """Return when every lease of older views has ended, whichever members agreed: a quorum had stopped agreeing
        before the decision.
        """
        return decided + self._settle_s
