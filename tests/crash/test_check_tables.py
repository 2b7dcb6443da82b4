"""Power losses at every point of a program whose checks come and go."""

from __future__ import annotations

from tests.crash.programs import check_history
from tests.shares import share
from tidemark.recovery.crash_harness.crash_states import crash_states


def test_crash_states_of_a_program_with_checks_show_no_row_that_breaks_one() -> None:
    report = crash_states(check_history.work, check_history.verify, seed=3, per_point=1, share=share(0.2))
    assert report.points > 50
    assert report.distinct > 6
