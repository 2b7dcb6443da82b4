"""Long or combined pressure on a store: little address space, other processes, thousands of tables, a transaction that
stays open, a file system that turns read-only, a disk that turns slow (F82, F47, F50, F100, F116).
"""

from __future__ import annotations

import ctypes
import errno
import gc
import multiprocessing
import os
import resource
import subprocess
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import tidemark as tm
from tests.elsewhere import at_once, in_child
from tests.recovery.support import put
from tests.store.read_only import WRITES
from tests.store.support import ACCOUNT, SMALL, open_faulty, open_memory, rows_of
from tests.waiting import wait_until
from tidemark.engine.base.clock import ManualClock
from tidemark.recovery.crash_harness.disks.faults import FaultFiles, Plan, Rule
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles
from tidemark.recovery.crash_harness.forks import FORKS

NAME = "test.account"


# --- little address space -------------------------------------------------------------------------
def address_space_bytes() -> int:
    """What this process has mapped."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()


def leave_address_space(size_bytes: int) -> Callable[[], None]:
    """From now on this process may map at most so much memory; call the returned function to end the limit."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (address_space_bytes() + size_bytes, before[1]))
    return lambda: resource.setrlimit(resource.RLIMIT_AS, before)


def take_free_memory(block_bytes: int = 1 << 18) -> None:
    """Take, for good, what this process or the one it was forked from has freed: calls would need no new space.

    Garbage comes back in the middle of a call. A heap keeps the address space of what was freed, and that of a thread,
    from which a thread that is refused takes too, has 64 MiB in advance.
    """
    gc.collect()
    pa.default_memory_pool().release_unused()
    malloc = ctypes.CDLL(None).malloc
    malloc.restype, malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    end = leave_address_space(0)
    while malloc(block_bytes):
        pass
    end()


def outcome(call: Callable[[], Any]) -> str:
    """Name of the error a call ends with, "" if none. Raises: errors that are neither the store's nor Python's
    MemoryError.
    """
    try:
        call()
    except (tm.Error, MemoryError) as error:
        assert "\n" not in str(error)
        return type(error).__name__
    return ""


def test_opening_with_little_address_space_is_refused_or_opens_and_kills_no_process(tmp_path: Path) -> None:
    """F82. Story: only a limit without space for `data_memory` itself was tried, and only while a store was made."""
    place = tmp_path / "store"
    with tm.open(place, **SMALL) as db:
        db.create_table(NAME, ACCOUNT, "id")
        put(db, 0, 300, 0.0)
        db.checkpoint()
        put(db, 100, 300, 5.0)
        expected = rows_of(db)

    def child() -> list[str]:
        found = []
        for size in (0, 1 << 20, 4 << 20, 16 << 20, 40 << 20, 64 << 20, 128 << 20, 512 << 20):
            end = leave_address_space(size)
            try:
                found.append(outcome(lambda: tm.open(place, **SMALL).close()))
            finally:
                end()
        return found

    outcomes = in_child(child)
    print(outcomes)
    assert outcomes[0] and not outcomes[-1], "none was refused, or all"
    assert set(outcomes) <= {"", "LimitExceeded", "MemoryExhausted", "MemoryError"}
    with tm.open(place, **SMALL) as db:
        assert rows_of(db) == expected and db.check()["is_sound"]


def work_in_little_space(answers: Any, place: str) -> None:
    """Calls of every kind of work with less and less space, and the store's answers in between."""
    db = tm.open(place, **{**SMALL, "data_memory": "64 MiB", "redo_log": "64 MiB", "transaction_memory": "16 MiB"})
    db.create_table(NAME, ACCOUNT, "id")
    put(db, 0, 500, 0.0)
    before = {key: row for key, row in rows_of(db).items() if key != 3}
    large = [(10_000 + key, "large", 1.0, "x" * 2_500) for key in range(4_000)]
    calls: tuple[Callable[[], object], ...] = (
        lambda: db[NAME].insert_many(large),
        lambda: db[NAME].to_arrow(),
        lambda: db.checkpoint(),
        lambda: db[NAME].update(3, {"note": "n" * 3_000}),
        lambda: db.create_index(NAME, "by_owner", ["owner"]),
        lambda: db.sync(),
    )
    found: Counter[str] = Counter()
    end = leave_address_space(8 << 20)
    found["limited"] = outcome(lambda: np.ones(32 << 20)) == "MemoryError"
    end()
    for size in (0, 1 << 20, 8 << 20):
        for call in calls:
            end = leave_address_space(size)
            try:
                found[outcome(call)] += 1
            finally:
                end()
        assert db.status()["store"]["state"] == "open"
        if db[NAME].definition.indexes:
            db.drop_index(NAME, "by_owner")
        rows = rows_of(db)
        assert {key: row for key, row in rows.items() if 3 != key < 10_000} == before
        added = [key for key in rows if key >= 10_000]
        assert len(added) in (0, len(large)), "a batch is there whole or not at all"
        db[NAME].delete_many(added)
        assert db.check()["is_sound"]
    put(db, 0, 500, 7.0)
    answers.put(dict(found))
    answers.close()
    answers.join_thread()
    os._exit(0)  # as a crash


