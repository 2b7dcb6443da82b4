"""What the directory of a new store may hold, and the error for a path without a store (ADR 0025, F30)."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tidemark as tm
from tests.store.support import SMALL, open_memory
from tidemark.backup import restore
from tidemark.database import check_store
from tidemark.engine.base.clock import ManualClock
from tidemark.engine.base.options import Options
from tidemark.engine.files.directory import LOCK_LINE_BYTES, PosixFiles
from tidemark.engine.log.geometry import Geometry
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles
from tidemark.recovery.node_restart.restart import remove_store_files
from tidemark.recovery.system_restart.place import FOLDERS, STORE_NAMES
from tidemark.recovery.system_restart.restart import Restart

ROOT = Path(__file__).resolve().parents[2]


def everything(place: Path) -> dict[str, tuple[int, bytes]]:
    """Each name below a directory: what it is, and its bytes."""
    return {
        str(path.relative_to(place)): (
            path.lstat().st_mode,
            path.read_bytes() if path.is_file() and not path.is_symlink() else b"",
        )
        for path in sorted(place.rglob("*"))
    }


def file(name: str, content: bytes = b"mine\n") -> Callable[[Path], None]:
    """Make a user's file."""

    def make(place: Path) -> None:
        (place / name).parent.mkdir(exist_ok=True)
        (place / name).write_bytes(content)

    return make


def both(*makers: Callable[[Path], object]) -> Callable[[Path], None]:
    """Make several."""

    def make(place: Path) -> None:
        for each in makers:
            each(place)

    return make


def a_socket(place: Path) -> None:
    """Leave the file of a socket."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(place / "sysfile.0"))


LINE = b"1 unknown".ljust(LOCK_LINE_BYTES - 1) + b"\n"
THEIRS: dict[str, Callable[[Path], object]] = {
    "a short LOCK": file("LOCK", b"my own lock"),
    "a LOCK of 64 bytes": file("LOCK", b"m" * 64),
    "a long LOCK that begins like ours": file("LOCK", LINE + b"more"),
    "a link LOCK": lambda place: (place / "LOCK").symlink_to(place / "none"),
    "a folder LOCK": lambda place: (place / "LOCK").mkdir(),
    "a pipe LOCK": lambda place: os.mkfifo(place / "LOCK"),
    "sysfile.0": file("sysfile.0"),
    "sysfile.1": file("sysfile.1"),
    "a long sysfile.0, locked": both(file("LOCK", LINE), file("sysfile.0", bytes(4_097))),
    "a link sysfile.0": lambda place: (place / "sysfile.0").symlink_to(place / "none"),
    "a folder sysfile.1": lambda place: (place / "sysfile.1").mkdir(),
    "a socket sysfile.0": a_socket,
    "a file redo": file("redo"),
    "a link redo": lambda place: (place / "redo").symlink_to(place),
    "redo/0000.redo": file("redo/0000.redo"),
    "redo/notes.txt": file("redo/notes.txt"),
    "redo/my own.redo": both(file("LOCK", LINE), file("redo/my own.redo")),
    "redo/².redo": file("redo/².redo", b""),
    "a folder redo/0000.redo": lambda place: (place / "redo/0000.redo").mkdir(parents=True),
    "a file lcp": file("lcp"),
    "lcp/phone": file("lcp/phone"),
    "node/index.js": file("node/index.js"),
    "notes.txt": file("notes.txt"),
    "some names that no store has": both(file("a b"), file("näme"), file("c")),
    **{f"a file {name}": file(name) for name in sorted(STORE_NAMES - {"LOCK", "restoring"})},
    **{f"a folder {name}": file(f"{name}/x") for name in sorted(STORE_NAMES - {"LOCK", "restoring"})},
}


@pytest.mark.parametrize("what", THEIRS)
def test_no_store_is_made_over_or_between_files_of_others(what: str, tmp_path: Path) -> None:
    """Story: opening wrote over a user's LOCK, removed a user's sysfile.0 and redo/0000.redo, and put a store between
    other files.
    """
    THEIRS[what](tmp_path)
    before = everything(tmp_path)
    with pytest.raises((tm.ForeignFile, tm.Rejected)) as refused:
        tm.open(tmp_path, **SMALL)
    assert everything(tmp_path) == before
    assert "remove" not in refused.value.message and "restore" not in refused.value.message
    with pytest.raises(tm.Error):
        tm.open(tmp_path, **SMALL, create=False)
    with pytest.raises(tm.Error):
        tm.open(tmp_path, read_only=True)
    assert everything(tmp_path) == before


def test_messages_name_the_obstacle(tmp_path: Path) -> None:
    for name in ("notes.txt", "photos", "x", "y"):
        (tmp_path / name).write_text("mine")
    wanted = f"{tmp_path} is not empty and has no store: it has notes.txt, photos and 2 more; give a new or empty"
    with pytest.raises(tm.ForeignFile, match=re.escape(wanted)):
        tm.open(tmp_path)
    wanted = f"there is no store in {tmp_path}: it has notes.txt, photos and 2 more, but no sysfile that is intact"
    with pytest.raises(tm.FileMissing, match=re.escape(wanted)):
        tm.open(tmp_path, create=False)
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "LOCK").write_text("my own lock")
    wanted = f"LOCK in {tmp_path / 'empty'} is no lock of Tidemark (11 bytes, 'my own lock' …); give another directory"
    with pytest.raises(tm.ForeignFile, match=re.escape(wanted)):
        tm.open(tmp_path / "empty")


@pytest.mark.parametrize("name", [".git", "lost+found", "LOCK"])
def test_what_a_file_system_or_a_crash_puts_there_is_no_obstacle(name: str, tmp_path: Path) -> None:
    if name == "LOCK":
        (tmp_path / name).write_bytes(bytes(LOCK_LINE_BYTES))
    else:
        (tmp_path / name).mkdir()
    tm.open(tmp_path, **SMALL).close()
    tm.open(tmp_path, **SMALL, create=False).close()


def test_opening_without_create_leaves_nothing(tmp_path: Path) -> None:
    """Story: create=False left a LOCK in a directory without a store."""
    with pytest.raises(tm.FileMissing, match=f"there is no store in {tmp_path}: it is empty; check the path, or open"):
        tm.open(tmp_path, create=False)
    assert list(tmp_path.iterdir()) == []
    missing = tmp_path / "none" / "shop"
    with pytest.raises(tm.FileMissing, match=f"there is no store in {missing}: the directory does not exist"):
        tm.open(missing, create=False)


def test_empty_path_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Story: tm.open("") made a store in the working directory."""
    monkeypatch.chdir(tmp_path)
    for call in (lambda: tm.open(""), lambda: tm.open("", read_only=True), lambda: check_store("")):
        with pytest.raises(tm.Rejected, match="the path is empty; give the directory of the store"):
            call()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("below", ["", "shop", "a/b"])
