"""A read of a group shows what every member has, wherever it is asked: nothing of it is lost, and no later read of
another client at another node shows less.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import tidemark as tm
from tests.node_group.site import PATIENCE_MS, Site, site_of
from tests.node_group.test_node import COLUMNS
from tests.node_group.test_shared_commits import LAZY
from tests.waiting import wait_until
from tidemark.replication.node_group.stream import GroupStream

OLD, NEW = (1, 0, None), (1, 1, None)


class Reader(threading.Thread):
    """One read, in a thread of its own."""

    def __init__(self, read: Any) -> None:
        super().__init__()
        self._read = read
        self.found: list[Any] = []
        self.start()

    def run(self) -> None:
        self.found.append(self._read())


@contextmanager
def slow_member(site: Site, number: int) -> Iterator[None]:
    """Within the context, this member does not apply the next group."""
    thread, go_on = site.nodes[number].parts.life.thread, threading.Event()
    real = thread.apply_one

    def apply_one(node: Any, words: Any) -> int:
        go_on.wait(60)
        return int(real(node, words))

    thread.apply_one = apply_one
    try:
        yield
    finally:
        thread.apply_one = real
        go_on.set()


@pytest.mark.parametrize("durability", ["commit", "epoch"])
@pytest.mark.parametrize("way", ["call", "transaction", "reading"])
def test_no_read_shows_what_a_member_still_lacks(tmp_path: Path, durability: str, way: str) -> None:
    """Stories: a client read a row of the primary and its transaction committed; the primary was killed, and the next
    one had the row before. A client read a row at one member; another client then read the older one at another member.
    """
    with site_of(tmp_path, 3, **{**LAZY, "durability": durability}) as site:
        with site.nodes[1].connect(PATIENCE_MS) as first, site.nodes[2].connect(PATIENCE_MS) as second:
            table = first.create_table("t", COLUMNS, "id")
            table.insert(OLD)

            def read(number: int) -> Any:
                if way == "reading":
                    with site.nodes[number].reading() as store:
                        return store["t"].get(1)
                db = first if number == 1 else second
                if way == "call":
                    return db["t"].get(1)
                with db.transaction() as txn:  # runs at the primary, whatever node was asked
                    return txn.get("t", 1)

            assert read(1) == read(2) == OLD
            with slow_member(site, 3):
                writer = threading.Thread(target=lambda: table.update(1, {"n": 1}))
                writer.start()
                wait_until(lambda: site.db(2)["t"].get(1) == NEW and site.db(1)["t"].get(1) == NEW)
                readers = [Reader(lambda: read(1)), Reader(lambda: read(2))]
                log, primacy = site.db(1).parts.store.log, site.nodes[1].parts.life.machine.primacy
                if way != "transaction":
                    wait_until(lambda: bool(readers[1].found or 2 in primacy.waiting))
                waits = log.writing if durability == "commit" else log.sharing
                wait_until(lambda: bool(readers[0].found or waits.followers))
                assert not any(each.found for each in readers), "shown while node 3 has the row before"
                assert site.db(3)["t"].get(1) == OLD
            writer.join()
            for each in readers:
                each.join(60)
                assert each.found == [NEW]


def test_reads_of_rows_of_complete_epochs_ask_no_other_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with site_of(tmp_path, 2, with_arbitrator=True) as site, site.nodes[2].connect(PATIENCE_MS) as db:
        table = db.create_table("t", COLUMNS, "id")
        table.insert(OLD)
        db.sync()
        table.insert((2, 0, None))
        wait_until(lambda: site.nodes[2].parts.completed_epoch > 0 and table.get(1) == OLD)
        node = site.nodes[2].parts.life
        epoch = node.machine.journal.record.epoch
        monkeypatch.setattr(node.stream, "wait_held", lambda *arguments: pytest.fail(f"waits for {arguments}"))
        node.shown(node.reading(), epoch)


def test_wait_of_a_read_ends_with_its_view() -> None:
    """The client then asks another node: the members of the next view have the row, or no node has."""
    stream = GroupStream(lambda event: None, lambda first, groups: None)
    over = threading.Event()
    reader = Reader(lambda: stream.wait_held(5, True, over.is_set))
    stream.acknowledge(4)
    stream.shared(5)
    assert not reader.found
    over.set()
    reader.join(60)
    assert reader.found == [False]
    assert stream.wait_held(5, False, lambda: False), "without disks, memory is enough"
    stream.acknowledge(5)
    assert stream.wait_held(5, True, lambda: True)
    stream.end(tm.StoreClosed("planted"))
    assert not stream.wait_held(6, True, lambda: False)
