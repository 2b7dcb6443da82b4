"""Which users may read what a store makes (F47): modes of files and folders, whatever the umask is; another user."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tidemark as tm
from tests.other_user import STRANGER, as_stranger, needs_root, open_folder
from tests.ports import free_ports
from tidemark.control_socket import NAME, ask
from tidemark.engine.files.directory import PosixFiles
from tidemark.recovery import load
from tidemark.recovery.crash_harness.forks import FORKS
from tidemark.recovery.load.job import LoadJob

SMALL: dict[str, Any] = {
    "data_memory": "32 MiB",
    "redo_log": "4 MiB",
    "undo_log": "4 MiB",
    "page_buffer": "1 MiB",
    "transaction_memory": "64 KiB",
}
GROUP = 54_400


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def modes(place: Path) -> dict[str, str]:
    """Of everything in a directory and of itself: kind and rights, as `ls` shows them."""
    found = {".": stat.filemode(place.stat().st_mode)}
    for folder, folders, files in os.walk(place):
        for name in (*folders, *files):
            path = Path(folder, name)
            found[str(path.relative_to(place))] = stat.filemode(path.lstat().st_mode)
    return found


def write_load(job: str, mask: int) -> None:
    """A task of a load, in a process of its own as Spark has them."""
    os.umask(mask)
    batch = pa.record_batch({"id": pa.array(range(100, 200)), "note": pa.array(["n"] * 100)})
    load.write_parts(LoadJob.from_json(job), 1, [batch])


def fill(root: Path, mask: int) -> dict[str, dict[str, str]]:
    """Make a store, a replica, a backup with an archive and a load in `root`, and look while all is open."""
    with (
        tm.open(root / "store", server_id=1, log_bin="binlog", **SMALL) as db,
        tm.open(root / "replica", server_id=2, **SMALL) as replica,
    ):
        db.create_tablespace("main", "1 MiB", page_size="4 KiB", extent="64 KiB")
        disk = tm.Column("note", tm.VarBinary(100), nullable=True, storage="disk")
        db.create_table("test.pages", [tm.Column("id", tm.Int64), disk], "id")
        table = db.create_table("test.t", [tm.Column("id", tm.Int64), tm.Column("note", tm.VarChar(4_000))], "id")
        with tm.Channel(db, replica) as channel:
            db["test.pages"].insert((1, b"x"))
            with db.transaction() as txn:
                txn.insert_many("test.t", [(key, "n" * 4_000) for key in range(100)])
            db.sync()
            channel.apply_all()
            assert len(replica["test.t"]) == len(table) == 100
            db.checkpoint()
            db.backup(root / "backup")
            db.archive(root / "backup")
            job = db.plan_load("test.t", root / "load")
            task = FORKS.Process(target=write_load, args=(job.to_json(), mask))
            task.start()
            task.join()
            assert task.exitcode == 0
            return {each.name: modes(each) for each in root.iterdir()}


MUST_HAVE = {
    "store": {"LOCK", "control.sock", "redo", "binlog", "catalog/data.mdb", "catalog.seal"},
    "replica": {"relay", "redo"},
    "backup": {"LOCK", "archive"},
    "load": set(),
}


@pytest.mark.parametrize(
    ("mask", "directory", "file"),
    [(0o000, None, "-rw-------"), (0o077, 0o750, "-rw-r-----"), (0o000, 0o777, "-rw-------")],
    ids=["none", "group", "open"],
)
def test_files_have_the_permissions_of_their_owner_and_directory(
    tmp_path: Path, mask: int, directory: int | None, file: str
) -> None:
    """Story: modes were what the umask left of 0666 and 0777. Under umask 0, which some supervisors set, any user could
    read every row, write every file, and connect to the control socket; under 077 no group could read a store.
    """
    with umask(mask):
        for name in MUST_HAVE:
            if directory is not None:
                (tmp_path / name).mkdir()
                (tmp_path / name).chmod(directory)
        found = fill(tmp_path, mask)
    folder = "d" + file[1:].replace("rw-", "rwx").replace("r--", "r-x")
    for name, content in found.items():
        own = content.pop(".")
        folders = {each.partition("/")[0] for each in content}
        assert own == (folder if directory is None else stat.filemode(stat.S_IFDIR | directory))
        assert MUST_HAVE[name] <= folders | set(content), sorted(content)
        if name in ("store", "replica"):
            assert content.pop(NAME) == "srw-------"
        wrong = {each: mode for each, mode in content.items() if mode not in (file, folder)}
        assert content and not wrong
    assert any(each.endswith(".mdb") for each in found["store"])


def test_folder_of_a_node_has_the_rights_of_its_store(tmp_path: Path) -> None:
    """Story: the folder of a node was made like a store of its own, closed to the group that reads the store."""
    (tmp_path / "node").mkdir()
    (tmp_path / "node").chmod(0o750)
    options = {**SMALL, "server_id": 1, "found": True}
    with umask(0), tm.NodeGroup(tmp_path / "node", 1, f"1=127.0.0.1:{free_ports(1)[0]}", b"k" * 16, **options) as node:
        node.wait_member(60_000)
        found = modes(tmp_path / "node")
    assert found.pop("node/control.sock") == "srw-------"
    assert {mode for name, mode in found.items() if name.startswith("node")} == {"drwxr-x---", "-rw-r-----"}


@pytest.mark.parametrize("mode", [0o700, 0o710, 0o750, 0o770, 0o2750, 0o701, 0o755, 0o775, 0o777, 0o1777])
@pytest.mark.parametrize("mask", [0, 0o027, 0o777], ids=oct)
def test_rights_of_the_group_are_handed_on_only_where_others_have_none(tmp_path: Path, mode: int, mask: int) -> None:
    place = tmp_path / "place"
    place.mkdir()
    place.chmod(mode)
    with umask(mask):
        files = PosixFiles(place)
        files.make_directory("folder")
        files.make_directory("folder/inner")
        files.close(files.create("folder/inner/file"))
        files.lock()
        files.close_all()
    group = mode & 0o070 if mode & 0o007 == 0 else 0
    for name in ("folder", "folder/inner"):
        assert (place / name).stat().st_mode & 0o777 == 0o700 | group
        assert (place / name).stat().st_mode & 0o2000 == mode & 0o2000
    for name in ("LOCK", "folder/inner/file"):
        assert (place / name).stat().st_mode & 0o7777 == 0o600 | group & 0o060


def test_file_system_that_keeps_no_modes_is_reported_once_and_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(*_: object) -> None:
        raise OSError(errno.EPERM, "planted")

    tmp_path.chmod(0o750)
    monkeypatch.setattr(os, "chmod", refused)
    with umask(0o077):
        files = PosixFiles(tmp_path)
        files.make_directory("folder")
        for name in ("folder/a", "folder/b"):
            files.close(files.create(name))
        files.close_all()
    assert caplog.text.count("stores no modes") == 1 and len(list((tmp_path / "folder").iterdir())) == 2


@needs_root
def test_users_of_a_group_share_a_directory_whose_mode_allows_it() -> None:
    """As tasks of a load of another user than the store's need it."""
    with open_folder() as root, umask(0o077):
        (root / "load").mkdir()
        os.chown(root / "load", 0, GROUP)
        (root / "load").chmod(0o2770)

        def make() -> str:
            files = PosixFiles(root / "load")
            files.make_directory("folder")
            file = files.create("folder/rows")
            files.pwrite(file, 0, b"made")
            files.close_all()
            return "made"

        def change() -> str:
            files = PosixFiles(root / "load")
            file = files.open("folder/rows", writable=True)
            found = files.pread(file, 0, 4)
            files.pwrite(file, 0, b"seen")
            files.rename("folder/rows", "folder/done")
            files.close_all()
            return found.decode()

        assert as_stranger(make, (GROUP,)) == "made"
        assert as_stranger(change, (GROUP,), STRANGER + 1) == "made"
        assert (root / "load" / "folder" / "done").read_bytes() == b"seen"
        assert as_stranger(lambda: _tried(root / "load" / "folder" / "done", os.O_RDONLY)) == "PermissionError"


