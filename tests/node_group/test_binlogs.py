"""Binlogs of the nodes of a group: each has the same epochs, and none that the group could still lose; a replica can
change from one to another.
"""

from __future__ import annotations

import itertools
import shutil
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import tidemark as tm
from tests.node_group.site import OPTIONS, PATIENCE_MS, SECRET, Site, site_of
from tests.node_group.test_node import COLUMNS, equal
from tests.ports import free_ports
from tests.replication.site import Epoch, transactions_in
from tests.waiting import wait_until
from tidemark.engine.base.ids import make_epoch
from tidemark.engine.base.limits import GCI_MAX
from tidemark.replication.binlog import events as e
from tidemark.replication.binlog.position import base_of
from tidemark.replication.binlog.reader import BinlogReader
from tidemark.replication.injector import pending_system_rows
from tidemark.replication.node_group.messages import Applied
from tidemark.replication.settings.system_tables import NDB_SCHEMA
from tidemark.replication.wire.messages import Start

MARKS = itertools.count(1_000_000)
LOGGED: dict[str, Any] = {"server_id": 1, "log_bin": "log", "log_updated_only": False, "epoch_interval_ms": 20}


def said(site: Site, number: int) -> list[Epoch]:
    """Return the epochs in the binlog of a node."""
    binlog = site.db(number).binlog
    return transactions_in(site.db(number).parts.files, end=binlog.durable_end(), base=binlog.base)


def raw(site: Site, number: int) -> list[tuple[Any, ...]]:
    """Return statements, table maps and rows in a node's binlog as they are."""
    binlog = site.db(number).binlog
    reader = BinlogReader(site.db(number).parts.files, base=binlog.base)
    found: list[tuple[Any, ...]] = []
    for read in reader.events(binlog.durable_end()):
        event = read.event
        if isinstance(event, e.Rows):
            where = (event.kind, event.table_id, event.columns, event.before, event.after, event.flags)
            found.append((*where, bytes(event.body), read.header.server_id, read.header.timestamp_s))
        elif isinstance(event, e.Query):
            found.append((event.statement, event.database, read.header.server_id))
    reader.close()
    return found


def wait_logged(site: Site, *numbers: int) -> None:
    """Wait until the binlogs of these nodes have everything committed, and a marker row after it."""
    with site.nodes[numbers[0]].connect(PATIENCE_MS) as db:
        do(db, "insert", {"id": next(MARKS), "n": 0})
        epoch = db.sync()
    wait_until(lambda: all(site.db(each).binlog.handled_epoch >= epoch for each in numbers))


def wait_complete(site: Site, number: int) -> None:
    """Return when a node knows that every member has all groups of its log.

    The primary announces only epochs that have groups. The epoch of a local checkpoint may have none, and would never
    be announced.
    """
    node = site.nodes[number].parts

    def is_complete() -> bool:
        life = node.life  # None while the node is out of its group for a moment, as on a slow machine
        return life is not None and life.serves() and node.completed_epoch >= life.stream.sent.last_epoch

    wait_until(is_complete)


def keys(reported: list[Epoch]) -> list[int]:
    """Return the keys of the rows in these epochs, in order, without marker rows."""
    found = [row.after["id"] for each in reported for row in each.rows if row.after is not None]
    return [key for key in found if key < 1_000_000]


def do(db: Any, method: str, *arguments: Any) -> None:
    """Run one transaction on table t; retry it while the group has no primary."""
    db.run(lambda txn: getattr(txn, method)("t", *arguments), retries=20)


def rows(db: Any) -> list[Any]:
    """Return the rows of table t, by key."""
    return sorted(map(tuple, db["t"].scan()))


