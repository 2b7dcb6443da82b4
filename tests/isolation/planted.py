"""`python -m tests.isolation.planted NAME`: plant a defect, run the plays, and compare what sees it.

Exit code 0 and one line if exactly those plays fail that must, 1 if not. No file is touched.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from tests.isolation.defects import DEFECTS, LOCKED, ONE_CALL, Defect
from tests.planting import plant_line


def planted(name: str) -> Defect:
    """Plant a defect in this process, before the program is loaded."""
    defect = next(each for each in DEFECTS if each.name == name)
    plant_line(defect.module, defect.old, defect.new)
    if defect.is_compiled:
        importlib.import_module("tests.audit.interpreted")
    return defect


def seen_by(level: str, with_large_tables: bool) -> set[str]:
    """Run the plays by threads; return the anomalies of those that do not end as they must."""
    from tests.isolation.faces import threads
    from tests.isolation.levels import begun
    from tests.isolation.plays import PLAYS
    from tests.isolation.stage import outcomes
    from tests.isolation.test_one_call import SCANS, change, make_big, undo, values

    found = set()
    with threads(Path()) as face:
        for case in PLAYS:
            ends = [(case.anomaly, case.ways, case.at(level))]
            ends += [
                (case.anomaly + LOCKED, case.locking(lock), end) for lock, end in case.locked.get(level, {}).items()
            ]
            for name, ways, end in ends:
                try:
                    if set(outcomes(face, level, case.play, ways).values()) != {end}:
                        found.add(name)
                except AssertionError:
                    found.add(name)
        if with_large_tables:
            make_big(face)
            before = values(SCANS["scan"](begun(face.db, level)), lambda: None)
            if values(SCANS["scan"](begun(face.db, level)), lambda: face.db.run(change)) != before:
                found.add(ONE_CALL)
            face.db.run(undo)
    return found


def main() -> int:
    """See the module."""
    defect = planted(sys.argv[1])
    found = seen_by(defect.level, not defect.is_compiled)
    print(f"{defect.name}: {'seen' if found == defect.seen_by else 'MISSED'} by {sorted(found)}")
    return 0 if found == defect.seen_by else 1


if __name__ == "__main__":
    sys.exit(main())