@pytest.mark.parametrize("create", [True, False])
def test_a_file_in_the_place_of_a_directory_is_named(below: str, create: bool, tmp_path: Path) -> None:
    """Story: the answer was about the kind of "the store directory", without its name."""
    (tmp_path / "rows.csv").write_text("mine")
    wanted = f"{tmp_path / 'rows.csv'} is a file, not a directory; give the directory of the store"
    with pytest.raises(tm.Error, match=re.escape(wanted)):
        tm.open(tmp_path / "rows.csv" / below, create=create)
    assert (tmp_path / "rows.csv").read_text() == "mine"


def test_restore_does_not_write_over_a_lock_of_others(tmp_path: Path) -> None:
    """Story: a restore wrote its line over a user's LOCK."""
    with tm.open(tmp_path / "shop", **SMALL) as db:
        db.create_table("t", [tm.Column("id", tm.Int64)], "id")
        db.backup(tmp_path / "backups")
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "LOCK").write_text("my own lock")
    with pytest.raises(tm.ForeignFile, match="LOCK in .* is no lock of Tidemark"):
        restore(tmp_path / "backups", tmp_path / "new")
    assert everything(tmp_path / "new").keys() == {"LOCK"}
    assert (tmp_path / "new" / "LOCK").read_text() == "my own lock"


def test_the_directory_is_looked_at_again_under_the_lock() -> None:
    # Files that came between the first look and the lock.
    files = MemoryFiles.from_snapshot({"LOCK": b"", "notes.txt": b"mine", "sysfile.0": b"mine"})
    before = files.snapshot()
    with pytest.raises(tm.ForeignFile, match=r"it has notes\.txt; "):
        Restart(files, Options.from_keywords(SMALL), ManualClock()).run()
    assert files.snapshot() == before


def test_forget_removes_files_of_a_store_only() -> None:
    """Story: a node that made room for a full copy removed every file in folders named load, space and the like."""
    theirs = {f"{folder}/{name}": b"mine" for folder in FOLDERS for name in ("notes.txt", "1.csv", "0")}
    ours = {
        "sysfile.0": b"",
        "sysfile.1": b"",
        "redo/0000.redo": b"",
        "undo/0000.undo": b"",
        "lcp/control-1": b"",
        "lcp/control-12.new": b"",
        "lcp/1-0-0.data": b"",
        "lcp/1-copies.data": b"",
        "lcp/1-extents.data": b"",
        "space/1.data": b"",
        "spool/00000100000000ab.spool": b"",
        "load/0123456789abcdef-1-0-0-0-01234567.load": b"",
        "load/0123456789abcdef-1-0-0-0-01234567.load.new": b"",
        "load/0123456789abcdef.open": b"",
        "double-write": b"",
    }
    files = MemoryFiles.from_snapshot({**theirs, **ours})
    remove_store_files(files)
    assert {name: content for name, content in files.snapshot().items() if not name.endswith("/")} == theirs