def test_every_node_writes_the_same_epochs_into_files_of_its_own(tmp_path: Path) -> None:
    with site_of(tmp_path, 2, **LOGGED) as site:
        with site.nodes[2].connect(PATIENCE_MS) as db:
            db.create_table("t", COLUMNS, "id")
            for number in range(10):
                do(db, "insert", (number, number, "x" * number))
            do(db, "update", 3, {"n": 30})
            do(db, "delete", 4)
            db.add_column("t", tm.Column("more", tm.Int32, nullable=True))
            do(db, "insert", (20, 1, None, 5))
        wait_logged(site, 1, 2)
        first, second = raw(site, 1), raw(site, 2)
        assert site.db(1).binlog.base == "log-1" and site.db(2).binlog.base == "log-2"
        start = next(place for place, each in enumerate(second) if "CREATE DATABASE" in str(each[0]))
        assert second[start:] == first[-len(second[start:]) :] and len(second) - start > 8
        reported = [each for each in said(site, 1) if each.rows]
        assert reported == [each for each in said(site, 2) if each.rows] and len(reported) >= 2
        equal(site)


def test_nothing_is_in_a_binlog_before_every_member_has_it(tmp_path: Path) -> None:
    with site_of(tmp_path, 2, with_arbitrator=True, **LOGGED) as site:
        with site.nodes[1].connect(PATIENCE_MS) as db:
            db.create_table("t", COLUMNS, "id")
            do(db, "insert", (1, 1, None))
            wait_logged(site, 1, 2)
            carrier, held = site.nodes[2].parts.life.carrier, threading.Event()
            send, log = carrier.send, site.db(2).parts.store.log
            last = log.sequence

            def without_answer(to: int, message: Any) -> None:
                if isinstance(message, Applied) and message.synced >= last:
                    held.set()
                else:
                    send(to, message)

            carrier.send = without_answer
            before = {number: said(site, number) for number in (1, 2)}
            writer = threading.Thread(target=lambda: do(db, "insert", (2, 2, None)))
            writer.start()
            assert held.wait(PATIENCE_MS / 1_000)
            # Not the open epoch: it may be the next one, and the primary closes none while it waits for the member.
            epoch = site.nodes[2].parts.life.stream.sent.last_epoch
            wait_until(lambda: site.db(2).parts.store.epochs.newest_closed >= epoch)
            site.db(2).binlog.write_closed_epochs()
            assert writer.is_alive(), "the commit did not wait for the member"
            assert {number: said(site, number) for number in (1, 2)} == before
            carrier.send = send
            writer.join()
            wait_until(lambda: all(keys(said(site, number)) == [1, 2] for number in (1, 2)))


def test_epochs_without_groups_are_in_no_binlog(tmp_path: Path) -> None:
    """The next primary may reuse the number of such an epoch."""
    with site_of(tmp_path, 2, **{**LOGGED, "log_empty_epochs": True}) as site:
        with site.nodes[1].connect(PATIENCE_MS) as db:
            db.create_table("t", COLUMNS, "id")
            do(db, "insert", (1, 1, None))
        wait_logged(site, 1, 2)
        last = site.db(1).binlog.handled_epoch
        newest = site.db(1).parts.store.epochs.current
        wait_until(lambda: site.db(1).parts.store.epochs.current > newest + 5)
        for number in (1, 2):
            assert said(site, number)[-1].epoch <= last == site.db(number).binlog.handled_epoch
            assert site.db(number).checkpoint()["epoch"] > last, (
                "a local checkpoint of an epoch that no node will complete"
            )


