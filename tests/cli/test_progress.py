"""Bars of long commands: one on a terminal for each, none elsewhere."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

import tidemark as tm
from tests.cli.support import SMALL, make_store, run
from tidemark.cli.commands import commands
from tidemark.cli.output import reported

LINES = {
    "load": "load {0}/store test.account {0}/rows.csv",
    "dump": "dump {0}/store test.account {0}/out.parquet",
    "check": "check {0}/store",
    "backup": "backup {0}/store {0}/place",
    "restore": "restore {0}/place {0}/new",
    "diff": "diff {0}/store {0}/place",
    "scan": "scan {0}/store test.account --checkpoint",
}


class Screen(io.StringIO):
    """Standard error of a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with tm.open(make_store(tmp_path / "store"), **SMALL) as db:
        db.backup(tmp_path / "place")
    (tmp_path / "rows.csv").write_text("id,owner\n77,ann\n")
    return tmp_path


@pytest.mark.parametrize("name", LINES)
def test_bar_is_drawn_on_a_terminal_and_only_there(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = [*LINES[name].format(folder).split(), "--data-memory", "64 MiB"]
    screen = Screen()
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stderr", screen)
        commands.main(line, "tidemark", standalone_mode=False)
    titles = {"load": "rows.csv", "dump": "test.account", "scan": "restart"}
    assert f"\r{titles.get(name, name)}: " in screen.getvalue()
    assert "\r" not in run(*line).stderr


def test_each_unit_has_a_bar_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    with reported("restart") as progress:
        for done in (500, 1_000):
            progress(done, 1_000, "rows")
        progress(1, 2, "indexes")
        progress(2, 2, "indexes")
    shown = screen.getvalue()
    assert "1.00k/1.00k" in shown and " rows/s" in shown and "2.00/2.00" in shown and " indexes/s" in shown
