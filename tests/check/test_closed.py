"""`check_store` and `tidemark check`: every file of a closed store; nothing is changed, whatever is found."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import tidemark as tm
from tests.cli.support import document, flip, run
from tests.cli.test_store_commands import contents
from tests.storage import memory_only
from tests.store.support import ACCOUNT
from tidemark.database import check_store

pytestmark = pytest.mark.usefixtures("storage")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "store"
    with tm.open(place, data_memory="16 MiB", redo_log="4 MiB", background=False) as db:
        account = db.create_table("test.account", ACCOUNT, primary_key="id", partition=tm.HashPartition(2))
        for turn in range(3):
            account.write_many([(n, f"turn {turn}", 0.0, "n" * n) for n in range(200)])
            db.checkpoint()
        account.insert((1_000, "behind", 0.0, None))
    yield place


def checked(place: Path) -> dict[str, object]:
    """The report; nothing may have changed."""
    before = contents(place)
    report = check_store(place, data_memory="16 MiB")
    assert contents(place) == before
    return report


def test_sound_store_is_found_sound(store: Path) -> None:
    report = checked(store)
    assert report["problems"] == [] and report["notes"] == []
    assert report["rows"] == 201
    assert report["is_sound"]


def newest(store: Path, pattern: str) -> Path:
    return max((store / "lcp").glob(pattern), key=lambda path: int(path.name.replace("control-", "").split("-")[0]))


def flip_in_the_log(path: Path) -> None:
    """After the older checkpoint kept, far before the end."""
    start = min(int(each["start_lsn"]) for each in document("info", path.parents[1])["local_checkpoints"])
    assert start < path.stat().st_size
    flip(path, start + 200)


def cut(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


# A file, what becomes of it, and what the check says.
HARMS: list[tuple[str, Callable[[Path], object], str]] = [
    ("sysfile.1", lambda path: flip(path, 100), "sysfile.1 is damaged"),
    ("lcp/control-3", lambda path: flip(path, 200), "control-3 is damaged"),
    ("lcp/3-1-0.data", lambda path: flip(path, path.stat().st_size // 2), "3-1-0.data fails its checksum"),
    ("lcp/3-1-1.data", Path.unlink, "3-1-1.data"),
    ("lcp/3-copies.data", lambda path: cut(path, 100), "3-copies.data"),
    ("redo/0000.redo", flip_in_the_log, "is damaged"),
    ("redo/0001.redo", lambda path: cut(path, 5_000), "0001.redo has 5000 of"),
]


@pytest.mark.parametrize(("name", "harm", "expected"), HARMS, ids=[name for name, _, _ in HARMS])
def test_damaged_file_is_found_and_named(store: Path, name: str, harm: Callable[[Path], object], expected: str) -> None:
    harm(store / name)
    report = checked(store)
    assert not report["is_sound"]
    assert any(expected in problem for problem in report["problems"]), (expected, report["problems"])


def test_every_flipped_byte_of_the_newest_checkpoint_is_found(store: Path) -> None:
    paths = [newest(store, "control-*"), newest(store, "*-1-0.data"), newest(store, "*-copies.data")]
    for path in paths:
        size = path.stat().st_size
        for at in range(0, size, max(1, size // 12)):
            flip(path, at)
            assert not check_store(store, data_memory="16 MiB")["is_sound"], (path.name, at)
            flip(path, at)
    assert check_store(store, data_memory="16 MiB")["is_sound"]


def test_damaged_catalog_and_leftovers_are_notes(store: Path) -> None:
    flip(store / "catalog" / "data.mdb", 5_000)
    (store / "lcp" / "9-1-0.data").write_bytes(b"half a block")
    report = checked(store)
    assert report["is_sound"]
    assert any("catalog" in note for note in report["notes"])
    assert any("9-1-0.data" in note for note in report["notes"])


def test_torn_newest_control_file_is_a_note_only_before_two_intact_ones(store: Path) -> None:
    """Story: a power loss tears the control file of a local checkpoint that was not finished, and `check` called the
    store damaged. If two intact ones come before it, nothing has been retired for it; with fewer, the torn one may be
    the one that counts.
    """
    reported = "lcp/control-4 is damaged; another local checkpoint is used, if there is one"
    third = newest(store, "control-*")
    (store / "lcp" / "control-4").write_bytes(third.read_bytes()[:512] + bytes(third.stat().st_size - 512))
    report = checked(store)
    assert report["problems"] == []
    assert f"{reported} (a local checkpoint that was not finished)" in report["notes"]
    flip(third, 200)
    report = checked(store)
    assert reported in report["problems"]  # type: ignore[operator]
    assert reported.replace("control-4", "control-3") in report["problems"]  # type: ignore[operator]


def test_torn_control_file_older_than_a_newer_one_is_a_note_only_before_two_intact_ones(store: Path) -> None:
    """Story: a power loss tore a control file. The next local checkpoint was made, and power was lost again before the
    torn one it replaces was removed. `check` called the store damaged.
    """
    reported = "lcp/control-4 is damaged; another local checkpoint is used, if there is one"
    kept: dict[Path, bytes] = {}
    with tm.open(store, data_memory="16 MiB", background=False) as db:
        for _ in range(2):
            kept |= {path: path.read_bytes() for path in (store / "lcp").iterdir()}
            db.checkpoint()
    for path, content in kept.items():
        path.write_bytes(content)
    torn = store / "lcp" / "control-4"
    torn.write_bytes(torn.read_bytes()[:512] + bytes(torn.stat().st_size - 512))
    report = checked(store)
    assert report["problems"] == []
    assert f"{reported} (a local checkpoint that was not finished)" in report["notes"]  # type: ignore[operator]
    (store / "lcp" / "control-2").unlink()
    assert reported in checked(store)["problems"]  # type: ignore[operator]


@memory_only
def test_rows_that_do_not_fit_are_a_note(store: Path) -> None:
    with tm.open(store, data_memory="32 MiB", background=False) as db:
        for turn in range(30):
            db["test.account"].write_many([(turn * 50 + n, "a", 0.0, "n" * 4_000) for n in range(50)])
            db.checkpoint()
    report = check_store(store, data_memory="4 MiB")
    assert report["is_sound"]
    assert any("rows were not verified" in note for note in report["notes"])


def test_command_prints_text_and_json_and_exits_with_one(store: Path) -> None:
    shown = run("check", store)
    assert shown.exit_code == 0 and shown.output.splitlines()[-1].startswith("sound: ")
    flip(newest(store, "*-1-0.data"), 300)
    shown = run("check", store)
    assert shown.exit_code == 1
    assert shown.output.splitlines()[0].startswith("damaged: lcp/3-1-0.data")
    shown = run("check", store, "--json")
    assert shown.exit_code == 1 and json.loads(shown.output)["is_sound"] is False


def test_command_on_an_open_store_lets_its_owner_check(store: Path) -> None:
    with tm.open(store, data_memory="16 MiB"):
        assert document("check", store)["rows"] == 201
