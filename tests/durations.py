"""How long tests take: which are quick enough for every change, and in which order files are run.

`make durations` runs all tests and writes `durations.json` anew: of each file its seconds and how many of them were
computed, by the test or by processes it started; of each function that is slow the seconds of one of its cases. What is
not in there is quick. No outcome depends on it.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

FILE = Path(__file__).with_name("durations.json")
# `make test-fast` leaves out functions of which a case takes longer.
SLOW_SECONDS = 0.1

Durations = dict[str, dict[str, Any]]
WHOLE = ""  # stands for all of a file: seconds, and those computed


def read() -> Durations:
    """By file, as pytest names it, and by function."""
    return json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}


def order(known: Durations) -> dict[str, float]:
    """A place between 0 and 1 for each file, by which they are given to the processes that run tests.

    Files that wait, for servers and other processes, and files that compute are two queues that are used up at one
    pace: else the longest, which wait, would come first together and leave the cores idle. In each the longest come
    first, or one of them would be run alone at the end.
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


class Noting:
    """Writes what each case takes, a line for each: of this process if several run tests."""

    def __init__(self, folder: Path, worker: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = folder / f"{worker}.jsonl"
        self._file.unlink(missing_ok=True)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        before = _now()
        result = yield
        seconds, computed = (after - began for began, after in zip(before, _now(), strict=True))
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps([item.nodeid, seconds, computed]) + "\n")
        return result


def _now() -> tuple[float, float]:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.monotonic(), time.process_time() + children.ru_utime + children.ru_stime


def main(folder: Path) -> None:
    """Write `durations.json` from what was noted."""
    cases: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    computed: dict[str, float] = defaultdict(float)
    for noted in sorted(folder.glob("*.jsonl")):
        for line in noted.read_text(encoding="utf-8").splitlines():
            case, seconds, of_them = json.loads(line)
            file, _, test = case.partition("::")
            cases[file][test.partition("[")[0]].append(seconds)
            computed[file] += of_them
    lines = []
    for file, functions in sorted(cases.items()):
        found: dict[str, Any] = {WHOLE: [round(sum(map(sum, functions.values())), 1), round(computed[file], 1)]}
        for name, each in sorted(functions.items()):
            if sum(each) / len(each) > SLOW_SECONDS:
                found[name] = round(sum(each) / len(each), 2)
        lines.append(f"  {json.dumps(file)}: {json.dumps(found)}")
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
