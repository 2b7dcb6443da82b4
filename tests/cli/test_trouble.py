"""Wrong paths, missing rights and full disks, at every command: one line with what to do, and no traceback."""

from __future__ import annotations

import errno
import io
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest
from click.testing import CliRunner, Result

import tidemark as tm
from tests.cli.support import ROOT, SMALL, make_store, run
from tests.cli.test_help import LEAVES
from tests.other_user import write_secret
from tidemark.cli.commands import commands

# Each command with a store, a place of backups, a new directory, a file of rows, and a secret.
LINES = {
    "arbitrator": "arbitrator {new} --group 1=127.0.0.1:1,arbitrator=127.0.0.1:2 --secret-file {secret} --new-group",
    "archive": "archive {store} {place}",
    "backup make": "backup {store} {place}",
    "backup list": "backup list {place}",
    "backup verify": "backup verify {place}",
    "backup prune": "backup prune {place} --keep 1",
    "backup drill": "backup drill {place} {new}",
    "check": "check {store}",
    "checkpoint": "checkpoint {store}",
    "diff": "diff {store} {place}",
    "doctor": "doctor {store}",
    "dump": "dump {store} test.account {out}.csv",
    "info": "info {store}",
    "init": "init {new} -o redo_log=4MiB",
    "kill": "kill {store} 1",
    "load": "load {store} test.account {rows}",
    "log": "log {store} --redo",
    "node": "node {new} --node 1 --group 1=127.0.0.1:1 --secret-file {secret} --found",
    "partitions": "partitions {store} test.account",
    "replicate": "replicate 127.0.0.1:1 {new} --server-id 2 --secret-file {secret}",
    "report": "report {store} -o {out}.html",
    "restore": "restore {place} {new}",
    "scan": "scan {store} test.account",
    "schema": "schema {store}",
    "secret": "secret {out}",
    "serve": "serve {store} --server-id 1 --secret-file {secret} --listen 127.0.0.1:0",
    "sql": "sql {store} select",
    "status": "status {store}",
    "tables": "tables {store}",
    "top": "top {store} --once",
}
WITHOUT_PATHS = {"backup", "completion", "demo", "warmup"}
READS_ONLY = {
    *("backup list", "backup verify", "info", "log", "top", "doctor"),
    *("partitions", "scan", "schema", "sql", "tables"),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trouble")
    with tm.open(make_store(folder / "store"), **SMALL) as db:
        db.backup(folder / "place")
        for _ in range(2):
            db.backup(folder / "place")
    (folder / "rows.csv").write_text("id,owner\n77,ann\n")
    write_secret(folder / "secret", b"sixteen bytes or more\n")
    return folder


def places(folder: Path, **others: Path) -> dict[str, Path]:
    names = {"store": "store", "place": "place", "new": "new", "rows": "rows.csv", "secret": "secret", "out": "out"}
    return {**{key: folder / name for key, name in names.items()}, **others}


def call(name: str, where: dict[str, Path]) -> Result:
    return CliRunner().invoke(commands, LINES[name].format(**where).split())


def check_said(name: str, result: Result) -> None:
    assert isinstance(result.exception, SystemExit) and result.exit_code in (1, 2), (result.exception, result.output)
    said = [line for line in result.stderr.splitlines() if not re.match(r"note: |20\d\d-.* INFO ", line)]
    if name == "doctor":  # its problems are its output
        assert not said and re.search(r"^problem .*; ", result.stdout, re.MULTILINE)
    else:
        assert len(said) == 1 and said[0].startswith("Error: ") and re.search("; |did you mean", said[0]), said


def test_table_has_every_command() -> None:
    assert LINES.keys() | WITHOUT_PATHS == LEAVES.keys()


@pytest.mark.parametrize("name", LINES)
def test_wrong_path_is_one_line(name: str, made: Path, tmp_path: Path) -> None:
    none = tmp_path / "none"
    check_said(name, call(name, places(none, secret=made / "secret")))
    assert not none.exists()


@pytest.mark.parametrize("name", LINES)
def test_missing_rights_are_one_line(name: str, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system refuses as it refuses another user, also where root runs the tests."""
    real: dict[str, Callable[..., Any]] = {"open": os.open, "mkdir": os.mkdir}
    own = (str(made), str(tmp_path))

    def guarded(function: Callable[..., Any]) -> Callable[..., Any]:
        def refuse(path: Any, *arguments: Any, **keywords: Any) -> Any:
            if str(path).startswith(own) and not str(path).endswith(("secret", "rows.csv")):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
            return function(path, *arguments, **keywords)

        return refuse

    where = places(made, new=tmp_path / "new", out=tmp_path / "out")
    monkeypatch.setattr(os, "open", guarded(real["open"]))
    monkeypatch.setattr(os, "mkdir", guarded(real["mkdir"]))
    monkeypatch.setattr(io, "open", guarded(io.open))
    check_said(name, call(name, where))


@pytest.mark.parametrize("name", sorted(LINES.keys() - READS_ONLY))
def test_full_disk_is_one_line(name: str, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for out in ("out.csv.part", "out.html", "report"):
        (tmp_path / out).symlink_to("/dev/full")

    def full(*_: Any) -> NoReturn:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    where = places(made, new=tmp_path / "new", out=tmp_path / "out")
    monkeypatch.setattr(os, "pwrite", full)
    monkeypatch.setattr(Path, "write_text", full)
    check_said(name, call(name, where))


@pytest.mark.parametrize("line", [["--help"], ["info", "{store}"]])
def test_output_that_goes_to_a_full_disk_is_one_line(line: list[str], made: Path) -> None:
    """Story: `tidemark info shop > /dev/full` ended with a traceback."""
    arguments = [each.format(store=made / "store") for each in line]
    code = "from tidemark.cli import main; main()"
    with open("/dev/full", "w") as target:
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments], cwd=ROOT, stdout=target, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == 1
    assert (
        done.stderr == "Error: No space left on device: standard output; free space there and run the command again\n"
    )


def test_file_in_place_of_a_directory_is_wrong_usage(made: Path) -> None:
    for name in ("check", "init", "load", "serve"):
        file = made / "rows.csv"
        result = call(name, places(made, store=file, new=file))
        check_said(name, result)
    assert run("info", made / "rows.csv").exit_code == 2
