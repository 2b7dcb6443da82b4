"""Histories of concurrent clients have no anomaly; `python -m tests.blackbox histories` records more of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.blackbox import histories, killed
from tests.blackbox.anomalies import Anomaly
from tests.seeds import fresh_seeds
from tests.shares import few

TRANSACTIONS = few(1_500, 40_000)
KILLED_TRANSACTIONS, KILLS = few(500, 20_000), few(3, 40)


def assert_sound(anomalies: list[Anomaly], recorder: histories.Recorder) -> None:
    print(len(recorder.history), recorder.counts)
    assert not anomalies, f"seed {recorder.seed}: {len(anomalies)}, the first are {anomalies[:3]}"


@pytest.mark.timeout(0)
@pytest.mark.parametrize("seed", [1, *fresh_seeds(1)])
def test_threads_of_one_process_see_no_anomaly(tmp_path: Path, seed: int) -> None:
    anomalies, recorder = histories.in_threads(str(tmp_path), seed, TRANSACTIONS)
    assert_sound(anomalies, recorder)
    assert recorder.counts["committed"] > TRANSACTIONS // 2 and recorder.counts["audits"] > 0


@pytest.mark.timeout(0)
@pytest.mark.parametrize("seed", fresh_seeds(1))
def test_clients_of_a_process_that_is_killed_see_no_anomaly(tmp_path: Path, seed: int) -> None:
    anomalies, recorder = killed.of_server(str(tmp_path), seed, KILLED_TRANSACTIONS, KILLS)
    assert_sound(anomalies, recorder)
    assert recorder.counts["kills"] == KILLS and recorder.counts["watched"] > 0


@pytest.mark.parametrize("seed", [3])
def test_commits_that_are_durable_with_their_epoch_see_no_anomaly(tmp_path: Path, seed: int) -> None:
    assert_sound(*histories.in_threads(str(tmp_path), seed, few(500, 20_000), durability="epoch"))