def test_node_that_was_away_says_what_its_binlog_lacks_and_continues(tmp_path: Path) -> None:
    with site_of(tmp_path, 2, with_arbitrator=True, **LOGGED) as site:
        with site.nodes[1].connect(PATIENCE_MS) as db:
            db.create_table("t", COLUMNS, "id")
            do(db, "insert", (1, 1, None))
            wait_logged(site, 1, 2)
            site.drop(2)
            site.wait_view(1)
            do(db, "insert", (2, 2, None))
            db.sync()
            site.start(2)
            assert site.db(2).status()["binlog"]["has_gap"]
            do(db, "insert", (3, 3, None))
        wait_logged(site, 1, 2)
        reported = said(site, 2)
        gaps = [place for place, each in enumerate(reported) if each.incident]
        assert len(gaps) == 2, "one from before it joined at first, one of the time it was away"
        at = gaps[-1]
        assert "continue with another node's" in reported[at].incident and not reported[at + 1].rows
        assert keys(reported) == [1, 3], "row 2 came with the copy"
        lacking = [each.epoch for each in said(site, 1) if any(row.after["id"] == 2 for row in each.rows)]
        assert reported[at - 1].epoch < lacking[0] <= reported[at + 1].epoch < reported[at + 2].epoch
        assert not (tmp_path / "2" / "binlog" / "stopped").exists()


def test_binlog_of_a_node_whose_local_checkpoint_ends_where_the_copy_begins(tmp_path: Path) -> None:
    """Story: the node's log had no group after its local checkpoint. What follows was copied, and the log continues
    with a later group. The binlog looked for the next group at the end of the local checkpoint, and the node ended: a
    group that was durable could not be read back.
    """
    with site_of(tmp_path, 2, with_arbitrator=True, checkpoint_interval_ms=0, **LOGGED) as site:
        with site.nodes[1].connect(PATIENCE_MS) as db:
            db.create_table("t", COLUMNS, "id")
            do(db, "insert", (1, 1, None))
            wait_logged(site, 1, 2)
            do(db, "insert", (2, 2, None))
            wait_complete(site, 2)
            site.db(2).checkpoint()
            site.drop(2)
            site.wait_view(1)
            do(db, "insert", (3, 3, None))
            db.sync()
            site.start(2)
            do(db, "insert", (4, 4, None))
        wait_logged(site, 1, 2)
        reported = said(site, 2)
        assert 3 not in keys(reported), "row 3 came with the copy"
        assert any(each.incident for each in reported)
        equal(site)


def served(root: Path, ports: list[int]) -> Site:
    """Start two nodes that serve their binlogs."""
    site = Site(root, 2, with_arbitrator=True, **LOGGED)
    for number, port in enumerate(ports, 1):
        site.start(number, replicas=f"127.0.0.1:{port}", heartbeat_row_ms=100)
    return site


def test_replica_goes_from_the_binlog_of_a_dead_node_to_that_of_another(tmp_path: Path) -> None:
    ports = free_ports(2)
    site = served(tmp_path, ports)
    first, second = (f"127.0.0.1:{port}" for port in ports)
    try:
        with tm.open(tmp_path / "replica", **{**OPTIONS, "server_id": 9}) as replica:
            with site.nodes[2].connect(PATIENCE_MS) as db:
                db.create_table("t", COLUMNS, "id")
                wait_logged(site, 1, 2)
                failover: Any = {"other_sources": [second], "failover_after_ms": 1_000, "heartbeat_from": 1}
                channel = tm.Channel(
                    first, replica, secret=SECRET, skip_start=False, copy=True, heartbeat_ms=100, **failover
                )
                do(db, "insert_many", [(number, 0, None) for number in range(50)])
                wait_until(lambda: len(rows(replica)) == 51)
                site.drop(1)
                do(db, "insert_many", [(number, 1, None) for number in range(100, 150)])
                do(db, "delete", 7)
                site.wait_view(2)
                # Wait for the rows themselves: while the channel moves to the other node, its applier stands still.
                wait_until(lambda: len(rows(replica)) == 100)
            shown = channel.status()
            assert shown["failover"]["moves"] >= 1 and shown["applier"]["error"] is None
            assert rows(replica) == rows(site.db(2))
            status = {row.server_id: row for row in replica["mysql.ndb_apply_status"].scan()}
            assert set(status) == {1} and base_of(status[1].log_name) == "log-2"
    finally:
        site.end()