def test_rights_that_were_taken_from_a_file_stay_so(tmp_path: Path) -> None:
    """A LOCK that was there already is not ours to give rights to: it may be of another user of the group."""
    (tmp_path / "LOCK").touch()
    (tmp_path / "LOCK").chmod(0o640)
    files = PosixFiles(tmp_path)
    files.lock()
    files.close_all()
    assert (tmp_path / "LOCK").stat().st_mode & 0o777 == 0o640


def test_directory_any_user_may_write_is_reported_once_it_is_taken(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for mode, is_warned in ((0o700, False), (0o755, False), (0o770, False), (0o777, True), (0o703, True)):
        tmp_path.chmod(mode)
        caplog.clear()
        with caplog.at_level(logging.WARNING, "tidemark.files"):
            files = PosixFiles(tmp_path)
            files.lock()
            files.close_all()
        assert ("chmod o-w" in caplog.text) is is_warned, oct(mode)


@needs_root
def test_another_user_can_neither_read_nor_write_a_store_nor_ask_its_owner() -> None:
    """Story: with umask 0 a child of another user read the rows out of the files, and had the store backed up into a
    directory of its own through the control socket.
    """
    with open_folder() as root, umask(0):
        (root / "store").mkdir()  # any user may enter it: only the modes of what lies inside are in the way
        with tm.open(root / "store", server_id=1, log_bin="binlog", **SMALL) as db:
            db.create_table("test.t", [tm.Column("id", tm.Int64)], "id").insert((1,))
            db.checkpoint()
            paths = list((root / "store").rglob("*"))
            files = [each for each in paths if each.is_file()]
            assert len(files) > 10

            def read() -> str:
                return " ".join({_tried(each, os.O_RDONLY) for each in files})

            def write() -> str:
                return " ".join({_tried(each, os.O_RDWR) for each in files})

            def listed() -> str:
                return " ".join({_tried(each, os.O_RDONLY | os.O_DIRECTORY) for each in paths if each not in files})

            def connect() -> str:
                with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                    connection.connect(str(root / "store" / NAME))
                return "connected"

            assert as_stranger(read) == as_stranger(write) == "PermissionError"
            assert as_stranger(connect) == "PermissionError"
            assert "opened" not in as_stranger(listed)
            assert ask(root / "store", "status")["store"]["state"] == "open"


def _tried(path: Path, flags: int) -> str:
    try:
        os.close(os.open(path, flags))
        return "opened"
    except OSError as error:
        return type(error).__name__


@needs_root
def test_member_of_the_group_reads_a_store_that_is_shared_and_changes_nothing() -> None:
    with open_folder() as root, umask(0o077):
        (root / "store").mkdir()
        (root / "store").chmod(0o2750)
        os.chown(root / "store", 0, GROUP)
        (root / "store").chmod(0o2750)
        with tm.open(root / "store", **{**SMALL, "background": False}) as db:
            db.create_table("test.t", [tm.Column("id", tm.Int64)], "id").insert((1,))
            db.checkpoint()

        def look() -> str:
            with tm.open(root / "store", read_only=True, data_memory="32 MiB") as view:
                return str(list(view["test.t"].scan()))

        look()  # its imports and kernels lie where the other user may not look

        def pin() -> str:
            descriptor = os.open(root / "store" / "catalog.seal", os.O_RDONLY)
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return "pinned"

        def change() -> str:
            return _tried(root / "store" / "LOCK", os.O_RDWR)

        assert as_stranger(look, (GROUP,)) == "[Row(id=1)]"
        assert as_stranger(pin, (GROUP,)) == "pinned"
        assert as_stranger(change, (GROUP,)) == "PermissionError"
        assert as_stranger(pin) == "PermissionError"