def test_work_with_little_address_space_ends_in_errors_of_its_calls_and_the_store_continues(tmp_path: Path) -> None:
    """F82. Story: no store was ever at work when its process could map no more memory.

    The process has the code of all kernels: LLVM ends a process that has no space for code it loads (docs/faults.md).
    """
    answers = FORKS.Queue()
    child = FORKS.Process(target=work_in_little_space, args=(answers, str(tmp_path / "store")))
    child.start()
    child.join(250)
    assert child.exitcode == 0
    found = answers.get(timeout=200)
    print(found)
    # Most calls succeed: a store allocates most of the memory for its work when it is opened.
    assert found.pop("limited") and set(found) <= {"", "MemoryExhausted", "MemoryError"}
    with tm.open(tmp_path / "store", **{**SMALL, "data_memory": "64 MiB"}) as db:
        assert {row[2] - key for key, row in rows_of(db).items()} == {7.0}


# --- other processes ------------------------------------------------------------------------------
def of_another_process(answers: Any, locator: Any, reported: Any) -> None:
    """What a process that was started by multiprocessing may do with a store that its parent has open."""
    found = []
    try:
        tm.open(locator, **SMALL)
    except tm.Locked as error:
        found.append(["Locked", error.evidence.get("pid")])
    with tm.open(locator, read_only=True) as view:
        found.append(["read", sorted(rows_of(view))])
    answers.put(found)
    reported.wait(250)
    with tm.open(locator, **SMALL) as db:
        db[NAME].insert((77, "child", 1.0, None))
        answers.put([["written", sorted(rows_of(db))]])


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_started_process_finds_the_store_locked_reads_it_read_only_and_opens_it_when_it_is_free(
    tmp_path: Path, method: str
) -> None:
    """F77, F116. Story: children were forked by hand alone. A child of multiprocessing inherits only what is sent to
    it, and that is a locator.
    """
    context: Any = FORKS if method == "forkserver" else multiprocessing.get_context("spawn")
    db = tm.open(tmp_path / "store", **SMALL)
    db.create_table(NAME, ACCOUNT, "id")
    put(db, 0, 5, 0.0)
    db.checkpoint()
    answers, reported = context.Queue(), context.Event()
    child = context.Process(target=of_another_process, args=(answers, db.locator, reported))
    child.start()
    try:
        assert answers.get(timeout=200) == [["Locked", os.getpid()], ["read", [0, 1, 2, 3, 4]]]
        with pytest.raises(tm.Unsupported, match="locator"):
            context.Process(target=of_another_process, args=(db,)).start()
    finally:
        db.close()
        reported.set()
    assert answers.get(timeout=200) == [["written", [0, 1, 2, 3, 4, 77]]]
    child.join(200)
    assert child.exitcode == 0
    with tm.open(tmp_path / "store", **SMALL) as db:
        assert sorted(rows_of(db)) == [0, 1, 2, 3, 4, 77]


# --- many tables ----------------------------------------------------------------------------------
def many_tables(files: Any, count: int) -> None:
    """A store with so many tables: made, checkpointed, killed, opened, dropped in part."""
    options = {"data_memory": f"{max(32, count // 8)} MiB", "redo_log": f"{max(8, count // 60)} MiB"}
    db = open_memory(files, **options)
    for number in range(count):
        db.create_table(f"test.t{number:05}", [tm.Column("id", tm.Int64)], "id", tm.HashPartition(1))
    for number in range(0, count, 7):
        db[f"test.t{number:05}"].insert((number,))
    db.checkpoint()
    for number in range(0, count, 11):
        db.drop_table(f"test.t{number:05}")
    again = open_memory(files.kill(), **options)
    kept = [number for number in range(count) if number % 11]
    assert again.tables() == [f"test.t{number:05}" for number in kept]
    assert [tuple(row)[0] for number in kept for row in again[f"test.t{number:05}"].scan()] == [
        number for number in kept if not number % 7
    ]
    again.checkpoint()
    again.create_table("test.one_more", ACCOUNT, "id")
    assert again.check()["is_sound"]


