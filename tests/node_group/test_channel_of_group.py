"""A group as a replica site: the leading node runs its channel, and a takeover in the middle of the stream loses
nothing and applies nothing twice.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import tidemark as tm
from tests.node_group.site import OPTIONS, PATIENCE_MS, SECRET, Site, site_of
from tests.node_group.test_binlogs import LOGGED, do, rows, said
from tests.other_user import write_secret
from tests.ports import free_ports
from tests.waiting import wait_until
from tidemark.cli.commands import commands
from tidemark.engine.base.clock import SystemClock
from tidemark.nodes.node_channel import NodeChannel
from tidemark.replication.channel.first_copy import CopyTarget, is_interrupted

COLUMNS = [tm.Column("id", tm.Int64), tm.Column("n", tm.Int64), tm.Column("note", tm.VarChar(20), nullable=True)]
SOURCE: dict[str, Any] = {**OPTIONS, "server_id": 7, "log_bin": "log", "epoch_interval_ms": 20}


@contextmanager
def source_at(folder: Path, **options: Any) -> Iterator[tuple[Any, str]]:
    """Serve a store with a table, and yield it with its address."""
    with tm.open(folder, **{**SOURCE, **options}) as db:
        db.create_table("t", COLUMNS, "id")
        with tm.serve(db, "127.0.0.1:0", SECRET, heartbeat_row_ms=100) as serving:
            yield db, serving.name


class Inserts(threading.Thread):
    """Inserts one row after the other at the source, each in an epoch of its own where possible."""

    def __init__(self, db: Any) -> None:
        super().__init__(daemon=True)
        self._db = db
        self.count = 0
        self.is_over = threading.Event()

    def run(self) -> None:
        while not self.is_over.wait(0.005):
            self._db["t"].insert((self.count, self.count, None))
            self.count += 1


def applied(db: Any, server_id: int) -> int:
    """Return the applied epoch of a source, 0 if there is none."""
    found = {row.server_id: row.epoch for row in db["mysql.ndb_apply_status"].scan()}
    return int(found.get(server_id, 0))


def channel_at(site: Site, number: int) -> dict[str, Any]:
    """Return what a node's status says about the channel."""
    return dict(site.nodes[number].status()["channel"])


def inserted(site: Site, number: int) -> list[int]:
    """Return keys of the table in the order of a node's binlog, as often as they occur there."""
    return [row.after["id"] for epoch in said(site, number) for row in epoch.rows if row.table == "main.t"]


def has_t(site: Site, number: int) -> bool:
    """Return whether a node has the table."""
    return "main.t" in site.db(number).tables()


def wait_equal(source: Any, site: Site, *numbers: int) -> None:
    """Wait until these nodes have the rows of the source.

    Story: a node drops the table of a copy that was interrupted. If that came between the look for the table and the
    scan, the wait ended with NoSuchTable.
    """

    def is_equal(number: int) -> bool:
        try:
            return rows(site.db(number)) == rows(source)
        except tm.NoSuchTable:
            return False

    source.sync()
    wait_until(lambda: all(is_equal(each) for each in numbers))


