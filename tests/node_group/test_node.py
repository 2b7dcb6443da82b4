"""Whole nodes: a group is made, grows, loses nodes, gets them back, and is whole at the end."""

from __future__ import annotations

import random
import shutil
import socket
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import tidemark as tm
from tests.attempts import Attempts
from tests.elsewhere import beside
from tests.node_group.pair import same_slots
from tests.node_group.site import OPTIONS, PATIENCE_MS, SECRET, Site, site_of
from tests.ports import free_ports
from tests.waiting import wait_until
from tidemark.engine.base.clock import ManualClock
from tidemark.recovery.node_restart.messages import Ready
from tidemark.recovery.node_restart.source import Source
from tidemark.remote.database import RemoteDatabase
from tidemark.remote.links import Links
from tidemark.replication.node_group import fetch
from tidemark.replication.node_group.machine import Machine
from tidemark.replication.node_group.store_thread import StoreThread

COLUMNS = [tm.Column("id", tm.Int64), tm.Column("n", tm.Int64), tm.Column("note", tm.Text, nullable=True)]


def equal(site: Site) -> None:
    """Check that all nodes have the same slots, and that each is sound."""
    first, *others = sorted(site.nodes)
    for number in others:
        same_slots(site.db(first), site.db(number), f"nodes {first} and {number}", is_joined=True)
    for number in site.nodes:
        assert site.db(number).check()["problems"] == [], f"node {number}"


def ids_at(site: Site, number: int, name: str = "t") -> list[int]:
    """Return the keys that a node shows."""
    with site.nodes[number].reading() as db:
        return sorted(db[name].scan(["id"]).to_arrow()["id"].to_pylist())


def test_status_of_a_node_without_a_view_has_the_keys_of_a_member(tmp_path: Path) -> None:
    """Story: a node that looks for its group had no `placement`: a program that read it raised a KeyError."""
    with site_of(tmp_path, 1, of=2) as site:
        member = site.nodes[1].status()
        site.close(1)
        alone = site.begin(2).status()
        assert alone.keys() == member.keys() and alone["state"] == "joining" and alone["members"] == []
        assert alone["placement"] == {1: {"nodes": [1, 2], "fragments": 0}}


def test_what_was_acknowledged_shows_at_every_node_and_outlives_the_primary(tmp_path: Path) -> None:
    with site_of(tmp_path, 3) as site:
        assert site.primary() == 1
        with site.nodes[2].connect(PATIENCE_MS) as db:
            db.create_table("t", COLUMNS, "id")
            assert site.nodes[3].status()["placement"] == {1: {"nodes": [1, 2, 3], "fragments": 4}}
            for number in range(20):
                db["t"].insert((number, number, "x" * number))
                reader = 1 + number % 3
                with site.nodes[reader].reading() as there:
                    assert there["t"].get(number) == (number, number, "x" * number), f"node {reader}"
            equal(site)
            site.drop(1)
            db["t"].insert((100, 1, None))
            site.wait_view(2, 3)
            assert ids_at(site, 2) == ids_at(site, 3) == [*range(20), 100]
            site.close(site.primary())
            db["t"].insert((101, 1, None))
        site.start(1)
        (other,) = {2, 3} - site.nodes.keys()
        site.start(other)
        site.wait_view(1, 2, 3)
        assert all(ids_at(site, number) == [*range(20), 100, 101] for number in (1, 2, 3))
        equal(site)


def test_no_number_comes_twice_when_another_node_leads(tmp_path: Path) -> None:
    """Each primary reserves numbers anew from what the group has; also one that led before."""
    numbered = [tm.Column("id", tm.Int64, default=tm.autoincrement), *COLUMNS[2:]]
    with site_of(tmp_path, 3) as site:
        with site.nodes[2].connect(PATIENCE_MS) as db:
            db.create_table("t", numbered, "id")
            seen = [db["t"].insert({}) for _ in range(3)]
            given = [db.sequence("s").next()]
            db["t"].insert((5_000, None))
            db["t"].delete(5_000)
            site.drop(1)
            seen += [db["t"].insert({}) for _ in range(3)]
            given.append(db.sequence("s").next())
            site.start(1)
            site.wait_view(1, 2, 3)
            site.close(site.primary())
            with next(iter(site.nodes.values())).connect(PATIENCE_MS) as other:
                seen += [other["t"].insert({}) for _ in range(3)]
                given.append(other.sequence("s").next())
        print(seen, given)
        assert seen == sorted({*seen}) and given == sorted({*given}) and seen[3] > 5_000
        for number in sorted(site.nodes):
            assert ids_at(site, number) == seen
        (gone,) = {1, 2, 3} - site.nodes.keys()
        site.start(gone)
        site.wait_view(1, 2, 3)
        equal(site)


