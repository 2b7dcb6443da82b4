"""Power losses at every point of a program whose indexes come and go: index and table agree, or the harness says so."""

from __future__ import annotations

import pytest

from recovery.crash_harness import index_history
from recovery.crash_harness.anomaly_loop import anomaly_loop
from recovery.crash_harness.crash_states import crash_states, many_crash_states
from recovery.crash_harness.program import Work


@pytest.mark.parametrize("work", [index_history.work, index_history.disk_work], ids=["memory", "disk"])
def test_crash_states_of_a_program_with_indexes_hold_table_and_indexes(work: Work) -> None:
    report = crash_states(work, index_history.verify, seed=1, per_point=1, share=0.2)
    assert report.distinct > 20


@pytest.mark.soak
@pytest.mark.parametrize("anomaly", ["write-error", "sync-error", "disk-full", "short-write", "interrupt", "power-off"])
def test_anomaly_at_every_call_over_indexes_has_a_right_outcome(anomaly: str) -> None:
    report = anomaly_loop(index_history.work, index_history.verify, anomaly, 11, 1)
    print(report)
    assert report.points > 40


@pytest.mark.soak
@pytest.mark.parametrize("work", [index_history.work, index_history.disk_work], ids=["memory", "disk"])
def test_thousands_of_crash_states_of_indexes_show_what_was_promised(work: Work) -> None:
    assert many_crash_states(work, index_history.verify, 2_000, 5_000, print).distinct >= 5_000
