"""A new log has the first files of its ring, and makes the others in its first lap (ADR 0043)."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import tidemark as tm
from tests.backup.support import archived
from tests.crash.programs.growth_history import FILE_BYTES, START_FILES, small_files
from tests.log.support import Log, read
from tests.store.interrupts import interrupt_at
from tests.store.support import open_faulty, open_memory, rows_of
from tidemark.engine.log.reader import LogReader
from tidemark.recovery.crash_harness.disks.faults import FaultFiles, Rule
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles
from tidemark.recovery.system_restart.sysfile import NAMES, read_copy

NAME = "test.t"
FILES = 16
LOG: dict[str, Any] = {"redo_log": "1 MiB", "transaction_memory": "256 KiB"}
INTERRUPTS_EVERY = 7


@pytest.fixture(autouse=True)
def _small_files() -> Iterator[None]:
    with small_files():
        yield


def made(files: Any = None, **options: Any) -> Any:
    """A store with a table of long rows."""
    db = open_memory(files, **LOG, **options)
    db.create_table(NAME, [tm.Column("id", tm.Int64), tm.Column("text", tm.Text)], "id")
    return db


def row(number: int) -> tuple[int, str]:
    return number, str(number) * (3_000 // len(str(number)))


def logs(files: MemoryFiles) -> dict[str, int]:
    """Files of the log, and their bytes."""
    return {name: len(content) for name, content in files.snapshot().items() if name.startswith("redo/0")}


def fill(db: Any, files: int, first: int = 0) -> int:
    """Write rows until the log has that many files; return the number of the next row."""
    while db.parts.store.log.geometry.made_count < files:
        db[NAME].write(row(first))
        first += 1
    return first


def test_new_store_grows_to_the_size_it_was_given_and_keeps_it() -> None:
    files = MemoryFiles()
    db = made(files)
    assert logs(files) == {f"redo/{number:04d}.redo": FILE_BYTES for number in range(START_FILES)}
    assert db.status()["log"]["capacity_bytes"] == FILES * FILE_BYTES
    rows: dict[int, Any] = {}
    most = 0
    for number in range(2_000):
        rows[number % 40] = row(number % 40)
        try:
            db[NAME].write(rows[number % 40])
        except tm.RedoOverloaded as full:  # only of the whole ring
            assert f"({FILES * FILE_BYTES} bytes)" in full.message and len(logs(files)) == FILES
            db.checkpoint()
            db.checkpoint()
            db[NAME].write(rows[number % 40])
        assert len(logs(files)) >= most
        most = len(logs(files))
    assert db.status()["log"]["head_lsn"] > 3 * FILES * FILE_BYTES
    assert logs(files) == {f"redo/{number:04d}.redo": FILE_BYTES for number in range(FILES)}
    again = open_memory(files.kill(), **LOG)
    assert rows_of(again, NAME) == rows
    assert not again.check()["problems"]


def test_log_grows_ahead_of_need_until_one_file_is_free() -> None:
    files = MemoryFiles()
    db = made(files)
    log, room = db.parts.store.log, db.parts.store.room
    for number in range(100):
        db[NAME].write(row(number))
        room.grow_ahead()  # as a thread of a store with background work does
        free_bytes = log.geometry.limit_lsn - log.head_lsn
        assert FILE_BYTES <= free_bytes <= 4 * FILE_BYTES
    reader = LogReader(files, log.geometry, db.parts.opened.identity[0])
    assert len(list(reader.groups(0, 1))) > 100


def test_threads_that_write_while_the_log_grows_lose_nothing(tmp_path: Path) -> None:
    options = {"data_memory": "16 MiB", "redo_log": "1 MiB"}
    with tm.open(tmp_path, **options) as db:  # type: ignore[arg-type]
        db.create_table(NAME, [tm.Column("id", tm.Int64), tm.Column("text", tm.Text)], "id")

        def write(first: int) -> None:
            for number in range(first, first + 25):
                db[NAME].write(row(number))

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(write, range(0, 100, 25)))
        made = len(list((tmp_path / "redo").iterdir()))
        assert made > START_FILES
    with tm.open(tmp_path, **options) as db:  # type: ignore[arg-type]
        assert sorted(found.id for found in db[NAME].scan()) == list(range(100))
        assert db.check()["problems"] == []


@pytest.mark.parametrize("name", NAMES)
def test_either_copy_of_the_sysfile_has_the_files_of_the_log(name: str) -> None:
    """A log with groups in a file that the other copy lacks would seem to end before that file."""
    files = MemoryFiles()
    db = made(files)
    count = fill(db, START_FILES + 2)
    left = files.kill().snapshot()
    assert {copy.geometry.made_count for each in NAMES if (copy := read_copy(files, each))} == {START_FILES + 2}
    again = open_memory(MemoryFiles.from_snapshot({**left, name: bytes(len(left[name]))}), **LOG)
    assert sorted(rows_of(again, NAME)) == list(range(count))


@pytest.mark.parametrize("number", [1, START_FILES])
def test_file_that_the_log_has_must_be_there_and_whole(number: int) -> None:
    files = MemoryFiles()
    db = made(files)
    fill(db, START_FILES + 1)
    db.close()
    left = files.snapshot()
    name = f"redo/{number:04d}.redo"
    with pytest.raises(tm.FileMissing, match=name):
        open_memory(MemoryFiles.from_snapshot({each: left[each] for each in left if each != name}), **LOG)
    with pytest.raises(tm.FileTruncated, match=f"{name} has 512 of {FILE_BYTES} bytes"):
        open_memory(MemoryFiles.from_snapshot({**left, name: left[name][:512]}), **LOG)


@pytest.mark.parametrize("size", [0, 512, FILE_BYTES, FILE_BYTES + 4_096])
@pytest.mark.parametrize("byte", [b"\0", b"\xff"])
def test_what_a_crash_left_of_the_next_file_is_not_part_of_the_log(size: int, byte: bytes) -> None:
    files = MemoryFiles()
    db = made(files)
    count = fill(db, START_FILES + 1)
    name = f"redo/{START_FILES + 1:04d}.redo"
    left = MemoryFiles.from_snapshot({**files.kill().snapshot(), name: byte * size})
    again = open_memory(left, **LOG)
    more = fill(again, START_FILES + 3, count)
    assert set(logs(left).values()) == {FILE_BYTES}
    assert sorted(rows_of(open_memory(left.image(lambda piece: False), **LOG), NAME)) == list(range(more))


def test_log_that_is_newer_than_both_copies_of_the_sysfile_is_refused() -> None:
    """The rows past the files that the sysfile knows were acknowledged: they must not go in silence."""
    files = MemoryFiles()
    db = made(files)
    before = files.snapshot()
    fill(db, START_FILES + 4)
    old = {**files.kill().snapshot(), **{name: before[name] for name in NAMES}}
    mixed = MemoryFiles.from_snapshot(old)
    with pytest.raises(tm.RedoDamaged, match="begins in a file that no copy of the sysfile has"):
        open_memory(mixed, **LOG)
    assert {**mixed.snapshot(), "LOCK": b""} == {**old, "LOCK": b""}


CHANGES: dict[str, Any] = {
    "a row": lambda db: db[NAME].write(row(1_000)),
    "many rows": lambda db: db[NAME].write_many([row(1_000 + number) for number in range(40)]),
    "a transaction": lambda db: _transaction(db),
    "a table": lambda db: _tables(db),
}


def _transaction(db: Any) -> None:
    with db.transaction() as txn:
        for number in range(40):
            txn.write(NAME, row(1_000 + number))


def _tables(db: Any) -> None:
    for number in range(len(db.tables()), 200):
        db.create_table(f"test.t{number}", [tm.Column("id", tm.Int64)], "id")


@pytest.mark.parametrize("change", CHANGES.values(), ids=list(CHANGES))
@pytest.mark.parametrize("operation", ["create", "pwrite"])
def test_full_disk_refuses_what_has_no_room_and_the_store_goes_on_when_there_is_some(
    operation: str, change: Any
) -> None:
    memory = MemoryFiles()
    rule = Rule(operation, f"redo/{START_FILES:04d}.redo", once=False, error=errno.ENOSPC)
    db, plan = open_faulty(memory, rule, **LOG)
    db.create_table(NAME, [tm.Column("id", tm.Int64), tm.Column("text", tm.Text)], "id")
    plan.is_over = False
    advice = "free space on the disk of the store, then run the transaction again"
    with pytest.raises(tm.StorageFull, match=advice) as refused:
        for number in range(1_000):
            db[NAME].write(row(number))
    rows = rows_of(db, NAME)
    assert f"of its {FILES * FILE_BYTES} bytes and cannot grow" in refused.value.message
    with pytest.raises(tm.StorageFull):
        while True:
            change(db)
    assert db.status()["store"]["state"] == "open"
    assert {number: text for number, text in rows_of(db, NAME).items() if number < 1_000} == rows
    db.checkpoint()  # frees nothing: a log that lacks files has no lap to begin
    plan.is_over = True
    change(db)
    want = rows_of(db, NAME)
    assert db.parts.store.log.geometry.made_count > START_FILES and set(rows) <= set(want)
    assert rows_of(open_memory(memory.image(lambda piece: False), **LOG), NAME) == want


def test_full_disk_that_says_so_before_it_is_written() -> None:
    class SmallDisk(MemoryFiles):
        free = 1 << 40

        def free_bytes(self) -> int | None:
            return self.free

    disk = SmallDisk()
    db = made(disk)
    disk.free = FILE_BYTES - 1
    with pytest.raises(tm.StorageFull, match=r"redo/0003.redo is 64 KiB, but the disk has 65535 .* free"):
        fill(db, FILES)
    assert logs(disk)["redo/0003.redo"] == 0
    disk.free = FILE_BYTES
    fill(db, FILES)


def test_node_that_follows_others_grows_where_it_writes_and_fails_on_a_full_disk() -> None:
    """Groups of another node reserve no room. No error may claim that their changes were undone here."""

    def full(memory: MemoryFiles) -> Any:
        return FaultFiles(memory, [Rule("pwrite", "redo/0003.redo", once=False, error=errno.ENOSPC)])

    log = Log(full, FILE_BYTES, 5, unmade_count=3)
    for value in range(1, 4):
        log.write(value, words=FILE_BYTES // 8 - 1_024)
    assert log.redo.geometry.made_count == 3
    with pytest.raises(tm.CommitOnFailedStore, match="the log cannot be written"):
        for value in range(4, 6):
            log.write(value, words=FILE_BYTES // 8 - 1_024)
    assert [group.sequence for group in read(log.after_power_loss(), log.redo.geometry)][:3] == [1, 2, 3]


def test_readers_from_before_a_file_was_made_read_its_groups() -> None:
    files = MemoryFiles()
    db = made(files)
    archive = archived(db, MemoryFiles())
    reader = LogReader(files, db.parts.store.log.geometry, db.parts.opened.identity[0])
    count = fill(db, START_FILES + 4)
    db.parts.clockwork.advance_gci()
    status = archive.copy()
    assert status["lsn"] == db.parts.store.log.durable_lsn > (START_FILES + 1) * FILE_BYTES
    assert sum(group.transactions for group in reader.groups(0, 1)) >= count
    db.checkpoint()  # published after the archive has the log


def test_ctrl_c_anywhere_in_growing_leaves_a_log_that_opens_and_grows() -> None:
    nth, points = 1, 0
    while True:
        files = MemoryFiles()
        db = made(files)
        log = db.parts.store.log
        point = interrupt_at(nth, lambda log=log: log.grow(log.geometry))  # type: ignore[misc]
        after = open_memory(files.kill(), **LOG)
        assert fill(after, START_FILES + 2) > 0
        count = fill(db, START_FILES + 3)
        assert sorted(rows_of(open_memory(files.image(lambda piece: False), **LOG), NAME)) == list(range(count))
        if not point.where:
            break
        nth, points = nth + INTERRUPTS_EVERY, points + 1
    assert points > 5