def test_rows_expire_at_the_primary_alone_and_at_the_next_one(tmp_path: Path) -> None:
    columns = [*COLUMNS, tm.Column("seen", tm.Timestamp, nullable=True)]
    past, future = (datetime(year, 1, 1, tzinfo=UTC) for year in (1980, 9999))
    with site_of(tmp_path, 3, expiry_interval_ms=1) as site:
        with site.nodes[2].connect(PATIENCE_MS) as db:
            table = db.create_table("t", columns, "id", expires="seen + 30 min")
            table.insert_many([(1, 1, None, past), (2, 2, None, future), (3, 3, None, None)])
            wait_until(lambda: len(table) == 2)
            for number in (2, 3):
                with pytest.raises(tm.NotPrimary):
                    site.db(number).expire()
                assert site.db(number).status()["expiry"]["rows"] == 0
            site.drop(1)
            table.insert((4, 4, None, past))
            wait_until(lambda: len(table) == 2)
            assert db.expire() == 0 and db["t"].definition.expires == "seen + 30 min"
            site.start(1)
            site.wait_view(1, 2, 3)
            assert all(ids_at(site, number) == [2, 3] for number in (1, 2, 3))
            equal(site)


def test_a_node_of_two_continues_with_the_arbitrator(tmp_path: Path) -> None:
    with site_of(tmp_path, 2, with_arbitrator=True) as site:
        with site.nodes[1].connect(PATIENCE_MS) as db:
            db.create_table("t", COLUMNS, "id")
            db["t"].insert_many([(number, 0, None) for number in range(500)])
        site.drop(1)
        site.wait_view(2)
        with site.nodes[2].connect(PATIENCE_MS) as db:
            db["t"].delete(7)
        site.start(1)
        assert ids_at(site, 1) == [each for each in range(500) if each != 7]
        equal(site)


def test_whole_site_comes_back_from_its_files(tmp_path: Path) -> None:
    site = Site(tmp_path, 3)
    try:
        for number in (1, 2, 3):
            site.start(number)
        with site.nodes[1].connect(PATIENCE_MS) as db:
            db.create_table("t", COLUMNS, "id")
            for number in range(10):
                db["t"].insert((number, number, None))
        for number in (1, 2, 3):
            site.drop(number)
        for number in (3, 1, 2):
            site.begin(number)
        for node in site.nodes.values():
            node.wait_member(60_000)
        site.wait_view(1, 2, 3)
        with site.nodes[3].connect(PATIENCE_MS) as db:
            db["t"].insert((10, 10, None))
        assert all(ids_at(site, number) == list(range(11)) for number in (1, 2, 3))
        equal(site)
    finally:
        site.end()


def test_schema_large_transactions_and_disk_columns_arrive(tmp_path: Path) -> None:
    """Files that groups name are fetched by each member before it applies the group."""
    far = tm.Column("far", tm.VarChar(200), nullable=True, storage="disk")
    with site_of(tmp_path, 2, transaction_memory="256 KiB") as site:
        with site.nodes[2].connect(PATIENCE_MS) as db:
            db.create_tablespace("main", "4 MiB")
            db.create_table("t", [*COLUMNS, far], "id", tablespace="main")
            db.create_index("t", "by_n", "n")
            with db.transaction() as txn:
                txn.insert_many("t", [(number, number % 7, "y" * 50, f"far {number}") for number in range(12_000)])
            assert site.db(1).status()["spool"]["committed"] == 1, "the transaction was too small for a file"
            db.add_column("t", tm.Column("more", tm.Int32, nullable=True))
            db.rename_column("t", "note", "words")
        with site.nodes[2].reading() as there:
            assert there["t"].get(11_999) == (11_999, 11_999 % 7, "y" * 50, "far 11999", None)
            assert there["t"].scan(where=tm.col("n") == 3).count() == len(range(3, 12_000, 7))
        equal(site)
        site.drop(2)
        site.nodes[1].connect(PATIENCE_MS).close()
        site.start(2)
        equal(site)


