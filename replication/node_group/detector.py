"""Failure detection: a node is suspected after it has not answered heartbeats for a while, or when its process is known
to be dead.

Only answers count. A link that carries one direction alone is therefore no link, as seen from both ends.
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
        """Watch these nodes from now on; each has its time to answer."""
        self._heard = dict.fromkeys(nodes, now)
        self._gone.clear()

    def heard(self, node: int, now: float) -> None:
        """The node has answered."""
        if node in self._heard:
            self._heard[node] = now
            self._gone.discard(node)

    def gone(self, node: int) -> None:
        """The process of the node is dead."""
        if node in self._heard:
            self._gone.add(node)

    def suspects(self, node: int, now: float) -> bool:
        """Whether the node is suspected."""
        return node in self._gone or now - self._heard.get(node, now) >= self._suspicion_s

    def suspected(self, now: float) -> set[int]:
        """All suspected nodes."""
        return {node for node, at in self._heard.items() if node in self._gone or now - at >= self._suspicion_s}

    def next_at(self) -> float:
        """When the next node would be suspected, if none answered."""
        silent = [at for node, at in self._heard.items() if node not in self._gone]
        return min(silent) + self._suspicion_s if silent else NEVER
