"""Kernels compiled ahead, and what is said while anything compiles."""

from __future__ import annotations

import io
import logging
import sys
from pathlib import Path

import pytest

import tidemark as tm
from tests.cli.support import run
from tests.elsewhere import python
from tidemark.engine.base.clock import ManualClock
from tidemark.engine.jit import kernel
from tidemark.engine.jit.compiling import CLEAR, Compiling
from tidemark.engine.jit.kernel import is_kernels

# The kernels of one module, for there are hundreds; the processes that compile take the same.
FEW = """
import sys
import tidemark as tm
from tidemark.engine.jit import kernel, warm_up
from tidemark.engine.sealed import checksums_kernels
few = "tidemark.engine.jit.kernel as kernel, tidemark.engine.sealed.checksums_kernels; kernel.import_all = int"
warm_up.COMMAND = warm_up.COMMAND.replace(";", f"; import {few};", 1)
warm_up.import_all = int
declared = len(kernel.declared())
first = tm.warmup(2)
print(first == declared, first > 2, tm.warmup(2), kernel.not_kept())
"""


def test_all_kernels_are_compiled_once_and_that_is_said(tmp_path: Path) -> None:
    done = python("-c", FEW, TIDEMARK_CACHE=tmp_path)
    assert done.stdout.split() == ["True", "True", "0", "[]"], done.stderr
    first, *_ = done.stderr.splitlines()
    assert " left, about " in first and "by 2 processes" in first and str(tmp_path) in first


def test_processes_that_start_at_different_places_share_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Story: two nodes that started on one machine compiled the same kernels at the same time."""
    compiled: list[int] = []
    monkeypatch.setattr(
        kernel, "declared", lambda: {str(number): lambda number=number: compiled.append(number) for number in range(5)}
    )
    kernel.compile_declared()
    kernel.compile_declared(0.5)
    assert compiled == [0, 1, 2, 3, 4, 2, 3, 4, 0, 1]


def test_cache_that_cannot_be_written_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "kernels").write_text("no folder")
    done = python("-c", FEW, TIDEMARK_CACHE=tmp_path)
    assert "Rejected: compiled code cannot be kept" in done.stderr and "TIDEMARK_CACHE" in done.stderr


def test_number_of_processes_is_checked() -> None:
    for processes in (0, -1, 1.5, "2"):
        with pytest.raises(tm.SchemaInvalid, match="processes is"):
            tm.warmup(processes)  # type: ignore[arg-type]
    assert run("warmup", "--processes", "0").exit_code == 2


def test_command_says_where_the_code_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tm, "warmup", lambda processes: processes or 1)
    assert run("warmup").stdout.startswith("1 kernel compiled; all are kept in /")
    assert run("warmup", "--processes", "3", "--json").stdout.startswith('{"compiled": 3, "folder": "/')


def test_log_has_a_line_at_once_and_then_one_in_ten_seconds(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    said = Compiling("/cache", clock)
    with caplog.at_level(logging.WARNING, "tidemark.kernels"):
        for left in range(30, 0, -1):
            said.begin(f"kernel {left}", lambda left=left: left)  # type: ignore[misc]
            clock.advance(2.0)
            said.end()
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 6
    assert lines[0] == "compiling kernels: at most 30 left, about 24 s, now kernel 30; the code is kept in /cache"
    assert lines[1] == "compiling kernels: at most 25 left, about 35 s, now kernel 25; the code is kept in /cache"


class Screen(io.StringIO):
    """Standard error of a terminal."""

    def isatty(self) -> bool:
        return True


def test_terminal_has_a_bar_that_is_taken_away(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    said = Compiling("/cache", ManualClock())
    for left in (2, 1):
        said.begin(f"kernel {left}", lambda left=left: left)  # type: ignore[misc]
        said.end()
    shown = screen.getvalue()
    assert "compiling kernels [....................] at most 2 left, about 2 s: kernel 2" in shown
    assert "compiling kernels [##########..........] at most 1 left, about 1 s: kernel 1" in shown
    assert shown.endswith(CLEAR) and not caplog.records


def test_no_kernel_calls_another() -> None:
    """The code that is kept has nothing from which another function could inline it."""
    kernel.import_all()
    for name, (dispatcher, _) in kernel.REGISTRY.items():
        if is_kernels(name.rpartition(".")[0]):
            function = dispatcher.py_func
            named = {id(function.__globals__.get(each)) for each in function.__code__.co_names}
            assert not named & {id(each) for each, _ in kernel.REGISTRY.values()}, name