def test_many_tables_are_made_dropped_and_there_after_a_kill() -> None:
    many_tables(MemoryFiles(), 150)


@pytest.mark.soak
def test_ten_thousand_tables_are_made_dropped_and_there_after_a_kill() -> None:
    many_tables(MemoryFiles(), 10_000)


# --- a transaction that stays open ----------------------------------------------------------------
@pytest.mark.parametrize("is_large", [False, True], ids=["in memory", "spooled"])
@pytest.mark.parametrize("ending", ["commit", "rollback", "kill"])
def test_transaction_open_for_months_through_many_local_checkpoints_is_whole_in_the_end(
    is_large: bool, ending: str
) -> None:
    """F100. Story: transactions were held open while a log filled, but not while the log wrapped again and again, local
    checkpoints retired each other and spool files were swept.
    """
    options = {"redo_log": "1 MiB", "transaction_memory": "128 KiB", "transaction_limit": "8 MiB"}
    files, clock = MemoryFiles(), ManualClock()
    db = open_memory(files, clock=clock, **options)
    db.create_table(NAME, ACCOUNT, "id")
    put(db, 0, 400, 0.0)
    ended = ExitStack()
    held = ended.enter_context(db.transaction())
    for key in range(300 if is_large else 20):
        held.update(NAME, key, {"balance": 99.0, "note": "h" * 1_000})
    assert (db.status()["spool"]["open"] > 0) == is_large
    held.insert(NAME, (9_000, "held", 99.0, None))
    before = rows_of(db)
    laps = db.status()["log"]["capacity_bytes"]
    for day in range(40):
        clock.advance(86_400.0)
        db[NAME].write_many([(key, f"day {day}", float(day), "d" * 300) for key in range(300, 400)])
        db.parts.clockwork.advance_gci()
        db.checkpoint()
    assert db.status()["log"]["head_lsn"] > 1.5 * laps, "the log did not go round"
    assert db.status()["lcp"]["completed"] >= 40 and db.status()["transactions"]["open"] == 1
    assert {key: row for key, row in rows_of(db).items() if key < 300} == {
        key: row for key, row in before.items() if key < 300
    }
    expected = rows_of(db)
    if ending == "commit":
        ended.close()
        expected = rows_of(db)
        assert expected[0][2] == expected[9_000][2] == 99.0
    elif ending == "rollback":
        held.rollback()
        assert rows_of(db) == expected
    left = files.kill() if ending != "commit" else files.image(lambda piece: False)
    again = open_memory(left, **options)
    assert rows_of(again) == expected and again.check()["is_sound"]
    again.checkpoint()
    again.checkpoint()
    again.close()
    assert [name for name in left.snapshot() if "spool" in name and not name.endswith("/")] == []


# --- a file system that turns read-only -------------------------------------------------------------
FAILED = (tm.IoFailed, tm.SyncFailed, tm.CommitOnFailedStore)


@pytest.mark.parametrize("moment", ["commit", "local checkpoint", "closing an epoch", "schema change"])
def test_file_system_that_turns_read_only_fails_the_store_and_loses_nothing_acknowledged(moment: str) -> None:
    """F47. Story: a read-only file system was tested at openings; in a store at work, only by a few single writes."""
    memory = MemoryFiles()
    db, plan = open_faulty(memory, *[Rule(operation, once=False, error=errno.EROFS) for operation in WRITES])
    db.create_table(NAME, ACCOUNT, "id")
    put(db, 0, 50, 0.0)
    db.checkpoint()
    put(db, 50, 20, 1.0)
    expected = rows_of(db)
    opened = ExitStack()
    opened.enter_context(db.transaction()).insert(NAME, (500, "open", 1.0, None))
    plan.is_over = False
    calls: dict[str, Callable[[], object]] = {
        "commit": lambda: db[NAME].insert((501, "late", 1.0, None)),
        "local checkpoint": db.checkpoint,
        "closing an epoch": db.parts.clockwork.advance_gci,
        "schema change": lambda: db.create_table("test.more", ACCOUNT, "id"),
    }
    with pytest.raises(tm.Error) as caught:
        calls[moment]()
    # A local checkpoint that may not make its first file has changed nothing; a failed write of the log fails the
    # store.
    is_alive = moment == "local checkpoint"
    assert type(caught.value) in ((tm.ReadOnly,) if is_alive else FAILED), repr(caught.value)
    assert "\n" not in str(caught.value)
    if is_alive:
        assert rows_of(db) == expected and db.status()["lcp"]["abandoned"] == 1
    for call in calls.values():
        with pytest.raises(FAILED):
            call()
    with pytest.raises(FAILED):
        opened.close()
    db.close()
    before = memory.snapshot()
    still_so: Any = FaultFiles(memory.kill(), [*plan.rules, Rule("open", "redo/*", once=False, error=errno.EROFS)])
    with pytest.raises(tm.ReadOnly):
        open_memory(still_so)
    assert memory.snapshot() == before
    for left in (memory.kill(), memory.image(lambda piece: False)):
        found = rows_of(open_memory(left))
        assert found in (expected, {**expected, 501: (501, "late", 1.0, None)})
        assert 500 not in found