def test_names_of_a_store_are_those_of_the_format() -> None:
    text = (ROOT / "docs" / "format.md").read_text().split("When they are written")[0]
    named = {name.split("/")[0] for name in re.findall(r"`([^`]+)`", "".join(re.findall(r"^\| (`.*?) \|", text, re.M)))}
    assert named == STORE_NAMES


# --- room ------------------------------------------------------------------------------------------
class SmallDisk(MemoryFiles):
    """A disk that says how many bytes are free."""

    def __init__(self, free: int) -> None:
        super().__init__()
        self.free = free

    def free_bytes(self) -> int | None:
        return self.free


def test_log_larger_than_the_disk_is_refused_before_it_is_written() -> None:
    """Story: a redo_log larger than the free space filled the disk with zeros before it was refused."""
    need = Geometry.of(Options.from_keywords(SMALL).redo_log_bytes).capacity_bytes
    files = SmallDisk(need - 1)
    with pytest.raises(tm.StorageFull, match="redo_log is .*, but the disk has .* free; give a smaller redo_log"):
        open_memory(files)
    assert [name for name in files.snapshot() if name != "LOCK"] == []
    open_memory(SmallDisk(need)).close()


def test_store_with_one_row_takes_little_room_and_a_small_log_is_made_whole(tmp_path: Path) -> None:
    """Story: a store with one row took 257 MB, its whole log."""
    for redo_log, most in (("256 MiB", 34_000_000), ("16 MiB", 17_000_000)):
        place = tmp_path / redo_log
        with tm.open(place, redo_log=redo_log, data_memory="16 MiB", background=False) as db:
            db.create_table("test.t", [tm.Column("id", tm.Int64)], "id")
            db["test.t"].insert((1,))
        sizes = [each.stat().st_size for each in place.rglob("*") if each.is_file()]
        assert most - 1_000_000 < sum(sizes) < most, sizes


def test_undo_log_and_data_file_larger_than_the_disk_are_refused_before_they_are_written() -> None:
    files = SmallDisk(1 << 40)
    db = open_memory(files)
    before = set(files.snapshot())
    undo = Options.from_keywords(SMALL).undo_log_bytes
    need = Geometry.of(undo, "undo", ".undo").capacity_bytes
    files.free = need - 1
    with pytest.raises(tm.StorageFull, match=r"(undo_log|the data file) is .* free; give a smaller"):
        db.create_tablespace("main")
    assert {name for name in files.snapshot() if name.startswith(("undo/0", "space/1"))} == set()
    assert before <= set(files.snapshot())
    files.free = 1 << 40
    db.create_tablespace("main", size="2 MiB")
    files.free = 1 << 20
    with pytest.raises(tm.StorageFull, match="the data file is .*, but the disk has 1 MiB free; give a smaller size"):
        db.create_tablespace("more", size="2 MiB")
    db.close()


def test_free_space_of_a_real_disk(tmp_path: Path) -> None:
    files = PosixFiles(tmp_path)
    free = files.free_bytes()
    assert free is None or free > 0
    with pytest.raises(tm.StorageFull, match="redo_log is 64 TiB, but the disk has "):
        tm.open(tmp_path, redo_log="64 TiB")
    assert everything(tmp_path).keys() == {"LOCK"}


# --- two at once -----------------------------------------------------------------------------------
CHILD = """
import sys
import tidemark as tm
sys.stdin.readline()
try:
    db = tm.open(sys.argv[1], redo_log="16 MiB", data_memory="16 MiB", background=False)
except tm.Locked:
    print("locked", flush=True)
else:
    print("open", flush=True)
    sys.stdin.readline()
    db.close()
"""


def test_of_processes_that_make_the_same_store_at_once_one_succeeds(tmp_path: Path) -> None:
    for number in range(3):
        children = [
            subprocess.Popen(
                [sys.executable, "-c", CHILD, str(tmp_path / f"shop{number}")],
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for _ in range(2)
        ]
        reported: list[Any] = []
        try:
            for each in children:
                assert each.stdin is not None
                each.stdin.write("go\n")
                each.stdin.flush()
            for each in children:
                assert each.stdout is not None
                reported.append(each.stdout.readline().strip())
        finally:
            for each in children:
                each.communicate("end\n", timeout=60)
        assert sorted(reported) == ["locked", "open"]