def test_writers_continue_while_nodes_come_and_go(tmp_path: Path) -> None:
    rng = random.Random(11)
    with site_of(tmp_path, 3) as site:
        is_over = threading.Event()
        acknowledged: list[int] = []
        attempts = Attempts(per_transaction=2)
        clients = [site.nodes[number].connect(PATIENCE_MS) for number in (2, 3)]
        clients[0].create_table("t", COLUMNS, "id")

        def write(part: int) -> None:
            number = part
            while not is_over.is_set():
                number += 2
                attempts.run(clients[part], lambda txn, key=number: txn.write("t", (key, part, "z" * (key % 90))))
                acknowledged.append(number)

        with beside(is_over, write, range(2)):
            for _ in range(3):
                victim = rng.choice([2, 3])
                before = len(acknowledged)
                site.drop(victim)
                wait_until(lambda before=before: len(acknowledged) > before + 20)
                site.start(victim)
        for db in clients:
            db.close()
        attempts.check()
        site.wait_view(1, 2, 3)
        assert set(acknowledged) <= set(ids_at(site, 3))
        equal(site)


def test_member_whose_rows_differ_is_copied_whole(tmp_path: Path) -> None:
    """Story: `check` reported damage in a copied store, whose log began at its first byte with group 4 and not 1."""
    with site_of(tmp_path, 3) as site:
        with site.nodes[1].connect(PATIENCE_MS) as db:
            db.create_table("t", COLUMNS, "id")
            db["t"].insert_many([(number, 0, None) for number in range(50)])
            life = site.nodes[2].parts.life
            life.node.store.failure.latch(tm.InvariantBroken("group 9 does not fit; copy the store from the primary"))
            wait_until(lambda: site.nodes[2].parts.life not in (life, None))
            db["t"].delete(3)
        site.wait_view(1, 2, 3)
        equal(site)


def test_directory_of_another_group_or_node_is_refused(tmp_path: Path) -> None:
    with tm.open(tmp_path / "2", **OPTIONS) as db:
        db.create_table("mine", COLUMNS, "id")
    site = Site(tmp_path, 2)
    try:
        site.start(1)
        stranger = site.begin(2)
        wait_until(lambda: stranger.parts.error is not None)
        with pytest.raises(tm.ForeignFile, match="another store"):
            stranger.wait_member(10)
        site.close(2)
        with tm.open(tmp_path / "2", **OPTIONS) as db:
            assert "test.mine" in db.tables() or "mine" in str(db.tables()), "nothing of it is lost"
        site.close(1)
        wrong = site.begin(1)
        site.nodes.pop(1)
        wrong.close()
        again = tm.NodeGroup(tmp_path / "1", 2, site.text, SECRET, **OPTIONS)
        wait_until(lambda: again.parts.error is not None)
        with pytest.raises(tm.Rejected, match="belongs to node 1"):
            again.status()
        again.close()
    finally:
        site.end()


def test_second_process_and_taken_addresses_are_refused(tmp_path: Path) -> None:
    with site_of(tmp_path, 1) as site:
        with pytest.raises(tm.Locked):
            tm.NodeGroup(tmp_path / "1", 1, site.text, SECRET, **OPTIONS)
        with pytest.raises(tm.Locked):
            tm.open(tmp_path / "1", **OPTIONS)
        with pytest.raises(tm.SchemaInvalid, match="no node 9"):
            tm.NodeGroup(tmp_path / "9", 9, site.text, SECRET, **OPTIONS)
        with pytest.raises(tm.SchemaInvalid):
            tm.NodeGroup(tmp_path / "8", 1, site.text, b"short", **OPTIONS)


