"""What a run of several processes collects."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.durations import collected_from

TESTS = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("count", [1, 2, 4, 7])
def test_each_process_collects_every_file_of_tests(count: int) -> None:
    """Story: folders without `__init__.py` were left out, and 472 tests did not run in `make test` for a day."""
    wanted = sorted(str(each) for each in TESTS.rglob("test_*.py"))
    begun = set()
    for number in range(count):
        given = [Path(each) for each in collected_from(TESTS, number, count)]
        begun.add(given[0])
        found = [file for each in given for file in (each.rglob("test_*.py") if each.is_dir() else [each])]
        assert sorted(map(str, found)) == wanted
    assert len(begun) == count
