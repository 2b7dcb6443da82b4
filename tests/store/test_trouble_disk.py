"""Trouble with disk and system: no descriptors, read errors, stalls, no permission, other limits (F38 to F50, F86)."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tidemark as tm
from tests.elsewhere import in_child
from tests.recovery.support import History, make_history, put, untouched
from tests.storage import memory_only
from tests.store.support import ACCOUNT, SMALL, open_faulty, open_memory, rows_of
from tests.store.trouble import dump
from tidemark.recovery.crash_harness.disks.faults import FaultFiles, Rule
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles

pytestmark = pytest.mark.usefixtures("storage")

NAME = "test.account"


@pytest.fixture(scope="module")
def history(storage: str) -> History:
    return make_history()


def faulty(history: History, *rules: Rule) -> tuple[Any, MemoryFiles]:
    """Files of the store that fail as planned, and the disk below."""
    memory = MemoryFiles.from_snapshot(history.contents)
    return FaultFiles(memory, list(rules)), memory


def numbers_of(memory: MemoryFiles) -> set[int]:
    """Local checkpoints with at least one file."""
    names = [name.removeprefix("lcp/") for name in memory.snapshot() if name.startswith("lcp/")]
    return {int(name.removeprefix("control-").split("-")[0]) for name in names if name}


# --- local checkpoints ---------------------------------------------------------------------------
def points(history: History, operation: str, code: int) -> Iterator[tuple[int, Any, MemoryFiles, BaseException | None]]:
    """A local checkpoint with its 1st, 2nd, ... call of a kind failing, until none does: (n, store, disk, error)."""
    for nth in range(1, 1_000):
        memory = MemoryFiles.from_snapshot(history.contents)
        db, plan = open_faulty(memory, Rule(operation, "lcp*", nth=nth, error=code))
        plan.is_over = False
        error: BaseException | None = None
        try:
            db.checkpoint()
        except tm.Error as caught:
            error = caught
        plan.is_over = True
        yield nth, db, memory, error
        if not db.parts.files.fired:
            return


@pytest.mark.parametrize("operation", ["create", "open", "list", "sync_directory"])
def test_no_descriptor_at_any_step_of_a_local_checkpoint_leaves_the_store_intact(
    history: History, operation: str
) -> None:
    for nth, db, memory, error in points(history, operation, errno.EMFILE):
        assert error is None or isinstance(error, tm.TooManyFiles), f"call {nth}: {error!r}"
        assert db.status()["store"]["state"] == "open"
        assert rows_of(db) == history.rows
        put(db, 3_000, 5, float(nth))
        assert rows_of(open_memory(memory.kill())) == rows_of(db)
        report = db.checkpoint()
        assert report["rows"] == sum(len(db[name]) for name in db.tables())
        expected = rows_of(db)
        db.close()
        again = open_memory(memory.kill())
        assert rows_of(again) == expected
        assert again.restart_report["lcp_id"] == report["lcp_id"]
        named = {int(name.rpartition("-")[2]) for name in again.parts.files.snapshot() if "/control-" in name}
        assert numbers_of(again.parts.files) == named, (
            "files of an abandoned checkpoint must be gone after the next opening"
        )
    assert nth > 1, "nothing failed"


@pytest.mark.parametrize("operation", ["pwrite", "fdatasync", "sync_directory"])
@pytest.mark.parametrize("code", [errno.EIO, errno.EROFS])
def test_failing_disk_at_any_step_of_a_local_checkpoint_fails_the_store_and_nothing_is_lost(
    history: History, operation: str, code: int
) -> None:
    due = tm.IoFailed if operation == "pwrite" else tm.SyncFailed
    for nth, db, memory, error in points(history, operation, code):
        if error is None:
            continue
        assert type(error) is due, f"call {nth}: {error!r}"
        with pytest.raises(due):
            db.transaction()
        with pytest.raises(due):
            db.checkpoint()
        for disk in (memory.kill(), memory.image(lambda piece: False)):
            again = open_memory(disk)
            assert rows_of(again) == history.rows
            assert again.restart_report["fallbacks"] == 0
            again.checkpoint()
            assert rows_of(open_memory(disk.kill())) == history.rows
    assert nth > 1, "nothing failed"


# --- reading -------------------------------------------------------------------------------------
def test_each_file_unreadable_in_turn_is_survived_or_refused_with_nothing_changed(history: History) -> None:
    """Story: a read error of a file of the newest local checkpoint latched, so that nothing else could be read either
    (F41).
    """
    outcomes: dict[str, str] = {}
    for name in sorted(each for each in history.contents if not each.endswith(("/", "LOCK"))):
        files, memory = faulty(history, Rule("pread", name, once=False, error=errno.EIO))
        try:
            db = open_memory(files)
        except tm.Damaged as error:
            outcomes[name] = type(error).__name__
            assert memory.snapshot() == history.contents
            continue
        outcomes[name] = "opens"
        assert rows_of(db) == history.rows
        db.close()
    refused = {name for name, outcome in outcomes.items() if outcome != "opens"}
    # Of the ring, only groups that are needed and lie within reach are read (ADR 0007).
    assert refused and all(name.startswith(("redo/", "undo/", "space/")) for name in refused)
    kinds = {"redo": "RedoDamaged", "undo": "UndoDamaged", "space": "PageDamaged"}
    assert {name: outcomes[name] for name in refused} == {name: kinds[name.partition("/")[0]] for name in refused}


def test_each_read_failing_once_at_opening_is_survived_or_refused_with_nothing_changed(history: History) -> None:
    nth = 0
    while True:
        nth += 1
        files, memory = faulty(history, Rule("pread", "*", nth=nth, error=errno.EIO))
        try:
            db = open_memory(files)
        except tm.Damaged:
            assert untouched(memory.snapshot()) == untouched(history.contents)
            continue
        try:
            found = rows_of(db)
        except tm.PageDamaged:  # the read was one of this scan, of a disk page
            found = rows_of(db)
        assert found == history.rows
        db.close()
        if not files.fired:
            break
    assert nth > 20, "a restart reads more than that"


def test_failed_read_of_a_live_store_fails_it_until_it_is_opened_again(history: History) -> None:
    memory = MemoryFiles.from_snapshot(history.contents)
    db, plan = open_faulty(memory, Rule("pread", "redo/*", error=errno.EIO))
    with db.transaction() as txn:
        txn.update(NAME, 10, {"balance": 123.0})
    expected = rows_of(db)
    plan.is_over = False
    with pytest.raises(tm.IoFailed):
        db.outcome(1 << 40)
    for call in (db.transaction, db.sync, db.checkpoint, lambda: db[NAME].get(1)):
        with pytest.raises(tm.IoFailed):
            call()
    db.close()
    assert rows_of(open_memory(memory.kill())) == expected


# --- stalls --------------------------------------------------------------------------------------
def test_sync_of_the_log_that_hangs_holds_up_its_commits_alone_and_they_stand_afterwards() -> None:
    seen: dict[str, Any] = {}
    others: list[threading.Thread] = []

    def commit_another() -> None:
        db[NAME].insert((101, "follower", 1.0, None))
        seen["follower"] = True

    def hang() -> None:
        # The leader is inside its sync. Readers continue; a second commit waits for the leader and is not acknowledged.
        seen["row"] = db[NAME].get(3)
        with db.transaction() as txn:
            txn.update(NAME, 5, {"balance": -1.0})
            txn.rollback()
        thread = threading.Thread(target=commit_another)
        thread.start()
        others.append(thread)
        while db.parts.store.log.sequence == seen["sequence"] and not db.parts.store.log.has_records():
            db.parts.store.clock.sleep(
                0
            )  # until its records are in the next group: a clock driven by hand lets no time pass
        seen["early"] = seen.get("follower", False)
        seen["durable"] = rows_of(open_memory(memory.image(lambda piece: False)))

    memory = MemoryFiles()
    db, plan = open_faulty(memory, Rule("fdatasync", "redo/*", stall=hang))
    db.create_table(NAME, ACCOUNT, "id")
    put(db, 0, 20, 0.0)
    seen["sequence"] = db.parts.store.log.sequence
    plan.is_over = False
    db[NAME].insert((100, "leader", 1.0, None))
    for thread in others:
        thread.join(timeout=60)
    assert db.parts.files.fired and seen["row"].owner == "owner 3"
    assert not seen["early"], "acknowledged while the disk hung"
    assert set(seen["durable"]) == set(range(20))
    assert seen["follower"]
    found = rows_of(open_memory(memory.image(lambda piece: False)))
    assert set(found) == {*range(20), 100, 101} and found == rows_of(db)


@pytest.mark.parametrize("name", ["lcp/*.data", "lcp/control-*", "sysfile.*"])
def test_sync_of_another_file_that_hangs_does_not_hold_up_commits(history: History, name: str) -> None:
    memory = MemoryFiles.from_snapshot(history.contents)
    acknowledged: list[int] = []

    def hang() -> None:
        for _ in range(5):
            key = 7_000 + len(acknowledged)
            db[NAME].insert((key, "meanwhile", 1.0, None))
            acknowledged.append(key)
        lost = open_memory(memory.image(lambda piece: False))
        assert set(acknowledged) <= set(rows_of(lost))

    db, plan = open_faulty(memory, Rule("fdatasync", name, once=False, stall=hang))
    plan.is_over = False
    db.checkpoint()
    db.parts.clockwork.advance_gci()
    assert acknowledged
    expected = rows_of(db)
    assert rows_of(open_memory(memory.image(lambda piece: False))) == expected


# --- permission ----------------------------------------------------------------------------------
@pytest.mark.parametrize("code", [errno.EACCES, errno.EPERM, errno.EROFS])
def test_file_that_may_not_be_opened_refuses_the_opening_and_changes_nothing(history: History, code: int) -> None:
    for name in sorted(each for each in history.contents if not each.endswith(("/", "LOCK"))):
        files, memory = faulty(history, Rule("open", name, once=False, error=code))
        try:
            db = open_memory(files)
        except tm.ReadOnly as error:
            assert name in str(error)
            assert memory.snapshot() == history.contents
        else:
            assert name.startswith("lcp/"), f"{name} is needed"
            assert rows_of(db) == history.rows
            db.close()


OTHER_UID = 65_534


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
@pytest.mark.parametrize("closed", ["nothing", "the lock", "a log file", "the newest control file", "the directory"])
def test_store_of_another_user_is_refused_in_one_line_and_not_changed(tmp_path: Path, closed: str) -> None:
    place = tmp_path / "store"
    with tm.open(place, **SMALL) as db:
        db.create_table(NAME, ACCOUNT, "id")
        put(db, 0, 20, 0.0)
        db.checkpoint()
        before = dump(db)
    for path in [place, *place.rglob("*")]:
        if closed != "nothing":
            os.chown(path, OTHER_UID, OTHER_UID)
    target = {
        "the lock": place / "LOCK",
        "a log file": place / "redo" / "0001.redo",
        "the newest control file": place / "lcp" / "control-1",
        "the directory": place,
    }.get(closed)
    if target is not None:
        os.chown(target, 0, 0)
        target.chmod(0o600)
    for above in tmp_path.parents:
        if above.stat().st_uid == 0 and above.name.startswith("pytest"):
            above.chmod(0o755)
    tmp_path.chmod(0o755)
    contents = {path: path.read_bytes() for path in place.rglob("*") if path.is_file() and path.name != "LOCK"}

    def child() -> list[str]:
        os.seteuid(OTHER_UID)
        try:
            tm.open(place, **SMALL).close()
        except tm.Error as error:
            return [type(error).__name__, str(error)]
        return ["opened", ""]

    kind, message = in_child(child)
    assert kind == "ReadOnly", message
    assert "\n" not in message and "permission" in message
    assert {path: path.read_bytes() for path in contents} == contents
    with tm.open(place, **SMALL) as db:
        assert dump(db) == before


# --- the directory -------------------------------------------------------------------------------
CALLS: dict[str, Callable[[Any], object]] = {
    "the next GCI": lambda db: db.parts.clockwork.advance_gci(),
    "a schema change": lambda db: db.create_table("test.late", ACCOUNT, "id"),
    "close": lambda db: db.close(),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("what", ["renamed", "replaced"])
def test_directory_gone_from_its_place_is_noticed_and_nothing_is_made_in_another(
    tmp_path: Path, what: str, call: str
) -> None:
    # Story: the store never checked this, and the catalog of a replaced store went into the folder in its place.
    place, moved = tmp_path / "store", tmp_path / "moved"
    db = tm.open(place, **SMALL)
    db.create_table(NAME, ACCOUNT, "id")
    put(db, 0, 20, 0.0)
    place.rename(moved)
    if what == "replaced":
        place.mkdir()
    put(db, 20, 5, 0.0)
    expected = rows_of(db)
    with pytest.raises(tm.IoFailed):
        CALLS[call](db)
    if call != "close":
        with pytest.raises(tm.IoFailed):
            db.transaction()
        db.close()
    assert not place.exists() or list(place.iterdir()) == []
    with tm.open(moved, **SMALL) as again:
        assert rows_of(again) == expected


# --- other limits --------------------------------------------------------------------------------
@memory_only
def test_data_memory_smaller_than_the_rows_names_both_sizes_and_changes_nothing() -> None:
    files = MemoryFiles()
    db = open_memory(files, transaction_memory="8 MiB", redo_log="16 MiB")
    db.create_table(NAME, ACCOUNT, "id")
    db[NAME].insert_many([(key, "o", 1.0, "n" * 1_000) for key in range(4_000)])
    expected = rows_of(db)
    for with_lcp in (False, True):
        if with_lcp:
            db.checkpoint()
            db.sync()
        db.parts.clockwork.advance_gci()
        contents = files.snapshot()
        small = MemoryFiles.from_snapshot(contents)
        with pytest.raises(tm.LimitExceeded) as caught:
            open_memory(small, data_memory="2 MiB")
        assert caught.value.data_memory_bytes == 2 << 20 and not caught.value.retryable
        assert 4_000 * 1_000 < caught.value.held_bytes < 16 << 20
        assert str(2 << 20) in str(caught.value) and str(caught.value.held_bytes) in str(caught.value)
        assert small.snapshot() == contents
        assert rows_of(open_memory(small.kill())) == expected


def test_redo_log_of_another_size_than_the_stores_is_left_as_it_was_made(history: History) -> None:
    for size in ("1 MiB", "64 MiB"):
        memory = MemoryFiles.from_snapshot(history.contents)
        db = open_memory(memory, redo_log=size)
        assert rows_of(db) == history.rows
        sizes = {name: len(content) for name, content in history.contents.items() if name.startswith("redo/0")}
        assert db.status()["log"]["capacity_bytes"] == sum(sizes.values())
        put(db, 0, 200, 9.0)
        db.checkpoint()
        expected = rows_of(db)
        db.close()
        after = memory.snapshot()
        assert {name: len(content) for name, content in after.items() if name.startswith("redo/0")} == sizes
        assert rows_of(open_memory(MemoryFiles.from_snapshot(after))) == expected


def test_log_file_longer_than_the_store_says_is_read_to_that_length(history: History) -> None:
    name = "redo/0001.redo"
    longer = MemoryFiles.from_snapshot({**history.contents, name: history.contents[name] + b"\xa5" * 8_192})
    assert rows_of(open_memory(longer)) == history.rows
