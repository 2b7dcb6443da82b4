"""Nodes of one group in this process, over loopback, each with a directory of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tidemark as tm
from tests.ports import free_ports
from tests.waiting import wait_until
from tidemark.replication.node_group.configuration import GroupConfiguration
from tidemark.replication.node_group.view import Times

SECRET = b"a secret of nodes"
OPTIONS: dict[str, Any] = {"data_memory": "64 MiB", "redo_log": "8 MiB", "undo_log": "4 MiB", "page_buffer": "1 MiB"}
PATIENCE_MS = 60_000
# All nodes share one process, which may be slow: what leaves a node out is its death, which others hear of at once.
PATIENT = Times(suspicion_ms=3_000)


class Site:
    """Nodes 1, 2, … of one group; `nodes` are those that run."""

    def __init__(
        self, root: Path, count: int, with_arbitrator: bool = False, times: Times = PATIENT, **options: Any
    ) -> None:
        ports = free_ports(count + 1)
        self.root = root
        self.options = {**OPTIONS, **options}
        self.text = ",".join(f"{number}=127.0.0.1:{ports[number]}" for number in range(1, count + 1))
        if with_arbitrator:
            self.text += f",arbitrator=127.0.0.1:{ports[0]}"
        self.group = GroupConfiguration.parse(self.text, times)
        self.arbitrator: Any = None
        if with_arbitrator:
            self.arbitrator = tm.Arbitrator(root / "arbitrator", self.group, SECRET, is_new=True)
        self.nodes: dict[int, Any] = {}

    def begin(self, number: int, **options: Any) -> Any:
        """Let a node begin; the first one makes the group."""
        given = {**self.options, "found": number == 1, **options}
        node = tm.NodeGroup(self.root / str(number), number, self.group, SECRET, **given)
        self.nodes[number] = node
        return node

    def start(self, number: int, **options: Any) -> Any:
        """A node that is a member of an open view when this returns."""
        node = self.begin(number, **options)
        node.wait_member(PATIENCE_MS)
        return node

    def drop(self, number: int) -> None:
        """A node is gone without a word: nothing of what closing does is done, as far as a process can do that."""
        node = self.nodes.pop(number)
        life = node.parts.life
        assert life is not None and life.node is not None
        life.node.store.fail(tm.StoreFailed("this process is to die"))
        node.close(leave=False)

    def close(self, number: int) -> None:
        """A node leaves."""
        self.nodes.pop(number).close()

    def db(self, number: int) -> Any:
        """The `Database` of a node: what is looked at in tests, and read elsewhere through `reading`. Between two lives
        the node has none, which no status tells in time: waits for the next.
        """
        found: list[Any] = []

        def is_open() -> bool:
            store = self.nodes[number].parts.store
            if store is not None:
                found.append(store.db)
            return store is not None

        wait_until(is_open)
        return found[0]

    def wait_view(self, *members: int) -> None:
        """Until these are the members of an open view, and nobody else."""

        def is_so() -> bool:
            states = [self.nodes[number].status() for number in members]
            return all(each["state"] == "open" and each["members"] == sorted(members) for each in states)

        wait_until(is_so)
        for number in members:
            self.nodes[number].wait_member(PATIENCE_MS)

    def primary(self) -> int:
        """The number of the node that leads."""
        return next(number for number, node in self.nodes.items() if node.status().get("is_leading"))

    def end(self) -> None:
        """Close all, members first."""
        for number in sorted(self.nodes, reverse=True):
            self.close(number)
        if self.arbitrator is not None:
            self.arbitrator.close()


@contextmanager
def site_of(root: Path, count: int, of: int = 0, **options: Any) -> Iterator[Site]:
    """A group whose first `count` nodes are members, of as many as that or more; all are closed at the end."""
    site = Site(root, of or count, **options)
    try:
        for number in range(1, count + 1):
            site.start(number)
        yield site
    finally:
        site.end()
