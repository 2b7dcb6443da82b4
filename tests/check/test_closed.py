"""`check_store` and `tidemark check`: every file of a closed store; nothing is changed, whatever is found."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

import tidemark as tm
from tests.storage import memory_only
from tests.store.support import ACCOUNT
from tidemark.cli.commands import commands
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


def content_of(place: Path) -> dict[str, bytes]:
    return {str(path.relative_to(place)): path.read_bytes() for path in sorted(place.rglob("*")) if path.is_file()}


def checked(place: Path) -> dict[str, object]:
    """The report; nothing may have changed."""
    before = content_of(place)
    report = check_store(place, data_memory="16 MiB")
    assert content_of(place) == before
    return report


def test_sound_store_is_found_sound(store: Path) -> None:
    report = checked(store)
    assert report["problems"] == [] and report["notes"] == []
    assert report["rows"] == 201
    assert report["is_sound"]


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 0x10
    path.write_bytes(content)


def newest(store: Path, pattern: str) -> Path:
    return max((store / "lcp").glob(pattern), key=lambda path: int(path.name.replace("control-", "").split("-")[0]))


def harm_sysfile(store: Path) -> str:
    flip(store / "sysfile.1", 100)
    return "sysfile.1 is damaged"


def harm_control(store: Path) -> str:
    flip(newest(store, "control-*"), 200)
    return "control-3 is damaged"


def harm_data(store: Path) -> str:
    path = newest(store, "*-1-0.data")
    flip(path, path.stat().st_size // 2)
    return f"{path.name} fails its checksum"


def harm_data_missing(store: Path) -> str:
    path = newest(store, "*-1-1.data")
    path.unlink()
    return path.name


def harm_copies_short(store: Path) -> str:
    path = newest(store, "*-copies.data")
    path.write_bytes(path.read_bytes()[:100])
    return path.name


def harm_log(store: Path) -> str:
    # After the older checkpoint kept, far before the end.
    reports = json.loads(CliRunner().invoke(commands, ["info", str(store), "--json"]).output)
    start = min(int(each["start_lsn"]) for each in reports["local_checkpoints"])
    path = store / "redo" / "0000.redo"
    assert start < path.stat().st_size
    flip(path, start + 200)
    return "is damaged"


def harm_log_short(store: Path) -> str:
    path = store / "redo" / "0001.redo"
    path.write_bytes(path.read_bytes()[:5_000])
    return "0001.redo has 5000 of"


@pytest.mark.parametrize(
    "harm",
    [harm_sysfile, harm_control, harm_data, harm_data_missing, harm_copies_short, harm_log, harm_log_short],
    ids=lambda harm: harm.__name__,
)
def test_damaged_file_is_found_and_named(store: Path, harm: Callable[[Path], str]) -> None:
    expected = harm(store)
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
    run = CliRunner().invoke(commands, ["check", str(store)])
    assert run.exit_code == 0 and run.output.splitlines()[-1].startswith("sound: ")
    flip(newest(store, "*-1-0.data"), 300)
    run = CliRunner().invoke(commands, ["check", str(store)])
    assert run.exit_code == 1
    assert run.output.splitlines()[0].startswith("damaged: lcp/3-1-0.data")
    run = CliRunner().invoke(commands, ["check", str(store), "--json"])
    assert run.exit_code == 1 and json.loads(run.output)["is_sound"] is False


def test_command_on_an_open_store_lets_its_owner_check(store: Path) -> None:
    with tm.open(store, data_memory="16 MiB"):
        run = CliRunner().invoke(commands, ["check", str(store), "--json"])
    assert run.exit_code == 0, run.output
    assert json.loads(run.output)["rows"] == 201


def test_no_store_is_an_error_and_nothing_is_made(tmp_path: Path) -> None:
    with pytest.raises(tm.FileMissing, match="no store"):
        check_store(tmp_path)
    assert list(tmp_path.iterdir()) == []
