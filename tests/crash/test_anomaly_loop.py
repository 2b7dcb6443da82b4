"""The n-th call of the disk goes wrong, for every n."""

from __future__ import annotations

import pytest

from recovery.crash_harness import history
from recovery.crash_harness.anomaly_loop import ANOMALIES, anomaly_loop
from recovery.crash_harness.program import Ledger, OpenStore, Work, whole_state

POINTS_MIN = 50


def work_of_many_checkpoints(open_store: OpenStore, seed: int, ledger: Ledger) -> None:
    history.History(open_store, seed, ledger, lcp_every=2).run(90)


# A local checkpoint syncs its directory but a few times.
WORK: dict[str, Work] = {"lcp-directory-sync-error": work_of_many_checkpoints}


@pytest.mark.parametrize("name", ANOMALIES)
def test_anomaly_at_every_seventh_call_has_a_right_outcome(name: str) -> None:
    report = anomaly_loop(WORK.get(name, history.short_work), whole_state, name, seed=11, step=7)
    assert report.points >= POINTS_MIN // 7
    assert report.restarts >= 6 * report.points


@pytest.mark.soak
@pytest.mark.parametrize("name", ANOMALIES)
def test_anomaly_at_every_call_has_a_right_outcome(name: str) -> None:
    report = anomaly_loop(WORK.get(name, history.short_work), whole_state, name, seed=11)
    print(report)
    assert report.points >= POINTS_MIN
