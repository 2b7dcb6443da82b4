"""Crashes and faults of a store that takes loads in, and of tasks that write them."""

from __future__ import annotations

import errno
import importlib
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import tidemark as tm
from tests.crash.programs import load_history
from tests.load.support import NAME, batch, by_key, found, new_store, published, rows
from tests.recovery.support import flipped
from tests.shares import share
from tests.store.support import open_memory
from tidemark.engine.log.load_files import FOLDER
from tidemark.recovery import load
from tidemark.recovery.crash_harness.crash_states import crash_states
from tidemark.recovery.crash_harness.disks.faults import FaultFiles, Rule
from tidemark.recovery.crash_harness.disks.memory import CRASH_POLICIES, MemoryFiles
from tidemark.recovery.crash_harness.disks.order import OrderMonitor
from tidemark.recovery.crash_harness.program import Ledger, PowerOff, open_simulated, power_off, whole_state
from tidemark.recovery.load.commit import begin
from tidemark.recovery.load.directory import Directory
from tidemark.recovery.places.storage import open_place


def test_crash_states_of_loads_show_what_was_promised() -> None:
    report = crash_states(load_history.tiny_work, whole_state, seed=1, per_point=1, share=share(0.25))
    assert report.points > 150
    assert report.second_restarts > 7


@pytest.mark.parametrize("history", [load_history.LoadHistory, load_history.DiskLoadHistory])
def test_program_loads_and_aborts_and_is_refused(history: type[load_history.LoadHistory]) -> None:
    """Otherwise the enumeration covers less than it claims."""
    ledger, disk = Ledger(), MemoryFiles()
    run = history(lambda **options: open_simulated(OrderMonitor(MemoryFiles(disk.disk)), **options), 4, ledger)
    run.run(80)
    assert min(run.loads) > 0
    assert whole_state(open_simulated(disk.kill()), ledger) == []


def job_of(db: Any) -> load.LoadJob:
    """A job whose files are in another directory."""
    return load.LoadJob(7 << 40, *db.parts.opened.identity, db[NAME].definition.to_json(), "elsewhere")


def steps(files: Any, job: load.LoadJob) -> load.LoadManifest:
    """A load, step by step, in a place of its own."""
    place = Directory(files)
    begin(job, place)
    reports = load.write_parts(job, 0, [batch(rows(0, 40))], 0, place)
    load.write_parts(job, 1, [batch(rows(0, 40))], 0, place)  # another attempt, which the manifest does not name
    reports += load.write_parts(job, 0, [batch(rows(40, 40))], 1, place)
    return load.publish(job, reports, place)


def test_power_lost_at_any_call_of_tasks_and_publication_leaves_a_load_or_none() -> None:
    db = new_store()
    job = job_of(db)
    plan = FaultFiles(MemoryFiles())
    steps(plan, job)
    calls = plan.calls
    outcomes: Counter[bool] = Counter()
    for call in range(1, calls + 1):
        inner = MemoryFiles()
        files = FaultFiles(inner, [Rule("*", nth=call, stall=power_off)])
        with pytest.raises(PowerOff):
            steps(files, job)
        policy = CRASH_POLICIES[call % len(CRASH_POLICIES)]
        left = Directory(inner.crash(random.Random(call), policy))
        published_now = any(leaf.endswith(".published") for leaf in left.leaves(job.name))
        outcomes[published_now] += 1
        if published_now:
            # Every later process finds a manifest, and every file it names whole.
            manifest = load.publish(job, [], left)
            assert manifest.rows == 80
            store = new_store()
            assert store.parts.opened.identity == db.parts.opened.identity
            store.plan_load(NAME)
            assert adopted_from(store, job, left) == by_key(rows(0, 80)), f"call {call}, {policy}"
            store.close()
        else:
            assert load.abort(job, place=left)
        assert left.leaves(job.name) == [], f"call {call}, {policy}"
    assert outcomes[True] > 0 and outcomes[False] > 10


