"""The n-th call of the disk goes wrong, for every n."""

from __future__ import annotations

import pytest

from recovery.crash_harness import history
from recovery.crash_harness.anomaly_loop import ANOMALIES, anomaly_loop
from recovery.crash_harness.program import whole_state

# The loops over directories are short: so many calls there are.
POINTS_MIN = {"lcp-directory-sync-error": 10}


@pytest.mark.parametrize("name", ANOMALIES)
def test_anomaly_at_every_seventh_call_has_a_right_outcome(name: str) -> None:
    report = anomaly_loop(history.short_work, whole_state, name, seed=11, step=7)
    assert report.points >= POINTS_MIN.get(name, 50) // 7
    assert report.restarts >= 6 * report.points


@pytest.mark.soak
@pytest.mark.parametrize("name", ANOMALIES)
def test_anomaly_at_every_call_has_a_right_outcome(name: str) -> None:
    report = anomaly_loop(history.short_work, whole_state, name, seed=11)
    print(report)
    assert report.points >= POINTS_MIN.get(name, 50)
