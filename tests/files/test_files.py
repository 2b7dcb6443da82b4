"""The promises of every disk, on the real one and the one in memory."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.elsewhere import at_once
from tidemark.engine.base.errors import (
    FileMissing,
    InvalidName,
    InvariantBroken,
    ReadOnly,
    Rejected,
    StoreClosed,
    TypeMismatch,
    ValueOutOfRange,
)
from tidemark.engine.files.directory import PosixFiles
from tidemark.engine.files.layer import ZERO_PIECE_BYTES, CheckedFiles, check_name
from tidemark.engine.files.protocol import RawFiles
from tidemark.recovery.crash_harness.disks import MemoryFiles
from tidemark.recovery.crash_harness.disks.wrapper import RawWrapper
from tidemark.recovery.places.storage import ArrowRaw

CALLS = {name for name in vars(RawFiles) if not name.startswith("_")}
ONE_CALL = {"write_and_sync"}
PINS = {"is_pinned"}
NOTHING_THERE = {"check_place", "free_bytes", "identity_of", "close_directories", "mark"}


@pytest.mark.parametrize(
    ("disk", "inherited"),
    [
        (RawWrapper, PINS | ONE_CALL),
        (type(MemoryFiles().raw), PINS | ONE_CALL | NOTHING_THERE),
        (ArrowRaw, PINS | ONE_CALL | NOTHING_THERE | {"link", "lock", "unlock"}),
    ],
)
def test_disk_inherits_these_calls_alone(disk: type[RawFiles], inherited: set[str]) -> None:
    """A call that a wrapper does not forward, or a disk forgets, would do nothing without an error."""
    assert CALLS - vars(disk).keys() == inherited


def test_copy_has_another_identity_and_a_file_keeps_its_own(tmp_path: Path) -> None:
    """Story: a directory was removed and put back from a copy, and the copy got the same numbers in the file system."""
    (tmp_path / "store").mkdir()
    with PosixFiles(str(tmp_path / "store")) as files:
        files.close(files.create("a"))
        found = files.identity_of("a")
        files.rename("a", "b")
        file = files.open("b", True)
        files.pwrite(file, 0, b"xyz")
        files.fdatasync(file)
        (tmp_path / "store/b").chmod(0o600)
        os.utime(tmp_path / "store/b", ns=(1, 1))
        assert files.identity_of("b") == found
        with pytest.raises(FileMissing):
            files.identity_of("a")
    seen = {found}
    for _ in range(3):
        shutil.copytree(tmp_path / "store", tmp_path / "kept")
        shutil.rmtree(tmp_path / "store")
        shutil.move(tmp_path / "kept", tmp_path / "store")
        with PosixFiles(str(tmp_path / "store")) as files:
            again = files.identity_of("b")
        assert again not in seen
        seen.add(again)
    assert MemoryFiles.from_snapshot({"b": b""}).identity_of("b") is None


def test_create_with_size_reads_zeros(files: CheckedFiles) -> None:
    size = 2 * ZERO_PIECE_BYTES + 777
    file = files.create("a", size)
    assert files.size(file) == files.size("a") == size
    assert files.pread(file, 0, size + 10) == bytes(size)


def test_create_taken_name_is_rejected_and_content_kept(files: CheckedFiles) -> None:
    files.pwrite(files.create("a"), 0, b"kept")
    with pytest.raises(Rejected) as refused:
        files.create("a", 100)
    assert type(refused.value) is Rejected
    assert files.failure.error is None
    assert files.pread(files.open("a"), 0, 10) == b"kept"


def test_pread_beyond_end_returns_what_is_there(files: CheckedFiles) -> None:
    file = files.create("a")
    files.pwrite(file, 3, b"xyz")
    assert files.pread(file, 0, 100) == b"\0\0\0xyz"
    assert files.pread(file, 6, 4) == b""
    assert files.pread(file, 5, 1 << 62) == b"z"
    buffer = bytearray(b"........")
    assert files.pread_into(file, 4, buffer) == 2
    assert buffer == b"yz......"


@pytest.mark.parametrize(
    "array",
    [
        np.arange(600, dtype=np.int64),
        np.arange(24, dtype="<u2").reshape(2, 3, 4),
        np.array([(1, 2.5), (3, 4.5)], dtype=[("a", "<i4"), ("b", "<f8")]),
        np.zeros(0, dtype=np.int64),
    ],
    ids=["words", "cube", "structured", "empty"],
)
def test_pwrite_of_arrays_round_trips(files: CheckedFiles, array: np.ndarray) -> None:
    file = files.create("a")
    files.pwrite(file, 8, array)
    back = np.zeros_like(array)
    assert files.pread_into(file, 8, back) == array.nbytes
    assert (back == array).all()


def test_transfer_of_unfit_buffers_is_refused_without_a_trace(files: CheckedFiles) -> None:
    file = files.create("a")
    for buffer in (np.zeros((4, 4))[:, 1], "text", 7, np.zeros(2, dtype="M8[us]")):
        with pytest.raises(TypeMismatch):
            files.pwrite(file, 0, buffer)
    with pytest.raises(TypeMismatch):
        files.pread_into(file, 0, b"read only")
    for refused in (
        lambda: files.pwrite(file, -1, b"x"),
        lambda: files.pread(file, -1, 1),
        lambda: files.pread(file, 0, -1),
    ):
        with pytest.raises(ValueOutOfRange):
            refused()
    assert files.size(file) == 0
    assert files.failure.error is None


def test_write_through_read_only_handle_is_read_only(files: CheckedFiles) -> None:
    files.create("a", 10)
    file = files.open("a")
    for refused in (lambda: files.pwrite(file, 0, b"x"), lambda: files.truncate(file, 0)):
        with pytest.raises(ReadOnly):
            refused()
    assert files.pread(file, 0, 10) == bytes(10)
    assert files.failure.error is None


def test_use_after_close_is_refused_even_if_the_number_lives_again(files: CheckedFiles) -> None:
    old = files.create("a")
    files.close(old)
    files.close(old)
    new = files.create("b", 4)
    for use in (
        lambda: files.pwrite(old, 0, b"x"),
        lambda: files.pread(old, 0, 1),
        lambda: files.fdatasync(old),
        lambda: files.size(old),
    ):
        with pytest.raises(Rejected):
            use()
    assert files.pread(new, 0, 4) == bytes(4)
    assert files.failure.error is None


def test_truncate_cuts_and_lengthens(files: CheckedFiles) -> None:
    file = files.create("a")
    files.pwrite(file, 0, b"abcdef")
    files.truncate(file, 3)
    files.truncate(file, 5)
    assert files.pread(file, 0, 10) == b"abc\0\0"


def test_missing_files_are_answers_not_failures(files: CheckedFiles) -> None:
    for ask in (
        lambda: files.open("none"),
        lambda: files.size("none"),
        lambda: files.unlink("none"),
        lambda: files.rename("none", "other"),
        lambda: files.list("none"),
        lambda: files.sync_directory("none"),
        lambda: files.create("none/a"),
    ):
        with pytest.raises(FileMissing):
            ask()
    assert not files.exists("none")
    assert not files.exists("none/deeper")
    assert files.failure.error is None


def test_directory_operations_list_rename_unlink(files: CheckedFiles) -> None:
    files.make_directory("lcp")
    files.pwrite(files.create("lcp/b"), 0, b"one")
    files.close(files.create("lcp/a"))
    files.rename("lcp/b", "lcp/a")
    files.create("c")
    assert files.list("lcp") == ("a",)
    assert files.list("") == files.list(".") == ("c", "lcp")
    assert files.pread(files.open("lcp/a"), 0, 5) == b"one"
    files.unlink("lcp/a")
    files.sync_directory("lcp")
    files.sync_directory("")
    assert files.list("lcp") == ()
    assert files.exists("lcp")


def test_directory_in_place_of_a_file_is_rejected(files: CheckedFiles) -> None:
    files.make_directory("d")
    files.create("f")
    for ask in (
        lambda: files.open("d"),
        lambda: files.open("d", True),
        lambda: files.size("d"),
        lambda: files.unlink("d"),
        lambda: files.list("f"),
        lambda: files.create("f/g"),
        lambda: files.make_directory("f"),
    ):
        with pytest.raises(Rejected):
            ask()
    assert files.failure.error is None


@pytest.mark.parametrize(
    "name", ["", "/etc/passwd", "../a", "a/../b", "a//b", "a/", ".hidden", "a\0b", "a\n", "é", "x" * 300]
)
def test_names_that_leave_the_directory_are_invalid(files: CheckedFiles, name: str) -> None:
    for ask in (files.create, files.open, files.unlink, files.make_directory, files.exists, files.size):
        with pytest.raises(InvalidName):
            ask(name)
    files.create("ok")
    with pytest.raises(InvalidName):
        files.rename("ok", name)
    assert files.list() == ("ok",)


@given(st.text(alphabet="./ab\\\0", max_size=12))
def test_check_name_accepts_no_way_out(name: str) -> None:
    try:
        check_name(name)
    except InvalidName:
        return
    assert all(part not in ("", ".", "..") for part in name.split("/"))
    assert "\0" not in name and "\\" not in name


def test_close_all_refuses_later_calls_and_is_idempotent(files: CheckedFiles) -> None:
    file = files.create("a")
    files.lock()
    files.close_all()
    files.close_all()
    for use in (lambda: files.pwrite(file, 0, b"x"), lambda: files.open("a"), files.list, files.lock):
        with pytest.raises(StoreClosed):
            use()
    files.close(file)
    files.unlock()


def test_latched_failure_of_others_stops_every_call_but_close(files: CheckedFiles) -> None:
    file = files.create("a", 8)
    first = InvariantBroken("the index lost a row; open the store again", table="t")
    files.failure.latch(first)
    files.failure.latch(InvariantBroken("second"))
    assert files.failure.error is first
    for use in (
        lambda: files.pread(file, 0, 1),
        lambda: files.pread_into(file, 0, bytearray(1)),
        lambda: files.pwrite(file, 0, b"x"),
        lambda: files.fdatasync(file),
        lambda: files.truncate(file, 0),
        lambda: files.sync_directory(""),
        lambda: files.make_directory("d"),
        lambda: files.rename("a", "b"),
        lambda: files.unlink("a"),
        lambda: files.size(file),
        lambda: files.size("a"),
        lambda: files.exists("a"),
        lambda: files.create("b"),
        lambda: files.open("a"),
        files.list,
        files.lock,
        files.check_place,
    ):
        with pytest.raises(InvariantBroken) as again:
            use()
        assert again.value.message == first.message
        assert again.value.table == "t"
        assert again.value is not first
        assert again.value.__cause__ is first
    files.close(file)
    files.unlock()


def test_writes_of_many_threads_all_arrive(files: CheckedFiles) -> None:
    file = files.create("a", 8 * 4096)

    def write(number: int) -> None:
        for _ in range(20):
            files.pwrite(file, number * 4096, bytes([number]) * 4096)

    at_once(write, range(8))
    files.fdatasync(file)
    assert files.pread(file, 0, 8 * 4096) == b"".join(bytes([number]) * 4096 for number in range(8))


@given(st.lists(st.tuples(st.integers(0, 3000), st.binary(max_size=1500)), max_size=12))
def test_memory_content_equals_a_byte_array(writes: list[tuple[int, bytes]]) -> None:
    files = MemoryFiles()
    file = files.create("a")
    model = bytearray()
    for offset, data in writes:
        files.pwrite(file, offset, data)
        if data:
            model.extend(bytes(max(0, offset + len(data) - len(model))))
            model[offset : offset + len(data)] = data
        if offset % 3 == 0:
            files.fdatasync(file)
    assert files.snapshot()["a"] == bytes(model)
    files.fdatasync(file)
    assert files.image(lambda piece: piece.kind == "link").snapshot()["a"] == bytes(model)
