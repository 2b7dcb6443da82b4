"""A primary dies with the only copy of a file that a group names."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

import tidemark as tm
from engine.errors import PeerError
from replication.node_group import copy_server
from replication.node_group.primacy import Primacy
from tests.node_group.site import PATIENCE_MS, site_of
from tests.node_group.test_node import COLUMNS, equal, ids_at
from tests.waiting import wait_until


@pytest.mark.parametrize("stands_still", [False, True])
def test_group_whose_file_dies_with_its_primary_stops_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stands_still: bool
) -> None:
    """Members took the group of a large transaction, told its sequence as the end of their logs, and asked the primary
    for the file. It died before it had given it out, or stood still. One of them was to lead behind that group, which
    it could not apply: it asked itself for the file, for ever, and the whole group stood still.
    """
    held, asked = threading.Event(), threading.Event()
    real = copy_server.send_file

    def refused(files: Any, name: str, conversation: Any) -> None:
        asked.set()
        if stands_still:
            held.wait(PATIENCE_MS / 1_000)
        raise PeerError("the disk is slow; ask again")

    with site_of(tmp_path, 3, transaction_memory="256 KiB") as site:
        with site.nodes[1].connect(PATIENCE_MS) as db:
            db.create_table("t", COLUMNS, "id")
            db["t"].insert((1, 1, None))
        assert site.primary() == 1
        monkeypatch.setattr(copy_server, "send_file", refused)
        outcomes: list[Any] = []

        def large() -> None:
            try:
                with site.nodes[2].connect(PATIENCE_MS) as db, db.transaction() as txn:
                    txn.insert_many("t", [(number, 0, "y" * 50) for number in range(10, 12_000)])
            except tm.Error as error:
                outcomes.append(error)

        writer = threading.Thread(target=large)
        writer.start()
        sequence = site.db(1)._store.log.sequence
        assert asked.wait(PATIENCE_MS / 1_000)
        wait_until(lambda: all(site.nodes[each]._node.life._stream.fetched_sequence for each in (2, 3)))
        assert all(site.nodes[each]._node.life._stream.last < sequence for each in (2, 3)), "a log nobody can apply"
        site.drop(1)
        monkeypatch.setattr(copy_server, "send_file", real)
        site.wait_view(2, 3)
        with site.nodes[3].connect(PATIENCE_MS) as db:
            db.run(lambda txn: txn.insert("t", (2, 2, None)), retries=50)
        held.set()
        writer.join()
        assert ids_at(site, 2) == ids_at(site, 3) == [1, 2]
        assert isinstance(outcomes[0], (tm.OutcomeUnknown, tm.PrimaryLost))
        equal(site)


def test_group_whose_file_was_fetched_is_taken_without_being_sent_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is kept for that long: else the commit of each large transaction would cost two heartbeats more."""
    with site_of(tmp_path, 2, with_arbitrator=True, transaction_memory="256 KiB") as site:
        monkeypatch.setattr(Primacy, "send_again", lambda *_: [])
        with site.nodes[1].connect(PATIENCE_MS) as db:
            db.create_table("t", COLUMNS, "id")
            db.run(lambda txn: txn.insert_many("t", [(number, 0, "y" * 50) for number in range(12_000)]))
        assert site.db(1).status()["spool"]["committed"] == 1, "the transaction was too small for a file"
        assert ids_at(site, 2) == list(range(12_000))
        equal(site)
