"""How long tests take: which are quick enough for every change, and in which order files are run.

`make durations` runs all tests and writes `durations.json` anew: of each file its seconds, of each function that is
slow the seconds of one of its cases. What is not in there is quick. No outcome depends on it.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path
from xml.etree import ElementTree

FILE = Path(__file__).with_name("durations.json")
# `make test-fast` leaves out functions of which a case takes longer.
SLOW_SECONDS = 0.1

Durations = dict[str, dict[str, float]]
WHOLE = ""  # stands for all of a file


def read() -> Durations:
    """By file, as pytest names it, and by function."""
    return json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}


def durations_in(report: str) -> Durations:
    """From the text of a JUnit report."""
    cases: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for case in ElementTree.fromstring(report).iter("testcase"):
        file = case.attrib["classname"].replace(".", "/") + ".py"
        cases[file][case.attrib["name"].partition("[")[0]].append(float(case.attrib["time"]))
    found: Durations = {}
    for file, functions in sorted(cases.items()):
        found[file] = {WHOLE: round(sum(sum(each) for each in functions.values()), 1)}
        for name, seconds in sorted(functions.items()):
            mean = sum(seconds) / len(seconds)
            if mean > SLOW_SECONDS:
                found[file][name] = round(mean, 2)
    return found


def main(report: str) -> None:
    """Write the file from a report."""
    found = durations_in(Path(report).read_text(encoding="utf-8"))
    lines = (f"  {json.dumps(file)}: {json.dumps(functions)}" for file, functions in found.items())
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
