"""The one function that decides how much of the log may be cut, and `status`, which names what holds it (D14)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tidemark as tm
from tests.log.support import Log
from tests.store.support import ACCOUNT, open_memory, rows_of
from tidemark.engine.base.clock import ManualClock
from tidemark.engine.base.ids import TXID_COUNTER_BITS, first_txid, txids_from
from tidemark.engine.base.limits import INCARNATION_MAX
from tidemark.engine.log.tail import TailNeeds
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles
from tidemark.recovery.system_restart.sysfile import NAMES, open_copies, read_sysfile, write_sysfile


def filled(db: Any, first: int) -> None:
    db["test.account"].insert_many([(key, "a", 1.0, "n" * 500) for key in range(first, first + 50)])


def held_by(db: Any) -> list[tuple[str, int]]:
    return [(each["what"], each["lsn"]) for each in db.status()["log"]["held_by"]]


def test_log_is_cut_to_the_lowest_need_and_status_names_it() -> None:
    db = open_memory()
    db.create_table("test.account", ACCOUNT, primary_key="id")
    assert held_by(db) == [("a restart: there are no two local checkpoints yet", 0)]
    starts = []
    for number in range(3):
        filled(db, 100 * number)
        starts.append(db.parts.store.log.head_lsn)
        db.checkpoint()
    assert held_by(db) == [("local checkpoint 2, the older of two", db.parts.store.log.tail_lsn)]
    reader, holder = db.parts.store.log.tail_lsn, object()
    with db.parts.store.latch:
        db.parts.store.log.hold_tail(holder, "a node that is being copied", reader)
    for number in range(3, 5):
        filled(db, 100 * number)
        db.checkpoint()
    assert db.parts.store.log.tail_lsn == reader
    found = db.status()["log"]
    first, second = found["held_by"]
    assert (first["what"], first["lsn"]) == ("a node that is being copied", reader)
    assert second["what"] == "local checkpoint 4, the older of two" and second["lsn"] > reader
    assert first["bytes"] == found["used_bytes"] == found["head_lsn"] - reader > second["bytes"]
    with db.parts.store.latch:
        db.parts.store.log.hold_tail(holder, "a node that is being copied", None)
    db.checkpoint()
    assert held_by(db) == [("local checkpoint 5, the older of two", db.parts.store.log.tail_lsn)]


def test_need_reports_since_when_it_has_not_moved() -> None:
    clock = ManualClock()
    needs = TailNeeds(clock)
    began = clock.wall_us()
    needs.set(1, "one", 100)
    clock.sleep(5.0)
    needs.set(1, "one", 100)
    needs.set(2, "two", 50)
    assert [(each.what, each.since_us - began) for each in needs.all()] == [("two", 5_000_000), ("one", 0)]
    assert needs.allow(50) and not needs.allow(51)
    clock.sleep(1.0)
    needs.set(2, "two", 120)
    assert [each.since_us - began for each in needs.all()] == [0, 6_000_000]
    needs.set(1, "one", None)
    assert needs.allow(120) and not needs.allow(121)


def test_what_the_last_restart_needed_holds_the_log_until_new_checkpoints_stand() -> None:
    log = Log()
    log.write(1)
    log.redo.set_tail(4_096, 2, "a test")
    log.redo.hold_tail(7, "another", 0)
    log.redo.set_tail(8_192, 3, "a test")
    assert (log.redo.tail_lsn, log.redo.tail_sequence) == (4_096, 2)
    assert [each["what"] for each in log.redo.counters()["held_by"]] == ["another", "a test"]


def test_binlog_and_archive_are_named(tmp_path: Path) -> None:
    options: dict[str, Any] = {"background": False, "data_memory": "16 MiB", "log_bin": "binlog", "server_id": 1}
    with tm.open(tmp_path / "store", create=True, **options) as db:
        db.create_table("test.account", ACCOUNT, primary_key="id")
        db.archive(tmp_path / "place")
        filled(db, 0)
        db.parts.clockwork.advance_epoch()
        whats = dict(held_by(db))
        assert whats["the binlog"] == db.parts.store.log.head_lsn  # no epoch has come since
        assert whats["the archive"] < whats["the binlog"]
        db.archive()
        assert dict(held_by(db))["the archive"] == db.parts.store.log.head_lsn


def with_incarnation(files: MemoryFiles, incarnation: int) -> None:
    """As if the store had been opened this many times."""
    from dataclasses import replace

    sysfile = read_sysfile(files)
    assert sysfile is not None
    copies = open_copies(files)
    for _ in NAMES:
        sysfile = write_sysfile(copies, replace(sysfile, incarnation=incarnation))


def test_store_that_was_opened_too_often_says_so_before_ids_overflow() -> None:
    """Story: ids of transactions are incarnation << 40 | counter. The opening after 8,388,607 others would have made
    negative ones, without an error.
    """
    files = MemoryFiles()
    db = open_memory(files)
    db.create_table("test.account", ACCOUNT, primary_key="id")
    db["test.account"].insert((1, "a", 1.0, None))
    db.close()
    files = files.kill()
    with_incarnation(files, INCARNATION_MAX - 1)
    last = open_memory(files)
    last["test.account"].insert((2, "a", 1.0, None))
    assert last.parts.store.resources.txid_limit() < 1 << 63
    last.close()
    files = files.kill()
    before = files.snapshot()
    with pytest.raises(tm.LimitExceeded, match="backup into an empty directory") as caught:
        open_memory(files)
    assert caught.value.evidence["incarnation"] == INCARNATION_MAX
    assert files.snapshot() == before
    assert (int(first_txid(INCARNATION_MAX)) >> TXID_COUNTER_BITS) == INCARNATION_MAX


def test_last_thousand_openings_are_reported_and_no_others(caplog: pytest.LogCaptureFixture) -> None:
    """Story: a mutant that warned at every opening but those was seen by no test."""
    files = MemoryFiles()
    open_memory(files).close()
    for incarnation, is_warned in ((1, False), (INCARNATION_MAX - 1_001, False), (INCARNATION_MAX - 1_000, True)):
        files = files.kill()
        with_incarnation(files, incarnation)
        caplog.clear()
        open_memory(files).close()
        assert ("back the store up" in caplog.text) == is_warned, incarnation


@pytest.mark.parametrize("durability", ["commit", "epoch"])
def test_last_id_of_an_opening_is_followed_by_none(durability: str) -> None:
    """Story: the counter ran into the ids of the next opening, which would have been used twice."""
    db = open_memory(durability=durability)
    db.create_table("test.account", ACCOUNT, primary_key="id")
    end = txids_from(db.parts.store.resources.txid_limit()).stop
    db.parts.store.resources.number_from(end - 1)
    db["test.account"].insert((1, "a", 1.0, None))
    for _ in range(2):
        with pytest.raises(tm.LimitExceeded, match="open it again"):
            db["test.account"].insert((2, "a", 1.0, None))
        with pytest.raises(tm.LimitExceeded, match="open it again"):
            db["test.account"].update(1, {"balance": 2.0})
    assert rows_of(db) == {1: (1, "a", 1.0, None)}
