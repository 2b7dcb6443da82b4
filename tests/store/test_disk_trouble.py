"""Trouble with disk columns: each fault has its own error, others are unaffected, nothing is lost."""

from __future__ import annotations

import errno
import random
from typing import Any

import pytest

import tidemark as tm
from tests.elsewhere import at_once
from tests.recovery.support import flipped
from tests.store.disk_support import DISK, NAME, OTHER, PAGE_BYTES, DiskStore
from tests.store.support import open_faulty, open_memory, rows_of
from tidemark.background import RETRY_PAUSE_SECONDS
from tidemark.engine.disk.disk_layout import UNDO_DROP, UNDO_MARK_WORDS
from tidemark.recovery.crash_harness.disks.faults import FaultFiles, Plan, Rule
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles

DATA = "space/1.data"


def stored(**options: Any) -> DiskStore:
    """A store of 60 rows, two to a page, in two local checkpoints, closed; `files` are its files."""
    store = DiskStore(**options)
    store.load(range(60), 1, size=1_500)
    store.db.checkpoint()
    store.db.checkpoint()
    store.db.close()
    store.files = MemoryFiles.from_snapshot(store.files.snapshot())
    return store


def damaged(store: DiskStore, page: int, offset: int = 1_000) -> MemoryFiles:
    """The store's files with one byte of one page changed, and no copy of the page in the double-write file."""
    contents = dict(store.files.snapshot())
    contents[DATA] = flipped(contents[DATA], page * PAGE_BYTES + offset, 6)
    contents["double-write"] = bytes(len(contents["double-write"]))
    return MemoryFiles.from_snapshot(contents)


def readable(db: Any, keys: Any, error: type[tm.Error] = tm.PageDamaged) -> dict[int, Any]:
    """Rows that are read without this error."""
    found = {}
    for key in keys:
        try:
            found[key] = tuple(db[NAME].get(key))
        except error as raised:
            if isinstance(raised, tm.PageDamaged):
                assert raised.file == DATA and f"offset {raised.offset}" in str(raised)
    return found


def test_damaged_page_is_an_error_for_its_rows_and_scans_and_for_no_others() -> None:
    """F62: a page not changed since the local checkpoint. Opening succeeds; a call that needs the page fails with its
    file and place.
    """
    store = stored()
    files = damaged(store, 5)
    db: Any = open_memory(files, **DISK)
    found = readable(db, store.rows)
    assert len(store.rows) - 4 <= len(found) < len(store.rows)
    assert found.items() <= store.rows.items()
    for read in (lambda: list(db[NAME].scan()), db[NAME].to_arrow, lambda: db[NAME].get_many(list(store.rows))):
        with pytest.raises(tm.PageDamaged) as caught:
            read()
        assert caught.value.offset == 5 * PAGE_BYTES
    lost = min(set(store.rows) - set(found))
    with pytest.raises(tm.PageDamaged):
        db[NAME].update(lost, {"cold": b"x" * 10})
    with db.transaction() as txn:
        txn.insert(NAME, (1_000, 0, None, b"new"))
        with pytest.raises(tm.PageDamaged):
            txn.delete(NAME, lost)
        txn.update(NAME, min(found), {"n": 77})
    assert db[NAME].get(1_000).cold == b"new" and db[NAME].get(min(found)).n == 77
    db.checkpoint()
    again: Any = open_memory(files.kill(), **DISK)
    assert again[NAME].get(1_000).cold == b"new"
    assert len(readable(again, store.rows)) == len(found)
    db.drop_table(NAME)
    db.create_table(OTHER, [tm.Column("id", tm.Int64), tm.Column("c", tm.Text, storage="disk")], "id")
    db[OTHER].insert_many([(key, "c" * 900) for key in range(40)])
    assert len(list(db[OTHER].scan())) == 40


def test_page_that_cannot_be_read_is_an_error_of_that_call_and_the_store_lives_on() -> None:
    """F40: a failed read changed nothing, so one bad sector must not end all work. Once it can be read again, it is
    read.
    """
    store = stored()
    db, plan = open_faulty(store.files, Rule("pread", DATA, once=False, error=errno.EIO), **DISK)
    db.create_table("test.plain", [tm.Column("id", tm.Int64)], "id")
    plan.is_over = False
    for read in (lambda: db[NAME].get(5), lambda: list(db[NAME].scan()), lambda: db[NAME].update(5, {"cold": b"x"})):
        with pytest.raises(tm.PageDamaged) as caught:
            read()
        assert caught.value.file == DATA and "cannot be read" in str(caught.value)
    db["test.plain"].insert((1,))
    assert db.status()["store"]["state"] == "open"
    plan.is_over = True
    assert rows_of(db, NAME) == store.rows
    db[NAME].update(5, {"n": 9})
    assert open_memory(store.files.kill(), **DISK)[NAME].get(5).n == 9


