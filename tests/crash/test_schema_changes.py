"""Crashes of a store whose tables change."""

from __future__ import annotations

from tests.crash.programs import schema_history
from tests.shares import share
from tidemark.recovery.crash_harness.crash_states import crash_states


def test_crash_states_of_tables_that_change_show_what_was_promised() -> None:
    report = crash_states(schema_history.work, schema_history.verify, seed=4, per_point=1, share=share(0.08))
    assert report.points > 200
    assert report.second_restarts > 3


def test_crash_states_of_tables_with_disk_columns_that_change_show_what_was_promised() -> None:
    report = crash_states(schema_history.tiny_disk_work, schema_history.verify, seed=3, per_point=1, share=share(0.08))
    assert report.points > 150
