"""Power losses at every point of a program whose indexes come and go: index and table agree, or the harness says so."""

from __future__ import annotations

import pytest

from recovery.crash_harness import index_history
from recovery.crash_harness.crash_states import crash_states


@pytest.mark.parametrize("work", [index_history.work, index_history.disk_work], ids=["memory", "disk"])
def test_crash_states_of_a_program_with_indexes_hold_table_and_indexes(work) -> None:  # type: ignore[no-untyped-def]
    report = crash_states(work, index_history.verify, seed=1, per_point=1)
    assert report.distinct > 20


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(2, 8))
def test_more_crash_states_of_programs_with_indexes(seed: int) -> None:
    for work in (index_history.work, index_history.disk_work):
        assert crash_states(work, index_history.verify, seed, 2).distinct > 40
