"""The real disk: locks, forks, limits, foreign things in the directory (F47, F48, F74, F76 to F82)."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import stat
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.descriptors import descriptors_below
from tests.elsewhere import in_child
from tidemark.engine.base.errors import FileMissing, ForkedHandle, Locked, Rejected, StoreFailed
from tidemark.engine.files.directory import LOCK_LINE_BYTES, PosixFiles
from tidemark.engine.files.protocol import File

ROOT = Path(__file__).resolve().parents[2]
DIRECTORY = "import sys\nfrom tidemark.engine.files.directory import PosixFiles"
TAKE_LOCK = f"{DIRECTORY}\nfiles = PosixFiles(sys.argv[1])\nfiles.lock()"


def run(script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a script in a Python of its own."""
    return subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


def holder(place: Path, script: str = TAKE_LOCK) -> subprocess.Popen[str]:
    """A process that holds the lock, or what else the script takes, until it is killed."""
    script = f"{script}\nprint('held', flush=True)\nsys.stdin.read()"
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(place)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_lock_held_by_other_process_names_its_pid(tmp_path: Path) -> None:
    process = holder(tmp_path)
    try:
        before = (tmp_path / "LOCK").read_bytes()
        files = PosixFiles(tmp_path)
        with pytest.raises(Locked) as locked:
            files.lock()
        assert locked.value.pid == process.pid
        assert (tmp_path / "LOCK").read_bytes() == before
        assert len(before) == LOCK_LINE_BYTES
        assert files.failure.error is None
    finally:
        process.kill()
        process.communicate()
    # F76: the file stays, the lock does not.
    assert (tmp_path / "LOCK").exists()
    files.lock()
    assert int((tmp_path / "LOCK").read_bytes().split()[0]) == os.getpid()
    files.close_all()


def test_second_open_in_process_is_locked_through_any_path(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "store")
    first = PosixFiles(tmp_path / "store")
    first.lock()
    first.lock()
    second = PosixFiles(tmp_path / "link")
    with pytest.raises(Locked) as locked:
        second.lock()
    assert locked.value.pid == os.getpid()
    first.unlock()
    first.unlock()
    second.lock()
    second.close_all()
    first.lock()
    first.close_all()


def test_store_directories_of_closed_handles_are_not_leaked(tmp_path: Path) -> None:
    files = PosixFiles(tmp_path)
    files.lock()
    files.make_directory("redo")
    files.create("redo/a", 10)
    files.list("redo")
    assert descriptors_below(tmp_path)
    files.close_all()
    with pytest.raises(FileMissing):
        PosixFiles(tmp_path / "none")
    assert descriptors_below(tmp_path) == []