def test_replica_stops_at_the_gap_of_one_node_and_continues_with_another(tmp_path: Path) -> None:
    with site_of(tmp_path, 2, with_arbitrator=True, **LOGGED) as site:
        with site.nodes[1].connect(PATIENCE_MS) as db:
            db.create_table("t", COLUMNS, "id")
            do(db, "insert", (1, 1, None))
            wait_logged(site, 1, 2)
            with tm.open(tmp_path / "replica", **{**OPTIONS, "server_id": 9}) as replica:
                with tm.Channel(site.db(1), replica, copy=True) as channel:
                    channel.apply_all()
                (row,) = replica["mysql.ndb_apply_status"].scan()
                # A member learns which epochs are closed only after the commit.
                wait_until(lambda: site.db(2).parts.store.epochs.newest_closed >= row.epoch)
                with tm.Channel(site.db(2), replica) as channel:
                    assert channel.apply_all() == 0, "node 2 continues where node 1 had got to"
                site.drop(2)
                site.wait_view(1)
                do(db, "insert", (2, 2, None))
                db.sync()
                site.start(2)
                wait_logged(site, 1, 2)
                with tm.Channel(site.db(2), replica) as channel, pytest.raises(tm.EpochGap, match="lacks changes"):
                    channel.apply_all()
                assert len(rows(replica)) == 2
                others: Any = {"other_sources": [site.db(1)], "failover_after_ms": 40, "heartbeat_from": 1}
                with tm.Channel(site.db(2), replica, skip_start=False, **others) as channel:
                    wait_until(lambda: rows(replica) == rows(site.db(1)))
                    channel.check_running()
                    assert channel.status()["failover"]["moves"]
                do(db, "insert", (3, 3, None))
                wait_logged(site, 1, 2)
                with tm.Channel(site.db(2), replica) as channel:
                    channel.receive_next()
                    channel.apply_all()
                assert rows(replica) == rows(site.db(2)) and len(rows(replica)) == 6


def test_only_the_primary_says_that_the_group_has_not_an_epoch(tmp_path: Path) -> None:
    with site_of(tmp_path, 2, with_arbitrator=True, **LOGGED) as site:
        with site.nodes[1].connect(PATIENCE_MS) as db:
            db.create_table("t", COLUMNS, "id")
        wait_logged(site, 1, 2)
        ahead = Start(epoch=make_epoch(GCI_MAX, 0))
        for number, said_so, words in (
            (1, tm.EpochGap, "is not the one"),
            (2, tm.PeerError, "yet.*try again"),
        ):
            binlog = site.db(number).endpoint.source_binlog()
            with pytest.raises(said_so, match=words):
                binlog.locate(ahead)
            binlog.close()


def test_binlogs_continue_after_a_restart_of_the_whole_site(tmp_path: Path) -> None:
    site = Site(tmp_path, 2, **LOGGED)
    try:
        site.start(1)
        site.start(2)
        with site.nodes[1].connect(PATIENCE_MS) as db:
            db.create_table("t", COLUMNS, "id")
            do(db, "insert", (1, 1, None))
            wait_logged(site, 1, 2)
            do(db, "insert", (2, 2, None))
        site.drop(1)
        site.drop(2)
        site.begin(2)
        site.begin(1)
        for node in site.nodes.values():
            node.wait_member(PATIENCE_MS)
        site.wait_view(1, 2)
        with site.nodes[1].connect(PATIENCE_MS) as db:
            do(db, "insert", (3, 3, None))
        wait_logged(site, 1, 2)
        reported = [[each for each in said(site, number) if each.rows] for number in (1, 2)]
        assert reported[0] == reported[1]
        assert keys(reported[0]) == [1, 2, 3]
        assert not any(each.incident for each in said(site, 1)), "nothing was missing"
    finally:
        site.end()


