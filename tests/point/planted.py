"""Planted defects: `python -m tests.point.planted NAME` makes the changes of both paths with one, in kernels that run
as plain Python. Exit code 0 and one line on standard output if it was seen, 1 if not; without a NAME, all in turn.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
import warnings

from tests.planting import plant_line
from tests.point.defects import POINT_DEFECTS

SEEDS = 200
MISSED = 1


def look(name: str) -> int:
    """Plant a defect and make random changes until it is seen."""
    defect = next(each for each in POINT_DEFECTS if each.name == name)
    plant_line(defect.module, defect.old, defect.new)
    importlib.import_module("tests.audit.interpreted")  # loads the program
    import tidemark as tm
    from tests.point.support import EVERY
    from tests.point.test_changes import NUMBERS, Computing, Twins

    types = [kind for kind in EVERY if repr(kind).startswith(defect.part)]
    warnings.simplefilter("ignore")
    for seed in range(SEEDS):
        try:
            if seed % 3 == 1:
                Computing(seed, types if defect.part else NUMBERS).run(120)
            else:
                Twins(seed, types).run(120)
        except (AssertionError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError, tm.Error) as error:
            print(f"{name}: seen with seed {seed}: {type(error).__name__} {str(error)[:100]!r}")
            return 0
    print(f"{name}: not seen with {SEEDS} seeds")
    return MISSED


def main() -> int:
    """Run one, or each in a process of its own."""
    if len(sys.argv) > 1:
        return look(sys.argv[1])
    command = [sys.executable, "-m", "tests.point.planted"]
    return max(subprocess.run([*command, each.name], check=False).returncode for each in POINT_DEFECTS)


if __name__ == "__main__":
    sys.exit(main())