def test_file_opened_while_another_is_closed_takes_its_number_and_is_closed_with_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store was closed while another thread closed a file: it ended with "Set changed size during iteration". A file
    that got the number of the closed one meanwhile was forgotten, and stayed open.
    """
    files = PosixFiles(tmp_path)
    first = files.create("a")
    close = files.raw.close
    others: list[File] = []

    def close_and_open(file: File) -> None:
        close(file)
        if not others:
            others.append(files.create("b"))

    monkeypatch.setattr(files.raw, "close", close_and_open)
    files.close(first)
    (other,) = others
    assert int(other) == int(first) and other.is_open
    files.close(first)
    assert other.is_open
    files.close_all()
    assert not other.is_open
    with pytest.raises(OSError):
        os.fstat(other)


def test_fork_child_releases_the_lock_and_is_refused(tmp_path: Path) -> None:
    files = PosixFiles(tmp_path)
    files.lock()
    file = files.create("a", 4)
    ready, release = os.pipe()
    child = os.fork()
    if child == 0:
        # The child cannot report an assertion: its exit code says what it saw.
        code = 1
        try:
            files.pwrite(file, 0, b"evil")
        except ForkedHandle:
            code = 0
        os.write(release, bytes([code]))
        signal.pause()
        os._exit(9)
    try:
        assert os.read(ready, 1) == b"\0"
        assert files.pread(file, 0, 4) == bytes(4)
        # F79: the child lives, yet the lock is free as soon as its owner releases it.
        files.unlock()
        again = run(TAKE_LOCK, tmp_path)
        assert again.returncode == 0, again.stderr
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(ready)
        os.close(release)
        files.close_all()


def test_foreign_types_in_place_of_files_are_rejected(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("secret")
    store = tmp_path / "store"
    store.mkdir()
    os.mkfifo(store / "fifo")
    (store / "link").symlink_to(outside)
    (store / "away").symlink_to(tmp_path)
    (store / "dangling").symlink_to(tmp_path / "new")
    files = PosixFiles(store)
    for name in ("fifo", "link", "away", "away/outside", "dangling"):
        for ask in (lambda name=name: files.open(name), lambda name=name: files.open(name, True)):
            with pytest.raises(Rejected):
                ask()
    for ask in (lambda: files.create("away/new"), lambda: files.create("dangling"), lambda: files.list("away")):
        with pytest.raises(Rejected):
            ask()
    with pytest.raises(Rejected):
        files.size("fifo")
    assert files.failure.error is None
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["outside", "store"]
    files.close_all()


def test_lock_that_is_a_link_is_rejected_and_its_target_untouched(tmp_path: Path) -> None:
    (tmp_path / "outside").write_text("kept")
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "LOCK").symlink_to(tmp_path / "outside")
    files = PosixFiles(tmp_path / "store")
    with pytest.raises(Rejected):
        files.lock()
    assert (tmp_path / "outside").read_text() == "kept"
    files.close_all()


@pytest.mark.parametrize("how", ["removed", "replaced"])
def test_lock_file_removed_while_held_lets_no_other_process_in_and_is_put_back(tmp_path: Path, how: str) -> None:
    """Story: a clean-up script removed LOCK of an open store. A second process opened the store, and for two seconds
    both acknowledged commits; those of the second were gone.
    """
    files = PosixFiles(tmp_path)
    files.lock()
    (tmp_path / "LOCK").unlink()
    if how == "replaced":
        (tmp_path / "LOCK").touch()
    assert run(TAKE_LOCK, tmp_path).returncode == 1
    assert (tmp_path / "LOCK").exists() == (how == "replaced"), "nothing was made before the lock was refused"
    file = files.create("a")
    files.pwrite(file, 0, b"goes on")
    files.fdatasync(file)
    files.check_place()
    assert int((tmp_path / "LOCK").read_bytes().split()[0]) == os.getpid()
    assert run(TAKE_LOCK, tmp_path).returncode == 1
    files.close_all()
    assert run(TAKE_LOCK, tmp_path).returncode == 0


def without_locks_of_directories(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on NFS, where only a file that is open for writing takes such a lock."""
    real = fcntl.flock

    def flock(descriptor: int, operation: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EBADF, "Bad file descriptor")
        real(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", flock)


def test_lock_that_can_be_removed_is_checked_before_each_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_locks_of_directories(monkeypatch)
    files = PosixFiles(tmp_path)
    files.lock()
    file = files.create("a")
    files.pwrite(file, 0, b"acknowledged")
    files.fdatasync(file)
    files.check_place()
    (tmp_path / "LOCK").unlink()
    files.pwrite(file, 0, b"not any more")
    with pytest.raises(StoreFailed):
        files.fdatasync(file)
    files.close_all()


def test_moved_directory_stays_locked(tmp_path: Path) -> None:
    files = PosixFiles(tmp_path / "store", create=True)
    files.lock()
    (tmp_path / "store").rename(tmp_path / "moved")
    (tmp_path / "moved" / "LOCK").unlink()
    assert run(TAKE_LOCK, tmp_path / "moved").returncode == 1
    files.close_all()


def test_second_open_in_process_is_locked_even_if_lock_was_removed(tmp_path: Path) -> None:
    first = PosixFiles(tmp_path)
    first.lock()
    (tmp_path / "LOCK").unlink()
    second = PosixFiles(tmp_path)
    with pytest.raises(Locked):
        second.lock()
    first.close_all()
    second.lock()
    second.close_all()


def test_lock_replaced_between_open_and_flock_is_taken_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = fcntl.flock
    calls = []

    def replaced(descriptor: int, operation: int) -> None:
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            calls.append(descriptor)
            if len(calls) == 1:
                (tmp_path / "LOCK").rename(tmp_path / "OLD")
        real(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", replaced)
    files = PosixFiles(tmp_path)
    files.lock()
    assert len(calls) == 2
    files.check_place()
    assert run(TAKE_LOCK, tmp_path).returncode == 1
    files.close_all()


def test_file_size_limit_is_storage_full_and_leaves_no_half_file(tmp_path: Path) -> None:
    script = """
import resource, sys
from tidemark.engine.base.errors import StorageFull
from tidemark.engine.files.directory import PosixFiles
files = PosixFiles(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
file = files.create("a")
try:
    files.pwrite(file, 0, bytes(16_384))
except StorageFull:
    print("full", files.size(file))
try:
    files.create("b", 16_384)
except StorageFull:
    print("full", files.exists("b"))
files.pwrite(file, 0, b"goes on")
files.fdatasync(file)
print(files.pread(file, 0, 7), files.failure.error)
"""
    done = run(script, tmp_path)
    assert done.stdout.splitlines() == ["full 10000", "full False", "b'goes on' None"], done.stderr


def test_descriptor_limit_is_too_many_files_and_not_latched(tmp_path: Path) -> None:
    script = """
import resource, sys
from tidemark.engine.base.errors import TooManyFiles
from tidemark.engine.files.directory import PosixFiles
files = PosixFiles(sys.argv[1])
files.make_directory("lcp")
first = files.create("lcp/first")
resource.setrlimit(resource.RLIMIT_NOFILE, (16, 16))
opened = []
try:
    while True:
        opened.append(files.create(f"f{len(opened)}"))
except TooManyFiles as error:
    print(error.retryable)
for use in (files.lock, files.list, lambda: files.open("f0")):
    try:
        use()
    except TooManyFiles:
        print("too many")
files.sync_directory("lcp")
files.close(opened.pop())
files.open("lcp/first")
print(files.failure.error)
"""
    done = run(script, tmp_path)
    assert done.stdout.splitlines() == ["True", "too many", "too many", "too many", "None"], done.stderr


def test_store_opened_in_spawned_process_has_no_descriptor_of_ours(tmp_path: Path) -> None:
    files = PosixFiles(tmp_path)
    files.lock()
    files.create("a")
    done = run("import os\nprint([os.readlink(f'/proc/self/fd/{n}') for n in os.listdir('/proc/self/fd') if n != '3'])")
    assert str(tmp_path) not in done.stdout
    files.close_all()


def test_pin_of_another_process_is_seen_and_ends_with_it(tmp_path: Path) -> None:
    files = PosixFiles(tmp_path)
    files.close(files.create("kept"))
    assert not files.is_pinned("kept")
    script = f"{DIRECTORY}\npin = PosixFiles(sys.argv[1]).pin('kept')"
    with holder(tmp_path, script) as process:
        assert files.is_pinned("kept")
        process.kill()
    assert not files.is_pinned("kept")
    files.unlink("kept")
    with pytest.raises(FileMissing):
        files.is_pinned("kept")
    files.close_all()


def test_pin_waits_for_a_moment_in_which_another_looks_for_pins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Story: a store looked whether its oldest binlog file was pinned, which locks the file for a moment. A reader that
    pinned it in this moment was answered that the file was gone.
    """
    files = PosixFiles(tmp_path)
    files.close(files.create("kept"))
    looking = os.open(tmp_path / "kept", os.O_RDONLY)
    fcntl.flock(looking, fcntl.LOCK_EX)
    asked = threading.Event()
    real = fcntl.flock

    def flock(descriptor: int, how: int) -> None:
        if not how & fcntl.LOCK_NB:
            asked.set()  # before a call that may wait
        try:
            real(descriptor, how)
        finally:
            asked.set()

    monkeypatch.setattr(fcntl, "flock", flock)
    with ThreadPoolExecutor(1) as pool:
        pinned = pool.submit(files.pin, "kept")
        assert asked.wait(60)
        os.close(looking)
        pin = pinned.result()
    assert pin is not None and files.is_pinned("kept")
    pin.release()
    assert not files.is_pinned("kept")
    files.close_all()


def test_pin_that_a_forked_child_inherits_closes_nothing_of_the_child(tmp_path: Path) -> None:
    """Story: a child was forked while its parent pinned a file. The child's copy of the pin was closed, its number was
    given to a pin of the child, and the release of the parent's pin, in the child, released that one.
    """
    files = PosixFiles(tmp_path)
    for name in ("one", "two"):
        files.close(files.create(name))
    inherited = files.pin("one")
    assert inherited is not None

    def child() -> list[bool]:
        own_files = PosixFiles(tmp_path)
        own = own_files.pin("two")
        inherited.release()
        inherited.release()
        return [own is not None and own_files.is_pinned("two"), own_files.is_pinned("one")]

    assert in_child(child) == [True, True]
    assert files.is_pinned("one")
    inherited.release()
    files.close_all()


def test_pin_ends_though_a_child_was_forked_in_the_middle_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Story: a child was forked after the flock and before the pin was known, so it kept its copy of the descriptor,
    and the file stayed pinned as long as the child lived.
    """
    files = PosixFiles(tmp_path)
    files.close(files.create("kept"))
    real, children = fcntl.flock, []

    def flock(descriptor: int, how: int) -> None:
        real(descriptor, how)
        if how & fcntl.LOCK_SH and not children:
            child = os.fork()
            if child == 0:
                signal.pause()
                os._exit(9)
            children.append(child)

    monkeypatch.setattr(fcntl, "flock", flock)
    pin = files.pin("kept")
    try:
        assert pin is not None and files.is_pinned("kept")
        pin.release()
        assert not files.is_pinned("kept")
    finally:
        os.kill(children[0], signal.SIGKILL)
        os.waitpid(children[0], 0)
        files.close_all()
