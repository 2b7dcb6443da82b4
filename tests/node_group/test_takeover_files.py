"""A primary dies with the only copy of a file that a group names."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

import tidemark as tm
from tests.node_group.site import PATIENCE_MS, site_of
from tests.node_group.test_node import COLUMNS, equal, ids_at
from tests.waiting import wait_until
from tidemark.engine.base.errors import PeerError
from tidemark.replication.node_group import copy_server, fetch
from tidemark.replication.node_group.primacy import Primacy


@pytest.mark.parametrize("is_stalled", [False, True])
def test_group_whose_file_dies_with_its_primary_stops_no_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_stalled: bool
) -> None:
    """Story: members took the group of a large transaction, reported its sequence as the end of their logs, and asked
    the primary for the file. It died before it had sent the file, or stood still. One of the members was to lead after
    that group, which it could not apply: it asked itself for the file, for ever, and the whole group stood still.
    """
    held, asked = threading.Event(), threading.Event()
    real = copy_server.send_file

    def refused(files: Any, name: str, conversation: Any) -> None:
        asked.set()
        if is_stalled:
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
        sequence = site.db(1).parts.store.log.sequence
        assert asked.wait(PATIENCE_MS / 1_000)
        wait_until(lambda: all(site.nodes[each].parts.life.stream.fetched_sequence for each in (2, 3)))
        assert all(site.nodes[each].parts.life.stream.last < sequence for each in (2, 3)), (
            "a log that no node can apply"
        )
        dropped = threading.Thread(target=site.drop, args=(1,))  # it waits for the thread that sends the file
        dropped.start()
        monkeypatch.setattr(copy_server, "send_file", real)
        site.wait_view(2, 3)
        with site.nodes[3].connect(PATIENCE_MS) as db:
            db.run(lambda txn: txn.insert("t", (2, 2, None)), retries=20)
        held.set()
        dropped.join()
        writer.join()
        assert ids_at(site, 2) == ids_at(site, 3) == [1, 2]
        assert isinstance(outcomes[0], (tm.OutcomeUnknown, tm.PrimaryLost))
        equal(site)


def test_member_gets_the_file_from_a_primary_that_does_not_lead_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Story: of two members one had the file of a large transaction and the other did not when their primary died. The
    one with the file was to lead once the other had the group too, but sent no file because it did not lead yet: the
    group stood still for ever.
    """
    asked = threading.Event()
    real = copy_server.send_file

    def refused(files: Any, name: str, conversation: Any) -> None:
        if conversation.peer.node == 3:
            asked.set()
            raise PeerError("the disk is slow; ask again")
        real(files, name, conversation)

    with site_of(tmp_path, 3, transaction_memory="256 KiB") as site:
        with site.nodes[1].connect(PATIENCE_MS) as db:
            db.create_table("t", COLUMNS, "id")
        monkeypatch.setattr(copy_server, "send_file", refused)
        sequence = site.db(1).parts.store.log.sequence

        def large() -> None:
            with site.nodes[2].connect(PATIENCE_MS) as db:
                db.run(lambda txn: txn.upsert_many("t", [(number, 0, "y" * 50) for number in range(12_000)]), 50)

        writer = threading.Thread(target=large)
        writer.start()
        assert asked.wait(PATIENCE_MS / 1_000)
        wait_until(lambda: site.nodes[2].parts.life.stream.applied >= sequence)
        site.drop(1)
        monkeypatch.setattr(copy_server, "send_file", real)
        site.wait_view(2, 3)
        writer.join()
        assert ids_at(site, 2) == ids_at(site, 3) == list(range(12_000))
        equal(site)


def test_half_a_file_is_not_taken_for_the_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Story: while a file came in, its group was sent again, and taken because the file existed. The rest of the file
    did not come, the half file was removed, and the group could not be applied.
    """
    real, failed, offered = fetch.write_file, [], []

    def half(files: Any, name: str, conversation: Any) -> None:
        if failed:
            real(files, name, conversation)
            return
        folder = name.partition("/")[0]
        if not files.exists(folder):
            files.make_directory(folder)
        files.close(files.create(name))
        life = next(node.parts.life for node in site.nodes.values() if node.parts.store.files is files)
        wait_until(lambda: offered.count(life.stream.fetched_sequence) > 1)  # the group comes again meanwhile
        failed.append(life.stream.last)
        files.unlink(name)
        raise PeerError("the link broke; connect again")

    with site_of(tmp_path, 2, with_arbitrator=True, transaction_memory="256 KiB") as site:
        with site.nodes[1].connect(PATIENCE_MS) as db:
            db.create_table("t", COLUMNS, "id")
            monkeypatch.setattr(fetch, "write_file", half)
            life, sequence = site.nodes[2].parts.life, site.db(1).parts.store.log.sequence
            take = life.stream.take

            def noted(first: int, groups: Any) -> None:
                offered.extend(range(first, first + len(groups)))
                take(first, groups)

            monkeypatch.setattr(life.stream, "take", noted)
            db.run(lambda txn: txn.upsert_many("t", [(number, 0, "y" * 50) for number in range(12_000)]), 50)
        assert failed[0] < sequence and site.nodes[2].parts.life is life, "it has taken what it could not apply"
        assert ids_at(site, 2) == list(range(12_000))
        equal(site)


def test_group_whose_file_was_fetched_is_taken_without_being_sent_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The group is kept until then: otherwise the commit of each large transaction would take two heartbeats longer."""
    with site_of(tmp_path, 2, with_arbitrator=True, transaction_memory="256 KiB") as site:
        monkeypatch.setattr(Primacy, "send_again", lambda *_: [])
        with site.nodes[1].connect(PATIENCE_MS) as db:
            db.create_table("t", COLUMNS, "id")
            db.run(lambda txn: txn.insert_many("t", [(number, 0, "y" * 50) for number in range(12_000)]))
        assert site.db(1).status()["spool"]["committed"] == 1, "the transaction was too small for a file"
        assert ids_at(site, 2) == list(range(12_000))
        equal(site)