@pytest.mark.parametrize("is_needed", [False, True])
def test_restart_with_a_damaged_page_opens_unless_undo_needs_it(is_needed: bool) -> None:
    """F61, F62: a damaged page that UNDO or REDO must change is refused by name; no intact page is damaged."""
    store = stored()
    store.db = open_memory(store.files, **DISK)
    if is_needed:
        store.load(range(60), 2, size=1_500)
        store.flush()
    files = damaged(store, 5)
    if not is_needed:
        assert open_memory(files, **DISK)
        return
    for _ in range(2):
        with pytest.raises(tm.PageDamaged) as caught:
            open_memory(files, **DISK)
        assert (caught.value.file, caught.value.offset) == (DATA, 5 * PAGE_BYTES)
        files = files.kill()
    contents = dict(files.snapshot())
    contents[DATA] = flipped(contents[DATA], 5 * PAGE_BYTES + 1_000, 6)
    assert rows_of(open_memory(MemoryFiles.from_snapshot(contents), **DISK), NAME) == store.rows


@pytest.mark.parametrize(
    ("spoil", "error"),
    [
        (lambda contents: contents.pop(DATA), tm.FileMissing),
        (lambda contents: contents.update({DATA: contents[DATA][:100]}), tm.FileTruncated),
        (lambda contents: contents.update({DATA: bytes(len(contents[DATA]))}), tm.PageDamaged),
        (lambda contents: contents.update({DATA: stored().files.snapshot()[DATA][:4_000] + b"x" * 96}), tm.PageDamaged),
    ],
    ids=["missing", "cut", "zeroed", "first page"],
)
def test_data_file_missing_cut_or_foreign_is_refused_by_name_and_nothing_changes(spoil: Any, error: Any) -> None:
    """F63, F71, F72."""
    contents = dict(stored().files.snapshot())
    spoil(contents)
    files = MemoryFiles.from_snapshot(contents)
    with pytest.raises(error) as caught:
        open_memory(files, **DISK)
    assert caught.value.file == DATA
    assert {name: files.snapshot().get(name) for name in contents if name != "double-write"} == {
        name: each for name, each in contents.items() if name != "double-write"
    }


@pytest.mark.parametrize("is_missing", [True, False])
def test_double_write_file_missing_or_damaged_is_made_again(is_missing: bool) -> None:
    """F64, F72: with no page torn it is not needed."""
    store = stored()
    contents = dict(store.files.snapshot())
    if is_missing:
        del contents["double-write"]
    else:
        contents["double-write"] = b"\xff" * len(contents["double-write"])
    store.files = MemoryFiles.from_snapshot(contents)
    store.crash()
    store.load(range(60), 2)
    store.db.checkpoint()
    store.crash()


def test_failed_write_of_the_undo_log_ends_the_store_and_loses_nothing() -> None:
    """F35: the files of the UNDO log were written when they were made, so even a full disk there is a failure of the
    disk.
    """
    store = stored()
    db, plan = open_faulty(store.files, Rule("pwrite", "undo/*", nth=2, error=errno.ENOSPC), **DISK)
    plan.is_over = False
    with pytest.raises(tm.IoFailed):
        for turn in range(20):
            batch = [(key, turn, None, bytes([turn]) * 2_000) for key in range(20)]
            db[NAME].write_many(batch)
            store.rows.update({row[0]: row for row in batch})
            db.parts.store.disk.flush()
    with pytest.raises(tm.IoFailed):
        db[NAME].get(1)
    found = rows_of(open_memory(store.files.kill(), **DISK), NAME)
    assert found in (store.rows, store.rows | {row[0]: row for row in batch})


