"""Every damaged byte is found, before a row is believed; power loss at every write leaves a backup or none."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

import tidemark as tm
from tests.backup.support import SMALL, Contents, Tables, content, content_of, restored, take, whole_place
from tests.store.support import open_memory
from tidemark.engine.base.clock import ManualClock
from tidemark.engine.base.options import Options
from tidemark.recovery.backup.manifest import find_backups
from tidemark.recovery.backup.plan import make_plan
from tidemark.recovery.backup.restore import Restore
from tidemark.recovery.backup.verify import verify
from tidemark.recovery.crash_harness.disks.faults import FaultFiles, Rule
from tidemark.recovery.crash_harness.disks.memory import CRASH_POLICIES, MemoryFiles


class PowerOff(Exception):
    """Power is lost at this point."""


def filled() -> Any:
    db = open_memory(None, data_memory="32 MiB", redo_log="8 MiB", transaction_memory="256 KiB")
    columns = [tm.Column("id", tm.Int64), tm.Column("n", tm.VarChar(20)), tm.Column("d", tm.Int64, storage="disk")]
    db.create_tablespace("pages", page_size="4 KiB", extent="64 KiB", size="256 KiB")
    db.create_table("test.d", columns, "id", tm.HashPartition(1), tablespace="pages")
    db.create_table("test.m", columns[:2], "id", tm.HashPartition(1))
    db["test.d"].insert_many([(key, f"n{key}", key) for key in range(20)])
    db["test.m"].insert_many([(key, f"n{key}") for key in range(20)])
    return db


@pytest.fixture(scope="module")
def place() -> tuple[Contents, Tables]:
    return whole_place()


def test_what_is_swept_is_sound_and_restores(place: tuple[Contents, Tables]) -> None:
    files = MemoryFiles.from_snapshot(place[0])
    report = verify(files)
    assert report.problems == [] and report.notes == []
    assert report.backups == 2 and report.segments > 0 and report.groups > 0
    assert content_of(restored(files, data_memory="32 MiB"), data_memory="32 MiB") == place[1]


def test_every_missing_or_cut_file_is_found_and_no_restore_uses_it(place: tuple[Contents, Tables]) -> None:
    for name, text in place[0].items():
        for harmed in (None, b"", text[: len(text) // 2], text[:-8], text + bytes(8)):
            if name.endswith((".spool", ".load")) and harmed == text + bytes(8):
                continue  # bytes past its last block are never read
            contents = dict(place[0])
            del contents[name]
            if harmed is not None:
                contents[name] = harmed
            # Without a whole backup or segment the rest is still sound, but reaches less far.
            is_less = harmed is None and name.endswith(("manifest", ".redo"))
            files = MemoryFiles.from_snapshot(contents)
            assert bool(verify(files).problems) != is_less, name
            # The first segment is from before the newest backup.
            if not is_less and not name.endswith(("manifest", "-0000000000000000.redo")):
                with pytest.raises(tm.Damaged):
                    restored(files, data_memory="32 MiB")


def test_exchanged_files_are_found(place: tuple[Contents, Tables]) -> None:
    names = [name for name in place[0] if name.endswith((".parquet", ".level"))]
    for one, other in itertools.combinations(names, 2):
        swapped = {**place[0], one: place[0][other], other: place[0][one]}
        assert verify(MemoryFiles.from_snapshot(swapped)).problems
    older = {**place[0], "2/manifest": place[0]["1/manifest"]}
    assert verify(MemoryFiles.from_snapshot(older)).problems


def off() -> None:
    raise PowerOff


def steps_of(run: Any) -> int:
    """Calls that change a disk in a run on files that only count."""
    files = FaultFiles(MemoryFiles())
    run(files)
    return files.calls


@pytest.mark.parametrize("incremental", [False, True], ids=["full", "incremental"])
def test_power_lost_at_any_call_of_a_backup_leaves_what_was_there_or_all_of_it(incremental: bool) -> None:
    db = filled()
    rng = random.Random(11)
    print("seed 11")
    before = MemoryFiles()
    wanted = {}
    if incremental:
        wanted[1] = content(db)
        take(db, before)
        db["test.m"].delete_many([1, 2, 3])
        db["test.d"].insert((50, "new", 1))
    wanted[len(wanted) + 1] = content(db)
    start = before.crash(rng, "drop").snapshot()
    plan = FaultFiles(MemoryFiles.from_snapshot(start))
    take(db, plan, incremental)
    restored_numbers = set()
    for call in range(1, plan.calls + 1):
        inner = MemoryFiles.from_snapshot(start)
        files = FaultFiles(inner, [Rule("*", nth=call, stall=off)])
        try:
            take(db, files, incremental)
        except PowerOff:
            pass
        for policy in CRASH_POLICIES:
            left = inner.crash(rng, policy)
            found = find_backups(left)
            for manifest in found.manifests:
                assert verify(left, manifest.number).problems == [], f"call {call}, {policy}"
                restored_numbers.add(manifest.number)
            assert {each.number for each in found.manifests} >= set(wanted) - {max(wanted)}
            if call % 7 == 0 and policy == "sectors" and found.manifests:
                number = found.manifests[0].number
                files_left = MemoryFiles.from_snapshot(left.snapshot())
                assert content_of(restored(files_left, data_memory="32 MiB"), data_memory="32 MiB") == wanted[number]
    assert max(wanted) in restored_numbers  # the last calls come after the manifest
    db.close()


@pytest.mark.parametrize("calls", ["some", pytest.param("all", marks=pytest.mark.soak)])
def test_power_lost_at_any_call_of_a_restore_leaves_no_store_or_the_whole_one(
    place: tuple[Contents, Tables], calls: str
) -> None:
    """Two levels of each fragment and archived log after them, a spooled transaction in it; disk columns too. What is
    left is no store, and the restore is begun again in it; or it is the whole store.
    """
    options = Options.from_keywords({**SMALL, "data_memory": "32 MiB", "redo_log": "1 MiB"})
    rng = random.Random(13)
    print("seed 13")
    planned = make_plan(MemoryFiles.from_snapshot(place[0]))
    assert planned.segments and any(len(levels) == 2 for levels in planned.manifest.levels.values())

    def run(files: Any) -> None:
        Restore(MemoryFiles.from_snapshot(place[0]), planned, files, options, ManualClock()).run()

    last = steps_of(run)
    chosen = {*range(1, 40, 5), *rng.sample(range(40, last - 10), 14), *range(last - 8, last + 2)}
    ends = {"whole": 0, "again": 0}
    for call in sorted(chosen) if calls == "some" else range(1, last + 2):
        inner = MemoryFiles()
        try:
            run(FaultFiles(inner, [Rule("*", nth=call, stall=off)]))
        except PowerOff:
            pass
        for policy in CRASH_POLICIES if calls == "all" else [CRASH_POLICIES[call % len(CRASH_POLICIES)]]:
            left = inner.crash(rng, policy)
            end = "whole"
            try:
                db = open_memory(left, data_memory="32 MiB", create=False)
            except (tm.RestoreUnfinished, tm.FileMissing):
                end = "again"
                left = MemoryFiles.from_snapshot(left.snapshot())
                run(left)
                left = MemoryFiles.from_snapshot(left.snapshot())
                assert not [name for name in left.snapshot() if "split" in name]
                db = open_memory(left, data_memory="32 MiB", create=False)
            assert content(db) == place[1], f"call {call}, {policy}"
            ends[end] += 1
            db.close()
    assert all(ends.values())


def test_remains_of_a_restore_with_another_file_are_left_as_they_are(place: tuple[Contents, Tables]) -> None:
    for name in ("notes.txt", "lcp/notes.txt", "space/7"):
        files = MemoryFiles.from_snapshot({"restoring": b"", "lcp/2-5-0.data": b"half", name: b"mine"})
        before = files.snapshot()
        with pytest.raises(tm.Rejected, match=f"it has {name}"):
            Restore(
                MemoryFiles.from_snapshot(place[0]),
                make_plan(MemoryFiles.from_snapshot(place[0])),
                files,
                Options.from_keywords(SMALL),
                ManualClock(),
            ).run()
        assert {each: text for each, text in files.snapshot().items() if each != "LOCK"} == before