def test_channel_continues_at_the_next_primary_in_the_middle_of_a_stream(tmp_path: Path) -> None:
    """The survivor's binlog logs again what was applied, row by row: each row exactly once, in order.

    Story of the test: rows arrived between two looks at the survivor, so that an epoch after the takeover brought no
    row that was counted; and the number of rows at the source depended on the speed of the machine.
    """
    logged = {**LOGGED, "log_replica_updates": True}
    with source_at(tmp_path / "source") as (source, address):
        with site_of(tmp_path, 2, with_arbitrator=True, **logged, channel={"source": address}) as site:
            inserts = Inserts(source)
            inserts.start()
            wait_until(lambda: has_t(site, 2) and len(rows(site.db(2))) > 20)
            assert (channel_at(site, 1)["is_here"], channel_at(site, 2)["is_here"]) == (True, False)
            assert channel_at(site, 2) == {"is_here": False, "error": None, "channel": None}
            there, before = len(rows(site.db(2))), applied(site.db(2), 7)
            site.drop(1)
            site.wait_view(2)
            wait_until(lambda: channel_at(site, 2)["is_here"])
            wait_until(lambda: applied(site.db(2), 7) > before)
            wait_until(lambda: len(inserted(site, 2)) > there)
            site.start(1)
            assert not channel_at(site, 1)["is_here"]
            logged_again = inserted(site, 2)
            assert sorted(logged_again) == list(range(len(logged_again))), "a row was lost, or applied twice"
            assert len(logged_again) > there
            site.drop(2)
            site.wait_view(1)  # its relay log is from its first life as primary
            wait_until(lambda: channel_at(site, 1)["is_here"])
            wait_until(lambda: inserts.count > 40)
            inserts.is_over.set()
            inserts.join()
            site.start(2)
            wait_equal(source, site, 1, 2)
            assert len(rows(source)) == inserts.count > 40
            assert channel_at(site, 1)["error"] is None
            wait_until(lambda: channel_at(site, 1)["channel"]["applied_epoch"] == applied(site.db(2), 7))
            logged_again = inserted(site, 1)
            assert len(logged_again) == len(set(logged_again)), "a row was applied twice"


def values(db: Any) -> dict[int, Any]:
    """Return the third column of the table, by key."""
    return {row.id: row.note for row in db["t"].scan()}


def test_two_groups_that_replicate_to_each_other_agree_after_a_takeover_and_a_conflict(tmp_path: Path) -> None:
    """NDB$EPOCH at group 1: group 2 changes a row without knowing the change of group 1. A primary that took no part in
    that change refuses it, and group 2 gets the row of group 1, from the binlog of another node than before.
    """
    first, second, other = (f"127.0.0.1:{port}" for port in free_ports(3))
    logged = {**LOGGED, "log_apply_status": True}
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    back: Any = {"source": first, "other_sources": [second], "failover_after_ms": 1_000, "heartbeat_from": 1}
    one = Site(tmp_path / "one", 2, with_arbitrator=True, **logged, channel={"source": other}, heartbeat_row_ms=100)
    two = Site(tmp_path / "two", 1, **{**logged, "server_id": 2}, channel=back, replicas=other)
    try:
        for number, place in enumerate((first, second), 1):
            one.start(number, replicas=place)
        two.start(1)
        with one.nodes[2].connect(PATIENCE_MS) as db, two.nodes[1].connect(PATIENCE_MS) as far:
            db.create_replication_table().insert((b"main", b"t", 0, 7, b"NDB$EPOCH()"))
            db.create_table("t", COLUMNS, "id")
            do(db, "insert_many", [(key, 0, "both") for key in range(10)])
            wait_until(lambda: has_t(two, 1) and rows(two.db(1)) == rows(one.db(1)))
            do(far, "insert", (50, 0, "far"))
            wait_until(lambda: 50 in values(one.db(2)))
            one.nodes[1].channel.stop()
            two.nodes[1].channel.stop()
            do(db, "update", 1, {"note": "here"})
            do(far, "update", 1, {"note": "there"})
            do(far, "insert", (51, 0, "far"))
            do(db, "insert", (60, 0, "here"))
            one.drop(1)
            one.wait_view(2)
            wait_until(lambda: 51 in values(one.db(2)))
            two.nodes[1].start_channel()
            wait_until(lambda: 60 in values(two.db(1)) and rows(two.db(1)) == rows(one.db(2)))
            assert values(two.db(1))[1] == "here"
            assert one.db(2).status()["replication"]["variables"]["Ndb_conflict_fn_epoch"] == 1
            moved = channel_at(two, 1)
            assert moved["error"] is None and moved["channel"]["failover"]["moves"] >= 1
    finally:
        two.end()
        one.end()


