"""A store that archives itself: by its timer, through failures of the place, and never at the cost of a commit."""

from __future__ import annotations

import errno
import logging
import threading
from pathlib import Path
from typing import Any

import pytest

import tidemark as tm
from tests.backup.support import content, content_of, restored, take
from tests.store.support import open_memory
from tidemark.backup import plan, restore
from tidemark.recovery.backup.archive import Archive, Archiver
from tidemark.recovery.backup.plan import make_plan
from tidemark.recovery.backup.segments import segment_names
from tidemark.recovery.backup.verify import verify
from tidemark.recovery.crash_harness.disks.faults import FaultFiles, Rule
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles

WAIT_SECONDS = 60
ROOM: dict[str, Any] = {"data_memory": "16 MiB", "redo_log": "1 MiB", "undo_log": "1 MiB"}


def archiver_of(db: Any, open_place: Any) -> Archiver:
    content_of_sysfile = db.parts.opened.keeper.content
    about = (content_of_sysfile.geometry, db.parts.opened.identity, content_of_sysfile.timeline)
    return Archiver(db.parts.store, db.parts.files, *about, "the place", open_place)


def made(**options: Any) -> Any:
    db = open_memory(None, **options)
    db.create_table("test.t", [tm.Column("id", tm.Int64), tm.Column("n", tm.Binary(200))], "id")
    return db


def test_store_with_the_option_archives_itself_by_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done, wanted = threading.Event(), [1 << 62]
    real = Archive.copy

    def copy(self: Archive) -> dict[str, Any]:
        report = real(self)
        if self.last_epoch >= wanted[0]:
            done.set()
        return report

    monkeypatch.setattr(Archive, "copy", copy)
    with tm.open(tmp_path / "store", archive=tmp_path / "place", archive_interval_ms=100, **ROOM) as db:
        db.create_table("test.t", [tm.Column("id", tm.Int64)], "id")
        db.backup(tmp_path / "place")
        db["test.t"].insert_many([(key,) for key in range(100)])
        wanted[0] = db.sync()
        assert done.wait(WAIT_SECONDS)  # no caller has called archive()
        want = content(db)
        reached = wanted[0]
        status = db.status()["archive"]
        assert status["is_attached"] and status["failures"] == 0 and status["last_epoch"] >= reached
        with pytest.raises(tm.Rejected, match="leave the place out"):
            db.archive(tmp_path / "other")
        assert db.archive()["last_epoch"] >= reached
        assert db.archive(str(tmp_path / "place"))["place"] == str(tmp_path / "place")  # the option was a Path
    restore(tmp_path / "place", tmp_path / "copy", reached, **ROOM)
    with tm.open(tmp_path / "copy", background=False, **ROOM) as copy_of:
        assert content(copy_of) == want


