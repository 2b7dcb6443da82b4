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
# All nodes share one process, which may be slow. Only its death excludes a node, and the others notice that at once.
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
        """Start a node; the first one founds the group."""
        given = {**self.options, "found": number == 1, **options}
        node = tm.NodeGroup(self.root / str(number), number, self.group, SECRET, **given)
        self.nodes[number] = node
        return node

    def start(self, number: int, **options: Any) -> Any:
        """Start a node and return it when it is a member of an open view."""
        node = self.begin(number, **options)
        node.wait_member(PATIENCE_MS)
        return node

    def drop(self, number: int) -> None:
        """Drop a node as a crash would: as far as one process can, nothing is done that closing does."""
        node = self.nodes.pop(number)
        life = node.parts.life
        assert life is not None and life.node is not None
        life.node.store.failure.latch(tm.StoreFailed("this process is to die"))
        node.close(leave=False)

    def close(self, number: int) -> None:
        """Close a node, which leaves its group."""
        self.nodes.pop(number).close()

    def db(self, number: int) -> Any:
        """Return the `Database` of a node for the test to look at; a program reads it through `reading`.

        Between two lives a node has none, which no status reports in time: this waits for the next one.
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
        """Wait until exactly these are the members of an open view."""

        def is_so() -> bool:
            states = [self.nodes[number].status() for number in members]
            return all(each["state"] == "open" and each["members"] == sorted(members) for each in states)

        wait_until(is_so)
        for number in members:
            self.nodes[number].wait_member(PATIENCE_MS)

    def primary(self) -> int:
        """Return the number of the node that leads."""
        return next(number for number, node in self.nodes.items() if node.status().get("is_leading"))

    def end(self) -> None:
        """Close all, members first."""
        for number in sorted(self.nodes, reverse=True):
            self.close(number)
        if self.arbitrator is not None:
            self.arbitrator.close()


@contextmanager
def site_of(root: Path, count: int, of: int = 0, **options: Any) -> Iterator[Site]:
    """Make a group of `of` nodes, or `count` if 0; the first `count` are members. All are closed at the end."""
    site = Site(root, of or count, **options)
    try:
        for number in range(1, count + 1):
            site.start(number)
        yield site
    finally:
        site.end()
