"""A node whose disk hangs: the others continue without it, and its clients get their answers from them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import tidemark as tm
from tests.node_group.site import PATIENCE_MS, SECRET, Site, site_of
from tests.node_group.test_node import COLUMNS, equal, ids_at
from tests.waiting import wait_until
from tidemark.replication.calls.conversation import CallServer
from tidemark.replication.node_group.view import Times

# A node falls silent after a second and a half.
TIMES = Times(suspicion_ms=1_000, stall_ms=1_500)


@contextmanager
def hung_disk(site: Site, number: int) -> Iterator[threading.Event]:
    """Let every sync and every read of a node's store wait until the block ends; yield what the first one sets."""
    files = site.db(number).parts.files
    works, hangs = threading.Event(), threading.Event()
    real = {name: getattr(files, name) for name in ("fdatasync", "pread", "pwrite_synced")}

    def late(name: str) -> Any:
        def call(*given: Any) -> Any:
            hangs.set()
            works.wait()
            return real[name](*given)

        return call

    for name in real:
        setattr(files, name, late(name))
    try:
        yield hangs
    finally:
        for name, call in real.items():
            setattr(files, name, call)
        works.set()


def started(work: Any) -> tuple[threading.Thread, list[Any]]:
    """Start a thread; return it, and what will have its result or its error."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(work())
        except tm.Error as error:
            found.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, found


def test_commit_at_a_primary_whose_disk_hangs_is_answered_by_the_next_primary(tmp_path: Path) -> None:
    """Story: the others took over after six seconds, but the commit under way at the old primary, and with it the
    client, waited for as long as the disk hung. Its link ends, and the client asks the next primary for the outcome.
    """
    with site_of(tmp_path, 3, times=TIMES) as site:
        with site.nodes[1].connect(PATIENCE_MS) as db:
            db.create_table("t", COLUMNS, "id")
            db["t"].insert((1, 1, None))
            with hung_disk(site, 1):
                committing, outcome = started(
                    lambda: db.run(lambda txn: txn.write("t", (2, txn.get("t", 1).n + 1, None)), retries=20)
                )
                changing, changed = started(lambda: db.create_index("t", "by_n", "n"))
                committing.join(PATIENCE_MS / 1_000)
                changing.join(PATIENCE_MS / 1_000)
                assert outcome == [None]
                # Sent once: the caller has to look.
                assert len(changed) == 1 and isinstance(changed[0], (tm.PeerError, tm.NotPrimary, type(None)))
                assert site.nodes[1].status()["state"] == "member", "it no longer says that it takes transactions"
                with tm.connect(
                    [site.nodes[1].address, site.nodes[2].address], SECRET, timeout_ms=PATIENCE_MS
                ) as other:
                    other["t"].insert((3, 3, None))
                    assert other.where()["primary"] != site.nodes[1].address
                assert ids_at(site, 2) == [1, 2, 3]
        site.wait_view(1, 2, 3)
        assert ids_at(site, 1) == [1, 2, 3]
        equal(site)


def test_read_of_a_page_at_a_node_whose_disk_hangs_is_answered_by_another(tmp_path: Path) -> None:
    """Without any commit: the periodic write of the sysfile shows that the disk hangs."""
    far = tm.Column("far", tm.VarChar(200), nullable=True, storage="disk")
    with site_of(tmp_path, 3, times=TIMES) as site:
        with site.nodes[2].connect(PATIENCE_MS) as db:
            db.create_tablespace("main", "4 MiB")
            db.create_table("t", [*COLUMNS, far], "id", tablespace="main")
            db["t"].insert_many([(number, 0, None, "far" * 60) for number in range(8_000)])
            with hung_disk(site, 2) as hangs:
                assert hangs.wait(PATIENCE_MS / 1_000)
                reading, rows = started(lambda: len(db["t"].scan(["id", "far"]).to_arrow()))
                wait_until(lambda: 2 not in site.nodes[1].status()["members"])
                reading.join(PATIENCE_MS / 1_000)
                # A scan that has begun is not begun again by itself.
                assert rows == [8_000] or isinstance(rows[0], (tm.PeerError, tm.NotPrimary))
                assert db["t"].get(7_999).far == "far" * 60
        site.wait_view(1, 2, 3)
        equal(site)


def test_client_of_a_process_that_is_stopped_asks_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Story: a process that was stopped ends no link. The others took over within a second, and a client whose commit
    or read was under way there waited until the process continued.
    """
    monkeypatch.setattr(CallServer, "cut", lambda server: None)
    with site_of(tmp_path, 3) as site, site.nodes[1].connect(PATIENCE_MS) as db:
        db.create_table("t", COLUMNS, "id")
        db["t"].insert((1, 1, None))
        txn = db.transaction()
        txn.insert("t", (2, 2, None))
        # As far as clients and other nodes see, it is stopped: it hears no node, and answers no call.
        life, continues = site.nodes[1].parts.life, threading.Event()
        for name in ("writing", "reading", "view"):
            real = getattr(life, name)
            monkeypatch.setattr(life, name, lambda real=real: (continues.wait(), real())[1])
        life.carrier.close()
        reading, found = started(lambda: db["t"].get(1).n)
        with pytest.raises(tm.PrimaryLost):
            txn.commit()
        reading.join(PATIENCE_MS / 1_000)
        assert found == [1]
        db.run(lambda again: again.insert("t", (2, 3, None)), retries=20)
        continues.set()
        site.wait_view(2, 3)
        assert ids_at(site, 2) == [1, 2]
        site.nodes.pop(1).close(leave=False)
        site.start(1)
        equal(site)


def test_the_only_member_keeps_its_clients_while_its_disk_hangs(tmp_path: Path) -> None:
    """No other node knows more, so a late answer is the best one."""
    with site_of(tmp_path, 1, of=2, times=TIMES) as site, site.nodes[1].connect(PATIENCE_MS) as db:
        db.create_table("t", COLUMNS, "id")
        with hung_disk(site, 1):
            committing, outcome = started(lambda: db["t"].insert((1, 1, None)))
            machine = site.nodes[1].parts.life.machine
            clock = site.db(1).parts.store.clock
            wait_until(lambda: machine.is_stalled(clock.monotonic() - 3.0))
            assert outcome == []
        committing.join(PATIENCE_MS / 1_000)
        assert outcome == [None] and db["t"].get(1).n == 1


def test_disk_that_hangs_for_a_moment_costs_no_link(tmp_path: Path) -> None:
    """A disk that is slow for less than `stall_ms` delays commits and breaks nothing."""
    with site_of(tmp_path, 2, of=3, times=TIMES) as site, site.nodes[1].connect(PATIENCE_MS) as db:
        db.create_table("t", COLUMNS, "id")
        view = site.nodes[1].status()["view"]
        txn = db.transaction()
        txn.insert("t", (1, 1, None))
        with hung_disk(site, 1) as hangs:
            assert hangs.wait(PATIENCE_MS / 1_000)
        txn.commit()
        assert site.nodes[1].status()["view"] == view
