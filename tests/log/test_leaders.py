"""Followers of a group: one opening of their gate wakes all of them, also after one of them has stopped waiting."""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest

from tests.seeds import fresh_seeds
from tests.waiting import wait_until
from tidemark.engine.base.errors import StoreFailed
from tidemark.engine.base.failure import Failure
from tidemark.engine.log import leaders as module
from tidemark.engine.log.leaders import Gate, Leaders

PATIENCE_SECONDS = 60


class Stage:
    """Leaders, and threads that wait for groups."""

    def __init__(self) -> None:
        self.failure = Failure()
        self.leaders = Leaders(self.failure, 0)
        self.threads: list[threading.Thread] = []
        self.at_work, self.resume = threading.Event(), threading.Event()
        self.ended: list[Any] = []
        self.led: list[int] = []

    def lead(self, sequence: int) -> None:
        """Do the work up to a group."""
        self.led.append(sequence)
        self.at_work.set()
        assert self.resume.wait(60)
        self.leaders.reached = max(self.leaders.reached, sequence)
        self.leaders.wake_followers()

    def start(self, sequence: int) -> None:
        """Let a thread wait for a group."""

        def run() -> None:
            try:
                self.leaders.wait(sequence, self.lead)
                assert self.leaders.reached >= sequence
                self.ended.append(sequence)
            except StoreFailed as error:
                self.ended.append(error)

        self.threads.append(threading.Thread(target=run, daemon=True))
        self.threads[-1].start()

    def followers(self, count: int) -> None:
        """Return once so many threads follow."""
        wait_until(lambda: self.leaders.followers == count)

    def end(self) -> None:
        """Let the work go on, and all threads end."""
        self.resume.set()
        for thread in self.threads:
            thread.join(PATIENCE_SECONDS)
            assert not thread.is_alive()
        assert self.leaders.followers == 0


@pytest.fixture
def no_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its interval, a follower that is not woken waits for ever."""
    monkeypatch.setattr(module, "FOLLOWER_POLL_SECONDS", 3_600)


@pytest.mark.usefixtures("no_polls")
def test_one_opening_wakes_all_followers_of_a_group_and_one_of_the_next() -> None:
    stage = Stage()
    stage.start(1)
    assert stage.at_work.wait(60)
    for sequence in (1, 2, 1, 2, 1, 2, 3):
        stage.start(sequence)
    stage.followers(7)
    opened: list[Gate] = []
    real = Gate.open

    def counted(gate: Gate) -> None:
        if threading.current_thread() is stage.threads[0]:
            opened.append(gate)
        real(gate)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Gate, "open", counted)
        stage.end()
    assert sorted(stage.ended) == [1, 1, 1, 1, 2, 2, 2, 3]
    assert stage.led == [1, 2, 3]
    assert len(opened) == 2, "the leader opens the gate of its group, and that of the next leader"


@pytest.mark.usefixtures("no_polls")
def test_work_that_goes_further_wakes_every_group_it_has_passed() -> None:
    stage = Stage()
    stage.start(9)
    assert stage.at_work.wait(60)
    for sequence in (2, 4, 4, 8, 9):
        stage.start(sequence)
    stage.followers(5)
    stage.end()
    assert stage.led == [9] and len(stage.ended) == 6


@pytest.mark.usefixtures("no_polls")
def test_failure_is_raised_by_every_follower_of_every_group() -> None:
    stage = Stage()

    def fail(sequence: int) -> None:
        stage.at_work.set()
        assert stage.resume.wait(60)
        stage.failure.latch(StoreFailed("a disk that failed"))
        stage.failure.check()

    stage.lead = fail  # type: ignore[method-assign]
    stage.start(1)
    assert stage.at_work.wait(60)
    for sequence in (1, 1, 2, 2, 3):
        stage.start(sequence)
    stage.followers(5)
    stage.end()
    assert [type(each) for each in stage.ended] == [StoreFailed] * 6


def test_threads_of_any_order_all_end() -> None:
    rng = random.Random(fresh_seeds(1)[0])
    stage = Stage()
    stage.resume.set()
    groups = [rng.randrange(1, 40) for _ in range(120)]
    for sequence in groups:
        stage.start(sequence)
    stage.end()
    assert sorted(stage.ended) == sorted(groups)


def test_gate_opened_twice_lets_one_pass() -> None:
    gate = Gate()
    gate.open()
    gate.open()
    assert gate.lock.acquire(blocking=False) and not gate.lock.acquire(blocking=False)
