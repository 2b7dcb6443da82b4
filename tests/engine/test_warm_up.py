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
from tidemark.engine.jit import registry
from tidemark.engine.jit.compiling import CLEAR, Compiling
from tidemark.engine.jit.registry import is_kernels

# The kernels of one module, for there are hundreds; the processes that compile take the same.
FEW = """
import sys
import tidemark as tm
from tidemark.engine.jit import registry, warm_up
from tidemark.engine.sealed import checksums_kernels
few = "tidemark.engine.jit.registry as all, tidemark.engine.sealed.checksums_kernels; all.import_all = int"
warm_up.COMMAND = warm_up.COMMAND.replace(";", f"; import {few};", 1)
warm_up.import_all = int
declared = len(registry.declared())
first = tm.warmup(2)
print(first == declared, first > 2, tm.warmup(2), registry.not_kept())
"""


def test_all_kernels_are_compiled_once_and_that_is_said(tmp_path: Path) -> None:
    done = python("-c", FEW, TIDEMARK_CACHE=tmp_path)
    assert done.stdout.split() == ["True", "True", "0", "{}"], done.stderr
    first, last = done.stderr.splitlines()
    assert first.startswith("compiling ") and " by 2 processes, once: about " in first
    assert " ready after " in last and str(tmp_path) in last


def test_processes_that_start_at_different_places_share_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Story: two nodes that started on one machine compiled the same kernels at the same time."""
    compiled: list[int] = []
    monkeypatch.setattr(
        registry,
        "declared",
        lambda: {str(number): lambda number=number: compiled.append(number) for number in range(5)},
    )
    registry.compile_declared()
    registry.compile_declared(0.5)
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


SECONDS = {f"kernel {number}": 2.0 for number in range(30)}


def _compile(said: Compiling, clock: ManualClock, seconds: dict[str, float], slowness: float = 1.0) -> None:
    for name, expected in seconds.items():
        clock.advance(expected * slowness)
        said.compiled(name, expected, expected * slowness)


def test_log_has_a_line_when_a_wait_begins_and_one_when_it_ends(caplog: pytest.LogCaptureFixture) -> None:
    """Story: the first run said "at most 219 left, about 175 s", then 401 s, then 477 s, for all kernels that there
    are, and ended ten seconds later.
    """
    clock = ManualClock()
    said = Compiling("/cache", clock)
    said.slowness = 0.5
    few = dict(list(SECONDS.items())[:20])
    with caplog.at_level(logging.WARNING, "tidemark.kernels"), said.wait("ordinary calls", few):
        _compile(said, clock, few, 0.5)
    assert [record.getMessage() for record in caplog.records] == [
        "compiling 20 kernels for ordinary calls, once: about 20 s of processor time",
        "20 kernels ready after 20.0 s of processor time, kept in /cache; `tidemark warmup` compiles all others ahead",
    ]


def test_wait_of_minutes_says_once_a_minute_how_far_it_is(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    said = Compiling("/cache", clock)
    with caplog.at_level(logging.WARNING, "tidemark.kernels"), said.wait("", SECONDS, " by 2 processes"):
        _compile(said, clock, SECONDS, 2.5)
    assert [record.getMessage() for record in caplog.records] == [
        "compiling 30 kernels by 2 processes, once: about 60 s of processor time",
        "compiling kernels: 12 of 30, about 90 s of processor time left",
        "compiling kernels: 24 of 30, about 30 s of processor time left",
        "30 kernels ready after 150.0 s of processor time, kept in /cache",
    ]


def test_interrupted_wait_says_what_is_kept(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    said = Compiling("/cache", clock)
    with caplog.at_level(logging.WARNING, "tidemark.kernels"), pytest.raises(KeyboardInterrupt):
        with said.wait("ordinary calls", SECONDS):
            _compile(said, clock, {"kernel 0": 2.0})
            raise KeyboardInterrupt
    assert caplog.records[-1].getMessage() == (
        "1 of 30 kernels ready after 2.0 s of processor time, kept in /cache; the next start compiles the rest"
    )
    assert not said.is_waiting


class Screen(io.StringIO):
    """Standard error of a terminal."""

    def isatty(self) -> bool:
        return True


def test_terminal_has_a_bar_that_reaches_its_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Story: the bar stood at 5 % when the program ended."""
    screen, clock = Screen(), ManualClock()
    monkeypatch.setattr(sys, "stderr", screen)
    said = Compiling("/cache", clock)
    two = {"a.long": 3.0, "a.short": 1.0}
    with said.wait("ordinary calls", two):
        _compile(said, clock, two)
    first, *bars, last, after = screen.getvalue().replace("\n", CLEAR).split(CLEAR)
    assert first == "compiling 2 kernels for ordinary calls, once: about 4 s of processor time"
    assert bars == [
        "",
        "[....................] about 4 s left ",
        "[###############.....] about 1 s left long",
        "[####################] ",
    ]
    assert last.startswith("2 kernels ready after 4.0 s of processor time") and after == "" and not caplog.records


def test_no_kernel_calls_another() -> None:
    """The code that is kept has nothing from which another function could inline it."""
    registry.import_all()
    for name, (dispatcher, _) in registry.REGISTRY.items():
        if is_kernels(name.rpartition(".")[0]):
            function = dispatcher.py_func
            named = {id(function.__globals__.get(each)) for each in function.__code__.co_names}
            assert not named & {id(each) for each, _ in registry.REGISTRY.values()}, name