def test_disk_full_in_any_write_of_disk_pages_loses_nothing() -> None:
    """F42, F43: full while pages are cleaned, while the tablespace extends, while a local checkpoint flushes."""
    store = stored(size="64 KiB")
    contents = store.files.snapshot()
    refused = 0
    for nth in range(1, 600, 23):
        memory = MemoryFiles.from_snapshot(contents)
        db, plan = open_faulty(memory, Rule("space", "space/*", nth=nth, error=errno.ENOSPC), **DISK)
        rows = dict(store.rows)
        plan.is_over = False
        for turn in range(6):
            batch = [(key, turn, None, bytes([turn]) * 2_000) for key in range(turn * 20, turn * 20 + 60)]
            try:
                db[NAME].write_many(batch)
                rows.update({row[0]: row for row in batch})
                if turn == 3:
                    db.checkpoint()
            except tm.StorageFull:
                refused += 1
        assert db.status()["store"]["state"] == "open"
        plan.is_over = True
        assert rows_of(db, NAME) == rows, f"call {nth}"
        db.checkpoint()
        assert rows_of(open_memory(memory.kill(), **DISK), NAME) == rows
        if not db.parts.files.fired:
            break
    assert refused, "nothing was ever full"


def test_page_buffer_exhausted_by_pins_refuses_and_rolls_back() -> None:
    """A transaction that finds every frame pinned fails after a wait, is rolled back, and may be retried."""
    store = stored()
    db: Any = open_memory(store.files, **DISK)
    disk = db.parts.store.disk
    first = 1 << 32
    pages = [first | number for number in range(1, 26)]
    disk.hold(pages)
    caches = list(disk.caches.values())
    patience = caches[0].wait_seconds
    for cache in caches:
        cache.wait_seconds = -1.0  # a clock driven by hand lets no time pass
    outside = [key for key in store.rows if key not in readable(db, store.rows, tm.MemoryExhausted)]
    assert outside
    with pytest.raises(tm.MemoryExhausted, match="page_buffer"):
        db[NAME].update(outside[0], {"cold": b"x"})
    with pytest.raises(tm.MemoryExhausted, match="page_buffer"):
        db[NAME].get(outside[0])
    disk.release(pages)
    for cache in caches:
        cache.wait_seconds = patience  # a scan may well find the read-ahead thread at its page
    assert rows_of(db, NAME) == store.rows
    db[NAME].update(outside[0], {"cold": b"x"})
    assert db[NAME].get(outside[0]).cold == b"x"


def test_eight_threads_on_25_frames_keep_every_row_whole() -> None:
    """Each thread owns keys and a model; other threads read them meanwhile and never see a row that was
    not written so.
    """
    store = DiskStore(lock_timeout_ms=2_000, redo_log="16 MiB", undo_log="16 MiB", data_memory="32 MiB")
    store.load(range(160), 0, size=900)
    models: list[dict[int, tuple[Any, ...]]] = [{} for _ in range(8)]

    def work(number: int) -> None:
        rng = random.Random(number)
        for turn in range(1, 40):
            keys = rng.sample(range(number * 20, number * 20 + 20), rng.randint(1, 12))
            rows = [(key, turn, None, bytes([turn]) * rng.choice([10, 900, 2_900])) for key in keys]
            try:
                store.table.write_many(rows)
            except tm.Retryable:
                continue
            models[number].update({row[0]: row for row in rows})
            for row in store.table.scan() if turn % 8 == 0 else [store.table.get(rng.randrange(160))]:
                assert set(row.cold) <= {row.n % 256}, f"torn row {row.id}"
            if number == 0 and turn % 15 == 0:
                store.db.checkpoint()

    at_once(work, range(8))
    for model in models:
        store.rows.update(model)
    store.verify()
    store.crash()


def test_scan_of_rows_that_moved_waits_for_no_page_while_it_holds_others() -> None:
    # Story: a scan holds up to a quarter of the frames, and also held all pages that rows had moved to. Four scans,
    # each waiting for one frame more, waited for each other until their timeouts, or one for itself.
    store = DiskStore(data_memory="32 MiB")
    store.load(range(60), size=400)
    before = store.found()
    disk = store.db.parts.store.disk
    hold, release = disk.hold, disk.release
    held: list[int] = []
    waits: list[list[int]] = []
    is_moving = False

    def watched_hold(pages: list[int], is_reference: bool = True) -> None:
        nonlocal is_moving
        hold(pages, is_reference)
        if pages and not is_moving:
            waits.append(held[:])
            held.extend(pages)
            if len(waits) == 1:
                is_moving = True
                store.load(range(60), 1, size=2_900)
                is_moving = False

    def watched_release(pages: list[int]) -> None:
        release(pages)
        if not is_moving:
            for page in pages:
                held.remove(page)

    disk.hold, disk.release = watched_hold, watched_release
    found = store.found()
    assert waits and not any(waits) and not held
    assert found == before, "the scan shows the rows of the instant at which it began"
    disk.hold, disk.release = hold, release
    store.verify()