def test_load_that_is_published_is_durably_so_for_every_publisher() -> None:
    """Story: a publisher was killed after it had renamed the file that marks the load as published, and before it had
    synced the name. The next publisher reported the load as published. Then power was lost, and the load was open again
    and could be aborted.
    """
    db = new_store()
    job, files = job_of(db), MemoryFiles()
    syncs: list[int] = []
    steps(FaultFiles(MemoryFiles(), [Rule("sync_directory", once=False, stall=lambda: syncs.append(1))]), job)
    with pytest.raises(PowerOff):
        steps(FaultFiles(files, [Rule("sync_directory", nth=len(syncs), stall=power_off)]), job)
    killed = files.kill()
    assert load.publish(job, [], Directory(killed)).rows == 80
    left = Directory(killed.image(lambda piece: False))
    assert not load.abort(job, place=left)
    assert load.publish(job, [], left).rows == 80


def adopted_from(db: Any, job: load.LoadJob, place: Directory) -> dict[int, Any]:
    from tidemark.recovery.load.adopt import Adopter

    Adopter(db.parts.store, db.parts.files, db.parts.opened.identity).adopt(job, place)
    return found(db)


def test_disk_full_at_any_write_of_a_task_names_the_place_and_leaves_none_of_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk of an executor, which opens the directory for itself."""
    store = new_store()
    job = store.plan_load(NAME, tmp_path / "load")
    room, real = importlib.import_module("tidemark.recovery.load.directory"), open_place
    call = 0
    while True:
        call += 1
        rules = [Rule("space", nth=call, once=False, error=errno.ENOSPC)]
        monkeypatch.setattr(
            room, "open_place", lambda *given, rules=rules, **what: FaultFiles(real(*given, **what), rules)
        )
        try:
            reports = load.write_parts(job, 0, [batch(rows(0, 4_000))])
            break
        except tm.StorageFull as error:
            assert error.evidence["place"] == str(tmp_path / "load") and str(tmp_path / "load") in str(error)
        assert [path.name for path in (tmp_path / "load").iterdir()] == [f"{job.name}.open"]
    assert call > 4
    monkeypatch.setattr(room, "open_place", real)
    load.publish(job, reports)
    store.adopt(job)
    assert found(store) == by_key(rows(0, 4_000))
    assert list((tmp_path / "load").iterdir()) == []


def test_disk_full_at_any_write_of_a_copying_adoption_leaves_nothing_and_can_be_done_again() -> None:
    call = 0
    while True:
        call += 1
        db = new_store(FaultFiles(MemoryFiles(), [Rule("space", "load*", nth=call, error=errno.ENOSPC)]))
        elsewhere = MemoryFiles()
        job = job_of(db)
        steps(elsewhere, job)
        try:
            adopted_from(db, job, Directory(elsewhere))
            break
        except tm.StorageFull:
            assert found(db) == {}
            assert adopted_from(db, job, Directory(elsewhere)) == by_key(rows(0, 80))
        db.close()
    assert call > 3


def content_at(db: Any, name: str) -> bytes:
    file = db.parts.files.open(f"{FOLDER}/{name}")
    try:
        return bytes(db.parts.files.pread(file, 0, db.parts.files.size(file)))
    finally:
        db.parts.files.close(file)


@pytest.mark.parametrize("on_disk", [False, True], ids=["memory", "disk"])
@pytest.mark.parametrize(
    "most",
    [pytest.param(40, id="some"), pytest.param(None, id="all", marks=[pytest.mark.soak, pytest.mark.timeout(3_000)])],
)
def test_each_changed_byte_of_a_load_is_found_before_a_row_is_seen(most: int | None, on_disk: bool) -> None:
    """Change one bit of each byte, then add one to it. `.published` is not swept: only its name counts, and its content
    is never read.
    """
    rng = random.Random(5)
    print("seed 5")
    db = new_store(on_disk=on_disk)
    made = rows(1, 12)
    job = published(db, made)
    names = [name for name in db.parts.files.list(FOLDER) if name.endswith((".load", ".manifest"))]
    assert {name.rpartition(".")[2] for name in db.parts.files.list(FOLDER)} == {"load", "manifest", "published"}
    harmed = 0
    for name in names:
        text = content_at(db, name)
        file = db.parts.files.open(f"{FOLDER}/{name}", True)
        places = range(len(text)) if most is None else sorted(rng.sample(range(len(text)), min(len(text), most)))
        for at in places:
            for changed in (text[at] ^ 1 << rng.randrange(8), (text[at] + 1) % 256):
                db.parts.files.pwrite(file, at, bytes([changed]))
                with pytest.raises((tm.LoadDamaged, tm.Incompatible)):
                    db.adopt(job)
                harmed += 1
            db.parts.files.pwrite(file, at, text[at : at + 1])
        db.parts.files.fdatasync(file)
        db.parts.files.close(file)
    print(harmed, "changes,", len(names), "files")
    assert found(db) == {}
    db.adopt(job)
    assert found(db) == by_key(made) and harmed >= 2 * 40 * 3
    assert db.check()["problems"] == []


def test_changed_byte_of_the_mark_of_an_adoption_is_never_another_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mark names the transaction whose outcome counts: one digit off, a load could count as adopted that is not."""
    db = new_store()
    db[NAME].insert_many(rows(900, 3))
    job = published(db, rows(0, 20))
    mark = job.name + ".adopting"
    with monkeypatch.context() as patch, pytest.raises(PowerOff):
        patch.setattr("tidemark.recovery.load.adopt.sweep", lambda *_: power_off())
        db.adopt(job)
    text = content_at(db, mark)
    assert len(found(db)) == 23  # it was adopted, and broke off before its files were removed
    for at in range(len(text)):
        for changed in range(256):
            if changed != text[at]:
                replace(db, mark, text[:at] + bytes([changed]) + text[at + 1 :])
                with pytest.raises(tm.LoadDamaged, match="check whether its rows"):
                    db.adopt(job)
    replace(db, mark, text)
    assert db.adopt(job).is_repeated and len(found(db)) == 23