CLONE_NEWNS = 0x0002_0000


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts file systems")
def test_store_on_a_file_system_that_was_mounted_anew_read_only_is_refused_and_not_changed(tmp_path: Path) -> None:
    """F47, by the system itself. The mount belongs to the child alone, and ends with it."""
    place = tmp_path / "mounted" / "store"
    place.parent.mkdir()

    def run(*command: str) -> str:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.stderr.strip() or "failed" if done.returncode else ""

    def contents() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}

    def child() -> list[str]:
        if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNS):
            return ["skipped", os.strerror(ctypes.get_errno())]
        failed = run("mount", "--make-rprivate", "/") or run("mount", "-t", "tmpfs", "tidemark-test", str(place.parent))
        if failed:
            return ["skipped", failed]
        with tm.open(place, **SMALL) as db:
            db.create_table(NAME, ACCOUNT, "id")
            put(db, 0, 50, 0.0)
            db.checkpoint()
            expected = rows_of(db)
        failed = run("mount", "-o", "remount,ro", str(place.parent))
        if failed:
            return ["skipped", failed]
        before = contents()
        with pytest.raises(tm.ReadOnly) as caught:
            tm.open(place, **SMALL)
        assert "\n" not in str(caught.value) and contents() == before
        assert run("mount", "-o", "remount,rw", str(place.parent)) == ""
        with tm.open(place, **SMALL) as db:
            assert rows_of(db) == expected
        return ["opened", ""]

    reported, why = in_child(child)
    if reported == "skipped":
        pytest.skip(f"no file system can be mounted here: {why}")
    assert reported == "opened"


# --- a disk that turns slow -----------------------------------------------------------------------
def test_disk_whose_every_sync_takes_two_seconds_has_commits_share_them_and_times_nothing_out() -> None:
    """F50. Story: one sync hung at a time. Here each takes two seconds by the store's clock, and all committing threads
    reach their commits meanwhile: they share the next sync, so the number of syncs follows from rounds and not from
    commits.
    """
    threads, rounds = 16, 6
    clock, plan, memory = ManualClock(), Plan(), MemoryFiles()
    files: Any = FaultFiles(memory, plan)
    db = open_memory(files, clock=clock, lock_timeout_ms=1_000)
    db.create_table(NAME, ACCOUNT, "id")
    put(db, 0, threads, 0.0)
    active = set(range(threads))
    of_log: list[float] = []

    def slow_log() -> None:
        clock.advance(2.0)
        of_log.append(clock.monotonic())
        wait_until(lambda: db.parts.store.log.writing.followers >= len(active) - 1)

    def work(number: int) -> None:
        try:
            for step in range(rounds):
                with db.transaction() as txn:
                    txn.update(NAME, number, {"balance": float(step + 1)})
        finally:
            active.discard(number)

    ends = [
        plan.add(Rule("fdatasync", "redo/*", once=False, stall=slow_log)),
        plan.add(Rule("fdatasync", "sysfile.*", once=False, stall=lambda: clock.advance(2.0))),
    ]
    begun = plan.calls
    at_once(work, range(threads))
    calls = plan.calls - begun
    for end in ends:
        end()
    print(len(of_log), "syncs for", threads * rounds, "commits,", calls, "calls of the disk")
    assert {row[2] for row in rows_of(db).values()} == {float(rounds)}
    assert rounds <= len(of_log) < threads * rounds // 4
    assert calls < 4 * len(of_log) + 8, "something else was at the disk over and over"
    assert db.status()["locks"]["timeouts"] == 0
    db.parts.clockwork.advance_gci()
    db.checkpoint()
    assert rows_of(open_memory(memory.image(lambda piece: False))) == rows_of(db)
