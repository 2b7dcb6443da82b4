"""Crashes of stores with disk columns, a cache of 25 pages, an UNDO log that wraps."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from typing import Any

import pytest

import tidemark as tm
from tests.crash.programs import disk_history
from tests.crash.programs.__main__ import DISK_PROGRAMS
from tests.shares import few, share
from tidemark.engine.base.errors import StorageFull
from tidemark.recovery.crash_harness.__main__ import main
from tidemark.recovery.crash_harness.anomaly_loop import anomaly_loop
from tidemark.recovery.crash_harness.crash_states import crash_states, record
from tidemark.recovery.crash_harness.disks.faults import FaultFiles, Plan, Rule
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles
from tidemark.recovery.crash_harness.disks.order import OrderMonitor
from tidemark.recovery.crash_harness.power_loop import power_loop
from tidemark.recovery.crash_harness.program import (
    Ledger,
    PowerOff,
    digest_of,
    open_simulated,
    power_off,
    resolve,
    state_of,
    whole_state,
)

LARGE = {"redo_log": "4 MiB", "data_memory": "8 MiB"}


def test_crash_states_of_disk_tables_show_what_was_promised() -> None:
    report = crash_states(disk_history.tiny_work, whole_state, seed=3, per_point=1, share=share(0.2))
    assert report.points > 100
    assert report.interrupted > 1
    assert report.checks > 8
    assert report.figures["undo_filtered"] > 0
    assert report.figures["local_checkpoints"] == 2


def test_power_losses_again_and_again_leave_no_piece_of_a_disk_row() -> None:
    """One life after another on one disk, local checkpoints in each. Seed 10 found, at its third loss, a chunk that
    belongs to no disk part: see `test_what_a_lost_run_left_on_free_pages_does_not_come_back`.
    """
    report = power_loop(disk_history.lives_work, disk_history.lives_verify, losses=3, seed=10, calls_max=900)
    assert report.losses == 3


@pytest.mark.parametrize("anomaly", ["disk-full", "interrupt", "power-off", "sync-error-reverting", "write-error"])
def test_anomaly_at_some_calls_over_disk_tables_has_a_right_outcome(anomaly: str) -> None:
    assert anomaly_loop(disk_history.tiny_work, whole_state, anomaly, 11, few(73, 37)).points >= few(1, 3)


def test_disk_full_for_good_under_a_commit_in_slices_ends_in_an_error() -> None:
    """Story: a page could not be written, and the next slice needed its frame. The commit tried again for ever, holding
    the epoch.
    """
    report = anomaly_loop(disk_history.short_work, whole_state, "disk-full-for-good", 11, 69)
    assert report.points >= 2


def test_name_of_a_retired_local_checkpoint_that_came_back_is_no_damage() -> None:
    """Story: a power loss kept the unlinking of a local checkpoint's data files and lost the unlinking of its control
    file. Two newer ones replace it, and yet `check` called the store damaged.
    """
    disk = MemoryFiles()
    db = open_simulated(OrderMonitor(disk))
    db.create_table("app.t", [tm.Column("id", tm.Int64)], primary_key="id")
    db.checkpoint()
    retired = disk.snapshot()["lcp/control-1"]
    db.checkpoint()
    db.checkpoint()
    db.close()
    left = {name: content for name, content in disk.snapshot().items() if name != "LOCK"}
    assert "lcp/control-1" not in left
    report = open_simulated(OrderMonitor(MemoryFiles.from_snapshot({**left, "lcp/control-1": retired}))).check()
    assert report["problems"] == []
    assert any("local checkpoint 1, which two newer ones replace" in note for note in report["notes"])


COLD = [tm.Column("id", tm.Int64), tm.Column("note", tm.VarChar(900), storage="disk")]
PER_PAGE = 4  # rows of `fill`


def fill(db: Any, keys: Iterable[int]) -> None:
    """Rows in transactions of their own; four of them fill a page."""
    for key in keys:
        db["app.t"].insert((key, "note" * 200))


def open_lost(disk: MemoryFiles, **options: Any) -> Any:
    return open_simulated(OrderMonitor(disk), **options)


def make_table(db: Any, size: str) -> None:
    """An empty table that a local checkpoint has recorded."""
    db.create_tablespace("main", size, page_size="4 KiB", extent="32 KiB")
    db.create_table("app.t", COLD, primary_key="id", partition=tm.HashPartition(1), tablespace="main")
    for _ in range(2):
        db.checkpoint()


def lose_pages_of(disk: MemoryFiles, keys: Iterable[int]) -> MemoryFiles:
    """Lose power after the UNDO records of the rows reached the disk and before their pages did; return that disk."""
    plan = Plan()
    db = open_lost(FaultFiles(disk, plan))
    plan.add(Rule("pwrite", "double-write", once=False, stall=power_off))
    fill(db, keys)
    with pytest.raises(PowerOff):
        db.checkpoint()
    return disk.image(lambda piece: False)


def test_what_a_lost_run_left_on_free_pages_does_not_come_back() -> None:
    """Story: commits filled pages, which went to disk, and were lost with the power. After the restart their extents
    were free. One was given to the same fragment again, a local checkpoint had it, and rows went to its next page.
    Power was lost after their UNDO records were written and before the page was. The restart took the page as the lost
    run had left it, and counted its free words by that. The pieces on it belonged to no row.
    """
    disk = MemoryFiles()
    db = open_lost(disk, durability="epoch")
    make_table(db, "256 KiB")
    fill(db, range(1_000, 1_240))
    disk = disk.image(lambda piece: False)
    db = open_lost(disk)
    assert len(db["app.t"]) == 0
    fill(db, range(3))
    db.checkpoint()
    left = lose_pages_of(disk.kill(), range(3, 24))
    db = open_lost(left)
    assert db.check()["problems"] == []
    assert [row.id for row in db["app.t"].scan()] == list(range(24))


def test_free_pages_of_a_file_that_grew_as_the_power_failed_are_never_read() -> None:
    """Story: a data file grew, and power was lost before the sync: its size was there, its zeros were not. Rows went to
    a page of the new extent, a local checkpoint had it, and rows went to the next page. Power was lost after their UNDO
    records were written and before the page was. The restart read the page to undo them: it had no checksum, and the
    store could not be opened any more.
    """
    disk = MemoryFiles()
    plan = Plan()
    db = open_lost(FaultFiles(disk, plan))
    make_table(db, "32 KiB")
    plan.add(Rule("fdatasync", "space/1.data", once=False, stall=power_off))
    with pytest.raises(PowerOff):
        fill(db, range(100, 200))
    disk = disk.image(lambda piece: piece.kind == "grow", lambda count: b"\xa5" * count)
    db = open_lost(disk)
    there = len(db["app.t"])
    fill(db, range(8 * PER_PAGE + 1 - there))
    db.checkpoint()
    left = lose_pages_of(disk.kill(), range(200, 210))
    db = open_lost(left)
    assert db.check()["problems"] == []
    assert len(db["app.t"]) == 8 * PER_PAGE + 1 + 10


def test_page_emptied_by_a_restart_goes_back_to_an_older_local_checkpoint() -> None:
    """A page had rows at one local checkpoint, none at the next, and others after it. A restart empties it; if the
    newer local checkpoint is damaged then, the next restart undoes what had emptied it first.
    """
    disk = MemoryFiles()
    db = open_lost(disk)
    make_table(db, "256 KiB")
    fill(db, range(40))
    db.checkpoint()
    db["app.t"].delete_many(list(range(4, 8)))
    db.checkpoint()
    fill(db, range(100, 112))
    db.parts.store.disk.flush()
    expected = sorted(row.id for row in db["app.t"].scan())
    disk = disk.image(lambda piece: False)
    db = open_lost(disk)
    assert db.parts.store.disk.counters()["undo"]["records_made"] > 0
    contents = disk.image(lambda piece: False).snapshot()
    newest = max(name for name in contents if name.startswith("lcp/control-"))
    contents[newest] = b"\0" * len(contents[newest])
    db = open_lost(MemoryFiles.from_snapshot(contents))
    assert sorted(row.id for row in db["app.t"].scan()) == expected
    assert [each for each in db.check()["problems"] if newest not in each] == []


def test_data_file_that_grows_during_a_batch_of_pages_does_not_count_them_as_synced() -> None:
    """Story: while pages were being written to a data file, a transaction needed an extent and the file was synced for
    its growth. This sync made the pages count as synced, and the double-write file was overwritten: a power loss might
    have torn them for good.
    """
    disk, plan = MemoryFiles(), Plan()
    db = open_simulated(FaultFiles(OrderMonitor(disk), plan))
    make_table(db, "32 KiB")
    fill(db, range(8))
    before = db.status()["tablespaces"]["main"]["extents"]
    plan.add(Rule("pwrite", "space/1.data", stall=lambda: db.parts.store.space.extend(1)))
    db.parts.store.disk.flush()
    assert db.status()["tablespaces"]["main"]["extents"] > before
    fill(db, range(8, 16))
    db.checkpoint()
    db.close()


def full_store() -> tuple[MemoryFiles, Ledger]:
    """A disk whose UNDO log is as full as it may get, after one local checkpoint."""
    disk, ledger = MemoryFiles(), Ledger()
    history = disk_history.DiskHistory(lambda **options: open_simulated(OrderMonitor(disk), **options), 3, ledger, 0)
    history.db = history.open_store(**LARGE)
    history.ddl(disk_history.MAIN)
    history.db.checkpoint()
    with pytest.raises(StorageFull, match="UNDO"):
        while True:
            history.commit()
    return disk, ledger


def test_fifty_restarts_interrupted_in_replay_do_not_fill_the_undo_log() -> None:
    """Story: each restart that got as far as REDO wrote the structural UNDO records again, after those of the restart
    before. After a few restarts the log would have been written over its tail, and the store could not have been opened
    any more.
    """
    rng = random.Random(5)
    left, ledger = full_store()
    disk = left.kill()
    expected = digest_of(state_of(open_simulated(OrderMonitor(disk.kill()), **LARGE)))
    went_off = 0
    for number in range(50):
        rule = Rule("pwrite", nth=rng.randrange(60, 420), once=False, stall=power_off)
        try:
            open_simulated(OrderMonitor(FaultFiles(disk, [rule])), **LARGE)
        except PowerOff:
            went_off += 1
        disk = disk.crash(rng, "sectors" if number % 3 else "torn")
    db = open_simulated(OrderMonitor(disk), **LARGE)
    assert went_off > 10
    assert digest_of(state_of(db)) == expected
    assert whole_state(db, ledger) == []
    assert db.check()["problems"] == []


def test_store_with_a_full_undo_log_takes_a_local_checkpoint_after_a_restart() -> None:
    """Story: records made by a restart were counted twice like any other record. A log that was full when the store
    went down had no space left for the mark of a local checkpoint, which alone could have freed it.
    """
    left, _ = full_store()
    db = open_simulated(OrderMonitor(left.kill()), **LARGE)
    db.checkpoint()
    db.checkpoint()
    db[disk_history.MAIN].write((1, "after", 1.0, None, "label", 1))
    assert db[disk_history.MAIN].get(1).owner == "after"


def test_extent_of_a_dropped_table_is_used_again_by_a_commit_in_slices() -> None:
    """Story: a large commit is applied to the next pages that are in memory, whatever these are in memory for. A page
    of a dropped table was still there after its extent had gone to a new table, and was taken for a page of the new
    table: InvariantBroken.
    """
    assert record(disk_history.long_work, 2)


@pytest.mark.parametrize("program", DISK_PROGRAMS)
def test_program_of_the_enumeration_does_what_the_enumeration_is_for(program: str) -> None:
    """More pages than the cache has, local checkpoints, and UNDO records left out wherever there is a filter: otherwise
    the enumeration covers less than it claims.
    """
    figures: dict[str, int] = {}
    record(resolve(program), 1, figures)
    assert figures["pages_written"] > 25
    assert figures["undo_records"] > 100
    assert figures["local_checkpoints"] >= 2
    assert (figures["undo_filtered"] == 0) == ("unfiltered" in program)


def test_enumeration_in_pieces_prints_one_line_per_program(capsys: pytest.CaptureFixture[str]) -> None:
    program = "tests.crash.programs.disk_history:tiny_work"
    asked = ["states", "--work", program, "--jobs", "2", "--distinct", "2", "--per-point", "1", "--share", "0.1"]
    asked += ["--json", "--seed", "7"]
    assert main(asked) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["seeds"] == [7, 8]
    assert figures["states"] > 20
    assert figures["violations"] == figures["order_violations"] == 0
    assert figures["undo_filtered"] > 0
