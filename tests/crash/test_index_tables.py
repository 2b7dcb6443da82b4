"""Power losses at every point of a program whose indexes come and go: index and table agree, or the harness says so."""

from __future__ import annotations

import pytest

from tests.crash.programs import index_history
from tests.shares import share
from tidemark.recovery.crash_harness.crash_states import crash_states
from tidemark.recovery.crash_harness.program import Work


@pytest.mark.parametrize("work", [index_history.work, index_history.disk_work], ids=["memory", "disk"])
def test_crash_states_of_a_program_with_indexes_hold_table_and_indexes(work: Work) -> None:
    report = crash_states(work, index_history.verify, seed=1, per_point=1, share=share(0.06))
    assert report.distinct > 6
