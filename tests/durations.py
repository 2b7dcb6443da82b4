"""How long tests take and what they need: which are quick enough for every change, the order of files, and which
functions start processes or use sockets.

`make durations` runs all tests and writes `durations.json` anew. It has, for each file, its seconds and how many of
them were computed, by the test or by processes it started; for each slow function, the seconds of one of its cases; the
functions that start processes, and those that use sockets. A test that is not in it is quick and needs neither. No
outcome depends on it.
"""

from __future__ import annotations

import functools
import json
import multiprocessing.process
import resource
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

FILE = Path(__file__).with_name("durations.json")
# `make test-fast` leaves out functions with a case that takes longer.
SLOW_SECONDS = 0.1

Durations = dict[str, dict[str, Any]]
WHOLE = "all"  # of a file: seconds, and those computed
SLOW = "slow"  # of a file: seconds of a case, by function
# What a test may need of the machine, and the audit events of Python that show it. `disk` follows from its fixtures.
NEEDS = {
    "processes": frozenset({"subprocess.Popen", "os.fork", "os.posix_spawn", "os.exec"}),
    "sockets": frozenset({"socket.bind", "socket.connect"}),
}
DISK_FIXTURES = frozenset({"tmp_path", "tmp_path_factory"})


def read() -> Durations:
    """By file, as pytest names it: `WHOLE`, `SLOW` and the names of `NEEDS`."""
    return json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}


def order(known: Durations) -> dict[str, float]:
    """A place between 0 and 1 for each file, by which they are given to the processes that run tests.

    Files that wait, for servers and other processes, and files that compute are two queues, used up at the same pace.
    Otherwise the longest files, which wait, would all come first and leave the cores idle. In each queue the longest
    come first, or one of them would run alone at the end.
    """
    all_seconds = sum(each[WHOLE][0] for each in known.values())
    all_computed = sum(each[WHOLE][1] for each in known.values())
    queues: dict[bool, list[str]] = {True: [], False: []}
    for file, each in known.items():
        seconds, computed = each[WHOLE]
        queues[computed * all_seconds < seconds * all_computed].append(file)
    places: dict[str, float] = {}
    for queue in queues.values():
        total = sum(known[file][WHOLE][0] for file in queue)
        given = 0.0
        for file in sorted(queue, key=lambda each: (-known[each][WHOLE][0], each)):
            places[file] = given / total if total else 1.0
            given += known[file][WHOLE][0]
    return places


def collected_from(root: Path, number: int, count: int) -> list[str]:
    """Everything right below `root` that has tests, in the order in which process `number` of `count` collects it.

    Assertions of a module are written anew by the first process that imports it, so each process begins elsewhere.
    """
    parts = {each.relative_to(root).parts[0] for each in root.rglob("test_*.py")}
    every = [str(root / part) for part in sorted(parts)]
    at = len(every) * number // count
    return every[at:] + every[:at]


def marks(known: dict[str, Any], function: str, fixtures: Iterable[str]) -> Iterator[str]:
    """Names of the marks of a function, by the records of its file."""
    if function in known.get(SLOW, {}):
        yield "slow"
    yield from (need for need in NEEDS if function in known.get(need, ()))
    if not DISK_FIXTURES.isdisjoint(fixtures):
        yield "disk"


class Noting:
    """Writes the duration and the needs of each case, a line for each: those of this process if several run tests."""

    def __init__(self, folder: Path, worker: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = folder / f"{worker}.jsonl"
        self._file.unlink(missing_ok=True)
        self._seen: set[str] = set()
        sys.addaudithook(self._note)
        # A fork server starts the process, so that no event of this one shows it.
        start = multiprocessing.process.BaseProcess.start

        @functools.wraps(start)
        def noted(process: multiprocessing.process.BaseProcess) -> None:
            self._seen.add("processes")
            start(process)

        multiprocessing.process.BaseProcess.start = noted  # type: ignore[method-assign]

    def _note(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in NEEDS["processes"]:
            self._seen.add("processes")
        elif event in NEEDS["sockets"] and isinstance(arguments[1], tuple):  # others are of the fork server
            self._seen.add("sockets")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        before = _now()
        self._seen.clear()
        result = yield
        seconds, computed = (after - began for began, after in zip(before, _now(), strict=True))
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps([item.nodeid, seconds, computed, sorted(self._seen)]) + "\n")
        return result


def _now() -> tuple[float, float]:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.monotonic(), time.process_time() + children.ru_utime + children.ru_stime


def main(folder: Path) -> None:
    """Write `durations.json` from the recorded durations."""
    cases: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    computed: dict[str, float] = defaultdict(float)
    needs: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for noted in sorted(folder.glob("*.jsonl")):
        for line in noted.read_text(encoding="utf-8").splitlines():
            case, seconds, of_them, needed = json.loads(line)
            file, _, test = case.partition("::")
            function = test.partition("[")[0]
            cases[file][function].append(seconds)
            computed[file] += of_them
            for need in needed:
                needs[file][need].add(function)
    lines = []
    for file, functions in sorted(cases.items()):
        found: dict[str, Any] = {WHOLE: [round(sum(map(sum, functions.values())), 1), round(computed[file], 1)]}
        means = {name: sum(each) / len(each) for name, each in sorted(functions.items())}
        if slow := {name: round(mean, 2) for name, mean in means.items() if mean > SLOW_SECONDS}:
            found[SLOW] = slow
        found |= {need: sorted(names) for need, names in sorted(needs[file].items())}
        lines.append(f"  {json.dumps(file)}: {json.dumps(found)}")
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
