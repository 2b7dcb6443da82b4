"""Crashes of a store whose tables change."""

from __future__ import annotations

import pytest

from recovery.crash_harness import schema_history
from recovery.crash_harness.anomaly_loop import anomaly_loop
from recovery.crash_harness.crash_states import crash_states, many_crash_states
from recovery.crash_harness.program import Work

WORKS = pytest.mark.parametrize("work", [schema_history.work, schema_history.disk_work], ids=["memory", "disk"])


def test_crash_states_of_tables_that_change_show_what_was_promised() -> None:
    report = crash_states(schema_history.work, schema_history.verify, seed=4, per_point=1, share=0.25)
    assert report.points > 200
    assert report.second_restarts > 10


def test_crash_states_of_tables_with_disk_columns_that_change_show_what_was_promised() -> None:
    report = crash_states(schema_history.tiny_disk_work, schema_history.verify, seed=3, per_point=1, share=0.2)
    assert report.points > 150


@pytest.mark.soak
@WORKS
def test_thousands_of_crash_states_of_tables_that_change_show_what_was_promised(work: Work) -> None:
    assert many_crash_states(work, schema_history.verify, 3_000, 5_000, print).distinct >= 5_000


@pytest.mark.soak
@pytest.mark.parametrize("anomaly", ["write-error", "sync-error", "disk-full", "short-write", "interrupt", "power-off"])
def test_anomaly_at_every_call_over_changes_has_a_right_outcome(anomaly: str) -> None:
    assert anomaly_loop(schema_history.short_work, schema_history.verify, anomaly, 11, 1).points > 40