def test_error_of_the_channel_is_reported_and_ends_neither_node_nor_group(tmp_path: Path) -> None:
    """The group has no such table any more, so its rows cannot be applied; when it exists again the channel
    continues.
    """
    with source_at(tmp_path / "source") as (source, address):
        source["t"].insert((1, 1, None))
        source.sync()
        with site_of(tmp_path, 1, **LOGGED, channel={"source": address}) as site:
            wait_until(lambda: has_t(site, 1) and len(rows(site.db(1))) == 1)
            with site.nodes[1].connect(PATIENCE_MS) as db:
                site.nodes[1].channel.stop()
                db.drop_table("t")
                source["t"].insert((2, 2, None))
                site.nodes[1].start_channel()
                wait_until(lambda: channel_at(site, 1)["error"] is not None)
                assert "t" in channel_at(site, 1)["error"]
                assert channel_at(site, 1)["channel"]["applier"]["state"] == "failed"
                assert site.nodes[1].status()["state"] == "open"
                db.create_table("t", COLUMNS, "id")
            site.nodes[1].start_channel()
            wait_until(lambda: rows(site.db(1)) == [(2, 2, None)])
            assert channel_at(site, 1)["error"] is None


def test_first_copy_that_meets_tables_is_refused_and_made_when_they_have_gone(tmp_path: Path) -> None:
    """The tables belong to a user: the mark of an interrupted copy does not name them."""
    with source_at(tmp_path / "source") as (source, address):
        source["t"].insert((1, 1, None))
        source.sync()
        with site_of(tmp_path, 1, **LOGGED) as site:
            with site.nodes[1].connect(PATIENCE_MS) as db:
                db.create_table("t", COLUMNS, "id")
                site.close(1)
                site.start(1, channel={"source": address, "copy": True})
                wait_until(lambda: channel_at(site, 1)["error"] is not None)
                assert not channel_at(site, 1)["is_here"] and "t" in channel_at(site, 1)["error"]
                site.nodes[1].start_channel()
                wait_until(lambda: channel_at(site, 1)["error"] is not None)
                assert rows(site.db(1)) == []
            with site.nodes[1].connect(PATIENCE_MS) as db:
                db.drop_table("t")
            site.nodes[1].start_channel()
            wait_until(lambda: channel_at(site, 1)["is_here"])
            assert rows(site.db(1)) == [(1, 1, None)]
            assert channel_at(site, 1)["error"] is None


