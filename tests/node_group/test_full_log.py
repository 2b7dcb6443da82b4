"""A member whose own log is full waits, is left out by the others, and comes back by itself."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import tidemark as tm
from tests.node_group.site import PATIENCE_MS, PATIENT, Site, site_of
from tests.node_group.test_node import equal
from tests.waiting import wait_until
from tidemark.engine.base.clock import SystemClock
from tidemark.engine.store.group_apply import GroupRun
from tidemark.replication.node_group.life import Life
from tidemark.replication.node_group.store_thread import StoreThread
from tidemark.replication.node_group.view import Times

COLUMNS = [tm.Column("id", tm.Int64), tm.Column("n", tm.Int64), tm.Column("note", tm.VarChar(8_000))]
TEXT = "x" * 7_000
# A node falls silent after a second and a half, and begins again after three.
TIMES = Times(suspicion_ms=1_000, stall_ms=1_500)
SHORT: dict[str, Any] = {"lock_timeout_ms": 300, "redo_log": "4 MiB", "checkpoint_interval_ms": 0, "times": TIMES}


class Writing(threading.Thread):
    """Commits rows of 7 KB one by one, and counts those acknowledged."""

    def __init__(self, db: Any) -> None:
        super().__init__(daemon=True)
        self._db = db
        self.acknowledged: list[int] = []
        self.is_over = threading.Event()

    def run(self) -> None:
        key = 0
        while not self.is_over.is_set():
            key += 1
            row = (key % 300, key, TEXT)
            try:
                self._db.run(lambda txn, row=row: txn.write("t", row), retries=0)
            except (tm.Retryable, tm.OutcomeUnknown):
                continue
            self.acknowledged.append(key)


def hold_checkpoints(site: Site, number: int) -> None:
    """Let no local checkpoint of this node's store start any more: each waits for the end of an epoch, and the stream
    has that end after groups for which the log has no room.
    """

    def waits(*_: Any) -> Any:
        raise tm.NotPrimary("no end of an epoch comes")

    site.db(number).parts.lcp.run = waits


def stuck(caplog: pytest.LogCaptureFixture) -> bool:
    """Return whether a group has waited for room."""
    return any("of the primary waits" in record.getMessage() for record in caplog.records)


def test_member_whose_log_stays_full_is_left_out_and_comes_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Story: it took no group any more and said nothing, for good. Its local checkpoints waited for an epoch's end in
    the stream, and the stream waited for room that only they make. When it was left out, it did not even notice.
    """
    with site_of(tmp_path, 2, with_arbitrator=True, **SHORT) as site, site.nodes[1].connect(PATIENCE_MS) as db:
        db.create_table("t", COLUMNS, "id")
        hold_checkpoints(site, 2)
        store = site.db(2).parts.store
        writing = Writing(db)
        writing.start()
        wait_until(lambda: stuck(caplog))
        site.wait_view(1)
        before = len(writing.acknowledged)
        wait_until(lambda: len(writing.acknowledged) > before + 50)
        wait_until(lambda: site.db(2).parts.store is not store)
        site.wait_view(1, 2)
        writing.is_over.set()
        writing.join()
        equal(site)


