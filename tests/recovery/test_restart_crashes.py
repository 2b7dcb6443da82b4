"""Power lost, disk full or no descriptor left at every call of making, opening, changing and closing a store (F11, F12,
F15, F30, F31, F37, F44, F48)."""

from __future__ import annotations

import errno
import random
from collections import Counter
from typing import Any

import pytest

import tidemark as tm
from tests.recovery.support import History, powered_off, put, untouched
from tests.shares import few
from tests.storage import memory_only
from tests.store.support import ACCOUNT, open_faulty, open_memory, rows_of
from tests.store.trouble import dump
from tidemark.recovery.crash_harness.disks.faults import FaultFiles, Plan, Rule
from tidemark.recovery.crash_harness.disks.memory import CrashPolicy, MemoryFiles
from tidemark.recovery.crash_harness.places import kind_of
from tidemark.recovery.crash_harness.program import PowerOff, power_off

pytestmark = pytest.mark.usefixtures("storage")

POLICIES: tuple[CrashPolicy, ...] = ("drop", "sectors", "torn", "keep", "growth")


@pytest.fixture(scope="module")
def expected(history: History) -> dict[str, Any]:
    """What one undisturbed restart shows, hidden columns included."""
    return dump(open_memory(MemoryFiles.from_snapshot(history.contents)))


def crashes(nth: int, memory: MemoryFiles, rng: random.Random) -> list[MemoryFiles]:
    """What may be left: two policies in turn."""
    return [memory.crash(rng, POLICIES[nth % len(POLICIES)]), memory.crash(rng, "sectors")]


class CallsByKind(Plan):
    """The call of the disk that was the first of each kind: an operation, and the kind of its file."""

    def __init__(self) -> None:
        super().__init__()
        self.first: dict[str, int] = {}

    def strike(self, operation: str, name: str) -> Rule | None:
        """See `Plan`."""
        rule = super().strike(operation, name)
        self.first.setdefault(f"{operation} {kind_of(name)}", self.calls)
        return rule


def test_power_lost_three_times_during_a_restart_gives_the_state_of_one(
    history: History, expected: dict[str, Any]
) -> None:
    seed = 31
    print(f"seed {seed}")
    rng = random.Random(seed)
    plan = CallsByKind()
    files: Any = FaultFiles(MemoryFiles.from_snapshot(history.contents), plan)
    open_memory(files)
    reads, writes = {"checkpoint data", "control file", "REDO", "sysfile"}, {"REDO", "sysfile"}
    if "space/1.data" in history.contents:
        reads, writes = reads | {"UNDO"}, writes | {"UNDO", "tablespace", "double write"}
    wanted = {f"pread {kind}" for kind in reads} | {
        f"{call} {kind}" for call in ("pwrite", "fdatasync") for kind in writes
    }
    assert wanted <= plan.first.keys(), "a restart that does none of this shows nothing"
    for nth in sorted({*range(few(9, 3), plan.calls + few(9, 3), few(9, 3)), *(plan.first[each] for each in wanted)}):
        memory = MemoryFiles.from_snapshot(history.contents)
        went_off = False
        for later in (nth, nth, max(1, nth - 3)):
            went_off |= powered_off(memory, later, open_memory)
            memory = crashes(nth, memory, rng)[0]
        db = open_memory(memory)
        assert dump(db) == expected, f"call {nth}"
        assert went_off or nth >= plan.calls
        put(db, 5_000, 3, 1.0)
        rows = rows_of(db)
        assert rows_of(open_memory(memory.crash(rng, "drop"))) == rows
    assert plan.calls > 50


@memory_only
def test_power_lost_while_a_store_is_made_leaves_none_or_an_empty_one() -> None:
    seed = 30
    rng = random.Random(seed)
    nth = 0
    remains: Counter[str] = Counter()
    while True:
        nth += 1
        memory = MemoryFiles()
        went_off = powered_off(memory, nth, open_memory)
        # A crash of the machine may lose LOCK, which is not synced; here it is also lost where that cannot happen.
        unlocked = {name: content for name, content in memory.kill().snapshot().items() if name != "LOCK"}
        for left in (memory.kill(), MemoryFiles.from_snapshot(unlocked), crashes(nth, memory, rng)[0]):
            db = open_memory(left)
            remains["nothing" if db.parts.opened.report.is_new else "an empty store"] += 1
            assert db.tables() == []
            db.create_table("test.account", ACCOUNT, "id")
            put(db, 0, 5, 1.0)
            rows = rows_of(db)
            assert rows_of(open_memory(left.crash(rng, "drop"))) == rows, f"seed {seed}, call {nth}"
        if not went_off:
            break
    print(remains)
    assert nth > 20 and min(remains["nothing"], remains["an empty store"]) > 2


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_disk_full_while_a_store_is_made_is_storage_full_and_it_can_be_made_later(code: int) -> None:
    nth = unmade = 0
    while True:
        nth += 1
        memory = MemoryFiles()
        files: Any = FaultFiles(memory, [Rule("space", nth=nth, once=False, error=code)])
        try:
            open_memory(files).close()
        except tm.StorageFull as error:
            assert "space" in str(error)
        else:
            assert not files.fired
            break
        try:  # the files are a whole store or none
            assert open_memory(memory.kill(), create=False).tables() == []
        except tm.FileMissing:
            unmade += 1
        db = open_memory(memory.kill())
        db.create_table("test.account", ACCOUNT, "id")
        db.close()
    assert unmade > 5


