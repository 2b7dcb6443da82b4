"""info, tables, status, checkpoint: on closed stores and on stores another process has open."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from pyarrow import fs as arrow_fs

import tidemark as tm
from tests.cli.support import ROOT, SMALL, document, held_open, make_store, refused, run
from tidemark.backup import backups, restore
from tidemark.control_socket import NAME
from tidemark.engine.types.base import counted
from tools.format_document import fingerprint


def contents(directory: Path) -> dict[str, bytes]:
    return {
        str(each.relative_to(directory)): each.read_bytes() for each in sorted(directory.rglob("*")) if each.is_file()
    }


def test_help_lists_every_command_on_one_whole_line() -> None:
    result = run("--help")
    assert result.exit_code == 0
    listed = dict(re.findall(r"^  ([a-z]+)  +(.+)$", result.stdout, re.MULTILINE))
    assert set(listed) >= {"demo", "info", "tables", "scan", "load", "dump", "checkpoint", "log", "status"}
    assert all(text.endswith(".") and not text.endswith("...") for text in listed.values())


def test_init_makes_a_store_with_its_options_once(tmp_path: Path) -> None:
    place = tmp_path / "shop"
    sizes = ("-o", "redo_log=4 MiB", "-o", "data_memory=64 MiB")
    made = document("init", place, *sizes, "-o", "checkpoint_log_share=0.2", "-o", "undo_filter=off")
    assert document("info", place)["store"]["id"] == made["id"]
    assert document("info", place)["options"]["redo_log"] == "4092 KiB"
    before = contents(place)
    assert "has a store already" in refused("init", place)
    assert contents(place) == before
    for wrong, said in (
        ("redo_lag=1 MiB", "did you mean redo_log"),
        ("redo_log=1", "give "),
        ("server_id=0x", "give 0 to"),
    ):
        assert said in refused("init", tmp_path / "none", "-o", wrong)
    assert run("init", tmp_path / "none", "-o", "redo_log").exit_code == 2
    assert not (tmp_path / "none").exists()


def test_info_prints_what_the_files_hold_and_changes_none(store: Path) -> None:
    before = contents(store)
    found = document("info", store)
    assert contents(store) == before
    with tm.open(store, **SMALL) as db:
        assert found["store"]["id"] == db.status()["store"]["uuid"]
        assert found["store"]["incarnation"] == db.status()["store"]["incarnation"] - 1
    assert found["store"]["fingerprint"] == fingerprint()
    assert found["store"]["open_in_process"] is None
    assert found["options"]["redo_log"] == "4092 KiB"
    assert [each["rows"] for each in found["local_checkpoints"]] == [10]
    assert [(each["name"], each["primary_key"]) for each in found["tables"]] == [
        ("test.account", "id"),
        ("mysql.pair", "a, b"),
    ]
    assert sum(found["sizes_bytes"].values()) == sum(map(len, before.values()))


@pytest.mark.parametrize("background", [True, False])
def test_info_of_an_open_store_names_its_process(store: Path, background: bool) -> None:
    with held_open(store, background) as process:
        found = document("info", store)
        assert found["store"]["open_in_process"] == process.pid
        assert found["sizes_bytes"]["other"] == sum(
            (store / name).stat().st_size for name in ("LOCK", "sysfile.0", "sysfile.1", "options.json")
        )


def test_info_for_people_is_aligned(store: Path) -> None:
    lines = run("info", store).stdout.splitlines()
    options = lines[lines.index("redo") + 1 : lines.index("epochs")]
    assert len({re.match(r"  \S+ +", line).end() for line in options}) == 1  # type: ignore[union-attr]
    assert "NULL" in "".join(lines)


def test_tables_without_and_with_those_of_the_system(store: Path) -> None:
    account = {"id": 1, "type": "UserTable", "state": "Online", "logging": "Yes"}
    account |= {"database": "test", "name": "account", "rows": 9}
    assert document("tables", store) == [account]
    both = document("tables", store, "--system")
    assert both[0] == account
    shown = [both[1][name] for name in ("type", "database", "name", "rows")]
    assert shown == ["SystemTable", "mysql", "pair", 1]
    header, line = run("tables", store).stdout.splitlines()
    assert header.split() == list(account)
    assert header.index("database") == line.index("test")


def test_indexes_are_listed_with_their_kinds(store: Path) -> None:
    with tm.open(store, **SMALL) as db:
        db.create_index("test.account", "a", "id")
        db.create_index("test.account", "b", ["id"], unique=True)
        db.create_index("test.account", "c", "id", unique=True, ordered=True)
    (info,) = [each for each in document("info", store)["tables"] if each["name"] == "test.account"]
    assert info["indexes"] == "a (id); b (id) unique; c (id) unique, ordered"
    listed = [(each["type"], each["name"], each["rows"]) for each in document("tables", store)][1:]
    assert listed == [
        ("OrderedIndex", "account/a", 9),
        ("UniqueHashIndex", "account/b", 9),
        ("OrderedIndex", "account/c", 9),
    ]


def test_tables_of_a_store_without_any_is_a_header(tmp_path: Path) -> None:
    tm.open(tmp_path / "empty", **SMALL).close()
    assert document("tables", tmp_path / "empty") == []
    assert run("tables", tmp_path / "empty").stdout.split()[0] == "id"


def test_status_and_checkpoint_of_a_closed_store_open_it(store: Path) -> None:
    (rows, bytes_) = (document("status", store)["tables"]["test.account"][name] for name in ("rows", "memory_bytes"))
    assert rows == 9 and bytes_ > 0
    report = document("checkpoint", store)
    assert (report["lcp_id"], report["rows"]) == (2, 10)
    assert document("status", store)["lcp"]["next_id"] == 3


def test_status_checkpoint_and_tables_of_an_open_store_come_from_its_owner(store: Path) -> None:
    with held_open(store) as process:
        status = document("status", store)
        assert status["store"]["pid"] == process.pid
        assert status["restart"]["lcp_id"] == 1
        # The owner made number 2 after it had opened the store.
        assert document("checkpoint", store)["lcp_id"] == 3
        assert document("status", store)["lcp"]["completed"] == 2
        assert document("tables", store)[0]["rows"] == 9
        assert "lcp_id" in run("checkpoint", store).stdout
    assert not (store / NAME).exists()
    assert document("status", store)["lcp"]["next_id"] == 5


def test_command_of_a_shell_reaches_the_owner(store: Path) -> None:
    script = "from tidemark.cli import main; main()"
    with held_open(store) as process:
        done = subprocess.run(
            [sys.executable, "-c", script, "status", str(store)], cwd=ROOT, capture_output=True, text=True, check=True
        )
    assert re.search(rf"pid +{process.pid}\b", done.stdout)
    assert done.stderr == ""


def test_owner_without_background_is_locked_in_one_line(store: Path) -> None:
    with held_open(store, background=False) as process:
        for command in ("status", "checkpoint"):
            text = refused(command, store)
            assert f"Locked: process {process.pid}" in text and "background=True" in text


def test_tables_without_owners_answer_and_local_checkpoint_come_from_the_log(tmp_path: Path) -> None:
    with tm.open(tmp_path / "young", **SMALL) as db:
        db.create_table("test.account", [tm.Column("id", tm.Int64)], "id")
    with held_open(tmp_path / "young", background=False) as process:
        result = run("tables", tmp_path / "young", "--json")
        assert result.exit_code == 0
        assert f"process {process.pid}" in result.stderr and len(result.stderr.splitlines()) == 1
        assert '"name": "account", "rows": 0' in result.stdout


@pytest.mark.parametrize("files", [[], ["notes.txt"]])
@pytest.mark.parametrize(
    "command", ["backup list", "backup verify", "restore", "diff", "check", "info", "tables", "status", "checkpoint"]
)
def test_directory_without_store_and_backup_says_so(command: str, files: list[str], tmp_path: Path) -> None:
    """Story: `backup list` printed an empty table for a mistyped path, and `backup verify` called it sound."""
    place = tmp_path / "place"
    place.mkdir()
    for name in files:
        (place / name).write_text("mine")
    more = {"restore": [tmp_path / "new"], "diff": [place]}.get(command, [])
    backups_only = dict.fromkeys(("backup list", "backup verify", "restore"), "backup")
    what = {**backups_only, "diff": "store or backup"}.get(command, "store")
    held = "it has notes.txt, but no " if files else "it is empty; check the "
    result = run(*command.split(), place, *more)
    assert result.exit_code in (1, 2)
    assert f"FileMissing: there is no {what} in {place}: {held}" in " ".join(result.stderr.split())
    assert [each.name for each in place.iterdir()] == files


def test_mistyped_path_is_reported_as_one_and_advises_no_restore(tmp_path: Path) -> None:
    """Story: "ENOENT …; restore it from a backup" was the answer to a mistyped path."""
    none, place = tmp_path / "none", (arrow_fs.LocalFileSystem(), str(tmp_path / "none"))
    calls: list[tuple[Callable[[], object], str]] = [
        (lambda: tm.open(none, create=False), f"there is no store in {none}: "),
        (lambda: tm.open(none, read_only=True), f"there is no store in {none}: "),
        (lambda: tm.open(none / "b"), f"{none / 'b'} cannot be made: there is no directory {none}; "),
        (lambda: backups(none), f"there is no backup in {none}: "),
        (lambda: restore(place, tmp_path / "new"), f"there is no backup in LocalFileSystem {none}; "),
        (lambda: restore(none, tmp_path / "new"), f"there is no backup in {none}: "),
        (lambda: restore(f"file://{none}", tmp_path / "new"), f"there is no backup in {none}: "),
    ]
    for call, words in calls:
        with pytest.raises(tm.FileMissing) as reported:
            call()
        text = reported.value.message
        assert words in text and "; check the p" in text and "restore" not in text
    for command in (("backup", "list", none), ("restore", none, tmp_path / "new"), ("backup", "verify", none)):
        assert f"FileMissing: there is no backup in {none}: the directory does not exist" in refused(*command)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("number", "wanted"), [(0, "0 passes"), (1, "1 pass"), (2, "2 passes"), (1_234_567, "1,234,567 passes")]
)
def test_noun_agrees_with_its_number(number: int, wanted: str) -> None:
    assert counted(number, "pass", "passes") == wanted and counted(number, "row").endswith("row" + "s" * (number != 1))


def test_missing_directory_and_missing_argument_are_wrong_usage(tmp_path: Path) -> None:
    assert run("status", tmp_path / "none").exit_code == 2
    assert run("status").exit_code == 2
    assert run("nonsense").exit_code == 2


def test_damaged_sysfile_is_an_error_of_every_command(store: Path) -> None:
    for name in ("sysfile.0", "sysfile.1"):
        (store / name).write_bytes(b"\x55" * 4_096)
    for arguments in (("info", store), ("tables", store), ("log", store, "--redo")):
        assert "SysfileDamaged" in refused(*arguments)


def test_option_too_small_is_refused_in_one_line(store: Path) -> None:
    assert "SchemaInvalid: option data_memory" in refused("tables", store, "--data-memory", "7 MB")


def test_store_made_and_read_in_one_process_is_not_held(tmp_path: Path) -> None:
    make_store(tmp_path / "again")
    assert document("info", tmp_path / "again")["store"]["open_in_process"] is None
