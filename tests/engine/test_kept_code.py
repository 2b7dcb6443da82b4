"""Compiled code that is kept: which owner's files are trusted, and what other users can do about it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.other_user import STRANGER, as_stranger, needs_root, open_folder
from tidemark.engine.jit import kept_code
from tidemark.engine.jit.kept_code import KEY_BYTES, KEY_NAME, SEAL_BYTES, KeptCode

CODE = b"machine code" * 50


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A place where code is kept."""
    place = tmp_path / "cache" / "kernels"
    KeptCode(str(place)).write("module-1", "kernel", CODE)
    return place


def read(place: Path, leaf: str = "kernel", folder: str = "module-1") -> bytes | None:
    found = KeptCode(str(place)).read(folder, leaf)
    return None if found is None else bytes(found)


def test_code_is_found_again_and_only_this_user_can_read_it(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        place = tmp_path / "cache" / "kernels"
        assert read(place) is None and not place.exists()
        KeptCode(str(place)).write("module-1", "kernel", CODE)
    finally:
        os.umask(before)
    assert read(place) == CODE
    assert read(place, "other") is None and read(place, folder="module-2") is None
    assert sorted(each.name for each in place.rglob("*")) == sorted([KEY_NAME, "module-1", "kernel"])
    for each in (tmp_path / "cache", *(tmp_path / "cache").rglob("*")):
        assert each.stat().st_mode & 0o777 == (0o700 if each.is_dir() else 0o600)
    assert len((place / KEY_NAME).read_bytes()) == KEY_BYTES


def test_place_may_be_relative_and_stays_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    kept = KeptCode("cache")
    monkeypatch.chdir("/")
    kept.write("module-1", "kernel", CODE)
    assert read(tmp_path / "cache") == CODE


@pytest.mark.parametrize("at", [0, SEAL_BYTES - 1, SEAL_BYTES, SEAL_BYTES + 100, -1])
def test_flipped_bit_anywhere_is_found(place: Path, at: int) -> None:
    path = place / "module-1" / "kernel"
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match="does not match its seal"):
        read(place)
    KeptCode(str(place)).write("module-1", "kernel", CODE)
    assert read(place) == CODE


@pytest.mark.parametrize("content", [b"", b"short", bytes(SEAL_BYTES), bytes(SEAL_BYTES) + CODE])
def test_file_without_a_seal_of_the_key_is_not_believed(place: Path, content: bytes) -> None:
    (place / "module-1" / "kernel").write_bytes(content)
    with pytest.raises(ValueError, match="does not match its seal"):
        read(place)


def test_seal_holds_for_its_name_alone(place: Path) -> None:
    """The code of another kernel, or of other sources, is whole too, and would give other results."""
    KeptCode(str(place)).write("module-2", "kernel", b"other" + CODE)
    shutil.copy(place / "module-1" / "kernel", place / "module-1" / "other")
    shutil.copy(place / "module-1" / "kernel", place / "module-2" / "kernel")
    for leaf, folder in (("other", "module-1"), ("kernel", "module-2")):
        with pytest.raises(ValueError, match="does not match its seal"):
            read(place, leaf, folder)


def test_two_processes_that_make_the_key_at_once_have_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, link = tmp_path / "kernels", os.link
    others = [KeptCode(str(place)) for _ in range(2)]

    def late(*names: object, **where: object) -> None:
        if others:
            others.pop().write("module-1", f"of other {len(others)}", CODE)
        link(*names, **where)  # type: ignore[arg-type]

    monkeypatch.setattr(kept_code.os, "link", late)
    first = KeptCode(str(place))
    first.write("module-1", "of first", CODE)
    first.write("module-1", "of first again", CODE)
    for leaf in ("of other 0", "of other 1", "of first", "of first again"):
        assert read(place, leaf) == CODE


def test_processes_that_begin_at_once_share_what_they_keep(tmp_path: Path) -> None:
    place = tmp_path / "cache" / "kernels"
    read_end, write_end = os.pipe()
    children = []
    for number in range(8):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                os.read(read_end, 1)
                KeptCode(str(place)).write("module-1", f"kernel {number}", CODE)
                code = 0
            finally:
                os._exit(code)
        children.append(child)
    os.write(write_end, b"x" * 8)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 8
    os.close(read_end)
    os.close(write_end)
    assert [read(place, f"kernel {number}") for number in range(8)] == [CODE] * 8
    assert not list(place.rglob("*.new"))