@pytest.mark.parametrize("operation", ["open", "create", "list", "make_directory"])
def test_no_descriptor_at_any_call_of_an_opening_refuses_it_and_loses_nothing(
    history: History, expected: dict[str, Any], operation: str
) -> None:
    nth = 0
    while True:
        nth += 1
        memory = MemoryFiles.from_snapshot(history.contents)
        files: Any = FaultFiles(memory, [Rule(operation, nth=nth, error=errno.EMFILE)])
        try:
            db = open_memory(files)
        except tm.TooManyFiles:
            assert untouched(memory.snapshot()) == untouched(history.contents)
            db = open_memory(memory.kill())
            assert dump(db) == expected
            continue
        assert dump(db) == expected
        if not files.fired:
            break


def test_power_lost_at_any_call_of_a_schema_change_leaves_the_table_whole_or_absent(history: History) -> None:
    seed = 12
    rng = random.Random(seed)
    columns = [tm.Column("id", tm.Int64)]

    def change(db: Any) -> None:
        db.create_table("test.new", columns, "id")
        db["test.new"].insert((1,))
        db.drop_table("test.new")
        db.create_table("test.new", [*columns, tm.Column("more", tm.Text, nullable=True)], "id")
        db["test.new"].insert((2, "second"))
        db.drop_table("test.young")

    # State by state, the files that may be there.
    steps = [None, [], [(1,)], None, [], [(2, "second")]]
    nth = 0
    reached = set()
    while True:
        nth += few(2, 1)
        memory = MemoryFiles.from_snapshot(history.contents)
        db, plan = open_faulty(memory, Rule("*", nth=nth, once=False, stall=power_off))
        plan.is_over = False
        went_off = False
        try:
            change(db)
        except PowerOff:
            went_off = True
        for left in (memory.kill(), *crashes(nth, memory, rng)):
            again = open_memory(left)
            assert rows_of(again) == history.rows
            found = list(map(tuple, again["test.new"].scan())) if "test.new" in again else None
            assert found in steps, f"seed {seed}, call {nth}: {found}"
            reached.add(repr(found))
            assert ("test.young" in again) or found == [(2, "second")]
            if "test.young" in again:
                assert len(again["test.young"]) == 30
            if "test.new" not in again:
                again.create_table("test.new", columns, "id")
            tables = dump(again)
            assert dump(open_memory(left.crash(rng, "drop"))) == tables
        if not went_off:
            break
    assert len(reached) == 4, reached


def test_power_lost_at_any_call_of_close_is_any_crash(history: History) -> None:
    seed = 15
    rng = random.Random(seed)
    nth = 0
    while True:
        nth += few(2, 1)
        memory = MemoryFiles.from_snapshot(history.contents)
        db, plan = open_faulty(memory, Rule("*", nth=nth, once=False, stall=power_off))
        put(db, 4_000, 5, 2.0)
        rows = rows_of(db)
        open_one = db.transaction()
        open_one.update("test.account", 4_001, {"balance": -7.0})
        plan.is_over = False
        try:
            db.close()
            went_off = False
        except PowerOff:
            went_off = True
        for left in (memory.kill(), *crashes(nth, memory, rng)):
            assert rows_of(open_memory(left)) == rows, f"seed {seed}, call {nth}"
        if not went_off:
            break
    assert nth > 5


@pytest.mark.parametrize("name", ["sysfile.0", "sysfile.1"])
@pytest.mark.parametrize("personality", ["clean", "reverted", "late"])
def test_failed_sync_of_the_sysfile_fails_the_store_and_nothing_is_lost(
    history: History, name: str, personality: Any
) -> None:
    memory = MemoryFiles(MemoryFiles.from_snapshot(history.contents).disk, personality)
    db, plan = open_faulty(memory, Rule("fdatasync", name, error=errno.EIO))
    put(db, 4_000, 5, 2.0)
    rows = rows_of(db)
    plan.is_over = False
    with pytest.raises(tm.SyncFailed):
        for _ in range(6):
            db.parts.clockwork.advance_gci()
    with pytest.raises(tm.SyncFailed):
        db.transaction()
    for left in (memory.kill(), memory.image(lambda piece: False)):
        again = open_memory(left)
        assert rows_of(again) == rows
        again.parts.clockwork.advance_gci()
        again.parts.clockwork.advance_gci()
        again.close()
