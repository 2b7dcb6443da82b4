"""Nodes whose commits wait for the memory of all members, and for no disk (`durability="epoch"`)."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from tests.node_group.site import PATIENCE_MS, Site, site_of
from tests.node_group.test_node import COLUMNS, equal, ids_at
from tests.waiting import wait_until

# No epoch ends by itself: nothing reaches a disk except by `sync`, or when the log has many groups waiting.
LAZY: dict[str, Any] = {
    "durability": "epoch",
    "epoch_interval_ms": 3_600_000,
    "gcp_interval_ms": 3_600_000,
    "checkpoint_interval_ms": 0,
}


def log_of(site: Site, number: int) -> Any:
    return site.db(number).parts.store.log


def test_commits_on_no_disk_survive_their_primary_and_are_seen_at_once_at_every_member(tmp_path: Path) -> None:
    """Story: commits returned before any other node had them: a killed primary lost acknowledged commits."""
    with site_of(tmp_path, 3, **LAZY) as site:
        with site.nodes[1].connect(PATIENCE_MS) as db, site.nodes[3].connect(PATIENCE_MS) as other:
            db.create_table("t", COLUMNS, "id")
            db.sync()
            log = log_of(site, 1)
            durable = log.durable_sequence
            for number in range(6):
                db["t"].insert((number, 0, None))
                assert other["t"].get(number) is not None
            assert log.durable_sequence == durable and log.sequence > durable + 6
        site.drop(1)
        site.wait_view(2, 3)
        assert ids_at(site, 2) == ids_at(site, 3) == list(range(6))
        site.start(1)
        assert ids_at(site, 1) == list(range(6))
        equal(site)


def test_sync_makes_them_durable_at_every_member(tmp_path: Path) -> None:
    site = Site(tmp_path, 3, **LAZY)
    for number in (1, 2, 3):
        site.start(number)
    with site.nodes[2].connect(PATIENCE_MS) as db:
        db.create_table("t", COLUMNS, "id")
        for number in range(5):
            db["t"].insert((number, 0, None))
        db.sync()
        kept = [log_of(site, number).durable_sequence for number in (1, 2, 3)]
        assert min(kept) >= log_of(site, 1).sequence - 1
        for number in range(5, 8):
            db["t"].insert((number, 0, None))
    for number in (2, 3, 1):
        site.drop(number)
    for number in (1, 2, 3):
        site.begin(number)
    site.wait_view(1, 2, 3)
    found = ids_at(site, 1)
    assert found[:5] == list(range(5)) and found == list(range(len(found))), "a beginning, with all that was synced"
    equal(site)
    site.end()


def test_members_disk_that_stalls_delays_only_commits_that_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with site_of(tmp_path, 2, with_arbitrator=True, **LAZY) as site, site.nodes[1].connect(PATIENCE_MS) as db:
        db.create_table("t", COLUMNS, "id")
        db.sync()
        log, gate, waiting = log_of(site, 2), threading.Event(), threading.Event()
        real = log.files.pwrite_synced

        def stall(*arguments: Any) -> None:
            waiting.set()
            assert gate.wait(100)
            real(*arguments)

        monkeypatch.setattr(log.files, "pwrite_synced", stall)
        durable = log.durable_sequence
        for number in range(20):
            db["t"].insert((number, 0, None))
        assert waiting.wait(100)
        assert log.durable_sequence == durable and ids_at(site, 2) == list(range(20))
        syncing = threading.Thread(target=db.sync)
        syncing.start()
        syncing.join(0.3)
        assert syncing.is_alive(), "what this member has not synced is not durable"
        gate.set()
        syncing.join(100)
        assert not syncing.is_alive() and log.durable_sequence > durable


def test_member_writes_what_has_come_meanwhile_by_one_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with site_of(tmp_path, 2, with_arbitrator=True, **LAZY) as site, site.nodes[1].connect(PATIENCE_MS) as db:
        db.create_table("t", COLUMNS, "id")
        db.sync()
        log, gate = log_of(site, 2), threading.Event()
        real, batches = log.write, []

        def write(batch: list[Any]) -> None:
            batches.append(len(batch))
            assert gate.wait(100)
            real(batch)

        monkeypatch.setattr(log, "write", write)
        for number in range(30):
            db["t"].insert((number, 0, None))
        gate.set()
        wait_until(lambda: log.durable_sequence == log.sequence - 1)
        assert sum(batches) >= 30 and len(batches) <= 3
        equal(site)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_log_that_fails_after_shared_commits_ends_the_life_of_its_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No thread waits for the thread that syncs: if it failed in silence, the node would stay a member that keeps
    nothing.
    """
    with site_of(tmp_path, 3, **LAZY) as site:
        with site.nodes[1].connect(PATIENCE_MS) as db:
            db.create_table("t", COLUMNS, "id")
            db.sync()
            node, log = site.nodes[3].parts, log_of(site, 3)
            life = node.life

            def broken(batch: list[Any]) -> None:
                raise ZeroDivisionError

            monkeypatch.setattr(log, "write", broken)
            for number in range(3):
                db["t"].insert((number, 0, None))
            wait_until(lambda: node.life is not None and node.life is not life)
            site.wait_view(1, 2, 3)
            assert ids_at(site, 3) == [0, 1, 2]
        equal(site)