def test_place_of_an_archive_is_the_same_however_it_is_spelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Story: places were compared as text, so the store refused its own archive under a relative path."""
    monkeypatch.chdir(tmp_path)
    with tm.open("store", background=False, **ROOM) as db:
        db.archive("place")
        for same in ("./place", tmp_path / "place", f"file://{tmp_path}/place", f"{tmp_path}/other/../place"):
            assert db.archive(same)["place"] == str(tmp_path / "place")
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        with pytest.raises(tm.Rejected, match="leave the place out"):
            db.archive("place")


def test_closed_store_has_archived_everything_and_continues_without_a_gap(tmp_path: Path) -> None:
    for turn in range(3):
        with tm.open(tmp_path / "store", background=False, archive=str(tmp_path / "place"), **ROOM) as db:
            if not turn:
                db.create_table("test.t", [tm.Column("id", tm.Int64)], "id")
                db.backup(tmp_path / "place")
            db["test.t"].insert((turn,))
            db.checkpoint()
            db["test.t"].insert((turn + 10,))
            want = content(db)
    planned = plan(tmp_path / "place")
    assert planned["notes"] == []
    restore(tmp_path / "place", tmp_path / "copy", **ROOM)
    with tm.open(tmp_path / "copy", background=False, **ROOM) as copy:
        assert content(copy) == want


@pytest.mark.parametrize(
    ("operation", "error", "is_latched"),
    [("pwrite", errno.ENOSPC, False), ("pwrite", errno.EIO, True), ("fdatasync", errno.EIO, True)],
)
def test_place_that_fails_and_comes_back_costs_no_commit_and_no_epoch(
    operation: str, error: int, is_latched: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tidemark.archive")
    db, place = made(), MemoryFiles()
    take(db, place)
    rules, disks = [[Rule(operation, nth=1, error=error)], []], [place]

    def open_place() -> Any:
        disks.append(MemoryFiles.from_snapshot(disks[-1].snapshot()))  # what failed is of no use any more
        return FaultFiles(disks[-1], rules.pop(0))

    archiver = archiver_of(db, open_place)
    archiver.attach()
    db["test.t"].insert((1, b"a"))
    db.sync()
    assert not archiver.step()
    status = archiver.status()
    assert status["failures"] == 1 and status["last_error"] and status["lag_bytes"] > 0
    assert status["is_attached"] != is_latched
    db["test.t"].insert((2, b"b"))
    db.sync()
    want = content(db)
    assert archiver.step()
    assert archiver.status()["last_error"] is None and archiver.status()["is_attached"]
    texts = [record.message for record in caplog.records]
    assert sum("is not archived" in text for text in texts) == 1 and "again" in texts[-1]
    left = MemoryFiles.from_snapshot(disks[-1].snapshot())
    assert make_plan(left).notes == []
    assert content_of(restored(left)) == want
    archiver.close()
    db.checkpoint()
    db.close()


def test_log_waits_for_a_place_that_is_gone_and_commits_continue_until_it_is_full() -> None:
    db, place = made(redo_log="1 MiB", data_memory="64 MiB"), MemoryFiles()
    take(db, place)
    is_there = [False]

    def open_place() -> Any:
        if not is_there[0]:
            raise tm.FileMissing("the place is not mounted; mount it")
        return FaultFiles(place)

    archiver = archiver_of(db, open_place)
    with pytest.raises(tm.FileMissing):
        archiver.attach()
    completed = db.status()["lcp"]["completed"]
    committed = 0
    with pytest.raises(tm.RedoOverloaded):
        for key in range(10_000):
            db["test.t"].insert((key, b"x" * 200))
            committed += 1
            if key % 50 == 49:
                assert not archiver.step()
                with pytest.raises(tm.StorageFull, match="archive"):
                    db.checkpoint()
    assert committed > 100 and db.status()["lcp"]["completed"] == completed
    is_there[0] = True
    want = content(db)
    for _ in range(3):
        db.checkpoint()  # the place is back: the waiting segments are archived, and the log is cut
    assert archiver.status()["is_attached"]
    db["test.t"].insert((20_000, b"y"))
    db.sync()
    assert archiver.step()
    assert make_plan(place).notes == []
    found = content_of(restored(place, data_memory="64 MiB"), data_memory="64 MiB")
    assert len(found["test.t"]) == len(want["test.t"]) + 1 == committed + 1
    db.close()


def test_place_that_is_not_there_yet_does_not_keep_a_store_from_opening(tmp_path: Path) -> None:
    where = tmp_path / "mount" / "place"
    with tm.open(tmp_path / "store", background=False, archive=where, **ROOM) as db:
        db.create_table("test.t", [tm.Column("id", tm.Int64)], "id")
        status = db.status()["archive"]
        assert not status["is_attached"] and status["failures"] == 1 and status["place"] == str(where)
        with pytest.raises(tm.StorageFull, match="archive"):
            db.checkpoint()
        (tmp_path / "mount").mkdir()
        db.checkpoint()
        assert db.status()["archive"]["is_attached"]


def test_place_of_another_store_is_refused_when_the_store_is_opened(tmp_path: Path) -> None:
    for name in ("one", "two"):
        with tm.open(tmp_path / name, background=False, **ROOM) as db:
            db.create_table("test.t", [tm.Column("id", tm.Int64)], "id")
            if name == "one":
                db.archive(tmp_path / "place")
    with pytest.raises(tm.ForeignFile):
        tm.open(tmp_path / "two", background=False, archive=tmp_path / "place", **ROOM)
    tm.open(tmp_path / "two", background=False, **ROOM).close()  # nothing is left locked


@pytest.mark.parametrize("shown", ["failed sync", "growth"])
def test_segment_that_only_the_page_cache_has_is_synced(shown: str) -> None:
    """Story: the sync of a segment failed, or power was lost before it. The archive that was opened next read the
    segment's header and its size, continued after it, and the log was cut: the archive lost what the segment lacked.
    """
    db, place = made(), MemoryFiles()
    take(db, place)
    archiver = archiver_of(db, lambda: MemoryFiles(place.disk))
    archiver.attach()
    db["test.t"].insert((1, b"a"))
    db.sync()
    assert archiver.step()
    archiver.close()
    place = MemoryFiles(place.disk)
    faulty = FaultFiles(place, [Rule("fdatasync", "*.redo", nth=2, error=errno.EIO)])
    archiver = archiver_of(db, lambda: faulty)
    archiver.attach()
    for key in (2, 3):
        db["test.t"].insert((key, b"a" * 150))
        db.sync()
    assert not archiver.step()
    archiver.close()
    after = place.kill()
    if shown == "growth":  # a loss of power: the file has its size and its header, and no more
        file = after.open(segment_names(after)[-1], writable=True)
        after.pwrite(file, 4_096, bytes(4_096))
        after.fdatasync(file)
    archiver = archiver_of(db, lambda: MemoryFiles(after.disk))
    archiver.attach()
    assert archiver.step()
    archiver.close()
    for _ in range(3):
        db.checkpoint()
    want = content(db)
    lost = after.image(lambda piece: False)
    assert make_plan(lost).notes == []
    assert content_of(restored(lost)) == want
    db.close()


def test_log_of_another_member_of_the_group_is_refused() -> None:
    """Story: two members of a node group, which are one store with a log each, archived into one place. The second
    continued after the segments of the first, at places that its own log did not have: it archived nothing until its
    log had grown past them, and left a gap.
    """
    place = MemoryFiles()
    first = made()
    second = open_memory(MemoryFiles.from_snapshot(first.parts.files.kill().snapshot()))
    assert second.parts.opened.identity[0] == first.parts.opened.identity[0]
    archiver = archiver_of(first, lambda: MemoryFiles(place.disk))
    for key in range(20):
        first["test.t"].insert((key, b"a" * 150))
        first.sync()
    assert archiver.step()
    archiver.close()
    for size in (10, 190):  # other rows, in a log that is shorter, then longer
        for key in range(size):
            second["test.t"].insert((size + key, b"b" * 100))
        second.sync()
        other = archiver_of(second, lambda: MemoryFiles(place.disk))
        with pytest.raises(tm.ForeignFile, match="another member of the node group"):
            other.attach()
        other.close()
    again = archiver_of(first, lambda: MemoryFiles(place.disk))
    again.attach()  # this log continues its own segments
    again.close()
    assert len(segment_names(place)) == 1


def test_archive_that_cannot_begin_leaves_no_file_of_the_log_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """Story: the place held the log of another store. The files of the own log, opened before this was seen, stayed
    open, and with a place that failed for hours each step opened them again.
    """
    db, other, place = made(), made(), MemoryFiles()
    theirs = archiver_of(other, lambda: MemoryFiles(place.disk))
    other["test.t"].insert((1, b"a"))
    other.sync()
    assert theirs.step()
    theirs.close()
    files, held = db.parts.files, []
    opened, closed = files.open, files.close
    monkeypatch.setattr(files, "open", lambda *given, **named: held.append(opened(*given, **named)) or held[-1])
    monkeypatch.setattr(files, "close", lambda file: (held.remove(file), closed(file)))
    archiver = archiver_of(db, lambda: MemoryFiles(place.disk))
    with pytest.raises(tm.ForeignFile, match="archive into another place"):
        archiver.attach()
    assert held == []
    archiver.close()


def test_closed_archiver_opens_no_place_again() -> None:
    """Story: a thread was in archive() while another closed the store. It opened the place again after the close, kept
    it locked, and kept the log from being cut.
    """
    db, opened = made(), []

    def open_place() -> Any:
        opened.append(MemoryFiles())
        return opened[-1]

    archiver = archiver_of(db, open_place)
    archiver.attach()
    archiver.close()
    archiver.close()
    with pytest.raises(tm.StoreClosed):
        archiver.copy()
    assert len(opened) == 1 and not archiver.status()["is_attached"]
    assert "archive" not in db.parts.store.room.followers


def test_archive_that_follows_no_backup_is_a_gap() -> None:
    """Story: a store went back to an earlier epoch, which begins a timeline, and archived without a backup. `verify`
    noted no gap, though nothing of the new timeline can be restored.
    """
    db, place = made(), MemoryFiles()
    take(db, place)
    archiver = archiver_of(db, lambda: MemoryFiles(place.disk))
    db["test.t"].insert((1, b"a"))
    db.sync()
    assert archiver.step()
    archiver.close()
    assert verify(place).notes == []
    content_of_sysfile = db.parts.opened.keeper.content
    about = (content_of_sysfile.geometry, db.parts.opened.identity, content_of_sysfile.timeline + 1)
    later = Archiver(db.parts.store, db.parts.files, *about, "the place", lambda: MemoryFiles(place.disk))
    db["test.t"].insert((2, b"a"))
    db.sync()
    assert later.step()
    later.close()
    name = segment_names(place)[-1]
    assert name.startswith("archive/1-")
    assert verify(place).notes == [f"the archive has a gap before {name}: no backup here reaches it"]
