"""Deadlocks have one victim each and are found when their last edge is added; waits end with the store (F98, F99)."""

from __future__ import annotations

import random
import threading
from contextlib import suppress
from typing import Any

import pytest

import tidemark as tm
from tests.elsewhere import at_once
from tests.engine.stage import LONG_MS, NAME, Actor, Stage
from tests.store.trouble import promises
from tidemark.engine.base.errors import IoFailed


def finish(stage: Stage, actors: list[Actor], futures: list[Any]) -> list[int]:
    """Let every call end and every survivor commit; return the numbers of the victims."""
    victims = []
    pending = dict(enumerate(futures))
    while pending:
        for number, future in list(pending.items()):
            if future.done():
                del pending[number]
                try:
                    future.result()
                    actors[number].commit()
                except tm.Deadlock:
                    victims.append(number)
    assert set(promises(stage.db).values()) == {0}
    return victims


@pytest.mark.parametrize("size", [2, 3, 4, 8])
@pytest.mark.parametrize("last", ["youngest", "oldest"])
def test_cycle_of_any_size_has_one_victim_the_youngest(stage: Stage, size: int, last: str) -> None:
    actors = stage.actors_in_order(size)
    for number, actor in enumerate(actors):
        actor.change(number, 1)
    # Each waits for the next one; the last edge closes the cycle.
    order = list(range(size)) if last == "youngest" else list(range(size - 1, -1, -1))
    futures: list[Any] = [None] * size
    for step, number in enumerate(order):
        key = (number + 1) % size
        futures[number] = actors[number].start(lambda txn, key=key: txn.update(NAME, key, {"value": 2}))
        if step < size - 1:
            stage.until_waiting(step + 1)
    assert finish(stage, actors, futures) == [size - 1]
    assert stage.db.parts.store.locks.counters()["deadlocks"] == 1
    assert stage.db.parts.store.locks.counters()["timeouts"] == 0


def test_shared_and_exclusive_locks_in_one_cycle_have_one_victim(stage: Stage) -> None:
    actors = stage.actors_in_order(3)
    actors[0].read(1, "shared")
    actors[1].read(1, "shared")
    actors[2].change(2, 1)
    futures = [actors[0].start(lambda txn: txn.get(NAME, 2, lock="shared"))]
    stage.until_waiting(1)
    futures.append(actors[1].start(lambda txn: txn.get(NAME, 3, lock="shared")))
    futures.append(actors[2].start(lambda txn: txn.update(NAME, 1, {"value": 2})))
    assert finish(stage, actors, futures) == [2]


def test_wait_that_closes_two_cycles_finds_a_victim_in_each(stage: Stage) -> None:
    """Story: only the first cycle found was broken. The other stood until another transaction happened to wake one of
    its members, or to its timeout. Here 2 waits for 0 and 1, which share a row; 0 waits for 3 and 1 for 4, and both of
    these wait for 2.
    """
    actors = stage.actors_in_order(5)
    actors[0].read(0, "shared")
    actors[1].read(0, "shared")
    for number in (2, 3, 4):
        actors[number].change(number, 1)
    edges = [(0, 3), (1, 4), (3, 2), (4, 2), (2, 0)]
    futures: dict[int, Any] = {}
    for step, (number, key) in enumerate(edges):
        futures[number] = actors[number].start(lambda txn, key=key: txn.update(NAME, key, {"value": 2}))
        if step < len(edges) - 1:
            stage.until_waiting(step + 1)
    for number in (3, 4):
        with pytest.raises(tm.Deadlock):
            futures[number].result(timeout=LONG_MS / 2_000)
    for number in (0, 1):  # neither has ended when both victims are known
        futures[number].result(timeout=100)
    assert not futures[2].done()
    actors[0].commit()
    actors[1].commit()
    futures[2].result(timeout=100)
    actors[2].commit()
    assert stage.db.parts.store.locks.counters()["timeouts"] == 0


def test_lock_wait_is_cut_by_close(stage: Stage) -> None:
    holder, waiter = stage.actors_in_order(2)
    holder.change(1, 1)
    waiting = waiter.start(lambda txn: txn.update(NAME, 1, {"value": 2}))
    stage.until_waiting(1)
    stage.db.close()
    with pytest.raises((tm.StoreClosed, tm.TransactionEnded)):
        waiting.result(timeout=LONG_MS / 2_000)


def test_lock_wait_is_cut_by_a_failure_of_the_store(stage: Stage) -> None:
    """Story: the store had failed, so the holder of the lock could never end. The waiter slept to its timeout, and the
    error then advised it to try again.
    """
    holder, waiter = stage.actors_in_order(2)
    holder.change(1, 1)
    waiting = waiter.start(lambda txn: txn.update(NAME, 1, {"value": 2}))
    stage.until_waiting(1)
    stage.db.parts.store.failure.latch(IoFailed("the disk is gone; reopen the store"))
    with pytest.raises(tm.IoFailed):
        waiting.result(timeout=LONG_MS / 2_000)


@pytest.mark.parametrize("lock", ["exclusive", "shared"])
def test_random_transfers_of_many_threads_keep_the_sum(stage: Stage, lock: str) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    accounts, threads, rounds = 6, 8, 60
    stage.table.write_many([(key, 100) for key in range(accounts)])
    outcomes = {"committed": 0, "deadlock": 0}
    mutex = threading.Lock()

    def work(number: int) -> None:
        rng = random.Random(seed + number)
        for _ in range(rounds):
            keys = rng.sample(range(accounts), rng.randrange(2, 4))
            try:
                with stage.db.transaction() as txn:
                    values = {key: txn.get(NAME, key, lock=lock).value for key in keys}
                    with txn.savepoint():
                        txn.update(NAME, keys[0], {"value": values[keys[0]] - 3})
                    with suppress(ZeroDivisionError), txn.savepoint():
                        txn.update(NAME, keys[-1], {"value": 10**6})
                        raise ZeroDivisionError
                    txn.update(NAME, keys[1], {"value": values[keys[1]] + 3})
                    if rng.random() < 0.1:
                        raise ZeroDivisionError
                what = "committed"
            except tm.Deadlock:
                what = "deadlock"
            except ZeroDivisionError:
                continue
            with mutex:
                outcomes[what] += 1

    at_once(work, range(threads))
    assert sum(row.value for row in stage.table.scan()) == accounts * 100, f"seed {seed}"
    assert outcomes["committed"] > 0
    assert set(promises(stage.db).values()) == {0}, f"seed {seed}"
