"""`doctor`: what it finds in a store that is sound, damaged, open or failed, and that it changes nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import tidemark as tm
from tests.cli.support import SMALL, held_open, run
from tests.cli.test_store_commands import contents
from tidemark.cli.doctor_command import NETWORK, OK, PROBLEM, examine, file_system, judge
from tidemark.engine.base.clock import ManualClock

LITTLE = ("-o", "data_memory=16 MiB", "-o", "page_buffer=1 MiB", "-o", "redo_log=4 MiB")


def findings(*arguments: object, code: int = 0) -> dict[str, list[dict[str, str]]]:
    """What it finds, by subject."""
    result = run("doctor", *arguments, *LITTLE, "--json")
    assert result.exit_code == code, result.output
    report = json.loads(result.stdout)
    assert report["is_sound"] == (code == 0)
    found: dict[str, list[dict[str, str]]] = {}
    for each in report["findings"]:
        found.setdefault(each["subject"], []).append(each)
        assert (each["state"] == OK) == (not each["advice"]) or each["state"] == "note"
    return found


def test_sound_store_has_no_problem_and_stays_as_it_is(store: Path) -> None:
    before = contents(store)
    found = findings(store)
    assert contents(store) == before
    assert found["files"][0]["state"] == OK and "local checkpoint 1" in found["restart"][0]["says"]
    assert found["lock"][0]["says"] == "no process has the store open"
    assert {"python", "numba", "kernels", "memory", "descriptors", "fdatasync", "disk", "store"} <= set(found)
    assert run("doctor", store, *LITTLE).stdout.splitlines()[-1] == "no problem"


def test_directory_of_a_project_is_no_problem_unless_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`tidemark doctor` in a new user's folder found a problem: the folder has files and no store."""
    monkeypatch.chdir(tmp_path)
    Path("program.py").write_text("pass")
    (finding,) = findings()["store"]
    assert finding["state"] == "note" and finding["advice"] == "tidemark doctor DIR examines one"
    assert findings(".", code=1)["store"][0]["state"] == PROBLEM


def test_open_store_is_asked_through_its_process(store: Path) -> None:
    with held_open(store) as process:
        found = findings(store)
        assert f"process {process.pid} " in found["lock"][0]["says"]
        assert "bytes are used, held by" in found["log"][0]["says"]
    with held_open(store, background=False):
        assert "answers no commands" in findings(store)["process"][0]["says"]


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def spoil(file: Path) -> None:
    file.write_bytes(b"\x55" * file.stat().st_size)


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("sysfile.1", spoil),
        ("sysfile.0", Path.unlink),
        ("lcp/control-1", spoil),
        ("lcp/1-1-0.data", cut),
        ("redo/0001.redo", cut),
        ("redo/0002.redo", Path.unlink),
    ],
)
def test_damaged_file_is_named(name: str, how: Any, store: Path) -> None:
    how(store / name)
    found = findings(store, code=1)
    assert name in found["files"][0]["says"] and "tidemark check" in found["files"][0]["advice"]
    assert run("doctor", store, *LITTLE).stdout.splitlines()[-1] == "1 problem"


def test_store_that_cannot_be_read_is_a_problem_in_its_words(store: Path, tmp_path: Path) -> None:
    for name in ("sysfile.0", "sysfile.1"):
        spoil(store / name)
    assert "SysfileDamaged" in findings(store, code=1)["store"][0]["says"]
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "notes.txt").touch()
    assert "ForeignFile" in findings(mine, code=1)["store"][0]["says"]
    assert "none above it" in findings(tmp_path / "a" / "b", code=1)["directory"][0]["says"]


def test_place_without_a_store_is_judged_for_a_new_one(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "new"):
        found = findings(place)
        assert "tidemark init" in found["store"][0]["advice"] and "redo_log" in found["disk"][-1]["says"]
    assert list(tmp_path.iterdir()) == []
    options = tm.Options(redo_log="32 TiB", data_memory="32 TiB")
    problems = [each for each in examine(tmp_path, options, ManualClock()) if each.state == PROBLEM]
    assert [each.subject for each in problems] == ["memory", "disk"]
    assert run("doctor", tmp_path, "-o", "data_memoty=1 GiB").exit_code == 1


def test_counters_of_an_open_store_are_judged(store: Path) -> None:
    with tm.open(store, **SMALL) as db:
        status = db.status()
    assert [each.state for each in judge(status)] == [OK, OK]
    for change, subject in (
        ({"store": {**status["store"], "state": "failed"}}, "process"),
        ({"log": {**status["log"], "used_bytes": status["log"]["capacity_bytes"]}}, "log"),
        ({"memory": {**status["memory"], "used_bytes": 63 << 20}}, "memory"),
        ({"binlog": {"has_gap": True}}, "binlog"),
        ({"archive": {"is_attached": False, "last_error": "gone"}}, "archive"),
    ):
        problems = [each for each in judge({**status, **change}) if each.state == PROBLEM]
        assert [each.subject for each in problems] == [subject] and problems[0].advice


def test_file_system_is_that_of_the_deepest_mount() -> None:
    mounts = "\n".join(
        (
            "22 1 8:1 / / rw - ext4 /dev/sda1 rw",
            "23 22 0:5 / /data rw shared:1 - nfs4 host:/x rw",
            "24 23 0:6 / /data/my\\040disk rw - xfs /dev/b rw",
        )
    )
    assert file_system(Path("/home/shop"), mounts) == "ext4"
    assert file_system(Path("/data/shop"), mounts) in NETWORK
    assert file_system(Path("/data/my disk/shop"), mounts) == "xfs"
    assert file_system(Path("/database"), mounts) == "ext4"
    assert file_system(Path("/x"), "") == ""