def filled_undo(**keywords: Any) -> tuple[DiskStore, Any]:
    """A store whose UNDO buffer is full except for the space reserved for marks, and its UNDO log."""
    store = DiskStore(**keywords)
    store.load(range(60), size=1_200)
    undo = store.db.parts.store.disk.undo
    with store.db.parts.store.latch:
        while undo.has_room(UNDO_MARK_WORDS):
            undo.record_table(UNDO_DROP, 9_999)
    return store, undo


def test_schema_changes_with_a_full_undo_buffer_make_room_for_their_marks() -> None:
    # Story: a table made or dropped leaves a mark of 6 words in the UNDO buffer, which reserves 64 words for marks.
    # These changes did not flush it: the eleventh change with a full buffer was InvariantBroken, and the store was
    # dead.
    store, undo = filled_undo()
    flushes = undo.counters()["flushes"]
    columns = [tm.Column("id", tm.Int64), tm.Column("c", tm.Int64, storage="disk")]
    for number in range(30):
        store.db.create_table(f"n{number}", columns, "id")
    for number in range(30):
        store.db.drop_table(f"n{number}")
    assert undo.counters()["flushes"] > flushes
    store.verify()
    store.crash(random.Random(1))


def test_local_checkpoint_with_a_full_undo_buffer_makes_room_for_its_mark() -> None:
    # Story: as above; the marks of local checkpoints that a full disk had abandoned added up.
    plan = Plan([Rule("create", "lcp/*", once=False, error=errno.ENOSPC)])
    plan.is_over = True
    memory = MemoryFiles()
    store, undo = filled_undo(files=FaultFiles(memory, plan))
    flushes = undo.counters()["flushes"]
    plan.is_over = False
    for _ in range(15):
        with pytest.raises(tm.StorageFull):
            store.db.checkpoint()
    assert undo.counters()["flushes"] > flushes
    plan.is_over = True
    store.db.checkpoint()
    store.verify()
    store.files = memory
    store.crash(random.Random(2))


class Pauses:
    """An event that is set after so many pauses, and says how long they were to last."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.seconds: list[float] = []

    def is_set(self) -> bool:
        return len(self.seconds) >= self.count

    def wait(self, seconds: float) -> bool:
        self.seconds.append(seconds)
        return self.is_set()


def test_full_disk_under_the_writing_of_pages_ahead_of_need_is_no_failure_of_the_store() -> None:
    # Story: pages larger than 8 KiB make the double-write file longer. Without space for that, the thread that writes
    # pages ahead of need died, and its death failed the store.
    memory = MemoryFiles()
    db, plan = open_faulty(memory, Rule("pwrite", "double-write", once=False, error=errno.ENOSPC), **DISK)
    db.create_tablespace("wide", "4 MiB", page_size="32 KiB", extent="128 KiB")
    columns = [tm.Column("id", tm.Int64), tm.Column("c", tm.VarBinary(10_000), storage="disk")]
    db.create_table("t", columns, "id", tablespace="wide")
    disk, clockwork = db.parts.store.disk, db.parts.clockwork
    disk.has_writer = True
    after = disk.caches[32 << 10].write_behind
    plan.is_over = False
    rows: dict[int, tuple[int, bytes]] = {}
    while after.waiting <= after.capacity:
        key = len(rows)
        rows[key] = (key, bytes([key]) * 10_000)
        db["t"].insert(rows[key])
    disk.writer_wanted.set()
    clockwork.stopping = pauses = Pauses(1)
    clockwork.guarded(clockwork.run_pages)
    assert db.parts.files.fired and after.waiting > after.capacity
    assert pauses.seconds == [RETRY_PAUSE_SECONDS]
    assert db.status()["store"]["state"] == "open"
    plan.is_over = True
    assert disk.clean_ahead() and after.waiting <= after.capacity, "there is space again: it continues"
    assert rows_of(db, "t") == rows
    disk.flush()
    assert rows_of(open_memory(memory.kill(), **DISK), "t") == rows