def test_node_that_hears_of_no_group_waits_and_can_be_closed(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    node = tm.NodeGroup(tmp_path / "2", 2, f"1=127.0.0.1:{port},2=127.0.0.1:{free_ports(1)[0]}", SECRET, **OPTIONS)
    with pytest.raises(tm.PeerTimeout, match="in no open view"):
        node.wait_member(300)
    with pytest.raises(tm.NotPrimary), node.reading():
        pass
    assert node.status()["state"] == "joining"
    node.close()
    node.close()


def test_client_of_a_primary_that_is_cut_off_learns_it_from_another_node(tmp_path: Path) -> None:
    """Its commit would wait for ever at the old primary: the machine answers, but does not learn of the next view."""
    with site_of(tmp_path, 3) as site:
        assert site.primary() == 1
        with site.nodes[1].connect(PATIENCE_MS) as db:
            db.create_table("t", COLUMNS, "id")
            db["t"].insert((1, 1, None))
            txn = db.transaction()
            txn.insert("t", (2, 2, None))
            site.nodes[1].parts.life.carrier.close()
            with pytest.raises(tm.PrimaryLost):
                txn.commit()
            with pytest.raises(tm.NotPrimary), site.nodes[1].reading():
                pass
            db["t"].insert((3, 3, None))
            site.wait_view(2, 3)
            assert ids_at(site, 2) == ids_at(site, 3) == [1, 3]
        site.nodes[1].close(leave=False)
        site.start(1)
        assert ids_at(site, 1) == [1, 3]
        equal(site)


def test_client_whose_first_node_is_between_two_lives_asks_the_next(tmp_path: Path, monkeypatch: Any) -> None:
    """Story: a node that is opening its store cannot report a view. A client that knew it first asked no other node
    until it could, and lost a link with every question.
    """

    def living() -> Any:
        raise tm.NotPrimary("this node is joining its group; ask another")

    with site_of(tmp_path, 2, with_arbitrator=True) as site:
        with site.nodes[1].connect(PATIENCE_MS) as db:
            db.create_table("t", COLUMNS, "id")
        with monkeypatch.context() as patch:
            patch.setattr(site.nodes[2].parts, "living", living)
            with tm.connect([site.nodes[2].address, site.nodes[1].address], SECRET, timeout_ms=PATIENCE_MS) as db:
                db["t"].insert((1, 1, None))
                assert db["t"].get(1) == (1, 1, None)
            # Pauses of a manual clock take no time. In 300 ms of a real clock a busy machine answered nothing.
            host, _, port = site.nodes[2].address.rpartition(":")
            with pytest.raises(tm.PeerTimeout, match="is joining"):
                RemoteDatabase(Links([(host, int(port))], SECRET, None, ManualClock(), 10_000))
        equal(site)


def test_a_client_of_any_node_reads_a_snapshot_of_the_primary(tmp_path: Path) -> None:
    with site_of(tmp_path, 2) as site:
        with site.nodes[2].connect(PATIENCE_MS) as db:
            db.create_table("t", COLUMNS, "id").insert((1, 1, None))
            with db.snapshot() as snapshot:
                db["t"].update(1, {COLUMNS[1].name: 2})
                assert snapshot["t"].get(1) == (1, 1, None) and [tuple(row) for row in snapshot["t"]] == [(1, 1, None)]
                assert db["t"].get(1) == (1, 2, None)
        equal(site)


def test_operator_lets_a_node_continue_alone_whose_other_disk_is_lost(tmp_path: Path) -> None:
    """docs/node-group.md, *Trouble*: two nodes without arbitrator, and one of them is gone for ever."""
    with site_of(tmp_path, 2) as site:
        with site.nodes[1].connect(PATIENCE_MS) as db:
            db.create_table("t", COLUMNS, "id")
            db["t"].insert((1, 1, None))
        site.drop(2)
        shutil.rmtree(tmp_path / "2")
        wait_until(lambda: site.nodes[1].status()["state"] != "open")
        site.nodes.pop(1).close()
        shutil.rmtree(tmp_path / "1" / "node")
        site.start(1)
        with site.nodes[1].connect(PATIENCE_MS) as db:
            db["t"].insert((2, 2, None))
        site.start(2)
        assert ids_at(site, 2) == [1, 2]
        equal(site)


def test_new_primary_leads_after_every_epoch_that_any_member_has_heard_of(tmp_path: Path) -> None:
    """Story: two closings of empty epochs had reached one member and not the other. The other one led in an epoch that
    was closed at the first, and the first's copy was taken for damaged.
    """
    with site_of(tmp_path, 3) as site:
        with site.nodes[2].connect(PATIENCE_MS) as db:
            db.create_table("t", COLUMNS, "id")
            store = site.db(3).parts.store
            life = site.nodes[3].parts.life
            with store.latch:
                store.epochs.advance(store.epochs.current + (40 << 32))
            site.drop(1)
            db["t"].insert((1, 1, None))
            site.wait_view(2, 3)
            assert ids_at(site, 3) == [1] and site.primary() == 2
            assert site.nodes[3].parts.life is life, "it was copied anew"
        equal(site)


def test_copied_node_does_not_call_aborted_what_its_log_is_too_young_to_know(tmp_path: Path) -> None:
    """Story: a log that begins at its first byte was taken for a complete one. A client whose answer was lost would
    have learned from the next primary, a copy, that its commit was aborted, and would have repeated it.
    """
    with site_of(tmp_path, 1, of=2) as site:
        with site.nodes[1].connect(PATIENCE_MS) as db:
            db.create_table("t", COLUMNS, "id")
            with db.transaction() as txn:
                txn.insert("t", (1, 1, None))
                txid = txn.txid
            assert db.outcome(txid) == "committed"
        site.start(2)
        assert site.db(2).outcome(txid) == "unknown"
        site.close(1)
        site.wait_view(2)
        with site.nodes[2].connect(PATIENCE_MS) as db:
            assert db.outcome(txid) == "unknown"
            with db.transaction() as txn:
                txn.insert("t", (2, 2, None))
                later = txn.txid
            assert db.outcome(later) == "committed"


def test_commit_the_next_primary_will_never_know_of_is_unanswered_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Story: its log begins after the transaction, for it joined later. The client asked again and again for a
    minute.
    """
    with site_of(tmp_path, 1, of=2) as site:
        with site.nodes[1].connect(1 << 40) as db:
            db.create_table("t", COLUMNS, "id")
            txn = db.transaction()
            txn.insert("t", (1, 1, None))
            site.start(2)
            db.links.learn()  # now the client knows both nodes

            def unanswered(what: Any) -> Any:
                site.close(1)
                site.wait_view(2)
                raise tm.PeerError("the link broke; connect again")

            monkeypatch.setattr(txn.link, "ask", unanswered)
            with pytest.raises(tm.CommitUnanswered, match="of the current primary begins after") as caught:
                txn.commit()
            assert caught.value.txid == txn.txid
            assert db["t"].get(1) is None


def test_node_that_joins_and_gets_no_groups_is_copied_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Story: the primary's log was cut past the groups the node lacked, and it asked for them for ever. The first fix
    covered a node that was not ready yet; one that was ready opened what it had, life after life, and was never copied.
    """
    monkeypatch.setattr("tidemark.replication.node_group.life.JOIN_SECONDS", 0.5)
    with site_of(tmp_path, 1, of=2) as site:
        with site.nodes[1].connect(PATIENCE_MS) as db:
            db.create_table("t", COLUMNS, "id")
            stream = site.nodes[1].parts.life.stream
            groups, has_caught_up, copy_from_primary = (
                stream.groups,
                Machine.has_caught_up,
                StoreThread.copy_from_primary,
            )
            ready: list[Machine] = []
            copied: list[StoreThread] = []

            def ready_though_late(machine: Machine) -> bool:
                is_so = has_caught_up(machine)
                if is_so and not ready:
                    ready.append(machine)
                    db["t"].insert((1, 0, None))  # acknowledged before the primary learns that it is ready
                return is_so

            def come_back_and_count(thread: StoreThread, epoch: int, sequence: int) -> None:
                copy_from_primary(thread, epoch, sequence)
                copied.append(thread)
                if len(copied) == 2:
                    monkeypatch.setattr("tidemark.replication.node_group.life.JOIN_SECONDS", 60.0)

            monkeypatch.setattr(Machine, "has_caught_up", ready_though_late)
            monkeypatch.setattr(StoreThread, "copy_from_primary", come_back_and_count)
            monkeypatch.setattr(stream, "groups", lambda first, last: () if len(copied) < 2 else groups(first, last))
            site.start(2)
            assert len(set(copied)) >= 2, "no second life has copied anything"
        site.wait_view(1, 2)
        assert ids_at(site, 2) == [1]
        equal(site)


def test_member_whose_file_is_not_to_be_had_any_more_is_copied_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with site_of(tmp_path, 3, transaction_memory="256 KiB") as site:
        lives = {number: site.nodes[number].parts.life for number in (2, 3)}
        real, refused = fetch.is_name, []
        monkeypatch.setattr(fetch, "is_name", lambda name: bool(refused) and real(name) or refused.append(name))
        with site.nodes[1].connect(PATIENCE_MS) as db:
            db.create_table("t", COLUMNS, "id")
            db.run(lambda txn: txn.insert_many("t", [(number, 0, "y" * 50) for number in range(12_000)]), retries=20)
        assert refused
        site.wait_view(1, 2, 3)
        assert sum(site.nodes[number].parts.life is not life for number, life in lives.items()) == 1
        assert ids_at(site, 2) == ids_at(site, 3) == list(range(12_000))
        equal(site)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_thread_of_a_store_that_dies_of_a_bug_ends_the_life_of_its_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it is a member that answers heartbeats and applies nothing: no commit of the group would ever end."""
    with site_of(tmp_path, 3) as site:
        with site.nodes[1].connect(PATIENCE_MS) as db:
            db.create_table("t", COLUMNS, "id")
            life = site.nodes[2].parts.life

            def broken(*_: Any) -> int:
                raise ZeroDivisionError

            monkeypatch.setattr(life.thread, "apply_one", broken)
            db["t"].insert((1, 1, None))
        site.wait_view(1, 2, 3)
        assert site.nodes[2].parts.life is not life
        equal(site)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_node_whose_opening_dies_of_a_bug_gives_its_port_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Story: the store was released only after errors of Tidemark's own; else its port stayed taken until a
    collection.
    """

    def broken(*_: Any) -> None:
        raise ZeroDivisionError

    with site_of(tmp_path, 1) as site:
        host, _, port = site.text.partition("=")[2].partition(":")
        site.close(1)
        with monkeypatch.context() as patch:
            patch.setattr(StoreThread, "open", broken)
            node = site.begin(1)
            wait_until(lambda: node.parts.ended.is_set())
            with pytest.raises(tm.InvariantBroken, match="ZeroDivisionError"):
                node.status()
            socket.create_server((host, int(port))).close()
            site.close(1)
        site.start(1)


def test_log_is_held_for_a_node_that_joins_until_transactions_need_it(tmp_path: Path) -> None:
    with site_of(tmp_path, 1, redo_log="4 MiB", checkpoint_interval_ms=0) as site:
        node, copies = site.nodes[1].parts.store, site.nodes[1].parts.life.copies
        with site.nodes[1].connect(PATIENCE_MS) as db:
            db.create_table("t", COLUMNS, "id")
            copies.hold(node, 2, node.store.log.sequence - 1, 1e18)
            (held,) = held_for_nodes(node.store)
            attempts = Attempts(per_transaction=5)
            for number in range(80):  # each small enough to use the log and not a file
                attempts.run(db, lambda txn, n=number: txn.write_many("t", [(k, n, "z" * 300) for k in range(150)]))
                copies.hold(node, 2, 1, 1e18)
            attempts.check()
            assert node.store.log.tail_lsn > held, "it was never cut"
            copies.release(node, frozenset({2}), 0.0)
            assert held_for_nodes(node.store) == []


def held_for_nodes(store: Any) -> list[int]:
    """Return the LSNs from which the log is kept for other nodes."""
    return [each["lsn"] for each in store.log.counters()["held_by"] if "node" in each["what"]]


def knows_all(machine: Any) -> bool:
    """Return whether X ends where the log ends."""
    return bool(machine.journal.record.sequence == machine.log.synced)


def test_node_that_was_at_the_end_of_what_is_complete_is_not_copied_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Story: X has groups, but local checkpoints end epochs that have none. After two of those nothing led back to X: a
    node that had left in order, or died at rest, was copied whole. And a node that joined at rest did not learn X.
    """
    begun: list[tuple[Source, Ready]] = []
    real = Source.begin
    monkeypatch.setattr(Source, "begin", lambda self, ready: begun.append((self, ready)) or real(self, ready))
    far = tm.Column("far", tm.VarChar(200), nullable=True, storage="disk")
    with site_of(tmp_path, 3, gcp_interval_ms=200) as site:
        with site.nodes[1].connect(PATIENCE_MS) as db:
            db.create_tablespace("main", "4 MiB")
            db.create_table("t", [*COLUMNS, far], "id", tablespace="main")
            db["t"].insert_many([(number, 0, None, "far") for number in range(500)])
            for turn, go in enumerate((site.close, site.drop, site.close)):
                wait_until(lambda: knows_all(site.nodes[3].parts.life.machine))
                for _ in range(2):
                    site.db(3).checkpoint()
                epoch, keeper = site.db(3).parts.store.epochs.newest_closed, site.db(3).parts.opened.keeper
                wait_until(lambda epoch=epoch, keeper=keeper: keeper.restorable_epoch > epoch)
                go(3)
                db["t"].insert((1_000 + turn, 1, None, "far"))
                begun.clear()
                site.start(3)
                ((source, ready),) = begun
                assert ready.through and source.progress.why == "" and source.progress.rows == 1
                assert len(ids_at(site, 3)) == 501 + turn
        equal(site)
