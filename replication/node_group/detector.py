"""Failure detection: a node is suspected when it has not answered heartbeats for a while, or its process is known to be
dead.

Only answers count. So a link that carries one direction only is no link, as seen from both ends.
"""

from __future__ import annotations

from collections.abc import Iterable

from tidemark.replication.node_group.view import Times

NEVER = 1e18


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
        """Return all suspected nodes."""
        return {node for node, at in self._heard.items() if node in self._gone or now - at >= self._suspicion_s}

    def next_at(self) -> float:
        """Return when the next node becomes suspected if none answers."""
        silent = [at for node, at in self._heard.items() if node not in self._gone]
        return min(silent) + self._suspicion_s if silent else NEVER
