"""Plant a defect in this process and run the tests that must see it: exit 0 if one fails."""

from __future__ import annotations

import sys

import pytest

from tests.checks.defects import CHECK_DEFECTS
from tests.planting import plant_line


def look(name: str) -> int:
    """Plant one defect; return 0 if its tests see it."""
    defect = next(each for each in CHECK_DEFECTS if each.name == name)
    plant_line(defect.module, defect.old, defect.new)
    path, _, test = defect.part.partition("::")
    name = test.partition("[")[0]
    chosen = [] if "[" not in test else ["-k", f"{name} and {test.partition('[')[2]}"]
    options = ["-q", "-x", "-p", "no:benchmark", "-p", "no:cacheprovider", "-p", "no:randomly", "-p", "no:xdist"]
    return int(pytest.main([*options, *chosen, f"{path}::{name}"]) != pytest.ExitCode.TESTS_FAILED)


if __name__ == "__main__":
    sys.exit(look(sys.argv[1]))