def test_schema_row_stands_when_every_member_has_the_change_and_outlives_its_primary(tmp_path: Path) -> None:
    def schema_of(number: int) -> dict[bytes, Any]:
        return {row.name: row for row in site.db(number)["mysql.ndb_schema"].scan()}

    with site_of(tmp_path, 2, with_arbitrator=True, **LOGGED) as site:
        with site.nodes[2].connect(PATIENCE_MS) as db:
            db.create_table("t", COLUMNS, "id")
            wait_until(lambda: all(b"t" in schema_of(number) for number in (1, 2)))
            assert schema_of(1) == schema_of(2) and not any(schema_of(1)[b"t"].slock)
            site.drop(2)
            site.wait_view(1)
        with site.nodes[1].connect(PATIENCE_MS) as db:
            db.add_column("t", tm.Column("more", tm.Int32, nullable=True))
            wait_until(lambda: b"ADD COLUMN" in schema_of(1)[b"t"].query.upper())
            site.start(2)
            assert schema_of(2) == schema_of(1), "it has not caught up"
            site.drop(1)
            site.wait_view(2)
        with site.nodes[2].connect(PATIENCE_MS) as db:
            db.drop_table("t")
            wait_until(lambda: schema_of(2)[b"t"].type == 0)


def test_group_is_a_replica_whose_channel_continues_at_the_next_primary(tmp_path: Path) -> None:
    source_options = {**OPTIONS, "server_id": 7, "log_bin": "log"}
    with (
        tm.open(tmp_path / "source", **source_options) as source,
        site_of(tmp_path, 2, with_arbitrator=True, **LOGGED) as site,
    ):
        source.create_table("t", COLUMNS, "id")
        source["t"].insert((1, 1, None))
        source.sync()
        with tm.Channel(source, site.db(1)) as channel:
            channel.apply_all()
        source["t"].insert((2, 2, None))
        source.sync()
        site.drop(1)
        site.wait_view(2)
        with tm.Channel(source, site.db(2)) as channel:
            steps = list(iter(channel.apply_next, None))
        assert [step.outcome for step in steps if step.epoch] == ["applied"], "what node 1 had applied came again"
        assert rows(site.db(2)) == rows(source) and len(rows(source)) == 2


def test_store_that_founds_a_group_continues_the_binlog_it_has(tmp_path: Path) -> None:
    with tm.open(tmp_path / "1", **{**OPTIONS, **LOGGED}) as db:
        db.create_table("t", COLUMNS, "id")
        db["t"].insert((1, 1, None))
    with site_of(tmp_path, 2, **LOGGED) as site:
        with site.nodes[2].connect(PATIENCE_MS) as client:
            do(client, "insert", (2, 2, None))
        wait_logged(site, 1, 2)
        assert (site.db(1).binlog.base, site.db(2).binlog.base) == ("log", "log-2")
        assert keys(said(site, 1)) == [1, 2] and not any(each.incident for each in said(site, 1))
        assert keys(said(site, 2)) == [2] and said(site, 2)[0].incident


def test_member_has_a_binlog_though_its_primary_has_none(tmp_path: Path) -> None:
    """Without before-images in the primary's log, a member's binlog would lack the keys of deleted rows."""
    site = Site(tmp_path, 2, **LOGGED)
    try:
        site.start(1, log_bin=None)
        site.start(2)
        with site.nodes[1].connect(PATIENCE_MS) as db:
            db.create_table("t", COLUMNS, "id")
            do(db, "insert", (1, 1, "x"))
            do(db, "update", 1, {"n": 2})
            do(db, "delete", 1)
        wait_logged(site, 2)
        reported = [(row.before, row.after) for each in said(site, 2) for row in each.rows]
        assert ({"id": 1}, None) in [(before and {"id": before["id"]}, after) for before, after in reported]
        assert site.db(1).binlog is None
    finally:
        site.end()


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"replicas": "127.0.0.1:0", "log_bin": None}, "give log_bin"),
        ({"heartbeat_row_ms": 100}, "give replicas"),
        ({"replicas": "127.0.0.1:0", "heartbeat_row_ms": -1}, "give 0 to"),
    ],
)
def test_options_of_serving_that_do_not_go_together_are_refused(tmp_path: Path, given: Any, text: str) -> None:
    with pytest.raises(tm.SchemaInvalid, match=text):
        Site(tmp_path, 1, **LOGGED).begin(1, **given)
    assert list(tmp_path.iterdir()) == []