def test_files_of_a_load_cut_exchanged_or_gone_are_found() -> None:
    db = new_store()
    made = rows(0, 300)
    job = published(db, made, parts=2)
    names = [name for name in db.parts.files.list(FOLDER) if name.endswith((".load", ".manifest"))]
    contents = {name: content_at(db, name) for name in names}
    for name, text in contents.items():
        for size in (0, 8, len(text) // 16 * 8, len(text) - 8):
            replace(db, name, text[:size])
            with pytest.raises((tm.LoadDamaged, tm.Incompatible)):
                db.adopt(job)
        replace(db, name, text)
    one, other = [name for name in names if name.endswith(".load")][:2]
    replace(db, one, contents[other])
    with pytest.raises(tm.LoadDamaged):
        db.adopt(job)
    replace(db, one, contents[one])
    db.parts.files.rename(f"{FOLDER}/{one}", f"{FOLDER}/gone")
    with pytest.raises(tm.LoadDamaged):
        db.adopt(job)
    db.parts.files.rename(f"{FOLDER}/gone", f"{FOLDER}/{one}")
    db.adopt(job)
    assert found(db) == by_key(made)
    assert db.check()["problems"] == []


def replace(db: Any, name: str, text: bytes) -> None:
    db.parts.files.unlink(f"{FOLDER}/{name}")
    file = db.parts.files.create(f"{FOLDER}/{name}")
    db.parts.files.pwrite(file, 0, text)
    db.parts.files.fdatasync(file)
    db.parts.files.close(file)


def test_damage_of_an_adopted_file_is_found_by_the_restart_that_needs_it() -> None:
    db = new_store()
    db.adopt(published(db, rows(0, 200)))
    contents = db.parts.files.kill().snapshot()
    name = next(name for name in contents if name.endswith(".load"))
    for wrong in (contents[name][:-4_096], flipped(contents[name], 900, 2)):
        with pytest.raises(tm.SpoolDamaged):
            open_memory(MemoryFiles.from_snapshot({**contents, name: wrong}), data_memory="32 MiB", redo_log="16 MiB")
    assert len(found(open_memory(MemoryFiles.from_snapshot(contents), data_memory="32 MiB", redo_log="16 MiB"))) == 200
