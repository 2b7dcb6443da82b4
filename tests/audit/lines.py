"""Which lines of the program each case runs: a plugin of pytest, `-p tests.audit.lines`.

It measures the process that runs the cases, all its threads, and Python code: no compiled kernels, and no processes
that a case starts. Its library, coverage, is kept out of the environment of the tests (Makefile): numba would load it
in each process that finds it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

# Files whose lines are noted, relative to the folder the run is in, comma between them; a folder stands for all in it.
SOURCES_VARIABLE = "TIDEMARK_LINES_OF"
OUTPUT_VARIABLE = "TIDEMARK_LINES_TO"
LIBRARY_VARIABLE = "TIDEMARK_COVERAGE"  # the folder that coverage is installed in

Lines = dict[str, dict[str, list[int]]]  # by case, as pytest names it, and by file


class Recorder:
    """One run of pytest under coverage."""

    def __init__(self, sources: list[str], output: Path) -> None:
        sys.path.append(os.environ.get(LIBRARY_VARIABLE, ""))
        import coverage

        include = [str(Path.cwd() / (each if each.endswith(".py") else f"{each}/*")) for each in sources]
        self._output = output
        self._coverage = coverage.Coverage(data_file=None, config_file=False, include=include)
        self._seconds: dict[str, float] = {}
        self._coverage.start()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._coverage.switch_context(item.nodeid)
        try:
            return (yield)
        finally:
            self._coverage.switch_context("")

    def pytest_runtest_logreport(self, report: Any) -> None:
        self._seconds[report.nodeid] = self._seconds.get(report.nodeid, 0.0) + report.duration

    def pytest_sessionfinish(self) -> None:
        self._coverage.stop()
        data = self._coverage.get_data()
        lines: Lines = {each: {} for each in self._seconds}
        for file in data.measured_files():
            name = os.path.relpath(file)
            for line, contexts in data.contexts_by_lineno(file).items():
                for case in contexts:
                    if case in lines:
                        lines[case].setdefault(name, []).append(line)
        self._output.write_text(json.dumps({"lines": lines, "seconds": self._seconds}), encoding="utf-8")


def pytest_configure(config: pytest.Config) -> None:
    output = Path(os.environ[OUTPUT_VARIABLE])
    worker = getattr(config, "workerinput", None)
    if worker is not None:
        output = output.with_suffix(f".{worker['workerid']}")
    elif config.getoption("numprocesses", None):
        return  # the workers record
    config.pluginmanager.register(Recorder(os.environ[SOURCES_VARIABLE].split(","), output))


def read(output: Path) -> tuple[Lines, dict[str, float]]:
    """What was recorded, by each worker if there were several: lines, and seconds of each case."""
    lines: Lines = {}
    seconds: dict[str, float] = {}
    files = [output] if output.exists() else sorted(output.parent.glob(f"{output.stem}.gw*"))
    if not files:
        raise FileNotFoundError(f"nothing was recorded in {output}; see what pytest printed")
    for each in files:
        found = json.loads(each.read_text(encoding="utf-8"))
        lines.update(found["lines"])
        seconds.update(found["seconds"])
    return lines, seconds