def test_binlog_of_epochs_the_group_never_had_is_begun_anew(tmp_path: Path) -> None:
    """A binlog folder of another history lies next to the store: its positions would lead replicas nowhere."""
    with tm.open(tmp_path / "1", **{**OPTIONS, **LOGGED}) as db:
        db.create_table("t", COLUMNS, "id")
        db["t"].insert((1, 1, None))
        db.sync()
        shutil.copytree(tmp_path / "1", tmp_path / "older", ignore=shutil.ignore_patterns("binlog", "*.sock", "lock"))
        for _ in range(3):
            db.parts.clockwork.advance_gci()
        db["t"].insert((2, 2, None))
    shutil.copytree(tmp_path / "1" / "binlog", tmp_path / "older" / "binlog")
    shutil.rmtree(tmp_path / "1")
    (tmp_path / "older").rename(tmp_path / "1")
    with site_of(tmp_path, 1, **LOGGED) as site:
        with site.nodes[1].connect(PATIENCE_MS) as client:
            assert rows(site.db(1)) == [(1, 1, None)]
            do(client, "insert", (3, 3, None))
        wait_logged(site, 1)
        reported = said(site, 1)
        assert reported[0].incident and keys(reported) == [3]


def test_member_that_opens_writes_no_row_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Story: a member that came back owed its binlog a row of `ndb_schema`, and wrote it before it followed a primary:
    a commit that no other node had, in an epoch above all others. At the member's next local checkpoint the row's epoch
    was past the checkpoint's own, and the store stopped; its log had a group that the primary did not have.
    """
    real, writers = pending_system_rows.write_schema_row, []

    def spy(store: Any, row: Any) -> None:
        writers.append(store)
        real(store, row)

    monkeypatch.setattr(pending_system_rows, "write_schema_row", spy)
    with site_of(tmp_path, 2, with_arbitrator=True, **LOGGED) as site, site.nodes[1].connect(PATIENCE_MS) as db:
        leading = site.nodes[1].parts.life.node.store
        for number in range(3):
            binlog = site.db(2).binlog
            monkeypatch.setattr(
                binlog, "write_epoch", lambda *_: (_ for _ in ()).throw(tm.StoreFailed("no epoch is written"))
            )
            db.create_table(f"t{number}", COLUMNS, "id")
            site.drop(2)
            site.start(2)
            site.wait_view(1, 2)
        assert writers and all(store is leading for store in writers)
        equal(site)


def test_rows_of_ndb_schema_wait_until_the_primary_has_made_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Story: between taking the lead and making the system tables, a new primary's binlog may pay what it owes. The
    table was missing, and the binlog's thread ended with NoSuchTable.
    """
    written: list[Any] = []
    monkeypatch.setattr(pending_system_rows, "write_schema_row", lambda store, row: written.append(row))
    store: Any = SimpleNamespace(resources=SimpleNamespace(refusal=None), tables=SimpleNamespace(by_name={}))
    files: Any = None
    writer: Any = SimpleNamespace(end=None)
    values = {"server_id": 1, "log_orig": True}
    owed = pending_system_rows.PendingSystemRows(store, None, files, writer, values)
    change: Any = SimpleNamespace(author=0, table="db.t", text="-", table_id=7, version=1, operation=1)
    epoch: Any = SimpleNamespace(schema=(change,), epoch=5, end=None)
    owed.note(epoch)
    owed.write()
    assert written == []
    store.tables.by_name[NDB_SCHEMA] = object()
    owed.write()
    owed.write()
    assert [(row.db, row.name, row.epoch) for row in written] == [(b"db", b"t", 5)]