def test_member_with_a_full_log_leads_when_its_primary_dies(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It has everything that was acknowledged, and no other node lives: it has to come up with what it has."""
    with site_of(tmp_path, 2, with_arbitrator=True, **SHORT) as site:
        with site.nodes[1].connect(PATIENCE_MS) as db:
            db.create_table("t", COLUMNS, "id")
            hold_checkpoints(site, 2)
            writing = Writing(db)
            writing.start()
            wait_until(lambda: stuck(caplog))
            site.drop(1)
            writing.is_over.set()
            writing.join()
        site.wait_view(2)
        newest: dict[int, int] = {}
        for key in writing.acknowledged:
            newest[key % 300] = key
        there = {row.id: row.n for row in site.db(2)["t"].scan(["id", "n"])}
        assert len(newest) > 100 and all(there[each] >= n for each, n in newest.items())
        site.start(1)
        equal(site)


def test_member_whose_local_checkpoints_are_slow_lets_them_begin_in_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Story: its log became full in the middle of an epoch while no local checkpoint was running, and none could start.
    The stream now waits for local checkpoints at the ends of epochs, and the writers wait with it.
    """
    patient = {**SHORT, "times": PATIENT}
    with site_of(tmp_path, 2, with_arbitrator=True, **patient) as site, site.nodes[1].connect(PATIENCE_MS) as db:
        db.create_table("t", COLUMNS, "id")
        store, lcp = site.db(2).parts.store, site.db(2).parts.lcp
        real = lcp.write_data

        def slowly(*given: Any) -> None:
            wait_until(lambda: store.epochs.holds_stream() or writing.is_over.is_set())
            real(*given)

        writing = Writing(db)
        lcp.write_data = slowly
        writing.start()
        wait_until(lambda: len(writing.acknowledged) > 1_500)
        writing.is_over.set()
        writing.join()
        assert not stuck(caplog) and lcp.completed > 3
        assert site.db(2).parts.store is store and site.nodes[1].status()["members"] == [1, 2]
        lcp.write_data = real
        equal(site)


def test_member_without_room_in_the_midst_of_a_group_begins_again_with_what_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Story: half a group was in its rows when the UNDO log was full. Nothing of the group was in its log, so opening
    the store again was enough. Instead all its rows were dropped, even where no other node lived to copy them from.
    """
    real, broken = GroupRun.apply_part, threading.Event()

    def records(run: Any, words: Any, stop: int) -> None:
        real(run, words, stop)
        if run.store is member and not broken.is_set():
            broken.set()
            raise tm.StorageFull("the UNDO log is full")

    with site_of(tmp_path, 2, with_arbitrator=True, **SHORT) as site, site.nodes[1].connect(PATIENCE_MS) as db:
        db.create_table("t", COLUMNS, "id")
        member = site.db(2).parts.store
        forgotten: list[Any] = []
        monkeypatch.setattr(Life, "forget_rows", forgotten.append)
        monkeypatch.setattr(GroupRun, "apply_part", records)
        writing = Writing(db)
        writing.start()
        assert broken.wait(PATIENCE_MS / 1_000)
        wait_until(lambda: site.db(2).parts.store is not member)
        site.wait_view(1, 2)
        writing.is_over.set()
        writing.join()
        assert member.failure.error is not None and "open the store again" in member.failure.error.message
        assert forgotten == []
        equal(site)


@pytest.mark.parametrize("error", [tm.RedoOverloaded, tm.BinlogOverloaded])
def test_group_waits_for_room_as_long_as_it_may(error: type[tm.Error]) -> None:
    """Story: a log was full, for a moment, of epochs the binlog lacked. That ended the node, and an operator had to
    act.
    """
    refused = [error("full"), error("full")]

    def apply(words: Any) -> None:
        if refused:
            raise refused.pop()
        log.head_lsn += 512

    log = SimpleNamespace(head_lsn=4_096, sequence=3)
    node: Any = SimpleNamespace(
        store=SimpleNamespace(clock=SystemClock(), log=log), applier=SimpleNamespace(apply=apply)
    )
    unused: Any = None
    thread = StoreThread(unused, unused, unused, unused, unused, unused, 60.0)
    assert thread.apply_one(node, np.zeros(64, dtype=np.int64)) == 4_096 and log.head_lsn == 4_608
    thread.patience_s = 0.0
    refused.append(error("full"))
    with pytest.raises(error):
        thread.apply_one(node, np.zeros(64, dtype=np.int64))


@pytest.mark.parametrize("why", ["no room", "an epoch's end"])
def test_groups_before_a_wait_are_synced_and_reported_first(why: str) -> None:
    """Story: a local checkpoint waited for its epoch in the binlog, and so for an acknowledgement of every member.
    Groups that this member had applied waited for the local checkpoint, and the member had not acknowledged them.
    """
    said: list[str] = []
    log = SimpleNamespace(head_lsn=4_096, sequence=1, make_durable=lambda last: said.append(f"synced {last}"))
    epochs, resources = SimpleNamespace(current=1 << 32), SimpleNamespace(waits_for_disk=True)
    store = SimpleNamespace(clock=SystemClock(), log=log, resources=resources, epochs=epochs)
    applier = SimpleNamespace(
        apply=lambda words: said.append(f"applied {words[0]}"),
        may_wait=lambda words: why == "no room" and int(words[0]) == 3,
        close_epoch=lambda epoch, sequence: said.append(f"epoch opened at {sequence}"),
    )
    unused: Any = None
    thread = StoreThread(unused, unused, unused, unused, unused, unused, 60.0)
    node: Any = SimpleNamespace(store=store, applier=applier)
    sent: Any = SimpleNamespace(add=lambda *given: None)
    thread.node, thread.stream.sent = node, sent
    thread.stream.post = lambda event: said.append(f"told {thread.stream.synced}")
    if why == "an epoch's end":
        thread.epochs.append((2 << 32, 3))
    thread.apply(1, tuple(np.full(8, number, dtype=np.int64) for number in (1, 2, 3)))
    opened = ["epoch opened at 3"] if why == "an epoch's end" else []
    first, last = ["applied 1", "applied 2", "synced 2", "told 2"], ["applied 3", "synced 3", "told 3"]
    assert said == [*first, *opened, *last]
