"""The table of kernels that are compiled together, against the programs that it was made of and the quick start."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.elsewhere import ROOT
from tidemark.engine.jit import registry
from tidemark.engine.jit.kernel_sets import SETS
from tools.kernel_sets import PACKAGE, PROGRAMS, met

FIRST, *_ = SETS
AGAIN = """
import tidemark as tm
with tm.open("accounts", data_memory="64 MiB", redo_log="16 MiB") as db:
    assert len(db["account"]) == 2
"""


def unexpected(program: str, folder: Path, sets: list[str]) -> set[str]:
    """The kernels that a program meets and that are in none of these sets."""
    return {name.removeprefix(PACKAGE) for name in met(program, folder)}.difference(*[SETS[what] for what in sets])


def test_quick_start_and_its_second_run_wait_once(tmp_path: Path) -> None:
    """If this fails, `python -m tools.kernel_sets` makes the table anew."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    found = re.search(r"^```python\n(.*?)^```$", readme, re.DOTALL | re.MULTILINE)
    assert found is not None and "tm.open" in found[1]
    assert not unexpected(found[1], tmp_path, [FIRST])
    assert not unexpected(AGAIN, tmp_path, [FIRST])


# What the threads of a channel meet depends on how many epochs come at once.
@pytest.mark.parametrize("what", [each for each in PROGRAMS if each != "replication"])
def test_program_of_a_set_meets_no_kernel_outside_of_it_and_those_before(what: str, tmp_path: Path) -> None:
    """If this fails, `python -m tools.kernel_sets` makes the table anew."""
    names = list(SETS)
    assert names == list(PROGRAMS)
    for part in PROGRAMS[what]:
        assert not unexpected(part, tmp_path, names[: names.index(what) + 1])


def test_kernels_of_the_table_exist_and_are_in_one_set() -> None:
    registry.import_all()
    named = [name for names in SETS.values() for name in names]
    assert len(named) == len(set(named))
    assert {PACKAGE + name for name in named} <= registry.declared().keys()
