"""Power losses at every point of a program whose rows expire."""

from __future__ import annotations

from tests.crash.programs import expiry_history
from tests.shares import share
from tidemark.recovery.crash_harness.crash_states import crash_states


def test_crash_states_of_a_program_whose_rows_expire_show_each_deletion_whole() -> None:
    report = crash_states(expiry_history.work, expiry_history.verify, seed=4, per_point=1, share=share(0.2))
    assert report.points > 50
    assert report.distinct > 6
