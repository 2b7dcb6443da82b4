"""The nth call of the disk fails, for every n."""

from __future__ import annotations

import pytest

from tests.crash.programs import history
from tests.shares import few
from tidemark.recovery.crash_harness.anomaly_loop import ANOMALIES, anomaly_loop
from tidemark.recovery.crash_harness.program import Work, whole_state

POINTS_MIN = 50


# A local checkpoint syncs its directory but a few times.
WORK: dict[str, Work] = {"lcp-directory-sync-error": history.lcp_work}
# Every so many points; these two have one at each call of the disk.
STEP = few(43, 1)
STEPS = {"interrupt": few(167, 1), "power-off": few(167, 1)}


@pytest.mark.parametrize("name", ANOMALIES)
def test_anomaly_at_some_calls_has_a_right_outcome(name: str) -> None:
    step = STEPS.get(name, STEP)
    report = anomaly_loop(WORK.get(name, history.short_work), whole_state, name, seed=11, step=step)
    assert report.points >= (3 if name in STEPS else POINTS_MIN // STEP)
    assert report.restarts >= 6 * report.points