def _replace_by_link(key: Path) -> None:
    key.rename(key.with_name("elsewhere"))
    key.symlink_to("elsewhere")


def _replace_by_folder(key: Path) -> None:
    key.unlink()
    key.mkdir()


@pytest.mark.parametrize(
    "harm",
    [
        Path.unlink,
        lambda key: key.write_bytes(b""),
        lambda key: key.write_bytes(key.read_bytes()[:-1]),
        lambda key: key.write_bytes(key.read_bytes() + b"x"),
        lambda key: key.chmod(0o640),
        lambda key: key.chmod(0o602),
        _replace_by_link,
        pytest.param(lambda key: os.chown(key, STRANGER, STRANGER), marks=needs_root),
    ],
    ids=["gone", "empty", "cut", "longer", "group", "others", "link", "given away"],
)
def test_key_that_is_cut_or_may_be_known_is_made_anew_and_no_code_of_it_believed(
    place: Path, harm: Callable[[Path], object]
) -> None:
    before = (place / KEY_NAME).read_bytes()
    harm(place / KEY_NAME)
    assert read(place) is None
    KeptCode(str(place)).write("module-1", "other", CODE)
    assert read(place, "other") == CODE
    with pytest.raises(ValueError, match="does not match its seal"):
        read(place)
    key = place / KEY_NAME
    assert key.read_bytes() != before and key.lstat().st_mode == 0o100600 and key.stat().st_uid == os.geteuid()


def test_key_that_cannot_be_made_anew_keeps_nothing(place: Path) -> None:
    _replace_by_folder(place / KEY_NAME)
    assert read(place) is None
    with pytest.raises(OSError):
        KeptCode(str(place)).write("module-1", "kernel", CODE)
    assert not list(place.rglob("*.new"))


def _link(place: Path) -> None:
    place.rename(place.with_name("elsewhere"))
    place.symlink_to("elsewhere")


@pytest.mark.parametrize(
    "harm",
    [
        lambda place: place.chmod(0o720),
        lambda place: place.chmod(0o702),
        lambda place: (place / "module-1").chmod(0o770),
        lambda place: (place / "module-1").chmod(0o707),
        lambda place: place.parent.chmod(0o777),
        lambda place: place.parent.chmod(0o770),
        _link,
        lambda place: _link(place / "module-1"),
        pytest.param(lambda place: os.chown(place, STRANGER, 0), marks=needs_root),
        pytest.param(lambda place: os.chown(place / "module-1", STRANGER, 0), marks=needs_root),
        pytest.param(lambda place: os.chown(place.parent, STRANGER, 0), marks=needs_root),
    ],
    ids=[
        "group", "others", "group inside", "others inside", "others above", "group above", "link", "link inside",
        "given away", "given away inside", "given away above",
    ],
)  # fmt: skip
def test_place_others_may_write_or_own_is_neither_read_nor_written(place: Path, harm: Callable[[Path], object]) -> None:
    """Story: the folder was used as it was found. Any user that could write it, or had made it first at the place named
    by the variable TIDEMARK_CACHE, had the code in it run by every process of the user.
    """
    harm(place)
    with pytest.raises(OSError):
        read(place)
    with pytest.raises(OSError):
        KeptCode(str(place)).write("module-1", "kernel 2", CODE)
    assert "kernel 2" not in [each.name for each in place.parent.rglob("*")]


def test_place_in_a_directory_all_may_write_but_not_replace_is_used(place: Path) -> None:
    place.parent.chmod(0o1777)
    assert read(place) == CODE
    place.parent.chmod(0o755)
    place.chmod(0o755)
    assert read(place) == CODE


@needs_root
def test_another_user_can_neither_read_the_key_nor_put_code_there() -> None:
    with open_folder() as folder:
        place = folder / "cache" / "kernels"
        KeptCode(str(place)).write("module-1", "kernel", CODE)
        (folder / "cache").chmod(0o755)
        place.chmod(0o755)
        (place / "module-1").chmod(0o755)
        assert as_stranger((place / KEY_NAME).read_bytes) == "PermissionError"
        assert as_stranger((place / "module-1" / "kernel").read_bytes) == "PermissionError"
        assert as_stranger(lambda: (place / "module-1" / "evil").write_bytes(CODE)) == "PermissionError"
        assert as_stranger(lambda: (place / "module-1" / "kernel").unlink()) == "PermissionError"
        assert as_stranger(lambda: KeptCode(str(place)).read("module-1", "kernel")) == "PermissionError"
        assert read(place) == CODE