def test_first_copy_in_which_the_primary_died_is_made_anew_by_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Story: the mark of an interrupted copy was in a file of the node that died. The next primary found the tables and
    took them for a user's, and the group had no channel until an operator dropped them.
    """
    real, held = CopyTarget.finish, threading.Event()

    def finish(target: Any, end: Any) -> None:
        if not held.is_set():
            held.set()
            wait_until(lambda: target.store.failure.error is not None)
        real(target, end)

    monkeypatch.setattr(CopyTarget, "finish", finish)
    with source_at(tmp_path / "source") as (source, address):
        for key in range(100):
            source["t"].insert((key, key, None))
        source.sync()
        channel = {"source": address, "copy": True}
        with site_of(tmp_path, 1, 2, with_arbitrator=True, **LOGGED, channel=channel) as site:
            assert held.wait(PATIENCE_MS / 1_000)
            site.start(2)
            with site.nodes[2].connect(PATIENCE_MS) as db:
                db.create_table("own", COLUMNS, "id")
                db["own"].insert((7, 7, None))
            assert has_t(site, 2) and is_interrupted(site.db(2).parts.store) and applied(site.db(2), 7) == 0
            site.drop(1)
            site.wait_view(2)
            source["t"].insert((100, 100, None))
            wait_equal(source, site, 2)
            wait_until(lambda: channel_at(site, 2)["is_here"])
            assert channel_at(site, 2)["error"] is None and applied(site.db(2), 7) > 0
            assert not is_interrupted(site.db(2).parts.store)
            assert list(map(tuple, site.db(2)["own"].scan())) == [(7, 7, None)]
            site.start(1)
            wait_equal(source, site, 1, 2)


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        ({"other_sources": []}, tm.SchemaInvalid, "no source"),
        ({"source": "127.0.0.1:1", "progress": print}, tm.SchemaInvalid, "no option 'progress'"),
        ({"source": "127.0.0.1:1", "skip_start": True}, tm.SchemaInvalid, "no option 'skip_start'"),
        ({"source": "127.0.0.1:1", "progress": print, 7: 8}, tm.SchemaInvalid, "no option 7"),
        ("127.0.0.1:1", tm.SchemaInvalid, "channel must be a mapping of arguments of tm.Channel, got str"),
        ({"source": 7}, tm.SchemaInvalid, "must be an address"),
        ({"source": "host"}, tm.SchemaInvalid, "host:port"),
        ({"source": "127.0.0.1:1", "secret": b"short"}, tm.SchemaInvalid, "16"),
        ({"source": "127.0.0.1:1", "name": "No!"}, tm.InvalidName, "name"),
        ({"source": "127.0.0.1:1", "heartbeat_ms": 0}, tm.SchemaInvalid, "heartbeat_ms"),
        ({"source": "127.0.0.1:1", "other_sources": ["127.0.0.1:2"]}, tm.SchemaInvalid, "go together"),
        ({"source": "127.0.0.1:1", "replica_batch_size": 0}, tm.SchemaInvalid, "replica_batch_size"),
        ({"source": "127.0.0.1:1", "conflict_role": "boss"}, tm.SchemaInvalid, "conflict_role"),
    ],
)
def test_arguments_of_a_channel_that_cannot_be_leave_no_trace(
    tmp_path: Path, given: Any, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        Site(tmp_path, 1, **LOGGED).begin(1, channel=given)
    assert list(tmp_path.iterdir()) == []


def test_channel_needs_a_server_id(tmp_path: Path) -> None:
    with pytest.raises(tm.Rejected, match="server_id"):
        Site(tmp_path, 1).begin(1, channel={"source": "127.0.0.1:1"})
    with site_of(tmp_path, 1) as site, pytest.raises(tm.Rejected, match="no channel"):
        site.nodes[1].start_channel()


def asked(monkeypatch: pytest.MonkeyPatch, folder: Path, *arguments: str) -> tuple[dict[str, Any], str]:
    """Return the arguments with which `tidemark node` makes a node, and its output."""
    seen: dict[str, Any] = {}

    def made(*places: Any, **given: Any) -> Any:
        seen.update(given)
        raise tm.Rejected("seen")

    monkeypatch.setattr(tm, "NodeGroup", made)
    write_secret(folder / "secret", SECRET)
    write_secret(folder / "other", b"the secret of the source, a long one\n")
    own = ["node", str(folder / "1"), "--node", "1", "--group", "1=127.0.0.1:1"]
    result = CliRunner().invoke(commands, [*own, "--secret-file", str(folder / "secret"), *arguments])
    return seen, result.output


def test_command_passes_its_options_to_the_channel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sources = ["--source", "far:1", "--other-source", "far:2", "--failover-after-ms", "500", "--heartbeat-from", "7"]
    more = ["--source-secret-file", str(tmp_path / "other"), "--channel", "west", "--copy", "--ignore-table", "shop.%"]
    given = ["-o", "server_id=1", "-o", "gcp_interval_ms=300", "-o", "replica_batch_size=1 MiB"]
    seen, said_ = asked(monkeypatch, tmp_path, *sources, *more, *given)
    assert "seen" in said_
    assert seen["channel"] == {
        "source": "far:1",
        "other_sources": ("far:2",),
        "failover_after_ms": 500,
        "heartbeat_from": 7,
        "secret": b"the secret of the source, a long one",
        "name": "west",
        "copy": True,
        "replicate_do": (),
        "replicate_ignore": ("shop.%",),
        "replica_batch_size": "1 MiB",
    }
    assert (seen["server_id"], seen["gcp_interval_ms"]) == (1, 300)
    assert "replica_batch_size" not in seen
    NodeChannel(seen["channel"], SECRET, 1, lambda: None, SystemClock())


@pytest.mark.parametrize("arguments", [["--copy"], ["--other-source", "far:2"], ["-o", "replica_batch_size=1 MiB"]])
def test_command_refuses_options_of_a_channel_without_a_source(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: list[str]
) -> None:
    seen, said_ = asked(monkeypatch, tmp_path, *arguments)
    assert not seen and "need --source" in said_
    seen, _ = asked(monkeypatch, tmp_path)
    assert seen["channel"] is None
